"""How a kernel was launched in the traces of a store, and what its launches have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from atrex.judge.tensors import FLOATS
from atrex.model import UNKNOWN
from atrex.operator import Call, shortest_decimal

SAME = ""  # dtype of a tensor that has the workload's
ADDRESS = 1 << 40  # sizes and flags are smaller, addresses and handles are not
FLAGS = {"True": 1, "False": 0}

Axes = dict[str, int | str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """Launches that look alike: a row of the unattributed kernels, decoded.

    Attributes:
        kind: Class of the kernel, or ``"unknown"``.
        call: The CPU operator around it whose inputs are recorded; its name is "" if none is.
        grid, block: Launch geometry as recorded, "" if not.
    """

    kind: str
    call: Call
    grid: str
    block: str
    trace: str
    calls: int
    gpu_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """A tensor among the arguments.

    Attributes:
        path: Index of its argument, and its place in it if that is a list.
        name: Proposed name.
        places: A name for each of its dims.
        axes: The proposed axis of each.
        dtype: `SAME`, or a dtype of its own.
        recorded: Whether the trace tells its dtype.
    """

    path: tuple[int, ...]
    name: str
    places: tuple[str, ...]
    axes: tuple[str, ...]
    dtype: str = SAME
    recorded: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Scalar:
    """An argument that is no tensor.

    Attributes:
        kind: ``"flag"``, ``"integer"``, ``"real"``, ``"name"``, ``"address"``, or ``"none"`` where
            no value is recorded.
    """

    index: int
    name: str
    kind: str

    @property
    def is_axis(self) -> bool:
        """Whether the value is part of a workload."""
        return self.kind not in ("none", "address")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A form with its workload; axes and dtype are unknown where the signature does not fit."""

    form: Form
    axes: Axes
    dtype: str

    @property
    def known(self) -> bool:
        """Whether every axis and the dtype are known."""
        return self.dtype != UNKNOWN and UNKNOWN not in self.axes.values()


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What the forms of one structure have in common.

    Attributes:
        op: The CPU operator that they are launched in.
        tensors: In the order of the arguments.
        lead: The tensor whose dtype is the workload's.
        axes: Proposed axes, those that vary first.
        varying: How many vary.
        forms: How many forms it was read from.
    """

    op: str
    tensors: tuple[Tensor, ...]
    scalars: tuple[Scalar, ...]
    lead: Tensor
    axes: tuple[str, ...]
    varying: int
    forms: int


def read_forms(
    rows: Iterable[Mapping[str, Any]], kernels: Sequence[str], traces: Mapping[str, str]
) -> list[Form]:
    """Decode the rows of the given kernels, most time first.

    Args:
        rows: Rows of `atrex.trace.schema.UNATTRIBUTED`.
        kernels: Their normalised names.
        traces: Trace to its file name.
    """
    wanted = set(kernels)
    forms = [_form(row, traces) for row in rows if row["kernel"] in wanted]
    return sorted(forms, key=lambda form: (-form.gpu_ns, str(form)))


def _form(row: Mapping[str, Any], traces: Mapping[str, str]) -> Form:
    # stores that were filled before these columns existed have null in them
    dims, types, concrete = (_decoded(row[name]) for name in ("dims", "types", "concrete"))
    return Form(
        kind=row["class"],
        call=Call(
            name=row["op"] or "",
            kernels=(row["kernel"],),
            dims=dims,
            types=tuple(str(each) for each in types),
            concrete=tuple(str(each) for each in concrete),
        ),
        grid=row["grid"] or "",
        block=row["block"] or "",
        trace=traces.get(row["trace"], row["trace"]),
        calls=row["calls"],
        gpu_ns=row["gpu_ns"],
    )


def _decoded(text: str | None) -> tuple[Any, ...]:
    value = msgspec.json.decode(text) if text else []
    return _tuples(value) if isinstance(value, list) else ()


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value


def signature(forms: Sequence[Form]) -> Signature | None:
    """Read the arguments of the heaviest structure; None if no inputs are recorded.

    Args:
        forms: Forms of one kernel.
    """
    time: Counter[tuple[str, tuple[object, ...]]] = Counter()
    for form in forms:
        if any(kind != "scalar" for kind, *_ in _structure(form.call)):
            time[form.call.name, _structure(form.call)] += form.gpu_ns
    if not time:
        return None
    op, structure = max(time, key=lambda key: (time[key], str(key)))
    mine = [f for f in forms if f.call.name == op and _structure(f.call) == structure]
    tensors = _tensors(mine)
    scalars = tuple(
        Scalar(index=index, name=f"arg{index}", kind=_kind(_texts(mine, index)))
        for index, (kind, *_) in enumerate(_structure(mine[0].call))
        if kind == "scalar"
    )
    lead = _lead(tensors, mine[0].call)
    tensors = [_with_dtype(tensor, lead, mine) for tensor in tensors]
    names = [axis for tensor in tensors for axis in tensor.axes]
    names += [scalar.name for scalar in scalars if scalar.is_axis]
    values = [_values(tensors, scalars, form.call) for form in mine]
    varying = [n for n in dict.fromkeys(names) if len({each[n] for each in values}) > 1]
    return Signature(
        op=op,
        tensors=tuple(tensors),
        scalars=scalars,
        lead=next(tensor for tensor in tensors if tensor.path == lead.path),
        axes=tuple(dict.fromkeys([*varying, *names])),
        varying=len(varying),
        forms=len(mine),
    )


def rows(forms: Sequence[Form], found: Signature | None, axes: Sequence[str]) -> list[Row]:
    """Return the workload of every form, as the written `match` will read it."""
    unknown: Axes = dict.fromkeys(axes, UNKNOWN)
    return [
        Row(
            form=form,
            axes={axis: values[axis] for axis in axes},
            dtype=_dtype(found.lead, form.call),
        )
        if found is not None and (values := _fitting(found, form.call))
        else Row(form=form, axes=unknown, dtype=UNKNOWN)
        for form in forms
    ]


def _fitting(found: Signature, call: Call) -> Axes:
    """Return the values of the axes; none if the call has another signature."""
    own = tuple((t.path, len(t.places)) for t in found.tensors)
    if call.name != found.op or own != tuple((path, len(d)) for path, d in _shapes(call)):
        return {}
    dtype = _dtype(found.lead, call)
    recorded = [tensor for tensor in found.tensors if tensor.recorded]
    if any(_dtype(tensor, call) != (tensor.dtype or dtype) for tensor in recorded):
        return {}
    return _values(found.tensors, found.scalars, call)


def _structure(call: Call) -> tuple[tuple[object, ...], ...]:
    """Say of each argument whether it is a tensor, a list of them or something else."""
    found: list[tuple[object, ...]] = []
    dims: Any  # nested for a list, else integers
    for index, dims in enumerate(call.dims):
        if isinstance(dims, tuple) and dims and all(isinstance(d, tuple) for d in dims):
            found.append(("list", *(len(each) for each in dims)))
        elif isinstance(dims, tuple) and (dims or call.dtype(index) != UNKNOWN):
            found.append(("tensor", len(dims)))
        else:
            found.append(("scalar",))
    return tuple(found)


def _shapes(call: Call) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield path and dims of every tensor."""
    for index, (kind, *_) in enumerate(_structure(call)):
        dims: Any = call.dims[index]
        if kind == "tensor":
            yield (index,), dims
        elif kind == "list":
            yield from (((index, place), each) for place, each in enumerate(dims))


def _tensors(forms: Sequence[Form]) -> list[Tensor]:
    """Name the dims; those of two tensors that agree in every form become one axis."""
    shapes = [dict(_shapes(form.call)) for form in forms]
    seen: dict[str, tuple[int, ...]] = {}
    tensors: list[Tensor] = []
    for path, dims in shapes[0].items():
        label = "_".join(map(str, path))
        places = tuple(f"dim{label}_{place}" for place in range(len(dims)))
        axes: list[str] = []
        for place, name in enumerate(places):
            values = tuple(shape[path][place] for shape in shapes)
            axis = name
            if set(values) != {1}:  # a broadcast dim equals others by chance
                # never two dims of one tensor: a square matrix is one by chance too
                axis = next((a for a, v in seen.items() if v == values and a not in axes), name)
            seen.setdefault(axis, values)
            axes.append(axis)
        tensors.append(Tensor(path=path, name=f"arg{label}", places=places, axes=tuple(axes)))
    return tensors


def _lead(tensors: Sequence[Tensor], call: Call) -> Tensor:
    """Return the first floating tensor, else the first that has a dtype, else the first."""
    dtypes = {tensor: _dtype(tensor, call) for tensor in tensors}
    floats = [tensor for tensor, dtype in dtypes.items() if dtype in FLOATS]
    known = [tensor for tensor, dtype in dtypes.items() if dtype != UNKNOWN]
    return [*floats, *known, *tensors][0]


def _with_dtype(tensor: Tensor, lead: Tensor, forms: Sequence[Form]) -> Tensor:
    """Relate a dtype to the workload's: the same in every form, else its own."""
    own = [_dtype(tensor, form.call) for form in forms]
    same = own == [_dtype(lead, form.call) for form in forms]
    recorded = own[0] != UNKNOWN
    return replace(tensor, dtype=SAME if same or not recorded else own[0], recorded=recorded)


def _dtype(tensor: Tensor, call: Call) -> str:
    return call.dtype(tensor.path[0]) if len(tensor.path) == 1 else UNKNOWN


def _texts(forms: Sequence[Form], index: int) -> list[str]:
    return [_text(form.call, index) for form in forms]


def _text(call: Call, index: int) -> str:
    return call.concrete[index] if index < len(call.concrete) else ""


def _kind(texts: Sequence[str]) -> str:
    """Say what kind of value the texts of an argument are."""
    told = [text for text in texts if text]
    if not told:
        return "none"
    if all(text in FLAGS for text in told):
        return "flag"
    if all(_is_integer(text) for text in told):
        return "address" if any(abs(int(text)) >= ADDRESS for text in told) else "integer"
    return "real" if all(_is_real(text) for text in told) else "name"


def _is_integer(text: str) -> bool:
    return text.removeprefix("-").isdigit()


def _is_real(text: str) -> bool:
    try:
        shortest_decimal(float(text))
    except (ValueError, OverflowError):  # no number, or none of fp32
        return False
    return True


def _values(tensors: Iterable[Tensor], scalars: Iterable[Scalar], call: Call) -> Axes:
    shapes = dict(_shapes(call))
    values: Axes = {}
    for tensor in tensors:
        values |= dict(zip(tensor.axes, shapes[tensor.path], strict=True))
    return values | {each.name: _value(each, call) for each in scalars if each.is_axis}


def _value(scalar: Scalar, call: Call) -> int | str:
    text = _text(call, scalar.index)
    if scalar.kind == "flag":
        return FLAGS.get(text, UNKNOWN)
    if scalar.kind == "integer":
        return int(text) if _is_integer(text) else UNKNOWN
    return call.scalar(scalar.index) if scalar.kind == "real" else text or UNKNOWN
