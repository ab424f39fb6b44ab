"""From facts to the shapes that are judged, and to their weights.

Weights are derived, never stored: a catalogue is the shapes and the production time behind each.
Reading and weighing need the standard library only, so that judging works without Polars.
"""

from __future__ import annotations

import csv
import io
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Protocol

import msgspec

from atrex import fleet
from atrex.errors import DataError, UsageError
from atrex.model import Deployment, Shape, TraceSummary, Workload
from atrex.operator import Operator
from atrex.registry import CSV_COLUMNS
from atrex.stats import CONFIDENCE

if TYPE_CHECKING:
    import polars as pl

WEIGHT_RESAMPLES = 1_000  # Monte-Carlo error of a 95 % bound about 0.04 of its half-width
WEIGHT_SEED = "weights"  # fixed, so that one store has one interval


class FactStore(Protocol):
    """Where facts are kept."""

    def facts(self) -> pl.DataFrame:
        """Return the facts of all traces."""

    def traces(self) -> Sequence[TraceSummary]:
        """Return the summaries of all traces."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightInterval:
    """How far a weight moves with the traces that happened to be recorded.

    Attributes:
        low, high: 95 % interval by resampling traces within each deployment.
        traces: Number of traces that could vary, of the deployments it occurs in.
    """

    low: float
    high: float
    traces: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightIntervals:
    """Intervals by workload id and by operator; one that cannot be known is missing."""

    workloads: dict[str, WeightInterval]
    operators: dict[str, WeightInterval]


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


def operator_weights(shapes: Iterable[Shape]) -> dict[str, float]:
    """Return each operator's share of the catalogue's GPU time, heaviest first.

    Raises:
        DataError: There are shapes but no GPU time.
    """
    known = list(shapes)
    operator = {shape.workload.id: shape.workload.operator for shape in known}
    share: defaultdict[str, float] = defaultdict(float)
    for workload, weight in weights(known).items():
        share[operator[workload]] += weight
    return dict(sorted(share.items(), key=lambda pair: (-pair[1], pair[0])))


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
    store: FactStore,
    operators: Mapping[str, Operator],
    *,
    limit: int | None = None,
    deployments: Sequence[Deployment] = (),
) -> list[Shape]:
    """Build the catalogue of a store's traces; a shape's source is the trace's file name.

    Args:
        store: Where the facts are.
        operators: Operators by name.
        limit: Most shapes per operator; None keeps all.
        deployments: A fleet's: calls and times become those of a day, and traces that no
            deployment names are left out.

    Raises:
        DataError: No operator in it has every axis known.
    """
    return from_facts(
        store.facts(), store.traces(), operators, limit=limit, deployments=deployments
    )


def from_facts(
    facts: pl.DataFrame,
    summaries: Sequence[TraceSummary],
    operators: Mapping[str, Operator],
    *,
    limit: int | None = None,
    deployments: Sequence[Deployment] = (),
) -> list[Shape]:
    """Build the same catalogue of facts that were read already.

    Raises:
        DataError: No operator in it has every axis known.
    """
    sources = {
        summary.trace: summary.path.removesuffix(".gz").removesuffix(".json")
        for summary in summaries
    }
    if deployments:
        facts = fleet.scale(facts, summaries, deployments)
    shapes = build(facts, operators, sources, limit=limit) if sources else []
    if not shapes:
        whose = "the fleet's traces have" if deployments else "the store has"
        raise DataError(
            f"{whose} no operator with every axis known",
            remedy="Ingest a trace recorded with record_shapes=True: atrex ingest TRACE.",
        )
    return shapes


def weight_intervals(
    facts: pl.DataFrame,
    shapes: Sequence[Shape],
    pools: Sequence[fleet.Pool],
    *,
    resamples: int = WEIGHT_RESAMPLES,
    seed: str = WEIGHT_SEED,
) -> WeightIntervals:
    """Resample the traces of each pool with replacement and weigh the catalogue again.

    A pool of one trace cannot vary: what occurs in such pools only has no interval, and of the
    rest their part is held fixed.

    Args:
        facts: `atrex.trace.schema.FACTS`, not scaled.
        shapes: The catalogue, built from those facts.
        pools: Traces by deployment.
        resamples: How often.
        seed: Of the generator.

    Returns:
        Percentile intervals (METHOD.md section 8).
    """
    import polars as pl

    crowd = {trace: pool for pool in pools if len(pool.kernel_ns) > 1 for trace in pool.kernel_ns}
    if not crowd or not shapes:
        return WeightIntervals(workloads={}, operators={})
    drawn = _drawn_factors(pools, resamples, Random(seed))
    times = _times(facts, {shape.workload.id for shape in shapes}, drawn.columns)
    resampled = drawn.select(
        pl.sum_horizontal(pl.col(trace) * ns for trace, ns in own.items()).alias(workload)
        for workload, own in times.items()
    )
    operator = {shape.workload.id: shape.workload.operator for shape in shapes}
    members: dict[str, list[str]] = {}
    for workload in times:
        members.setdefault(operator[workload], []).append(workload)
    return WeightIntervals(
        workloads=_bounds(resampled, times, weights(shapes), crowd),
        operators=_bounds(
            resampled.select(pl.sum_horizontal(*own).alias(name) for name, own in members.items()),
            {
                name: {trace for each in own for trace in times[each]}
                for name, own in members.items()
            },
            operator_weights(shapes),
            crowd,
        ),
    )


def _drawn_factors(pools: Sequence[fleet.Pool], resamples: int, random: Random) -> pl.DataFrame:
    """Draw as many traces of each pool as it has; a row for each resample, a column for each trace.

    A value is the time that one nanosecond of the trace stands for there: 0 where it was not
    drawn, and always the pool's whole time over the kernel time of what was drawn.
    """
    import polars as pl

    columns: dict[str, list[float]] = {}
    for pool in sorted(pools, key=lambda pool: pool.name):
        traces = sorted(pool.kernel_ns)
        columns |= {trace: [0.0] * resamples for trace in traces}
        for row in range(resamples):
            times_drawn = Counter(random.choices(traces, k=len(traces)))
            kernel_ns = sum(pool.kernel_ns[trace] * n for trace, n in times_drawn.items())
            for trace, n in times_drawn.items():
                columns[trace][row] = pool.gpu_ns * n / kernel_ns
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Float64))


def _times(
    facts: pl.DataFrame, workloads: Collection[str], traces: Sequence[str]
) -> dict[str, dict[str, int]]:
    """Return the GPU time of each workload in each trace that holds it."""
    import polars as pl

    grouped = (
        facts.filter(
            (pl.col("kind") == "operator")
            & pl.col("workload").is_in(list(workloads))
            & pl.col("trace").is_in(list(traces))
        )
        .group_by("workload", "trace")
        .agg(pl.col("gpu_ns").sum())
        .sort("workload", "trace")  # sums of floats are the same in the same order only
    )
    found: dict[str, dict[str, int]] = {}
    for workload, trace, gpu_ns in grouped.iter_rows():
        found.setdefault(workload, {})[trace] = gpu_ns
    return found


def _bounds(
    resampled: pl.DataFrame,
    traces: Mapping[str, Collection[str]],
    weight: Mapping[str, float],
    crowd: Mapping[str, fleet.Pool],
) -> dict[str, WeightInterval]:
    """Return the bounds of each column's share of its row, where a trace of it could vary."""
    import polars as pl

    total = resampled.sum_horizontal()
    shares = resampled.with_columns(pl.all() / total).filter(total > 0)  # no time, no shares
    tail = (1 - CONFIDENCE) / 2
    low, high = (
        shares.select(pl.all().quantile(level, "linear")).row(0, named=True)
        for level in (tail, 1 - tail)
    )
    found = {}
    for name in resampled.columns:
        own = {crowd[trace].name: crowd[trace] for trace in traces[name] if trace in crowd}
        if own:
            count = sum(len(pool.kernel_ns) for pool in own.values())
            # rounding must not put a weight outside its own interval
            found[name] = WeightInterval(
                low=min(low[name], weight[name]), high=max(high[name], weight[name]), traces=count
            )
    return found


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
