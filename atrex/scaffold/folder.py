"""Find the kernel, propose an interface and write the folder."""

from __future__ import annotations

import csv
import difflib
import io
import keyword
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from atrex import units
from atrex.errors import DataError, UsageError
from atrex.model import UNKNOWN, TraceSummary
from atrex.operator import Call, Operator, Step
from atrex.scaffold import forms as read
from atrex.scaffold import text
from atrex.scaffold.forms import Row, Signature, Tensor
from atrex.trace.names import normalise_kernel
from atrex.trace.rules import load_rules

DEFINITION = "definition.py"
SEEN = "seen.csv"
NAME = re.compile(r"[a-z_][a-z0-9_]*")  # it names a folder, a CSV file, a C header and its macros
SMALL = 3  # workloads that the contract asks for
NAMES_SHOWN = 8  # kernels in an error message
# of a plain template: two axes, one of them prime, in the usual dtypes
PLAIN_AXES = ("rows", "width")
PLAIN_SMALL = (((5, 128), "bf16"), ((7, 97), "bf16"), ((3, 65), "fp32"))
SEEN_COLUMNS = ("dtype", "launches", "gpu_ns", "trace", "kernel", "op", "dims", "types", "concrete",
                "grid", "block")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaffold:
    """What was written.

    Attributes:
        folder: The operator's folder.
        files: Names of the files in it.
        axes: Proposed axes, those that vary first.
        kernels: Kernels that `match` recognises; none without a trace.
        op: The CPU operator whose inputs give the axes, "" if none is recorded.
        traces: File names of the traces that hold the kernels.
        forms: How many forms were seen.
        launches: How many kernels.
        gpu_ns: Their time.
        shaped_ns: Time of the forms whose axes `match` reads.
        share: Part of the kernel time of all traces of the store.
    """

    name: str
    folder: str
    files: tuple[str, ...]
    axes: tuple[str, ...]
    kernels: tuple[str, ...] = ()
    op: str = ""
    traces: tuple[str, ...] = ()
    forms: int = 0
    launches: int = 0
    gpu_ns: int = 0
    shaped_ns: int = 0
    share: float | None = None


def plain(name: str, out: Path, operators: Mapping[str, Operator]) -> Scaffold:
    """Write a template: one input of rows, one output like it.

    Args:
        name: Name of the operator.
        out: Folder of operators; it is made if there is none.
        operators: Operators that exist.

    Raises:
        UsageError: The name or the folder is taken, or cannot be used.
    """
    _check_name(name, out, operators)
    files = {DEFINITION: text.definition(name, _plain_interface(), None)}
    return Scaffold(
        name=name, folder=str(_written(out / name, files)), files=tuple(files), axes=PLAIN_AXES
    )


def from_trace(
    name: str,
    kernel: str,
    out: Path,
    operators: Mapping[str, Operator],
    unattributed: Sequence[Mapping[str, Any]],
    summaries: Sequence[TraceSummary],
) -> Scaffold:
    """Write the folder of a kernel as the traces of a store show it.

    Args:
        name: Name of the operator.
        kernel: A normalised kernel name, what stands before its template arguments, or a part of
            one name only.
        out: Folder of operators; it is made if there is none.
        operators: Operators that exist.
        unattributed: Rows of `atrex.trace.schema.UNATTRIBUTED`.
        summaries: The store's traces.

    Raises:
        UsageError: The name or the folder is taken, or no or several kernels are meant, or an
            operator knows the kernel.
        DataError: The store has no traces.
    """
    _check_name(name, out, operators)
    if not summaries:
        raise DataError("the store has no traces", remedy="Read one with `atrex ingest TRACE`.")
    meant, kernels = _find(kernel, unattributed, operators)
    traces = {summary.trace: summary.path for summary in summaries}
    forms = read.read_forms(unattributed, kernels, traces)
    found = read.signature(forms)
    axes = found.axes if found else PLAIN_AXES
    rows = read.rows(forms, found, axes)
    gpu_ns, total = (sum(each.gpu_ns for each in part) for part in (forms, summaries))
    sighting = text.Sighting(
        kernel=meant,
        whole=kernels == (meant,),
        rows=tuple(rows),
        found=found,
        share=gpu_ns / total if total else 0.0,
    )
    interface = _interface(found, rows) if found else _plain_interface()
    files = {DEFINITION: text.definition(name, interface, sighting), SEEN: _csv(rows, axes)}
    return Scaffold(
        name=name,
        folder=str(_written(out / name, files)),
        files=tuple(files),
        axes=axes,
        kernels=kernels,
        op=found.op if found else "",
        traces=tuple(dict.fromkeys(form.trace for form in forms)),
        forms=len(forms),
        launches=sum(form.calls for form in forms),
        gpu_ns=gpu_ns,
        shaped_ns=sum(row.form.gpu_ns for row in rows if row.known),
        share=sighting.share,
    )


def _check_name(name: str, out: Path, operators: Mapping[str, Operator]) -> None:
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise UsageError(
            f"{name!r} cannot name an operator",
            remedy="Use lower-case letters, digits and underscores, a letter first.",
        )
    rule = load_rules().named(name)
    taken = ""
    if name in operators:
        taken = "an operator"
    elif name == UNKNOWN or (rule is not None and rule.kind == "class"):
        taken = "a class of kernels"
    if taken:
        raise UsageError(f"{name!r} is {taken} already", remedy="Choose another name.")
    if (out / name).exists():
        raise UsageError(
            "exists already, and is not overwritten",
            where=str(out / name),
            remedy="Choose another name, or another folder with --out.",
        )


def _find(
    given: str, unattributed: Iterable[Mapping[str, Any]], operators: Mapping[str, Operator]
) -> tuple[str, tuple[str, ...]]:
    """Return the name that is meant and the kernels that have it, most time first."""
    time: Counter[str] = Counter()
    for row in unattributed:
        time[row["kernel"]] += row["gpu_ns"]
    names = [name for name, _ in sorted(time.items(), key=lambda pair: (-pair[1], pair[0]))]
    meant, kernels = _meant(given, names)
    alone = meant and kernels[0]
    owner = "" if kernels and not alone else _owner(alone or normalise_kernel(given), operators)
    if owner:
        shown = f"See `atrex ops show {owner}`; `atrex ingest` reads a trace anew."
        raise UsageError(
            f"the operator {owner} knows this kernel already",
            remedy=shown
            if owner in operators
            else f"Start its folder with `atrex ops new {owner}`.",
        )
    if not kernels:
        raise _not_found(given, names)
    if not meant:
        listed = ", ".join(
            f"{text.shortened(name)} ({units.time(time[name])})" for name in kernels[:NAMES_SHOWN]
        )
        more = f" and {len(kernels) - NAMES_SHOWN} more" if len(kernels) > NAMES_SHOWN else ""
        raise UsageError(
            f"{len(kernels)} kernels have {given!r} in their names: {listed}{more}",
            remedy="Name one in full, or all instances of a template by what stands before the <.",
        )
    return meant, kernels


def _meant(given: str, names: Sequence[str]) -> tuple[str, tuple[str, ...]]:
    """Return the name meant, "" if there are none or several, and the candidates."""
    if given in names:
        return given, (given,)
    instances = tuple(name for name in names if name.partition("<")[0] == given)
    if instances:
        return given, instances
    inside = [name for name in names if given in name]
    begin = [name for name in inside if name.startswith(given)]
    for found in (inside, begin):
        if len(found) == 1:
            return found[0], (found[0],)
    return "", tuple(inside)


def _owner(kernel: str, operators: Mapping[str, Operator]) -> str:
    """Return the operator that claims a kernel by its name, "" if none does."""
    call = Call(name="", kernels=(kernel,))
    for operator in operators.values():
        try:
            if operator.match(call, Step()) is not None:
                return operator.name
        except (IndexError, TypeError, ValueError):  # it ran out of dims, so it knew the name
            return operator.name
    rule = load_rules().of_kernel(kernel)
    return rule.name if rule is not None and rule.kind == "operator" else ""


def _not_found(given: str, names: Sequence[str]) -> UsageError:
    short = {name.partition("<")[0] or name: name for name in reversed(names)}
    close = difflib.get_close_matches(given, dict.fromkeys([*short, *names]), n=3, cutoff=0.5)
    ask, shown = ("Did you mean", close) if close else ("Those with most time are", names[:3])
    listed = " or ".join(map(text.shortened, shown))
    return UsageError(
        f"no kernel outside the operators is named {given!r}",
        remedy=f"{ask} {listed}{'?' if close else '.'}" if listed else "There is none at all.",
    )


def _plain_interface() -> text.Interface:
    tensor = Tensor(path=(0,), name="x", places=PLAIN_AXES, axes=PLAIN_AXES)
    return text.Interface(
        axes=PLAIN_AXES,
        inputs=(tensor,),
        output=replace(tensor, name="out"),
        attributes=(),
        names=(),
        small=PLAIN_SMALL,
        about_small="sizes of a plain template",
    )


def _interface(found: Signature, rows: Sequence[Row]) -> text.Interface:
    """Take the first floating tensor as the output, by custom; an only tensor as the input."""
    others = tuple(tensor for tensor in found.tensors if tensor is not found.lead)
    small = _small(found, rows)
    about = "the smallest that were seen" if small else "all ones: no form tells all axes and dtype"
    return text.Interface(
        axes=found.axes,
        inputs=others or (found.lead,),
        output=replace(found.lead, name="out"),
        attributes=tuple(s for s in found.scalars if s.kind in ("flag", "integer", "real")),
        names=tuple(scalar.name for scalar in found.scalars if scalar.kind == "name"),
        small=small or (((1,) * len(found.axes), "fp32"),),
        about_small=about,
    )


def _small(found: Signature, rows: Sequence[Row]) -> tuple[text.Small, ...]:
    """Return the smallest workloads seen; smaller ones may break a relation between axes."""
    sizes: dict[text.Small, int] = {}
    for row in rows:
        dims = [[row.axes[axis] for axis in tensor.axes] for tensor in found.tensors]
        elements = sum(prod(n for n in each if isinstance(n, int)) for each in dims)
        if row.known and all(n != 0 for each in dims for n in each):
            sizes[tuple(row.axes[axis] for axis in found.axes), row.dtype] = elements
    return tuple(sorted(sizes, key=lambda key: (sizes[key], str(key)))[:SMALL])


def _csv(rows: Sequence[Row], axes: Sequence[str]) -> str:
    """Write every form with its workload, most time first."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*axes, *SEEN_COLUMNS])
    for row in rows:
        form, call = row.form, row.form.call
        given = (call.dims, call.types, call.concrete)
        recorded = [msgspec.json.encode(part).decode() for part in given]
        writer.writerow(
            [*(row.axes[axis] for axis in axes), row.dtype, form.calls, form.gpu_ns, form.trace,
             *call.kernels, call.name, *recorded, form.grid, form.block]
        )  # fmt: skip
    return out.getvalue()


def _written(folder: Path, files: Mapping[str, str]) -> Path:
    """Write a folder whole, or not at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".atrex-", dir=folder.parent) as scratch:
            made = Path(scratch) / folder.name
            made.mkdir()
            for name, content in files.items():
                (made / name).write_text(content, encoding="utf-8")
            made.rename(folder)
    except OSError as error:
        raise UsageError(
            f"cannot write the operator: {error.strerror}",
            where=str(folder),
            remedy="Choose another folder with --out.",
        ) from error
    return folder
