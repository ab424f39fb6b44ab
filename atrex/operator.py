"""What an operator folder declares, and what a trace shows of a call.

An operator answers six questions in one place: what, with what, how much, where seen, how exact,
against whom. These types hold callables and tensors, so they are dataclasses and never travel;
nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from atrex.model import UNKNOWN, Cost, Phase, Workload

Tensor = (
    Any  # torch.Tensor in the judge; unannotated in operators/, where shapes stand in docstrings
)
Inputs = dict[str, Any]  # name to tensor, or to a number for an attribute


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorSpec:
    """Shape, dtype name and strides (in elements; None is contiguous) of a tensor."""

    shape: tuple[int, ...]
    dtype: str
    strides: tuple[int, ...] | None = None


class Draw(Protocol):
    """Draws an operator's inputs, reproducibly, on any device.

    Roles, not distributions, are asked for, so that the judge's hidden cases (plain normals,
    heavy tails, scaled rows) can change every input in one place. Names key the hash: two tensors
    of one workload never share a stream. Every method returns a torch tensor of `dtype`.
    """

    def activation(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        row_stride: int | None = None,
        row_decades: float = 0.0,
    ) -> Tensor:
        """N(0,1) with a lognormal(0.5) gain per last-axis channel; rows of unlike magnitude.

        Args:
            name: Name of the input.
            shape: Shape of the tensor.
            dtype: Name of its dtype.
            row_stride: Elements between rows of a two-dimensional view.
            row_decades: Rows are scaled by 10^U(-row_decades, row_decades).
        """

    def weight(self, name: str, shape: tuple[int, ...], dtype: str, *, fan_in: int) -> Tensor:
        """N(0, 1/fan_in)."""

    def gain(self, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        """Norm weights, 1 + 0.2 N(0,1): never ones, so that a dropped weight shows."""

    def bias(self, name: str, shape: tuple[int, ...], dtype: str) -> Tensor:
        """N(0, 0.01)."""

    def normal(
        self, name: str, shape: tuple[int, ...], dtype: str, *, mean: float = 0.0, std: float = 1.0
    ) -> Tensor:
        """N(mean, std^2)."""

    def uniform(
        self, name: str, shape: tuple[int, ...], dtype: str, *, low: float = 0.0, high: float = 1.0
    ) -> Tensor:
        """U(low, high)."""

    def integers(
        self, name: str, shape: tuple[int, ...], *, low: int, high: int, dtype: str = "int32"
    ) -> Tensor:
        """Integers in [low, high)."""

    def scale(self, name: str, shape: tuple[int, ...], *, typical: float, decades: float) -> Tensor:
        """Quantisation scales in fp32: typical x 10^U(-decades, decades)."""

    def lengths(self, spec: int | str, count: int) -> Tensor:
        """Lengths of `count` sequences, int64 [count]; see `atrex.lengths.resolve`.

        They are public: equal for every seed, so that cost and shapes are. Reorder the sequences by
        `permutation`.
        """

    def permutation(self, name: str, count: int) -> Tensor:
        """A secret order of 0 to count - 1, int64 [count]."""

    def routing(
        self,
        name: str,
        tokens: int,
        experts: int,
        top_k: int,
        *,
        local: int | None = None,
        profile: str = "skewed",
    ) -> Tensor:
        """Expert ids without repeats, int32 [tokens, top_k].

        How many tokens an expert gets is public; which expert it is and where the tokens stand is
        secret.

        Args:
            name: Name of the input.
            tokens: Rows.
            experts: Experts of the whole model.
            top_k: Experts of a token.
            local: Experts on this rank, all by default; the ids of others are -1.
            profile: ``"skewed"``: popularity of N(0, 0.25) and Gumbel noise. ``"hot"``: one
                expert is in every token besides.
        """

    def page_table(self, name: str, lens: Tensor, page: int) -> tuple[Tensor, int]:
        """A table int32 [seqs, max_pages] over a shuffled pool, and the pages of that pool.

        The pool holds at least 1.25 times the pages that `lens` need. Padding entries name pages
        that no sequence uses.
        """

    def paged(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        table: Tensor,
        lens: Tensor,
        *,
        std: float = 1.0,
    ) -> Tensor:
        """A cache [pages, page, ...]: N(0, std^2) where `table` and `lens` put a token.

        Pages that no entry names are NaN. The slack behind each length, and pages that padding
        entries name, are huge but finite: an honest kernel may load and mask them.
        """

    def replace(self, tensor: Tensor, index: tuple[Tensor, ...], values: Tensor) -> Tensor:
        """The tensor with `values` at `index`, e.g. keys planted in a cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One operator call as the trace shows it.

    Attributes:
        name: Name of the CPU operator, with run-dependent suffixes stripped; "" if none.
        kernels: Normalised names of the kernels it launched, in launch order.
        dims: `Input Dims` of the operator; () for a scalar, nested for a tensor list.
        types: `Input type`, as written.
        strides: `Input Strides`; empty if not recorded.
        concrete: `Concrete Inputs`, as text.
        grid, block: Launch geometry of the first kernel, in blocks and threads.
        before, after: Operator or class of the next and of the previous call on the stream, ""
            where there is none; told only where no inputs are.
    """

    name: str
    kernels: tuple[str, ...]
    dims: tuple[tuple[int, ...], ...] = ()
    types: tuple[str, ...] = ()
    strides: tuple[tuple[int, ...], ...] = ()
    concrete: tuple[str, ...] = ()
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    before: str = ""
    after: str = ""

    def dtype(self, index: int) -> str:
        """Name the dtype of an input, `UNKNOWN` if the trace does not tell."""
        kind = self.types[index] if index < len(self.types) else ""
        return DTYPE_NAMES.get(kind, UNKNOWN)

    def scalar(self, index: int) -> str:
        """Return a concrete input as an axis name: the shortest decimal of the same fp32 value."""
        text = self.concrete[index] if index < len(self.concrete) else ""
        try:
            return shortest_decimal(float(text))
        except (ValueError, OverflowError):  # no number, or one beyond fp32
            return UNKNOWN

    def row_stride(self, index: int) -> int:
        """Return the elements between rows of an input: its recorded stride, else its width."""
        if index < len(self.strides) and len(self.strides[index]) >= 2:
            return self.strides[index][-2]
        return self.dims[index][-1]


DTYPE_NAMES: Mapping[str, str] = {
    "c10::BFloat16": "bf16",
    "c10::Half": "fp16",
    "float": "fp32",
    "double": "fp64",
    "c10::Float8_e4m3fn": "fp8_e4m3fn",
    "c10::Float8_e4m3fnuz": "fp8_e4m3fnuz",
    "c10::Float8_e5m2": "fp8_e5m2",
    "int": "int32",
    "long int": "int64",
    "long": "int64",
    "short int": "int16",
    "signed char": "int8",
    "unsigned char": "uint8",
    "bool": "bool",
}


def shortest_decimal(value: float) -> str:
    """Write a real attribute as its axis name.

    The shortest decimal that gives the same fp32 value, without a padded exponent: 1e-06 and
    9.999999974752427e-07 both become ``"1e-6"``.
    """
    import struct

    single = struct.pack("<f", value)
    for digits in range(1, 10):
        text = f"{value:.{digits}g}"
        if struct.pack("<f", float(text)) == single:
            break
    mantissa, _, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The engine step that launched a call, as far as its annotation tells.

    Attributes:
        annotation: The innermost step annotation, "" if none.
        phase: Phase of the step.
        tokens: Padded token count.
        query_tokens: Sum of query tokens (sq).
        kv_tokens: Sum of KV tokens (sk).
        sequences: Number of sequences.
        siblings: Distinct calls of the same step whose dims are known, in launch order; lists of
            tensors are left out of their dims.
        model: Sizes of the served model on one rank, by axis name, with the window of the call's
            layer; empty if not told.
    """

    annotation: str = ""
    phase: Phase = "other"
    tokens: int | None = None
    query_tokens: int | None = None
    kv_tokens: int | None = None
    sequences: int | None = None
    siblings: tuple[Call, ...] = ()
    model: Mapping[str, int | str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Implementation:
    """A library baseline: takes the inputs by name and returns its outputs by name.

    In-place tensors come as inputs; it changes and returns them.

    Attributes:
        name: Shown name, e.g. ``"eager"``.
        run: `run(**inputs, **attributes, prepared=None) -> {name: tensor}`.
        compiled: Whether the builder compiles `run` with torch.compile.
        dtypes: dtypes it is offered for; empty means all.
    """

    name: str
    run: Callable[..., dict[str, Tensor]]
    compiled: bool = False
    dtypes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A computation with fixed semantics, and everything atrex needs to know about it.

    Attributes:
        name: Name of the folder.
        axes: Axis names, in the order of shapes/<name>.csv.
        inputs: `inputs(workload, draw)` draws tensors and attributes by name.
        outputs: `outputs(workload)` gives the specification of each output; a tensor that is an
            input too is in place.
        reference: `reference(**inputs)` in fp64, integers in int64, vectorised, never timed; it
            leaves its arguments as they are.
        cost: `cost(workload, inputs)`; `inputs` holds what the data decide (lengths, ids).
        match: `match(call, step)` recognises a traced call, or returns None.
        tolerance: Output name to tolerance class (METHOD.md section 2).
        baselines: Library implementations; the judge takes the fastest correct one.
        static: Inputs that may be prepared ahead (weights).
        canonical: Optional form in which only one right answer remains, where the definition leaves
            orders or choices open: `canonical(inputs, outputs)` maps a candidate's outputs and the
            reference's alike, whatever they hold; `tolerance` then names what it returns.
        scale: Optional condition magnitude s of each output element: `scale(workload, inputs)`
            gives output name to fp64 tensor; no gate asks for more than the precision of s.
        small: A workload of at most 1 s on 2 cores with every edge case, for the contract test.
    """

    name: str
    axes: tuple[str, ...]
    inputs: Callable[[Workload, Draw], Inputs]
    outputs: Callable[[Workload], dict[str, TensorSpec]]
    reference: Callable[..., dict[str, Tensor]]
    cost: Callable[[Workload, Inputs], Cost]
    match: Callable[[Call, Step], Workload | None]
    tolerance: Mapping[str, str]
    baselines: tuple[Implementation, ...]
    small: tuple[Workload, ...]
    static: tuple[str, ...] = ()
    canonical: Callable[[Inputs, dict[str, Tensor]], dict[str, Tensor]] | None = None
    scale: Callable[[Workload, Inputs], dict[str, Tensor]] | None = None
