"""`atrex shapes`: the catalogue that kernels are judged on."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.text import Text

from atrex import api, catalogue, fleet, reports, units
from atrex.catalogue import WeightInterval
from atrex.cli.output import DEFAULT_STORE, Json, Store, answer, answering
from atrex.model import Fleet, Shape, TraceSummary

app = typer.Typer(no_args_is_help=True, help="List, show and build the shapes of a catalogue.")


class Weights(StrEnum):
    """Where a catalogue and its weights come from."""

    BUNDLED = "bundled"
    STORE = "store"


WeightSource = Annotated[Weights, typer.Option("--weights", help="Catalogue to read.")]
Operators = Annotated[
    list[Path] | None, typer.Option("--operators", help="Folder of operators of your own.")
]
NoFleet = Annotated[
    bool, typer.Option("--no-fleet", help="Let the store's traces stand for their own time.")
]


@app.command("list")
def list_(
    weights: WeightSource = Weights.BUNDLED,
    store: Store = DEFAULT_STORE,
    json: Json = False,
    operators: Operators = None,
    no_fleet: NoFleet = False,
) -> None:
    """List shapes, heaviest first."""
    with answering("shapes list", json):
        weighed = _weighed(weights, store, operators, no_fleet)
        intervals = weighed.intervals
        data = {
            "shapes": [
                shape_data(shape, weight, intervals.workloads.get(shape.workload.id))
                for shape, weight in weighed.shapes
            ],
            "operators": [
                {"operator": name, **_weight_data(weight, intervals.operators.get(name))}
                for name, weight in weighed.operators.items()
            ],
            "fleet": fleet_data(weighed.fleet, weighed.traces),
        }
        text = [_table(weighed), _operator_table(weighed)]
        answer(
            "shapes list", data, as_json=json, text=text,
            warnings=_notes(weighed.fleet, weighed.traces),
        )  # fmt: skip


@app.command()
def show(
    id: Annotated[str, typer.Argument(help="Workload id, or the beginning of one.")],
    weights: WeightSource = Weights.BUNDLED,
    store: Store = DEFAULT_STORE,
    json: Json = False,
    operators: Operators = None,
    no_fleet: NoFleet = False,
) -> None:
    """Show one shape."""
    with answering("shapes show", json):
        weighed = _weighed(weights, store, operators, no_fleet)
        found = catalogue.find(id, [shape for shape, _ in weighed.shapes])
        weight = next(weight for shape, weight in weighed.shapes if shape is found)
        data = shape_data(found, weight, weighed.intervals.workloads.get(found.workload.id))
        answer(
            "shapes show", data, as_json=json, text=[_details(data, weighed.fleet)],
            warnings=_notes(weighed.fleet, weighed.traces),
        )  # fmt: skip


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
    no_fleet: NoFleet = False,
) -> None:
    """Write the catalogue of the store's traces, one CSV file per operator."""
    with answering("shapes build", json):
        built = api.build_shapes(
            store=store,
            out=out,
            operators=tuple(operators or ()),
            limit=limit,
            use_fleet=not no_fleet,
        )
        files = [
            {
                "operator": name,
                "path": str(path),
                "shapes": sum(shape.workload.operator == name for shape in built.shapes),
            }
            for name, path in built.paths.items()
        ]
        lines = [f"{each['path']}: {each['shapes']} shapes" for each in files]
        if built.fleet is not None:
            lines.append(f"calls and times are those of a day of {_fleet_title(built.fleet)}")
        answer(
            "shapes build",
            {"files": files, "fleet": fleet_data(built.fleet, built.traces)},
            as_json=json,
            text=lines,
            warnings=_notes(built.fleet, built.traces),
        )


def _weighed(
    weights: Weights, store: Path, operators: list[Path] | None, no_fleet: bool
) -> api.Weighed:
    return api.list_shapes(
        weights=weights.value,
        store=store,
        operators=tuple(operators or ()),
        use_fleet=not no_fleet,
    )


def shape_data(shape: Shape, weight: float, interval: WeightInterval | None) -> dict[str, Any]:
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
        **_weight_data(weight, interval),
    }


def _weight_data(weight: float, interval: WeightInterval | None) -> dict[str, Any]:
    return {
        "weight": weight,
        "weight_low": interval.low if interval else None,
        "weight_high": interval.high if interval else None,
        "weight_traces": interval.traces if interval else None,
    }


def fleet_data(kept: Fleet | None, traces: Sequence[TraceSummary]) -> dict[str, Any] | None:
    """Return what weighed a store's traces; None where they stand for their own time."""
    if kept is None:
        return None
    weighing = {pool.name: pool for pool in fleet.pools(traces, kept.deployments)}
    return {
        "deployments": [
            {
                "name": each.name,
                "model": each.model,
                "gpu": each.gpu,
                "gpus": each.gpus,
                "hours_per_day": each.hours_per_day,
                "traces": len(weighing[each.name].kernel_ns) if each.name in weighing else 0,
                "factor": weighing[each.name].factor if each.name in weighing else None,
            }
            for each in kept.deployments
        ],
        "left_out": [
            {"trace": each.trace, "path": each.path, "gpu_ns": each.gpu_ns}
            for each in fleet.unlisted(traces, kept.deployments)
        ],
    }


def _notes(kept: Fleet | None, traces: Sequence[TraceSummary]) -> list[str]:
    return [] if kept is None else fleet.notes(traces, kept.deployments)


def _fleet_title(kept: Fleet) -> str:
    count = len(kept.deployments)
    hours = sum(each.gpu_hours for each in kept.deployments)
    return f"a fleet of {count} deployment{'s' * (count != 1)} with {hours:,.10g} GPU hours a day"


def _time(gpu_ns: int, kept: Fleet | None) -> str:
    """Write GPU time: in hours where it is that of a day of a fleet."""
    return units.time(gpu_ns) if kept is None else f"{gpu_ns / fleet.NS_PER_HOUR:,.2f} h"


def _weight_cells(weight: float, interval: WeightInterval | None, known: bool) -> list[str]:
    """Return the cells of a weight; without any interval there is no column for them."""
    cells = [units.percent(weight)]
    if known and interval:
        cells += [units.interval(interval.low, interval.high, units.percent), str(interval.traces)]
    elif known:
        cells += [units.MISSING, units.MISSING]
    return cells


def _weight_columns(known: bool) -> tuple[str, ...]:
    return ("weight", "95 % interval", "of traces") if known else ("weight",)


def _table(weighed: api.Weighed) -> Text:
    intervals = weighed.intervals.workloads
    shapes = [shape for shape, _ in weighed.shapes]
    rows = [
        [
            shape.workload.id,
            shape.workload.operator,
            " ".join(f"{name}={value}" for name, value in shape.workload.axes.items()),
            shape.workload.dtype,
            shape.phase,
            f"{shape.calls:,}",
            _time(shape.gpu_ns, weighed.fleet),
            *_weight_cells(weight, intervals.get(shape.workload.id), bool(intervals)),
        ]
        for shape, weight in weighed.shapes
    ]
    time = "GPU time" if weighed.fleet is None else "GPU time a day"
    columns = ("id", "operator", "axes", "dtype", "phase", "calls", time)
    sources = ", ".join(sorted({shape.time_source for shape in shapes}))
    total = _time(sum(shape.gpu_ns for shape in shapes), weighed.fleet)
    title = f"{len(shapes)} shapes, {total} of {time} ({sources})"
    if weighed.fleet is not None:
        title += f", weighed by {_fleet_title(weighed.fleet)}"
    table = reports.text_table((*columns, *_weight_columns(bool(intervals))), rows)
    return Text(f"{title}\n{table}")


def _operator_table(weighed: api.Weighed) -> Text:
    intervals = weighed.intervals.operators
    rows = [
        [name, *_weight_cells(weight, intervals.get(name), bool(intervals))]
        for name, weight in weighed.operators.items()
    ]
    return Text(reports.text_table(("operator", *_weight_columns(bool(intervals))), rows))


def _details(data: dict[str, Any], kept: Fleet | None) -> Text:
    low, high, traces = (data[f"weight_{name}"] for name in ("low", "high", "traces"))
    shown = {name: value for name, value in data.items() if not name.startswith("weight_")}
    shown |= {"gpu_ns": _time(data["gpu_ns"], kept), "weight": units.percent(data["weight"])}
    if traces is not None:
        shown["95 % interval"] = f"{units.interval(low, high, units.percent)} of {traces} traces"
    shown |= {f"  {axis}": value for axis, value in shown.pop("axes").items()}
    return Text(
        reports.text_table(
            ("field", "value"), [[name, str(value)] for name, value in shown.items()]
        )
    )
