"""Check what is said of a trace's calls against what its device can do.

The least bytes and FLOPs of a workload over its measured time must not exceed the device's peaks.
If they do, the axes say more work than was done: a window that was not seen, padding that was
skipped, wrong KV lengths. Nothing is changed for it; the rows are named.

A rate below the peak proves nothing. Bytes that fit in the last-level cache prove nothing either,
since the call before may have left them there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, overload

import msgspec
import polars as pl

from atrex import lengths
from atrex.devices import MEMORY, Device, find
from atrex.model import Cost, Workload
from atrex.operator import Operator
from atrex.units import factor, rate, time

TOLERANCE = 1.05  # of the peak: clocks above the nominal one, and timestamps cut at both ends
DRAWN = "@"  # in a length axis: only its sum is known, the rest comes from a profile
ITEM_BYTES = {
    "bf16": 2, "fp16": 2, "fp32": 4, "int8": 1, "fp8_e4m3fn": 1, "fp8_e4m3fnuz": 1, "fp8_e5m2": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspicion:
    """A row of facts that its device cannot have done.

    Attributes:
        axes: As in the facts, JSON text.
        quantity: ``"memory"`` or a pipe.
        achieved: Bytes/s or FLOP/s that the axes and the time amount to.
        peak: What the device can do, bytes/s or FLOP/s.
        drawn: Whether lengths came from a profile, so that these may be wrong and the sizes right.
    """

    operator: str
    axes: str
    dtype: str
    calls: int
    gpu_ns: int
    quantity: str
    achieved: float
    peak: float
    drawn: bool

    @property
    def ratio(self) -> float:
        """Achieved rate over the peak."""
        return self.achieved / self.peak

    def __str__(self) -> str:
        unit = "B/s" if self.quantity == MEMORY else "FLOP/s"
        text = (
            f"{self.operator} {self.axes} {self.dtype}: {rate(self.achieved, unit)} of "
            f"{self.quantity} is {factor(self.ratio)} the device's peak; the axes are suspicious"
        )
        return f"{text} (its lengths are drawn from a profile)" if self.drawn else text


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What checking the facts of a trace gave.

    Attributes:
        gpu: Name of the device as the trace gives it.
        device: What is known of it; None: nothing could be checked.
        suspicions: Rows above a peak, most time first.
        checked_ns: Time of the rows that were compared with a peak.
        cached_ns: Part of it whose bytes fit in the last-level cache, so that only FLOPs count.
        unchecked: Time by operator whose work the axes do not tell, or whose times are modelled.
        unknown_peaks: Time by pipe of which no peak is known.
    """

    gpu: str
    device: Device | None
    suspicions: tuple[Suspicion, ...] = ()
    checked_ns: int = 0
    cached_ns: int = 0
    unchecked: Counter[str] = field(default_factory=Counter)
    unknown_peaks: Counter[str] = field(default_factory=Counter)

    def sentences(self) -> list[str]:
        """Say what is suspicious, and what was not checked."""
        if self.device is None:
            return [f"rates were not checked: no peaks are known of {self.gpu or 'a nameless GPU'}"]
        found = [str(suspicion) for suspicion in self.suspicions]
        for what, names in (("of", self.unchecked), ("on pipe", self.unknown_peaks)):
            if names:
                listed = ", ".join(f"{name} ({time(ns)})" for name, ns in names.most_common())
                found.append(f"rates were not checked {what} {listed}")
        return found


def check(facts: pl.DataFrame, gpu: str, operators: Mapping[str, Operator]) -> Verdict:
    """Compare every row of known axes with the peaks of its device.

    Args:
        facts: `schema.FACTS` of one trace.
        gpu: `TraceSummary.gpu`.
        operators: Operators with a folder, by name.
    """
    rows = facts.filter(pl.col("workload") != "")
    device = find(gpu)
    if device is None:
        return Verdict(gpu=gpu, device=None, unchecked=_times(rows))
    measured = rows.filter(pl.col("time_source") == "measured", pl.col("gpu_ns") > 0)
    unchecked = _times(rows.filter(pl.col("time_source") != "measured"))
    unknown_peaks: Counter[str] = Counter()
    suspicions: list[Suspicion] = []
    checked_ns = cached_ns = 0
    for row in measured.iter_rows(named=True):
        cost = _cost(row, operators)
        if cost is None:
            if row["kind"] == "operator" or row["operator"] in CLASSES:
                unchecked[row["operator"]] += row["gpu_ns"]
            continue
        checked_ns += row["gpu_ns"]
        cached_ns += row["gpu_ns"] if cost.bytes <= device.last_level_cache else 0
        for pipe, flop in cost.flop.items():
            if flop and device.peak(pipe) is None:
                unknown_peaks[pipe] += row["gpu_ns"]
        suspicions += _suspicions(row, cost, device)
    return Verdict(
        gpu=gpu,
        device=device,
        suspicions=tuple(sorted(suspicions, key=lambda each: -each.gpu_ns)),
        checked_ns=checked_ns,
        cached_ns=cached_ns,
        unchecked=unchecked,
        unknown_peaks=unknown_peaks,
    )


def suspicious(facts: pl.DataFrame, gpu: str, operators: Mapping[str, Operator]) -> list[Suspicion]:
    """Return the rows that the device cannot have done; see `check` for what was left out."""
    return list(check(facts, gpu, operators).suspicions)


def _suspicions(row: Mapping[str, Any], cost: Cost, device: Device) -> Iterator[Suspicion]:
    work = {pipe: flop for pipe, flop in cost.flop.items() if flop}
    if cost.bytes > device.last_level_cache:
        work[MEMORY] = cost.bytes
    for quantity, amount in work.items():
        achieved, peak = amount * row["calls"] * 1e9 / row["gpu_ns"], device.peak(quantity)
        if peak is not None and achieved > TOLERANCE * peak:
            yield Suspicion(
                operator=row["operator"],
                axes=row["axes"],
                dtype=row["dtype"],
                calls=row["calls"],
                gpu_ns=row["gpu_ns"],
                quantity=quantity,
                achieved=achieved,
                peak=peak,
                drawn=DRAWN in row["axes"],
            )


def _times(rows: pl.DataFrame) -> Counter[str]:
    times: Counter[str] = Counter()
    for name, kind, gpu_ns in rows.select("operator", "kind", "gpu_ns").iter_rows():
        if kind == "operator" or name in CLASSES:
            times[name] += gpu_ns
    return times


def _cost(row: Mapping[str, Any], operators: Mapping[str, Operator]) -> Cost | None:
    """Return the least work of one call, None if the axes do not tell it."""
    axes: dict[str, int | str] = msgspec.json.decode(row["axes"])
    if row["kind"] == "class":
        form = CLASSES.get(row["operator"])
        return form(axes, row["dtype"]) if form else None
    operator = operators.get(row["operator"])
    if operator is None or set(operator.axes) - axes.keys():
        return None
    ordered = {name: axes[name] for name in operator.axes}  # costs unpack them in this order
    workload = Workload(operator=operator.name, axes=ordered, dtype=row["dtype"])
    try:
        return operator.cost(workload, _inputs(ordered))
    # what the data decide beyond lengths is missing, or a cost does more with them than `Numbers`
    # can; lengths may not fit the number of sequences
    except (KeyError, AttributeError, TypeError, ValueError):
        return None


def _inputs(axes: Mapping[str, Any]) -> dict[str, Numbers]:
    """Return the lengths that the axes give; queries are among the keys of their sequence."""
    inputs: dict[str, Numbers] = {}
    for name in ("q_lens", "kv_lens"):
        if name in axes:
            inputs[name] = Numbers(lengths.resolve(axes[name], axes["seqs"]))
    if "q_lens" in inputs:
        queries = inputs.pop("q_lens")
        inputs["cu_q"] = Numbers(accumulate(queries, initial=0))
        if "kv_lens" in inputs:
            inputs["kv_lens"] = inputs["kv_lens"].maximum(queries)
    return inputs


class Numbers:
    """Integers that answer to what costs ask of a tensor of lengths, so that none is needed."""

    __slots__ = ("_values",)

    def __init__(self, values: Iterable[int]) -> None:
        self._values = tuple(int(value) for value in values)

    def __iter__(self) -> Iterator[int]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> Numbers: ...
    def __getitem__(self, index: int | slice) -> int | Numbers:
        if isinstance(index, slice):
            return Numbers(self._values[index])
        return self._values[index]

    def _with(self, other: int | Numbers, combine: Callable[[int, int], int]) -> Numbers:
        others = (other,) * len(self) if isinstance(other, int) else tuple(other)
        return Numbers(combine(a, b) for a, b in zip(self._values, others, strict=True))

    def __add__(self, other: int | Numbers) -> Numbers:
        return self._with(other, lambda a, b: a + b)

    def __sub__(self, other: int | Numbers) -> Numbers:
        return self._with(other, lambda a, b: a - b)

    def __rsub__(self, other: int) -> Numbers:
        return self._with(other, lambda a, b: b - a)

    def __mul__(self, other: int | Numbers) -> Numbers:
        return self._with(other, lambda a, b: a * b)

    def __floordiv__(self, other: int | Numbers) -> Numbers:
        return self._with(other, lambda a, b: a // b)

    def __gt__(self, other: int | Numbers) -> Numbers:
        return self._with(other, lambda a, b: a > b)

    def __ge__(self, other: int | Numbers) -> Numbers:
        return self._with(other, lambda a, b: a >= b)

    def __lt__(self, other: int | Numbers) -> Numbers:
        return self._with(other, lambda a, b: a < b)

    def __le__(self, other: int | Numbers) -> Numbers:
        return self._with(other, lambda a, b: a <= b)

    __radd__ = __add__
    __rmul__ = __mul__

    def long(self) -> Numbers:
        """Return itself: integers of Python have no width."""
        return self

    def minimum(self, other: Numbers) -> Numbers:
        """Return the smaller of each pair."""
        return self._with(other, min)

    def maximum(self, other: Numbers) -> Numbers:
        """Return the larger of each pair."""
        return self._with(other, max)

    def clamp(self, *, min: int) -> Numbers:
        """Return each, or `min` if that is larger."""
        return Numbers(value if value > min else min for value in self._values)

    def sum(self) -> int:
        """Return the sum."""
        return sum(self._values)


def _product(axes: Mapping[str, Any], dtype: str) -> Cost | None:
    """Cost of out[b] = x[b] @ w[b]; operands may be one for the whole batch, which no dims tell."""
    rows, n_out, k_in, batch = (int(axes[name]) for name in ("rows", "n_out", "k_in", "batch"))
    item = ITEM_BYTES.get(dtype)
    if item is None:
        return None
    return Cost(
        flop={dtype: 2 * rows * n_out * k_in * batch},
        read_bytes=item * (rows * k_in + n_out * k_in),
        write_bytes=item * rows * n_out * batch,
    )


# classes whose axes tell all their work; the others do unlike things under one name
CLASSES: Mapping[str, Callable[[Mapping[str, Any], str], Cost | None]] = {"gemm_dense": _product}
