"""The text of a definition that is to be filled in."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from textwrap import fill, indent

from atrex import reports, units
from atrex.judge.tensors import FLOATS, ITEM_BYTES
from atrex.model import UNKNOWN
from atrex.scaffold.forms import SAME, Form, Row, Scalar, Signature, Tensor

WIDTH = 96  # of wrapped sentences, so that they fit in 100 columns when indented
FORMS_SHOWN = 8  # rows of the table in the definition
TRACES_SHOWN = 3
NAME_SHOWN = 90  # characters of a kernel name in a sentence; the longest seen has 5,160

Small = tuple[tuple[int | str, ...], str]  # values of the axes, and the dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class Interface:
    """What the operator takes and gives, as proposed.

    Attributes:
        axes: Names, those that vary first.
        inputs: Tensors that are read.
        output: The tensor that is written.
        attributes: Numbers that are passed.
        names: Axes that are not passed.
        small: Workloads that are quickly judged.
        about_small: Where they come from.
    """

    axes: tuple[str, ...]
    inputs: tuple[Tensor, ...]
    output: Tensor
    attributes: tuple[Scalar, ...]
    names: tuple[str, ...]
    small: tuple[Small, ...]
    about_small: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A kernel as the traces of a store show it.

    Attributes:
        kernel: A normalised name, or what stands before the template arguments of several.
        whole: Whether it is a whole name.
        found: What its forms have in common; None if no inputs are recorded.
        share: Part of the kernel time of all traces.
    """

    kernel: str
    whole: bool
    rows: tuple[Row, ...]
    found: Signature | None
    share: float

    @property
    def forms(self) -> list[Form]:
        """Its forms, most time first."""
        return [row.form for row in self.rows]


def definition(name: str, interface: Interface, sighting: Sighting | None) -> str:
    """Write `definition.py`: it imports, and `match` works; what is to be decided is marked."""
    head = (_docstring(name, sighting), _imports(sighting), _constants(interface, sighting))
    parts = (
        "\n\n".join(part.strip("\n") for part in head),
        _inputs(interface),
        _outputs(interface, sighting),
        _reference(interface),
        _cost(interface),
        _match(name, sighting),
        _baseline(interface),
        _record(name, interface),
    )
    return "\n\n\n".join(part.strip("\n") for part in parts) + "\n"


def _docstring(name: str, sighting: Sighting | None) -> str:
    what = f"{name}: say here in one sentence what it computes."
    formula = "    out[...] = its formula, in the names of its arguments"
    rest = _seen(sighting) if sighting else ["Name the paper, or the library's signature of it."]
    rest.append("What is open is marked with `Decide`.")
    body = "\n\n".join([what, formula, *rest])
    return f'"""{_quotable(body)}\n"""'


def _seen(sighting: Sighting) -> list[str]:
    """Say where the kernel was seen, and how it was launched."""
    forms = sighting.forms
    gpu_ns, calls = sum(form.gpu_ns for form in forms), sum(form.calls for form in forms)
    text = (
        f"Seen as the kernel {shortened(sighting.kernel)}, {_until_now(sighting)}: {calls:,} "
        f"launches, {units.time(gpu_ns)}, {units.percent(sighting.share)} of the kernel time of "
        f"the store, in {_some([form.trace for form in forms])}. The forms with most time; "
        f"seen.csv has all {len(forms)}:"
    )
    return [_filled(text), _table(forms), _filled(_told(sighting))]


def _until_now(sighting: Sighting) -> str:
    names = {name for form in sighting.forms for name in form.call.kernels}
    instances = "" if sighting.whole else f"{len(names)} instances of a template, "
    classes = [kind for kind in dict.fromkeys(f.kind for f in sighting.forms) if kind != UNKNOWN]
    if classes:
        return f"{instances}in the class {' and '.join(classes)} until now"
    return f"{instances}unknown until now"


def _some(names: Iterable[str]) -> str:
    distinct = list(dict.fromkeys(names))
    more = len(distinct) - TRACES_SHOWN
    return ", ".join(distinct[:TRACES_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _told(sighting: Sighting) -> str:
    """Say what the table leaves out, and which forms were not read."""
    if sighting.found is None:
        return (
            "No inputs are recorded around it, so nothing is known of its arguments: record a "
            "trace with record_shapes=True and without CUDA graphs, or read axes from the launch "
            "geometry in `match`. Axes, inputs and outputs below are those of a plain template."
        )
    text = "Strides are not kept: tensors are taken as contiguous."
    left = [row.form for row in sighting.rows if not row.known]
    if left:
        text += (
            f" The axes of {len(left)} of the forms, {units.time(sum(f.gpu_ns for f in left))}, "
            "stay unknown: their inputs are not all recorded, or are others than `match` reads."
        )
    return text


def _table(forms: Sequence[Form]) -> str:
    cells = [
        [f"{form.calls:,}", units.time(form.gpu_ns), form.grid or units.MISSING,
         form.block or units.MISSING, _arguments(form) or units.MISSING]
        for form in forms[:FORMS_SHOWN]
    ]  # fmt: skip
    table = reports.text_table(("launches", "GPU time", "grid", "block", "arguments"), cells)
    return indent(table, "    ")


def _arguments(form: Form) -> str:
    """Write the recorded inputs of a form: ``mylib::scale(bf16[32, 128], 1e-06)``."""
    call, written = form.call, []
    for index, dims in enumerate(call.dims):
        concrete = call.concrete[index] if index < len(call.concrete) else ""
        kind = call.types[index] if index < len(call.types) else ""
        dtype = call.dtype(index)
        shape = str(_listed(dims)) if dims or dtype != UNKNOWN else ""
        written.append(concrete or f"{kind if dtype == UNKNOWN else dtype}{shape}" or "none")
    return f"{call.name}({', '.join(written)})" if call.name else ""


def _listed(dims: object) -> object:
    return [_listed(each) for each in dims] if isinstance(dims, tuple) else dims


def _imports(sighting: Sighting | None) -> str:
    unknown = "UNKNOWN, " if sighting else ""
    return f"""
from __future__ import annotations

from atrex.model import {unknown}Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec
"""


def _constants(interface: Interface, sighting: Sighting | None) -> str:
    lines = []
    if sighting:
        what = "Its normalised name" if sighting.whole else "What stands before its arguments"
        lines += [f"# {what}.", f"KERNEL = {_literal(sighting.kernel)}"]
    if sighting and sighting.found:
        lines += ["# The CPU operator around it.", f"OP = {_literal(sighting.found.op)}"]
    lines += _about_axes(sighting)
    axes = [_literal(axis) for axis in interface.axes]
    line = f"AXES = {_tuple(axes)}"
    short = len(line) <= WIDTH
    lines += [line] if short else ["AXES = (", *_indented(f"{axis}," for axis in axes), ")"]
    return "\n".join(lines)


def _about_axes(sighting: Sighting | None) -> list[str]:
    text = "Decide: name the axes in words (rows, width, heads), everywhere in this file."
    if sighting and sighting.found:
        found = sighting.found
        text += " dimA_B is dim B of argument A, argA a value."
        constant = found.axes[found.varying :]
        if constant and found.varying:
            text += f" From {constant[0]} on, none varied over the {found.forms} forms."
        elif found.forms > 1:
            text += f" All varied over the {found.forms} forms."
        else:
            text += " Only one form was seen, so nothing tells which of them vary."
    return _comment(text)


def _inputs(interface: Interface) -> str:
    lines = _comment(
        "Decide: what the tensors hold. `activation` suits data; weights are drawn by `weight`, "
        "`gain` or `bias`, quantisation scales by `scale`; see atrex.operator.Draw.",
    )
    if any(_draws_integers(tensor) for tensor in interface.inputs):
        lines += _comment(
            "Integers are drawn as 0 or 1, which the trace does not tell: indices and lengths must "
            "fit what they point into.",
        )
    for tensor in interface.inputs:
        if not tensor.recorded:
            lines += _comment(
                f"The dtype of {tensor.name} is not recorded: it is taken as w.dtype."
            )
    if interface.names:
        lines += _comment(f"Axes only, as a kernel gets numbers: {', '.join(interface.names)}.")
    entries = [f'"{tensor.name}": {_draw(tensor)},' for tensor in interface.inputs]
    for scalar in interface.attributes:
        value = f'w.axes["{scalar.name}"]'
        entries.append(f'"{scalar.name}": {f"float({value})" if scalar.kind == "real" else value},')
    return _function("inputs(w, draw)", [*lines, "return {", *_indented(entries), "}"])


def _draws_integers(tensor: Tensor) -> bool:
    return tensor.dtype != SAME and tensor.dtype not in FLOATS


def _draw(tensor: Tensor) -> str:
    name, shape, dtype = _literal(tensor.name), _shape(tensor), _dtype(tensor)
    if _draws_integers(tensor):
        return f"draw.integers({name}, {shape}, low=0, high=2, dtype={dtype})"
    # a single number has no last dim, which an activation scales
    return f"draw.{'activation' if tensor.axes else 'uniform'}({name}, {shape}, {dtype})"


def _outputs(interface: Interface, sighting: Sighting | None) -> str:
    tensor = interface.output
    text = "Decide: which tensors are written."
    if sighting and sighting.found and len(sighting.found.tensors) > 1:
        text += (
            f" A trace does not tell; by custom the first floating one, {_label(tensor.path)}, is "
            "taken as `out`. One that is read and written stands in `inputs` too; if the operator "
            "returns its result, all arguments are inputs."
        )
    elif sighting and sighting.found:
        text += " The only tensor is taken as the input, and `out` like it."
    spec = f"TensorSpec(shape={_shape(tensor)}, dtype={_dtype(tensor)})"
    return _function("outputs(w)", [*_comment(text), f'return {{"out": {spec}}}'])


def _reference(interface: Interface) -> str:
    lines = _comment(
        "Decide: write the definition with torch, without loops over rows. Floats arrive in fp64; "
        "return fp64, and int64 for integers. Until then `atrex score` can judge nothing."
    )
    sentence = "`reference` is to be written: it returns {'out': tensor}"
    lines += ["raise NotImplementedError(", f"    {_literal(sentence)}", ")"]
    return _function(f"reference({', '.join(_names(interface))})", lines)


def _names(interface: Interface) -> list[str]:
    tensors = [tensor.name for tensor in interface.inputs]
    return tensors + [scalar.name for scalar in interface.attributes]


def _cost(interface: Interface) -> str:
    output = interface.output
    lines = _comment(
        "Decide: the operations that no implementation can avoid, by pipe: "
        '{"vector": 5 * rows * width}, or the dtype of matrix units; a multiply-add is two. Here '
        "they are none, and every input is read once and the output written once. Leave out what "
        "need not be moved.",
    )
    count = " * ".join(["item", *(f"w.axes[{_literal(axis)}]" for axis in output.axes)])
    if output.dtype == SAME:
        dtypes = {dtype for _, dtype in interface.small} | {"bf16", "fp16", "fp32"}
        items = {dtype: size for dtype, size in ITEM_BYTES.items() if dtype in dtypes}
        lines.append(f"item = {json.dumps(items)}[w.dtype]")
    else:
        lines.append(f"item = {ITEM_BYTES[output.dtype]}")
    read = 'sum(t.numel() * t.element_size() for t in inputs.values() if hasattr(t, "numel"))'
    lines += [f"read = {read}", f"return Cost(flop={{}}, read_bytes=read, write_bytes={count})"]
    return _function("cost(w, inputs)", lines)


def _match(name: str, sighting: Sighting | None) -> str:
    lines = ["if not _own(call.kernels):", "    return None"] if sighting else []
    unknown = [
        "Workload(",
        f"    operator={_literal(name)}, axes=dict.fromkeys(AXES, UNKNOWN), dtype=UNKNOWN",
        ")",
    ]
    if sighting is None:
        lines = _comment(
            "Decide: recognise a traced call by `call.name` or `call.kernels` and read the axes "
            "from `call.dims`; return None for any other, and axes of UNKNOWN where the trace does "
            "not tell them.",
        )
        return _function("match(call, step)", [*lines, "return None"])
    if sighting.found is None:
        lines += _comment("Without an operator whose inputs are recorded, nothing tells the axes.")
        lines += [f"return {unknown[0]}", *unknown[1:]]
    else:
        lines += ['if call.name not in ("", OP):', "    return None"]
        lines += _comment("Outside the operator nothing tells the axes.")
        lines += [
            f"unknown = {unknown[0]}",
            *unknown[1:],
            'if call.name == "":',
            "    return unknown",
        ]
        lines += [*_read(sighting.found), *_workload(name, sighting.found)]
    return _function("match(call, step)", lines) + _helpers(sighting)


def _helpers(sighting: Sighting) -> str:
    """Write the small functions that `match` needs."""
    own = "name" if sighting.whole else 'name.partition("<")[0]'
    found = [
        _function(
            "_own(kernels)",
            [
                '"""Recognise the kernel among those that a call launched."""',
                f"return any({own} == KERNEL for name in kernels)",
            ],
        )
    ]
    kinds = {scalar.kind for scalar in sighting.found.scalars} if sighting.found else set()
    if "flag" in kinds:
        found.append(
            _function("_flag(text)", ['return {"True": 1, "False": 0}.get(text, UNKNOWN)'])
        )
    if "integer" in kinds:
        lines = ['return int(text) if text.removeprefix("-").isdigit() else UNKNOWN']
        found.append(_function("_integer(text)", lines))
    return "".join(f"\n\n\n{text}" for text in found)


def _read(found: Signature) -> Iterator[str]:
    """Yield lines that take the dims apart and leave when they are not as seen."""
    arguments: dict[int, list[Tensor]] = {}
    for tensor in found.tensors:
        arguments.setdefault(tensor.path[0], []).append(tensor)
    for index, tensors in arguments.items():
        parts = [_tuple(tensor.places) for tensor in tensors]
        target = _tuple(parts) if len(tensors[0].path) > 1 else parts[0]
        yield f"{_bare(target)} = call.dims[{index}]"
    merged = [
        (place, axis)
        for tensor in found.tensors
        for place, axis in zip(tensor.places, tensor.axes, strict=True)
        if place != axis
    ]
    if merged:
        seen = f"the {found.forms} forms seen" if found.forms > 1 else "the only form seen"
        yield from _comment(
            f"Decide: in {seen} these were equal and are one axis each; part those that were equal "
            "by chance."
        )
        yield from _differ([place for place, _ in merged], [axis for _, axis in merged])
    yield f"dtype = {_dtype_of(found.lead)}"
    others = [t for t in found.tensors if t.recorded and t is not found.lead]
    if others:
        wanted = ["dtype" if t.dtype == SAME else _literal(t.dtype) for t in others]
        yield from _differ([_dtype_of(t) for t in others], wanted)


def _dtype_of(tensor: Tensor) -> str:
    return f"call.dtype({tensor.path[0]})" if tensor.recorded else "UNKNOWN"


def _differ(actual: Sequence[str], wanted: Sequence[str]) -> list[str]:
    pairs = [f"{one} != {other}" for one, other in zip(actual, wanted, strict=True)]
    line = f"if {' or '.join(pairs)}:"
    if len(line) <= WIDTH:
        return [line, "    return unknown"]
    entries = [pairs[0], *(f"or {pair}" for pair in pairs[1:])]
    return ["if (", *_indented(entries), "):", "    return unknown"]


def _workload(name: str, found: Signature) -> Iterator[str]:
    scalars = {scalar.name: scalar for scalar in found.scalars}
    left = [each.name for each in found.scalars if each.kind == "address"]
    if left:
        yield from _comment(f"Left out, as they look like addresses: {', '.join(left)}.")
    yield "axes = {"
    for axis in found.axes:
        value = _scalar(scalars[axis]) if axis in scalars else axis
        yield f"    {_literal(axis)}: {value},"
    yield "}"
    yield f"return Workload(operator={_literal(name)}, axes=axes, dtype=dtype)"


def _scalar(scalar: Scalar) -> str:
    text = f"call.concrete[{scalar.index}]"
    return {
        "flag": f"_flag({text})",
        "integer": f"_integer({text})",
        "real": f"call.scalar({scalar.index})",
    }.get(scalar.kind, f"{text} or UNKNOWN")


def _baseline(interface: Interface) -> str:
    """Write a baseline that works as soon as the reference does."""
    kind = _torch_dtype(interface)
    lines = [
        '"""Compute the reference in fp32 and round once."""',
        "import torch",
        "",
        "wide = dict(given)",
        "for name, value in given.items():",
        "    if torch.is_tensor(value) and value.is_floating_point():",
        "        wide[name] = value.float()",
        f'return {{"out": reference(**wide)["out"].to({kind})}}',
    ]
    about = _comment(
        "Decide: the judge times against the fastest correct baseline. Add what users run today, a "
        "call of the library that the kernel is from.",
    )
    return "\n".join(about) + "\n" + _function("eager(prepared=None, **given)", lines)


def _torch_dtype(interface: Interface) -> str:
    """Return the source of the output's dtype inside a baseline."""
    output = interface.output
    if output.dtype != SAME:
        return _torch_name(output.dtype)
    like = [tensor.name for tensor in interface.inputs if tensor.dtype == SAME]
    return f'given["{like[0]}"].dtype' if like else _torch_name(interface.small[0][1])


def _torch_name(dtype: str) -> str:
    """Write a dtype in torch's words."""
    if dtype.startswith(("fp", "bf")):
        return "torch." + dtype.replace("bf", "bfloat").replace("fp", "float")
    return f"torch.{dtype}"


def _record(name: str, interface: Interface) -> str:
    floating = interface.output.dtype == SAME or interface.output.dtype in FLOATS
    about = _comment(
        "Decide: the class of METHOD.md section 2.3 that fits the mathematics; `static`, the names "
        "of weights, if any; small workloads of each dtype, with odd sizes, of at most 1 s each. "
        f"Here they are {interface.about_small}."
    )
    small = [
        f"_small({', '.join(map(_literal, (dtype, *axes)))})," for axes, dtype in interface.small
    ]
    maker = _function(
        "_small(dtype, *values)",
        [
            "axes = dict(zip(AXES, values, strict=True))",
            f"return Workload(operator={_literal(name)}, axes=axes, dtype=dtype)",
        ],
    )
    lines = [
        "DEFINITION = Operator(",
        *_indented(
            [
                f"name={_literal(name)},",
                "axes=AXES,",
                "inputs=inputs,",
                "outputs=outputs,",
                "reference=reference,",
                "cost=cost,",
                "match=match,",
                f'tolerance={{"out": {_literal("EW" if floating else "EXACT")}}},',
                'baselines=(Implementation(name="eager_fp32", run=eager),),',
                "small=(",
                *_indented(small),
                "),",
            ]
        ),
        ")",
    ]
    return f"{maker}\n\n\n" + "\n".join([*about, *lines])


def shortened(kernel: str) -> str:
    """Cut a kernel name to what a sentence bears."""
    return kernel if len(kernel) <= NAME_SHOWN else f"{kernel[:NAME_SHOWN]}..."


def _function(head: str, lines: Iterable[str]) -> str:
    return "\n".join([f"def {head}:", *_indented(lines)])


def _indented(lines: Iterable[str]) -> list[str]:
    return [indent(line, "    ") for line in lines]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in _filled(text, WIDTH - 6).splitlines()]


def _filled(text: str, width: int = WIDTH) -> str:
    return fill(text, width, break_on_hyphens=False, break_long_words=False)


def _literal(value: int | str) -> str:
    """Write a value as Python with double quotes."""
    return json.dumps(value, ensure_ascii=False)


def _tuple(parts: Iterable[str]) -> str:
    listed = list(parts)
    return f"({listed[0]},)" if len(listed) == 1 else f"({', '.join(listed)})"


def _bare(text: str) -> str:
    """Take the parentheses off a tuple of two and more."""
    return text if text == "()" or text.endswith(",)") else text[1:-1]


def _shape(tensor: Tensor) -> str:
    return _tuple(f"w.axes[{_literal(axis)}]" for axis in tensor.axes)


def _dtype(tensor: Tensor) -> str:
    return "w.dtype" if tensor.dtype == SAME else _literal(tensor.dtype)


def _label(path: Sequence[int]) -> str:
    return f"argument {path[0]}" if len(path) == 1 else f"element {path[1]} of argument {path[0]}"


def _quotable(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")
