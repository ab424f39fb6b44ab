"""The rows of the database, from the records in a store's files.

Runs under way and those that were killed are read record by record; everything that is Parquet
already goes to DuckDB as it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from atrex import fleet
from atrex.model import CompileReport, Environment, Fleet, Record, Run, Shape, TraceSummary
from atrex.store import frames, parts, runs
from atrex.store.scores import scores


def tables(folder: Path, folders: Sequence[Path]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield rows of the tables that come from records; no frame is empty.

    Args:
        folder: The store, for its parts.
        folders: The runs that are wanted.
    """
    headers = [runs.header(path) for path in folders]
    live = {path.name: runs.read(path) for path in folders if not _compacted(path).exists()}
    peak_parts = parts.peak_parts(folder / "peaks")
    compiled = parts.compiled(folder / "compiled")
    traces = [part.summary for part in parts.traces(folder / "facts")]
    found: dict[str, list[dict[str, Any]]] = {
        "seen_environment": [
            *(_environment(run.run, run.environment) for run in headers),
            *(_environment("", part.environment) for part in peak_parts),
            *(_environment("", report.environment) for report in compiled),
        ],
        "run": [_run(run, live[run.run].torn_bytes if run.run in live else 0) for run in headers],
        "candidate": [row for run in headers for row in _candidates(run)],
        "score": [
            _flat(score)
            for run, path in zip(headers, folders, strict=True)
            if run.status != "running"  # it changes with every record, and costs seconds
            for score in scores(path)
        ],
        "peak": [
            {"environment": part.environment.id, "stamp": part.stamp, **_flat(peak)}
            for part in peak_parts
            for peak in part.peaks
        ],
        "compiled": [row for report in compiled for row in _compiled(report)],
        "trace": [_flat(summary) for summary in traces],
        "deployment": list(_deployments(parts.fleet(folder), traces)),
    }
    for table, rows in found.items():
        if rows:
            yield table, pl.DataFrame(rows, infer_schema_length=None)
    catalogues = list(_shapes(headers))
    if catalogues:
        yield "shape", pl.concat(catalogues)
    records = [frames.frame(journal.attempts) for journal in live.values() if journal.attempts]
    if records:
        yield "measurement", pl.concat(records)


def parquet_parts(folder: Path, folders: Sequence[Path]) -> Iterator[tuple[str, list[Path]]]:
    """Yield the Parquet files of every table that has some."""
    compacted = [_compacted(path) for path in folders]
    ingested = parts.traces(folder / "facts")
    for table, paths in (
        ("measurement", [path for path in compacted if path.exists()]),
        ("fact", [folder / "facts" / part.facts for part in ingested]),
        ("unattributed", [folder / "facts" / part.unattributed for part in ingested]),
    ):
        if paths:
            yield table, paths


def _compacted(folder: Path) -> Path:
    return folder / runs.COMPACTED


def _flat(record: Record, skip: Iterable[str] = ()) -> dict[str, Any]:
    """Return a record's fields; what is no plain value becomes JSON text."""
    return {
        name: _json(value) if isinstance(value, Mapping | tuple | Record) else value
        for name in record.__struct_fields__
        if name not in skip
        for value in (getattr(record, name),)
    }


def _json(value: object) -> str:
    return msgspec.json.encode(value).decode()


def _environment(run: str, environment: Environment) -> dict[str, Any]:
    return {"run": run, "environment": environment.id, **_flat(environment)}


def _run(run: Run, torn_bytes: int) -> dict[str, Any]:
    return {
        **_flat(run, skip=("candidates", "shapes")),
        "environment": run.environment.id,
        "device": run.environment.device,
        "device_kind": run.device,
        "selected": len(run.selected),
        "torn_bytes": torn_bytes,
    }


def _candidates(run: Run) -> Iterator[dict[str, Any]]:
    for candidate in run.candidates:
        flat = _flat(candidate, skip=("name", "source_sha"))
        yield {
            "run": run.run,
            "candidate": candidate.name,
            "candidate_sha": candidate.source_sha,
            **flat,
        }


def _deployments(kept: Fleet | None, traces: Sequence[TraceSummary]) -> Iterator[dict[str, Any]]:
    """Yield a row for each trace of each deployment, those that the store lacks included."""
    if kept is None:
        return
    known = {summary.trace for summary in traces}
    factors = {pool.name: pool.factor for pool in fleet.pools(traces, kept.deployments)}
    for each in kept.deployments:
        for trace in each.traces:
            yield {
                "deployment": each.name,
                **_flat(each, skip=("name", "traces")),
                "trace": trace,
                "factor": factors.get(each.name) if trace in known else None,
            }


def _compiled(report: CompileReport) -> Iterator[dict[str, Any]]:
    for number, launch in enumerate(report.launches):
        yield {
            "stamp": report.stamp,
            "line": number,
            "environment": report.environment.id,
            "candidate": report.candidate.name,
            "candidate_sha": report.candidate.source_sha,
            "workload": launch.workload.id,
            "operator": launch.workload.operator,
            "axes": _json(launch.workload.axes),
            "dtype": launch.workload.dtype,
            **_flat(launch, skip=("workload",)),
        }


def _shapes(headers: Sequence[Run]) -> Iterator[pl.DataFrame]:
    """Yield each run's catalogue with its weights, which are derived here and nowhere stored."""
    catalogues: dict[bytes, pl.DataFrame] = {}  # most runs share one: hash its workloads once
    for run in headers:
        if not run.shapes:
            continue
        key = msgspec.json.encode(run.shapes)
        if key not in catalogues:
            catalogues[key] = _catalogue(run.shapes)
        yield catalogues[key].with_columns(
            pl.lit(run.run).alias("run"),
            pl.lit(run.catalogue).alias("catalogue"),
            pl.col("workload").is_in(run.selected).alias("selected"),
        )


def _catalogue(shapes: Sequence[Shape]) -> pl.DataFrame:
    rows = [
        {
            "workload": shape.workload.id,
            "operator": shape.workload.operator,
            "axes": _json(shape.workload.axes),
            "dtype": shape.workload.dtype,
            **_flat(shape, skip=("workload",)),
        }
        for shape in shapes
    ]
    total = sum(shape.gpu_ns for shape in shapes)
    weight = pl.col("gpu_ns") / total if total else pl.lit(None, pl.Float64)
    return pl.DataFrame(rows, infer_schema_length=None).with_columns(weight.alias("weight"))
