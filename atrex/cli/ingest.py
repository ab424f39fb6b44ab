"""`atrex ingest`: read profiler traces into facts and show how far they were understood."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict
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
from atrex.errors import UsageError

if TYPE_CHECKING:
    from atrex.trace import Ingested, IngestReport
    from atrex.trace.sanitize import Sanitized

SHOWN = 20  # rows of a table for people; --json has them all
NAME_WIDTH = 100  # characters of a kernel name; the longest seen has 5,160


def command(
    traces: Annotated[
        list[Path] | None,
        typer.Argument(
            help="Traces, folders or patterns: kineto JSON, Nsight Systems SQLite, rocprofv3 JSON "
            "or CSV, JAX XPlane; plain, gzip or zstd. The content decides, not the name."
        ),
    ] = None,
    store: Store = DEFAULT_STORE,
    json: Json = False,
    capture: Annotated[
        list[Path] | None,
        typer.Option(
            "--capture",
            help="Trace of a graph capture; without this, those beside each trace are used.",
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Name of a bundled model configuration, or a config.json: fills axes that no "
            "trace carries.",
        ),
    ] = None,
    tensor_parallel: Annotated[
        int, typer.Option("--tensor-parallel", min=1, help="Ranks that share a layer of --model.")
    ] = 1,
    fleet: Annotated[
        Path | None,
        typer.Option("--fleet", help="Fleet file: weighs traces by the GPU hours they stand for."),
    ] = None,
    sanitize: Annotated[
        Path | None,
        typer.Option(
            "--sanitize",
            help="Also write the trace without paths, hosts, processes and stacks, to share it; a "
            "folder if there are several traces.",
        ),
    ] = None,
    allow_loss: Annotated[
        bool, typer.Option("--allow-loss", help="Exit 0 even if kernels were lost.")
    ] = False,
    operators: Annotated[
        list[Path] | None, typer.Option("--operators", help="Folder of operators of your own.")
    ] = None,
) -> None:
    """Read profiler traces into operators and shapes weighted by GPU time.

    CAPTURE.md says how to record a trace.
    """
    with answering("ingest", json):
        if not traces and fleet is None:
            raise UsageError("no trace given", remedy="Pass a TRACE, a folder or --fleet FILE.")
        paths = list(traces or ())
        report = _read(
            paths, store, fleet,
            operators=tuple(operators or ()), captures=tuple(capture or ()), model=model,
            tensor_parallel=tensor_parallel,
        )  # fmt: skip
        shared = _sanitize(report, sanitize) if sanitize is not None else []
        data = report_data(report) | {"sanitized": [asdict(each) for each in shared]}
        codes = [error.exit_code for _, error in report.refused]
        if not allow_loss and not all(trace.lossless for trace in report.read):
            codes.append(1)
        answer(
            "ingest", data, as_json=json, text=_text(report, data, shared),
            warnings=_warnings(report), code=exit_code(codes),
        )  # fmt: skip


def _read(traces: Sequence[Path], store: Path, fleet: Path | None, **how: Any) -> IngestReport:
    from atrex import fleet as fleets  # Polars takes longer to import than most commands run
    from atrex.trace import trace_files

    files = trace_files([*traces, *(fleets.trace_files(fleet) if fleet else [])])
    with _bar("reading", files) as progress:
        return api.ingest(traces, store=store, fleet=fleet, progress=progress, **how)


def _sanitize(report: IngestReport, out: Path) -> list[Sanitized]:
    """Sanitise what was read; other formats hold nothing but names and times, and are left."""
    pairs = zip(report.files, report.read, strict=True)
    files = [path for path, trace in pairs if trace.summary.format == "kineto"]
    if len(files) < len(report.files):
        report.notes.append("only kineto traces are sanitised")
    with _bar("sanitising", files) as progress:
        return api.sanitize(files, out, progress=progress)


class _bar:
    """A progress bar over the bytes of files, on a terminal only."""

    def __init__(self, what: str, files: Sequence[Path]) -> None:
        console = progress_console()
        columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeElapsedColumn())
        self._bar = Progress(
            *columns, console=console, transient=True, disable=not console.is_terminal
        )
        self._task = self._bar.add_task("", total=sum(path.stat().st_size for path in files))

    def __enter__(self) -> Any:
        self._bar.start()
        return lambda count: self._bar.advance(self._task, count)

    def __exit__(self, *error: object) -> None:
        self._bar.stop()


def _warnings(report: IngestReport) -> list[str]:
    warnings = [text for trace in report.read for text in (*trace.warnings, *trace.hints)]
    warnings += [f"refused: {error}" for _, error in report.refused]
    return warnings + report.notes


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
        "trace", "path", "format", "gpu", "rank", "world_size", "job", "events", "kernels",
        "gpu_ns", "busy_ns", "span_ns", "launched_ns", "attributed_ns", "shaped_ns", "rung_ns",
        "trace_coverage", "dropped", "repaired", "noted", "truncated",
    )  # fmt: skip
    return {name: getattr(summary, name) for name in names} | {
        "graph_ns": trace.graph_ns,
        "copies": trace.copies,
        "copy_ns": trace.copy_ns,
        "lossless": trace.lossless,
        "steps": [
            {"phase": each.form, "steps": each.steps, "kernels": each.kernels,
             "total": asdict(each.total), "median": asdict(each.median)}
            for each in trace.steps
        ],
        "empty_steps": trace.empty_steps,
        "hints": list(trace.hints),
    }  # fmt: skip


def _text(
    report: IngestReport, data: dict[str, Any], shared: Sequence[Sanitized]
) -> Iterator[RenderableType]:
    jobs: defaultdict[str, list[Ingested]] = defaultdict(list)
    for trace in report.read:
        jobs[trace.summary.job or trace.summary.trace].append(trace)
    for members in jobs.values():
        yield _funnel(members)
        yield from _steps(members)
    total = sum(trace.summary.gpu_ns for trace in report.read)
    yield _times("Operators", "operator", data["operators"], total)
    yield _times("Shapes", "shape", [_named(row) for row in data["shapes"]], total)
    yield _times("Classes outside the operators", "class", data["classes"], total)
    unknown = [row for row in data["unattributed"] if row["class"] == "unknown"]
    if unknown:
        rows = [row | {"kernel": row["kernel"][:NAME_WIDTH]} for row in unknown]
        yield _times("Largest unknown kernels", "kernel", rows, total)
        yield Text("`atrex ops new NAME --from-trace KERNEL` starts an operator of one of them\n")
    for each in shared:
        removed = sum(each.removed.values())
        yield f"{each.name}: {sum(each.written.values()):,} events written, {removed:,} left out"
    known = len(report.read) - report.added
    yield f"{report.added} added to the store" + (f", {known} known already" if known else "")


def _named(row: dict[str, Any]) -> dict[str, Any]:
    axes = " ".join(f"{name}={value}" for name, value in row["axes"].items())
    return row | {"shape": f"{row['operator']} {axes} {row['dtype']}"}


def _funnel(traces: Sequence[Ingested]) -> Text:
    """Show how far a trace, or the ranks of a job together, was understood."""
    summaries = [trace.summary for trace in traces]
    total = sum(each.gpu_ns for each in summaries)
    rung_ns: defaultdict[str, int] = defaultdict(int)
    for each in summaries:
        for rung, ns in each.rung_ns.items():
            rung_ns[rung] += ns
    rungs = ", ".join(f"{rung} {units.percent(ns / total)}" for rung, ns in rung_ns.items())
    judged = round(sum(each.trace_coverage * each.gpu_ns for each in summaries))
    levels = (
        ("kernels", total),
        ("with a launch", sum(each.launched_ns for each in summaries)),
        ("operator or class known", sum(each.attributed_ns for each in summaries)),
        ("axes known", sum(each.shaped_ns for each in summaries)),
        ("operators that can be judged", judged),
        ("beside them, copies and fills", sum(trace.copy_ns for trace in traces)),
    )
    rows = [[level, units.time(ns), units.percent(ns / total)] for level, ns in levels]
    first = summaries[0]
    name = f"{first.job}, {len(traces)} ranks" if first.job else first.path
    kernels = sum(each.kernels for each in summaries)
    title = f"{name}: {kernels:,} kernels on {first.gpu or 'an unnamed GPU'}"
    table = reports.text_table(("level", "GPU time", "share"), rows)
    return Text(f"{title}\n{table}\nshapes found by: {rungs}\n")


def _steps(traces: Sequence[Ingested]) -> Iterator[Text]:
    """Show where the time of engine steps went, the median by phase."""
    columns = (
        "steps", "rank", "n", "median", "busy", "idle", "waiting for the CPU",
        "exposed communication",
    )  # fmt: skip
    rows = []
    for trace in traces:
        for each in trace.steps:
            median = each.median
            bound = median.launch_bound_ns
            rank = "" if trace.summary.rank is None else str(trace.summary.rank)
            rows.append([
                each.form, rank, f"{each.steps:,}", units.time(median.span_ns),
                units.time(median.busy_ns), units.time(median.idle_ns),
                "unknown" if bound is None else units.time(bound),
                units.time(median.exposed_communication_ns),
            ])  # fmt: skip
    if rows:
        yield Text(reports.text_table(columns, rows) + "\n")


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
