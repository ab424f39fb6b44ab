"""`atrex ingest`: read profiler traces into facts and show how far they were understood."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import RenderableType
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from atrex import api, reports, units
from atrex.cli.output import (
    DEFAULT_STORE,
    Json,
    Store,
    answer,
    answering,
    exit_code,
    progress_console,
)

if TYPE_CHECKING:
    from atrex.trace import Ingested, IngestReport

SHOWN = 20  # rows of a table for people; --json has them all
NAME_WIDTH = 100  # characters of a kernel name; the longest seen has 5,160


def command(
    traces: Annotated[
        list[Path], typer.Argument(help="Kineto traces, .json or .json.gz, or folders.")
    ],
    store: Store = DEFAULT_STORE,
    json: Json = False,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Exit 0 even if kernels were lost.")
    ] = False,
    operators: Annotated[
        list[Path] | None, typer.Option("--operators", help="Folder of operators of your own.")
    ] = None,
) -> None:
    """Read profiler traces into operators and shapes weighted by GPU time."""
    with answering("ingest", json):
        report = _read(traces, store, tuple(operators or ()))
        data = report_data(report)
        codes = [error.exit_code for _, error in report.refused]
        if not allow_loss and not all(trace.lossless for trace in report.read):
            codes.append(1)
        warnings = [text for trace in report.read for text in trace.warnings]
        warnings += [f"refused: {error}" for _, error in report.refused]
        warnings += [text for trace in report.read if (text := _graph_warning(trace))]
        answer(
            "ingest", data, as_json=json, text=_text(report, data), warnings=warnings,
            code=exit_code(codes),
        )  # fmt: skip


def _read(traces: Sequence[Path], store: Path, operators: tuple[Path, ...]) -> IngestReport:
    from atrex.trace import trace_files  # Polars takes longer to import than most commands run

    console = progress_console()
    files = trace_files(traces)
    columns = (TextColumn("reading"), BarColumn(), DownloadColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bar:
        task = bar.add_task("", total=sum(path.stat().st_size for path in files))
        return api.ingest(
            files, store=store, operators=operators,
            progress=lambda count: bar.advance(task, count),
        )  # fmt: skip


def report_data(report: IngestReport) -> dict[str, Any]:
    """Return the fields of the JSON answer."""
    from atrex.trace import tables

    facts = tables.all_facts(report.read)
    return {
        "files": [_file(trace) for trace in report.read],
        "refused": [
            {"path": path.name, "code": error.code, "message": error.message,
             "remedy": error.remedy}
            for path, error in report.refused
        ],
        "added": report.added,
        "operators": tables.operators(facts).to_dicts(),
        "shapes": [
            row | {"axes": tables.axes(row["axes"])} for row in tables.shapes(facts).to_dicts()
        ],
        "classes": tables.classes(facts).to_dicts(),
        "unattributed": tables.all_unattributed(report.read).head(SHOWN).to_dicts(),
    }  # fmt: skip


def _file(trace: Ingested) -> dict[str, Any]:
    summary = trace.summary
    names = (
        "trace", "path", "format", "gpu", "events", "kernels", "gpu_ns", "busy_ns", "span_ns",
        "launched_ns", "attributed_ns", "shaped_ns", "rung_ns", "trace_coverage", "dropped",
        "repaired", "truncated",
    )  # fmt: skip
    return {name: getattr(summary, name) for name in names} | {
        "graph_ns": trace.graph_ns,
        "copies": trace.copies,
        "copy_ns": trace.copy_ns,
        "lossless": trace.lossless,
    }


def _graph_warning(trace: Ingested) -> str:
    share = trace.graph_ns / trace.summary.gpu_ns
    if share < 0.01:
        return ""
    return (
        f"{trace.summary.path}: {units.percent(share)} of GPU time was replayed from graphs, "
        "which carry no shapes; an eager trace of the same model gives them"
    )


def _text(report: IngestReport, data: dict[str, Any]) -> Iterator[RenderableType]:
    for trace in report.read:
        yield _funnel(trace)
    total = sum(trace.summary.gpu_ns for trace in report.read)
    yield _times("Operators", "operator", data["operators"], total)
    yield _times("Classes outside the operators", "class", data["classes"], total)
    unknown = [row for row in data["unattributed"] if row["class"] == "unknown"]
    if unknown:
        rows = [row | {"kernel": row["kernel"][:NAME_WIDTH]} for row in unknown]
        yield _times("Largest unknown kernels", "kernel", rows, total)
    known = len(report.read) - report.added
    yield f"{report.added} added to the store" + (f", {known} known already" if known else "")


def _funnel(trace: Ingested) -> Text:
    summary = trace.summary
    rungs = ", ".join(
        f"{rung} {units.percent(ns / summary.gpu_ns)}" for rung, ns in summary.rung_ns.items()
    )
    levels = (
        ("kernels", summary.gpu_ns),
        ("with a launch", summary.launched_ns),
        ("operator or class known", summary.attributed_ns),
        ("axes known", summary.shaped_ns),
        ("operators that can be judged", round(summary.trace_coverage * summary.gpu_ns)),
        ("beside them, copies and fills", trace.copy_ns),
    )
    rows = [[level, units.time(ns), units.percent(ns / summary.gpu_ns)] for level, ns in levels]
    title = f"{summary.path}: {summary.kernels:,} kernels on {summary.gpu or 'an unnamed GPU'}"
    table = reports.text_table(("level", "GPU time", "share"), rows)
    return Text(f"{title}\n{table}\nshapes found by: {rungs}\n")


def _times(title: str, key: str, rows: list[dict[str, Any]], total: int) -> Text:
    cells = [
        [
            row[key],
            f"{row['calls']:,}",
            units.time(row["gpu_ns"]),
            units.percent(row["gpu_ns"] / total if total else None),
        ]
        for row in rows[:SHOWN]
    ]
    table = reports.text_table((key, "calls", "GPU time", "share"), cells)
    more = f"\n{len(rows) - SHOWN} more; --json has them all" if len(rows) > SHOWN else ""
    return Text(f"{title}\n{table}{more}\n")
