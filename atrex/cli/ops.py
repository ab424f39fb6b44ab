"""`atrex ops`: the operators, their interfaces and a template to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from atrex import api
from atrex.cli import output

app = typer.Typer(no_args_is_help=True, help="List operators; show what a kernel must implement.")

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
    dtype: Annotated[str, typer.Option("--dtype", help="Storage type of the interface.")] = "bf16",
    operators: Folders = None,
    json: output.Json = False,
) -> None:
    """Show an operator's definition, its interface, and a template that compiles and runs."""
    with output.answering("ops show", json):
        shown = api.show_operator(name, dtype=dtype, operators=tuple(operators or ()))
        text = "\n\n".join(
            (
                shown["definition"].strip(),
                shown["axes"],
                shown["tolerance"],
                shown["interface"].strip(),
            )
        )
        output.answer("ops-show", shown, as_json=json, text=[Text(text)])


def _table(listed: list[dict[str, Any]]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("operator", "shapes", "weight", "baselines"):
        table.add_column(heading, justify="right" if heading in ("shapes", "weight") else "left")
    for row in listed:
        weight = "–" if row["weight"] is None else f"{row['weight']:.1%}"
        table.add_row(row["name"], str(row["shapes"]), weight, ", ".join(row["baselines"]))
    return table
