"""One run as a report: what was measured, on what, and what the numbers do not say.

Pure functions from records to text; a number is never shown without its count, interval and
environment, and a missing one is a dash.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from atrex import units
from atrex.model import Measurement, Outcome, Run, Score

COLUMNS = (
    "operator",
    "shape",
    "candidate",
    "outcome",
    "time",
    "95 % interval",
    "n",
    "baseline",
    "baseline time",
    "speed-up",
    "of roofline",
    "S",
    "stop",
)
# in the JSON answer of `score` and `report`, besides those that are derived
FIELDS = (
    "candidate",
    "outcome",
    "kind",
    "reason",
    "method",
    "kernel_share",
    "attribution",
    "time_ns",
    "low_ns",
    "high_ns",
    "noise",
    "baseline",
    "baseline_ns",
    "sol_ns",
    "s",
    "overhead_bound",
    "stop_reason",
    "peak_bytes",
    "baseline_peak_bytes",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a run's report says, before it is laid out.

    Attributes:
        title: One line.
        header: (name, value) pairs.
        columns: Names of the result table's columns.
        rows: Its cells, one row for each measurement.
        notes: Sentences on what the numbers do not say.
    """

    title: str
    header: tuple[tuple[str, str], ...]
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    notes: tuple[str, ...]


def report(run: Run, measurements: Sequence[Measurement], scores: Sequence[Score]) -> Report:
    """Compose a run's report; `measurements` hold one attempt of each workload."""
    return Report(
        title=f"atrex run {run.run}",
        header=(*_header(run, measurements), *_score_lines(scores)),
        columns=COLUMNS,
        rows=tuple(_row(measurement) for measurement in measurements),
        notes=tuple(_notes(run, measurements)),
    )


def answer(
    run: Run, measurements: Sequence[Measurement], scores: Sequence[Score]
) -> dict[str, Any]:
    """Return the fields that other programs may rely on (design section 9).

    With one candidate its score stands at the top; with several, each has its entry in `scores`.
    """
    only = scores[0] if len(scores) == 1 else None
    return {
        "run": run.run,
        "status": run.status,
        "device": run.environment.device,
        "environment": run.environment,
        "catalogue": run.catalogue,
        "score": only.score if only else None,
        "low": only.low if only else None,
        "high": only.high if only else None,
        "coverage": only.coverage if only else None,
        "score_selected": only.score_selected if only else None,
        "weight_correct": only.weight_correct if only else None,
        "scores": list(scores),
        "measurements": [
            {
                "operator": measurement.workload.operator,
                "workload": measurement.workload.id,
                "axes": measurement.workload.axes,
                "dtype": measurement.workload.dtype,
                **{field: getattr(measurement, field) for field in FIELDS},
                "samples": len(measurement.samples_ns),
            }
            for measurement in measurements
        ],
    }


def text(report: Report) -> str:
    """Lay a report out for a terminal."""
    width = max(len(name) for name, _ in report.header)
    lines = [report.title, ""]
    lines += [f"{printable(name):<{width}}  {printable(value)}" for name, value in report.header]
    lines += ["", text_table(report.columns, report.rows)]
    lines += ["", *(f"Note: {printable(note)}" for note in report.notes)] if report.notes else []
    return "\n".join(lines)


def markdown(report: Report) -> str:
    """Lay a report out as Markdown."""
    lines = [f"# {_escaped(report.title)}", ""]
    lines += [f"- {_escaped(name)}: {_escaped(value)}" for name, value in report.header]
    lines += ["", "## Results", "", markdown_table(report.columns, report.rows)]
    if report.notes:
        lines += ["", "## Notes", "", *(f"- {_escaped(note)}" for note in report.notes)]
    return "\n".join(lines) + "\n"


def text_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Align cells under their columns; numbers to the right."""
    cells = [[printable(cell) for cell in row] for row in (columns, *rows)]
    width = [max(map(len, column)) for column in zip(*cells, strict=True)]
    right = [_numeric(column) for column in zip(*cells[1:], strict=True)] or [False] * len(width)
    cells.insert(1, ["-" * size for size in width])
    return "\n".join(
        "  ".join(
            cell.rjust(size) if to_right else cell.ljust(size)
            for cell, size, to_right in zip(row, width, right, strict=True)
        ).rstrip()
        for row in cells
    )


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Write a Markdown table."""
    lines = [list(columns), ["---"] * len(columns), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def printable(text: str) -> str:
    """Replace what would move the cursor or colour the terminal: names and reasons are foreign."""
    text = " ".join(text.split())
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def plain(value: object) -> str:
    """Write a database value as a cell; missing is a dash."""
    if value is None:
        return units.MISSING
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, int) else msgspec.json.encode(value).decode()


def _escaped(text: str) -> str:
    for char, entity in (("&", "&amp;"), ("<", "&lt;"), ("|", "\\|"), ("`", "\\`")):
        text = text.replace(char, entity)
    return printable(text)


def _numeric(cells: Sequence[str]) -> bool:
    shown = [cell for cell in cells if cell not in ("", units.MISSING)]
    return bool(shown) and all(cell[0].isdigit() or cell[0] in "[-" for cell in shown)


def _header(run: Run, measurements: Sequence[Measurement]) -> list[tuple[str, str]]:
    environment = run.environment
    versions = {
        "atrex": run.atrex_version,
        "Python": environment.python,
        "torch": environment.torch,
        "triton": environment.triton,
        "numba": environment.numba,
        "compiler": environment.compiler,
        "driver": environment.driver,
        "CUDA": environment.cuda,
    }
    known = [f"{name} {version}" for name, version in versions.items() if version]
    return [
        ("command", " ".join(run.command)),
        (
            "status",
            f"{run.status}, started {run.started}, finished {run.finished or units.MISSING}",
        ),
        ("device", f"{environment.device} ({environment.kind}, {environment.cores} cores)"),
        ("environment", f"{environment.id}: {', '.join(known)}"),
        ("seed", ", ".join(run.seed) or f"not published yet; SHA-256 {', '.join(run.seed_sha)}"),
        ("catalogue", f"{run.catalogue}, {len(run.selected)} of {len(run.shapes)} shapes selected"),
        ("outcomes", _counts(measurements)),
    ]


def _counts(measurements: Sequence[Measurement]) -> str:
    counts = Counter(measurement.outcome for measurement in measurements)
    return ", ".join(f"{counts[o]} {o.value}" for o in Outcome if counts[o]) or "none"


def _score_lines(scores: Sequence[Score]) -> list[tuple[str, str]]:
    return [(f"score of {score.candidate}", _score_line(score)) for score in scores]


def _score_line(score: Score) -> str:
    correct = f"judged correct {units.percent(score.weight_correct)} of the weight"
    if score.score is None:
        return f"none, nothing was timed; coverage {units.percent(score.coverage)}; {correct}"
    return (
        f"{units.share(score.score)} {units.interval(score.low, score.high, units.share)}, "
        f"coverage {units.percent(score.coverage)}; "
        f"of the selected shapes {units.share(score.score_selected)}; "
        f"with fallbacks {units.share(score.with_fallbacks)}; {correct}"
    )


def _row(measurement: Measurement) -> tuple[str, ...]:
    m = measurement
    axes = " ".join(f"{name}={value}" for name, value in m.workload.axes.items())
    return (
        m.workload.operator,
        f"{axes} {m.workload.dtype}",
        m.candidate,
        f"{m.outcome.value} ({m.kind})" if m.kind else m.outcome.value,
        units.time(m.time_ns),
        units.interval(m.low_ns, m.high_ns),
        str(len(m.samples_ns)) if m.samples_ns else units.MISSING,
        m.baseline or units.MISSING,
        units.time(m.baseline_ns),
        _speed_up(m),
        units.percent(_ratio(m.sol_ns, m.time_ns)),
        units.share(m.s),
        m.stop_reason or units.MISSING,
    )


def _speed_up(measurement: Measurement) -> str:
    factor = units.factor(_ratio(measurement.baseline_ns, measurement.time_ns))
    if measurement.noise is None:
        return factor
    return f"{factor} ± {units.percent(measurement.noise)}"


def _ratio(above: int | None, below: int | None) -> float | None:
    return None if above is None or not below else above / below


def _notes(run: Run, measurements: Sequence[Measurement]) -> list[str]:
    notes = [_weights_note(run)]
    floor = sum(m.overhead_bound is True for m in measurements)
    untimed = sum(m.method == "interpreter" and m.outcome.correct for m in measurements)
    fallbacks = sum(m.outcome is Outcome.FALLBACK for m in measurements)
    if run.environment.kind == "cpu" and any(m.time_ns is not None for m in measurements):
        notes.append("Times are of this CPU; they say nothing about a GPU.")
    if floor:
        notes.append(
            f"{floor} shapes are overhead-bound: their roofline time lies below ten launch floors."
        )
    if untimed:
        notes.append(
            f"{untimed} workloads were judged in the interpreter on reduced shapes: correct, but "
            "untimed, so that they have no share of the roofline."
        )
    if fallbacks:
        notes.append(f"{fallbacks} workloads fell back to a library; they count 0 in the score.")
    if run.status != "complete":
        notes.append(f"The run is {run.status}; workloads without a record count 0.")
    return notes + _reasons(measurements)


def _reasons(measurements: Sequence[Measurement]) -> list[str]:
    """Say why workloads ended as they did, each reason once with the first that has it."""
    first: dict[tuple[str, str, str], str] = {}
    counts: Counter[tuple[str, str, str]] = Counter()
    for m in measurements:
        if m.reason and m.outcome is not Outcome.OK:
            key = (m.workload.operator, m.outcome.value, m.reason)
            first.setdefault(key, m.workload.id)
            counts[key] += 1
    return [
        f"{operator} {workload}{f' and {counts[key] - 1} more' if counts[key] > 1 else ''} "
        f"{outcome}: {reason}"
        for key, workload in first.items()
        for operator, outcome, reason in (key,)
    ]


def _weights_note(run: Run) -> str:
    total = sum(shape.gpu_ns for shape in run.shapes)
    measured = sum(shape.gpu_ns for shape in run.shapes if shape.time_source == "measured")
    if not total:
        return "The catalogue has no GPU time, so nothing is weighted."
    return (
        f"Weights: {units.percent(measured / total)} of the catalogue's GPU time is measured, "
        f"{units.percent(1 - measured / total)} modelled."
    )
