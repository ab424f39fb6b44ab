"""`atrex shapes`: the catalogue that kernels are judged on."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from atrex import api, catalogue, reports, units
from atrex.cli.output import DEFAULT_STORE, Json, Store, answer, answering
from atrex.model import Shape

app = typer.Typer(no_args_is_help=True, help="List, show and build the shapes of a catalogue.")


class Weights(StrEnum):
    """Where a catalogue and its weights come from."""

    BUNDLED = "bundled"
    STORE = "store"


WeightSource = Annotated[Weights, typer.Option("--weights", help="Catalogue to read.")]
Operators = Annotated[
    list[Path] | None, typer.Option("--operators", help="Folder of operators of your own.")
]


@app.command("list")
def list_(
    weights: WeightSource = Weights.BUNDLED,
    store: Store = DEFAULT_STORE,
    json: Json = False,
    operators: Operators = None,
) -> None:
    """List shapes, heaviest first."""
    with answering("shapes list", json):
        pairs = api.list_shapes(
            weights=weights.value, store=store, operators=tuple(operators or ())
        )
        data = {"shapes": [shape_data(shape, weight) for shape, weight in pairs]}
        answer("shapes list", data, as_json=json, text=[_table(pairs)])


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="Workload id, or the beginning of one.")],
    weights: WeightSource = Weights.BUNDLED,
    store: Store = DEFAULT_STORE,
    json: Json = False,
    operators: Operators = None,
) -> None:
    """Show one shape."""
    with answering("shapes show", json):
        pairs = api.list_shapes(
            weights=weights.value, store=store, operators=tuple(operators or ())
        )
        found = catalogue.find(id, [shape for shape, _ in pairs])
        data = shape_data(found, next(weight for shape, weight in pairs if shape is found))
        answer("shapes show", data, as_json=json, text=[_details(data)])


@app.command()
def build(
    out: Annotated[Path, typer.Option("--out", help="Folder to write the CSV files to.")] = Path(
        "shapes"
    ),
    store: Store = DEFAULT_STORE,
    json: Json = False,
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Most shapes per operator.")
    ] = None,
    operators: Operators = None,
) -> None:
    """Write the catalogue of the store's traces, one CSV file per operator."""
    with answering("shapes build", json):
        shapes, paths = api.build_shapes(
            store=store, out=out, operators=tuple(operators or ()), limit=limit
        )
        files = [
            {
                "operator": name,
                "path": str(path),
                "shapes": sum(shape.workload.operator == name for shape in shapes),
            }
            for name, path in paths.items()
        ]
        lines = [f"{each['path']}: {each['shapes']} shapes" for each in files]
        answer("shapes build", {"files": files}, as_json=json, text=lines)


def shape_data(shape: Shape, weight: float) -> dict[str, Any]:
    """Return the fields of a shape in the JSON answer."""
    workload = shape.workload
    return {
        "id": workload.id,
        "operator": workload.operator,
        "axes": workload.axes,
        "dtype": workload.dtype,
        "phase": shape.phase,
        "source": shape.source,
        "calls": shape.calls,
        "gpu_ns": shape.gpu_ns,
        "time_source": shape.time_source,
        "weight": weight,
    }


def _table(pairs: list[tuple[Shape, float]]) -> Text:
    sources = ", ".join(sorted({shape.time_source for shape, _ in pairs}))
    total = units.time(sum(shape.gpu_ns for shape, _ in pairs))
    rows = [
        [
            shape.workload.id,
            shape.workload.operator,
            " ".join(f"{name}={value}" for name, value in shape.workload.axes.items()),
            shape.workload.dtype,
            shape.phase,
            f"{shape.calls:,}",
            units.time(shape.gpu_ns),
            units.percent(weight),
        ]
        for shape, weight in pairs
    ]
    columns = ("id", "operator", "axes", "dtype", "phase", "calls", "GPU time", "weight")
    title = f"{len(pairs)} shapes, {total} of GPU time ({sources})"
    return Text(f"{title}\n{reports.text_table(columns, rows)}")


def _details(data: dict[str, Any]) -> Text:
    shown = data | {"gpu_ns": units.time(data["gpu_ns"]), "weight": units.percent(data["weight"])}
    shown |= {f"  {axis}": value for axis, value in shown.pop("axes").items()}
    return Text(
        reports.text_table(
            ("field", "value"), [[name, str(value)] for name, value in shown.items()]
        )
    )
