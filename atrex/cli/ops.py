"""`atrex ops`: the operators, their interfaces and a template to start from."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from atrex import api
from atrex.backends.templates import Argument
from atrex.cli import output

app = typer.Typer(no_args_is_help=True, help="List operators; show what a kernel must implement.")


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
