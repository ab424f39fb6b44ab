"""From facts to the shapes that are judged, and to their weights.

Weights are derived, never stored: a catalogue is the shapes and the production time behind each.
Reading and weighing need the standard library only, so that judging works without Polars.
"""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import msgspec

from atrex.errors import DataError, UsageError
from atrex.model import Shape, TraceSummary, Workload
from atrex.operator import Operator
from atrex.registry import CSV_COLUMNS

if TYPE_CHECKING:
    import polars as pl


class FactStore(Protocol):
    """Where facts are kept."""

    def facts(self) -> pl.DataFrame:
        """Return the facts of all traces."""

    def traces(self) -> Sequence[TraceSummary]:
        """Return the summaries of all traces."""


def weights(shapes: Iterable[Shape]) -> dict[str, float]:
    """Return each workload's share of the catalogue's GPU time; the shares sum to 1.

    A workload that stands in several rows gets their sum.

    Raises:
        DataError: There are shapes but no GPU time.
    """
    gpu_ns: Counter[str] = Counter()
    for shape in shapes:
        gpu_ns[shape.workload.id] += shape.gpu_ns
    total = gpu_ns.total()
    if gpu_ns and not total:
        raise DataError("the catalogue holds no GPU time, so nothing has a weight")
    return {workload: time / total for workload, time in gpu_ns.items()}


def build(
    facts: pl.DataFrame,
    operators: Mapping[str, Operator],
    sources: Mapping[str, str],
    *,
    limit: int | None = None,
) -> list[Shape]:
    """Group facts into shapes: those with a folder, every axis known, over all traces and phases.

    Args:
        facts: `atrex.trace.schema.FACTS`.
        operators: Operators by name; facts of others are left out.
        sources: Trace to the name shown as a shape's source.
        limit: Most shapes per operator, those with most time; None keeps all.

    Returns:
        Shapes by operator, most time first. Phase and source are those with most time; a shape
        with any modelled time is modelled.
    """
    import polars as pl

    identity = ["operator", "workload", "axes", "dtype"]
    known = facts.filter(
        (pl.col("kind") == "operator")
        & (pl.col("workload") != "")
        & pl.col("operator").is_in(list(operators))
    )
    names = pl.DataFrame(
        {"trace": list(sources), "source": list(sources.values())},
        schema={"trace": pl.String, "source": pl.String},
    )
    named = known.join(names, on="trace", how="left").with_columns(
        pl.col("source").fill_null(pl.col("trace"))
    )
    grouped = (
        named.group_by(identity)
        .agg(pl.col("calls", "gpu_ns").sum(), pl.col("time_source").max())
        .join(_largest(named, identity, "phase"), on=identity)
        .join(_largest(named, identity, "source"), on=identity)
        .sort(["operator", "gpu_ns", "workload"], descending=[False, True, False])
    )
    if limit is not None:
        grouped = grouped.group_by("operator", maintain_order=True).head(limit)
    return [_shape(row, operators[row["operator"]]) for row in grouped.iter_rows(named=True)]


def from_store(
    store: FactStore, operators: Mapping[str, Operator], *, limit: int | None = None
) -> list[Shape]:
    """Build the catalogue of a store's traces; a shape's source is the trace's file name.

    Raises:
        DataError: No operator in it has every axis known.
    """
    sources = {
        summary.trace: summary.path.removesuffix(".gz").removesuffix(".json")
        for summary in store.traces()
    }
    shapes = build(store.facts(), operators, sources, limit=limit) if sources else []
    if not shapes:
        raise DataError(
            "the store has no operator with every axis known",
            remedy="Ingest a trace recorded with record_shapes=True: atrex ingest TRACE.",
        )
    return shapes


def find(id: str, shapes: Iterable[Shape]) -> Shape:
    """Return the shape whose workload id begins with `id`.

    Raises:
        UsageError: None or several do.
    """
    found = [shape for shape in shapes if shape.workload.id.startswith(id)]
    if len(found) == 1:
        return found[0]
    problem = "no shape has" if not found else f"{len(found)} shapes have"
    raise UsageError(f"{problem} an id that begins with {id!r}", remedy="See `atrex shapes list`.")


def _largest(facts: pl.DataFrame, identity: Sequence[str], column: str) -> pl.DataFrame:
    """Return for each workload the value of `column` with most time, ties by name."""
    import polars as pl

    return (
        facts.group_by([*identity, column])
        .agg(pl.col("gpu_ns").sum())
        .sort(["gpu_ns", column], descending=[True, False])
        .group_by(identity, maintain_order=True)
        .agg(pl.col(column).first())
    )


def _shape(row: Mapping[str, object], operator: Operator) -> Shape:
    axes = msgspec.json.decode(str(row["axes"]), type=dict[str, int | str])
    return msgspec.convert(
        {
            "workload": Workload(
                operator=operator.name,
                axes={axis: axes[axis] for axis in operator.axes},
                dtype=str(row["dtype"]),
            ),
            **{name: row[name] for name in ("phase", "source", "calls", "gpu_ns", "time_source")},
        },
        Shape,
    )


def csv_text(shapes: Iterable[Shape], operator: Operator) -> str:
    """Return one operator's shapes as CSV, in the columns and order that `read_shapes` expects.

    Rows are sorted by their axes, so that a rebuilt file differs only where the shapes do.
    """
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*operator.axes, *CSV_COLUMNS])
    rows = [
        [shape.workload.axes[axis] for axis in operator.axes]
        + [
            shape.workload.dtype,
            shape.phase,
            shape.source,
            shape.calls,
            shape.gpu_ns,
            shape.time_source,
        ]
        for shape in shapes
    ]
    writer.writerows(sorted(rows, key=lambda row: [_order(value) for value in row]))
    return out.getvalue()


def _order(value: int | str) -> tuple[int, int, str]:
    """Sort integers by value, before names."""
    return (0, value, "") if isinstance(value, int) else (1, 0, value)


def write(
    shapes: Sequence[Shape], operators: Mapping[str, Operator], folder: Path
) -> dict[str, Path]:
    """Write `folder`/<operator>.csv for every operator that has shapes; return the paths.

    Raises:
        UsageError: The folder cannot be written.
    """
    written: dict[str, Path] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name in sorted({shape.workload.operator for shape in shapes}):
            own = [shape for shape in shapes if shape.workload.operator == name]
            written[name] = folder / f"{name}.csv"
            written[name].write_text(csv_text(own, operators[name]))
    except OSError as error:
        raise UsageError(
            f"cannot write shapes: {error.strerror}", where=str(folder), remedy="Choose --out."
        ) from error
    return written
