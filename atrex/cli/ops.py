"""`atrex ops`: the operators, their interfaces, and the start of a new one."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from atrex import api, units
from atrex.backends.templates import Argument
from atrex.cli import output

if TYPE_CHECKING:
    from atrex.scaffold import Scaffold

OWN = Path("operators-own")
TRACES_SHOWN = 3
app = typer.Typer(
    no_args_is_help=True, help="List operators; show what a kernel must implement; start a new one."
)


class Language(StrEnum):
    """Languages that have a template."""

    C = "c"
    TRITON = "triton"
    NUMBA = "numba"


Folders = Annotated[
    list[Path] | None, typer.Option("--operators", help="Further operator folder; repeatable.")
]


@app.command("list")
def list_operators(operators: Folders = None, json: output.Json = False) -> None:
    """List the operators with their shapes, weight and baselines."""
    with output.answering("ops list", json):
        listed = api.list_operators(operators=tuple(operators or ()))
        output.answer("ops-list", {"operators": listed}, as_json=json, text=[_table(listed)])


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Operator.")],
    dtype: Annotated[str | None, typer.Option(help="Storage type of the example.")] = None,
    backend: Annotated[
        Language, typer.Option(help="Language of the template.", case_sensitive=False)
    ] = Language.C,
    template: Annotated[bool, typer.Option("--template", help="Print the template only.")] = False,
    operators: Folders = None,
    json: output.Json = False,
) -> None:
    """Show an operator's definition, its interface, and a template that builds and runs."""
    with output.answering("ops show", json):
        shown = api.show_operator(
            name, dtype=dtype, backend=backend, operators=tuple(operators or ())
        )
        text = [Text(shown.template.strip())] if template else _explained(shown, backend)
        output.answer("ops-show", shown, as_json=json, text=text)


@app.command()
def new(
    name: Annotated[str, typer.Argument(help="Name of the operator, in lower case.")],
    from_trace: Annotated[
        str | None,
        typer.Option(
            "--from-trace",
            metavar="KERNEL",
            help="Kernel that no operator knows, as `atrex ingest` shows it: its name, the part "
            "before its template arguments, or a part of one name only.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", help="Folder of operators of your own to put it in.")
    ] = OWN,
    operators: Folders = None,
    store: output.Store = output.DEFAULT_STORE,
    json: output.Json = False,
) -> None:
    """Start an operator folder: a template, or what a trace tells of a kernel.

    With a kernel, `match` recognises it at once, and axes, inputs and outputs are those of the
    CPU operator around it; what a trace does not tell is marked in the definition.
    """
    with output.answering("ops new", json):
        written = api.new_operator(
            name, out=out, kernel=from_trace, store=store, operators=tuple(operators or ())
        )
        steps = _next_steps(written, out, store)
        data = msgspec.to_builtins(written) | {"next": steps}
        output.answer("ops-new", data, as_json=json, text=_written(written, steps))


def _written(written: Scaffold, steps: Sequence[str]) -> list[RenderableType]:
    lines = [f"{written.folder}: {', '.join(written.files)}"]
    if written.share is not None:
        lines.append(
            f"{written.launches:,} launches in {written.forms} forms, "
            f"{units.time(written.gpu_ns)}, {units.percent(written.share)} of the store's kernel "
            f"time; axes are read for {units.time(written.shaped_ns)} of it"
        )
    lines += ["", "Next:", *(f"{number}. {step}" for number, step in enumerate(steps, start=1))]
    return [Text("\n".join(lines))]


def _next_steps(written: Scaffold, out: Path, store: Path) -> list[str]:
    """Say what turns the folder into a score."""
    folder, place = shlex.quote(str(out)), shlex.quote(str(store))
    shown = [*written.traces[:TRACES_SHOWN], *(["..."] if written.traces[TRACES_SHOWN:] else [])]
    again = f"  # again: {', '.join(shown)}" if shown else ""
    return [
        f"Read {written.folder}/definition.py and settle what is marked with `Decide`, "
        "the reference first.",
        f"atrex ops show {written.name} --operators {folder}",
        f"atrex ingest TRACE --operators {folder} --store {place}{again}",
        f"atrex score KERNEL --operators {folder} --weights store --store {place}",
    ]


def _explained(shown: api.Shown, backend: Language) -> list[RenderableType]:
    tolerance = ", ".join(f"{output} {kind}" for output, kind in shown.tolerance.items())
    others = ", ".join(f"`--backend {each}`" for each in Language if each is not backend)
    return [
        Text(
            f"{shown.definition}\n\nAxes: {', '.join(shown.axes)}\n"
            f"Tolerance: {tolerance}\nStorage types: {', '.join(shown.dtypes)}\n"
        ),
        Text(f"run(..., prepared=None), for example on {shown.example}:"),
        _arguments(shown.arguments),
        *([Text(f"\n{shown.notes}")] if shown.notes else []),
        Text(
            f"\n# A template that builds, runs and is incorrect until you finish it; {others} too\n"
        ),
        Text(shown.template.strip()),
    ]


def _arguments(arguments: Sequence[Argument]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("argument", "role", "dtype", "shape", "strides"):
        table.add_column(heading, no_wrap=True)
    for each in arguments:
        shape = "" if each.shape is None else str(list(each.shape))
        strides = "" if each.strides is None else str(list(each.strides))
        table.add_row(*(Text(cell) for cell in (each.name, each.role, each.dtype, shape, strides)))
    return table


def _table(listed: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("operator", "shapes", "weight", "baselines"):
        table.add_column(heading, justify="right" if heading in ("shapes", "weight") else "left")
    for row in listed:
        weight = "–" if row["weight"] is None else f"{row['weight']:.1%}"
        table.add_row(row["name"], str(row["shapes"]), weight, ", ".join(row["baselines"]))
    return table
