"""Read one trace into facts: what ran, how often, for how long, and how surely we know.

Nothing is dropped silently. Kernel time over all facts, unknown ones included, equals the trace's
kernel time to the nanosecond.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import polars as pl

from atrex.errors import DataError
from atrex.model import TimeSource, TraceSummary, canonical
from atrex.operator import Operator
from atrex.trace.advice import hints
from atrex.trace.calls import Calls, Group, outside
from atrex.trace.context import NOTHING, Context
from atrex.trace.formats import read_recording
from atrex.trace.gaps import FormTimes, step_times, steps_without_kernels, summarise
from atrex.trace.join import graph_launches
from atrex.trace.plausible import suspicious
from atrex.trace.recording import Progress, Recording
from atrex.trace.schema import FACTS, RUNGS, UNATTRIBUTED
from atrex.trace.timeline import NO_LAUNCH, Timeline


@dataclass(frozen=True, slots=True, kw_only=True)
class Ingested:
    """What one trace tells.

    Attributes:
        summary: The coverage funnel.
        facts: `schema.FACTS`, most time first.
        unattributed: `schema.UNATTRIBUTED`, most time first.
        copies: Device copies and fills, no part of kernel time; copy_ns: their time.
        graph_ns: Kernel time replayed from graphs, which carry no shapes.
        lossless: Whether every kernel of the recording was read.
        steps: Where the time of its steps went, by phase.
        empty_steps: Steps of which no kernel was recorded; they are in no average.
        hints: What to record better, in sentences.
        warnings: What the reader should know, in sentences.
    """

    summary: TraceSummary
    facts: pl.DataFrame
    unattributed: pl.DataFrame
    copies: int
    copy_ns: int
    graph_ns: int
    lossless: bool
    steps: tuple[FormTimes, ...]
    empty_steps: int
    hints: tuple[str, ...]
    warnings: tuple[str, ...]


def read_trace(
    path: Path,
    operators: Mapping[str, Operator],
    *,
    context: Context = NOTHING,
    progress: Progress | None = None,
) -> Ingested:
    """Read a trace of any format that `formats` knows, as a stream where the format allows.

    Args:
        path: The trace; its content decides the format, not its name.
        operators: Operators to recognise, by name.
        context: What is known of the trace besides.
        progress: Called with the bytes read since the last call.

    Raises:
        UsageError: The path is missing.
        SetupError: The format needs a package that is not installed.
        DataError: The file is no trace, or holds no GPU kernels.
    """
    return understand(read_recording(path, progress), operators, context)


def understand(
    recording: Recording, operators: Mapping[str, Operator], context: Context = NOTHING
) -> Ingested:
    """Say what the kernels of a recording were.

    Raises:
        DataError: It holds no GPU kernels.
    """
    timeline = recording.timeline
    if not timeline.kernels:
        raise _no_kernels(recording)
    calls = Calls(timeline, operators, context)
    groups = calls.groups()
    time_source: TimeSource = "modelled" if recording.synthetic else "measured"
    summary = _summary(recording, calls, groups)
    graph_ns = _graph_ns(calls, timeline)
    facts = _facts(groups, recording.trace, time_source)
    steps, empty_steps = _steps(calls, timeline)
    suspected = (str(each) for each in suspicious(facts, recording.gpu, operators))
    return Ingested(
        summary=summary,
        facts=facts,
        unattributed=_unattributed(calls, timeline, recording.trace),
        copies=len(timeline.copies),
        copy_ns=sum(timeline.copies.duration),
        graph_ns=graph_ns,
        lossless=recording.lossless,
        steps=steps,
        empty_steps=empty_steps,
        hints=hints(recording, summary, graph_ns - _captured_ns(calls, timeline)),
        warnings=_warnings(recording, [*calls.notes, *context.notes, *suspected]),
    )


def check(ingested: Ingested) -> None:
    """Assert that no kernel time appeared or vanished, and that the funnel narrows."""
    summary, facts = ingested.summary, ingested.facts
    assert facts["gpu_ns"].sum() == summary.gpu_ns
    assert facts["kernels"].sum() == summary.kernels
    outside = facts.filter(pl.col("kind") != "operator")["gpu_ns"].sum()
    assert ingested.unattributed["gpu_ns"].sum() == outside
    assert sum(summary.rung_ns.values()) == summary.gpu_ns
    assert summary.gpu_ns >= summary.attributed_ns >= summary.shaped_ns
    assert summary.gpu_ns >= summary.launched_ns
    assert summary.busy_ns <= summary.gpu_ns


def _facts(groups: list[Group], trace: str, time_source: TimeSource) -> pl.DataFrame:
    rows: dict[tuple[str, ...], list[Any]] = {}
    for group in groups:
        meaning = group.meaning
        axes = canonical(dict(meaning.axes)).decode()
        key = (meaning.operator, meaning.kind, meaning.workload, axes, meaning.dtype, group.phase)
        row = rows.setdefault(key, [0, 0, 0, RUNGS[0]])
        row[0] += group.calls
        row[1] += group.kernels
        row[2] += group.gpu_ns
        row[3] = max(row[3], meaning.rung, key=RUNGS.index)
    table = [
        (*key[:5], trace, key[5], calls, kernels, gpu_ns, rung, time_source)
        for key, (calls, kernels, gpu_ns, rung) in rows.items()
    ]
    frame = pl.DataFrame(table, schema=FACTS, orient="row")
    return frame.sort(
        ["gpu_ns", "operator", "axes", "dtype", "phase"],
        descending=[True, False, False, False, False],
    )


def _unattributed(calls: Calls, timeline: Timeline, trace: str) -> pl.DataFrame:
    table = [
        (trace, *astuple(sighting), count, gpu_ns)
        for sighting, (count, gpu_ns) in outside(calls, timeline).items()
    ]
    frame = pl.DataFrame(table, schema=UNATTRIBUTED, orient="row")
    return frame.sort(
        ["gpu_ns", *UNATTRIBUTED.names()[1:-2]],
        descending=[True] + [False] * (len(UNATTRIBUTED) - 3),
    )


def _summary(recording: Recording, calls: Calls, groups: list[Group]) -> TraceSummary:
    timeline = recording.timeline
    kernels = timeline.kernels
    gpu_ns = sum(kernels.duration)
    rung_ns: Counter[str] = Counter()
    for group in groups:
        rung_ns[group.meaning.rung] += group.gpu_ns
    benchmarkable = sum(
        g.gpu_ns for g in groups if g.meaning.kind == "operator" and g.meaning.workload
    )
    starts_ends = zip(kernels.start, kernels.duration, strict=True)
    return TraceSummary(
        trace=recording.trace,
        path=recording.name,
        format=recording.format,
        gpu=recording.gpu,
        noted=_noted(calls, timeline),
        rank=recording.rank,
        world_size=recording.world_size,
        events=timeline.events,
        kernels=len(kernels),
        gpu_ns=gpu_ns,
        busy_ns=_busy_ns(timeline, calls.order),
        span_ns=max(start + length for start, length in starts_ends) - min(kernels.start),
        launched_ns=sum(
            duration
            for duration, launch in zip(kernels.duration, calls.joined.launch, strict=True)
            if launch != NO_LAUNCH
        ),
        attributed_ns=sum(g.gpu_ns for g in groups if g.meaning.kind != "unknown"),
        shaped_ns=sum(g.gpu_ns for g in groups if g.meaning.shaped),
        rung_ns={rung: rung_ns[rung] for rung in RUNGS if rung_ns[rung]},
        trace_coverage=benchmarkable / gpu_ns if gpu_ns else 0.0,
        dropped=dict(recording.dropped),
        repaired=dict(recording.repaired),
        truncated=recording.truncated,
    )


def _noted(calls: Calls, timeline: Timeline) -> dict[str, int]:
    """Count what lost nothing but is worth knowing."""
    joined, durations = calls.joined, timeline.kernels.duration
    counts = {
        "kernels without a launch": sum(row == NO_LAUNCH for row in joined.launch),
        "kernels that several launches could have launched": joined.ambiguous,
        "launches without a kernel": joined.childless,
        "kernels of no duration": sum(duration == 0 for duration in durations),
    }
    return {what: count for what, count in counts.items() if count}


def _busy_ns(timeline: Timeline, order: Sequence[int]) -> int:
    """Sum the union of the kernels per (device, stream): kernels of one stream may overlap."""
    kernels = timeline.kernels
    ends: defaultdict[tuple[int, int], int] = defaultdict(int)
    busy = 0
    for kernel in order:
        lane = (kernels.device[kernel], kernels.stream[kernel])
        begin = max(kernels.start[kernel], ends[lane])
        end = kernels.start[kernel] + kernels.duration[kernel]
        if end > begin:
            busy += end - begin
            ends[lane] = end
    return busy


def _steps(calls: Calls, timeline: Timeline) -> tuple[tuple[FormTimes, ...], int]:
    """Return where the time of steps went, by phase, and how many had no kernels."""
    communicates = [
        calls.group_of_call[call].meaning.operator in calls.communication for call in calls.call
    ]
    times = step_times(timeline, calls.joined.launch, calls.step_of_launch, communicates)
    empty = steps_without_kernels(timeline, calls.step_of_launch, times)
    return tuple(summarise(times, calls.phases())), len(empty)


def _graph_ns(calls: Calls, timeline: Timeline) -> int:
    kernels, launches = timeline.kernels, timeline.launches
    replays = graph_launches(timeline)
    return sum(
        duration
        for duration, launch in zip(kernels.duration, calls.joined.launch, strict=True)
        if launch != NO_LAUNCH and launches.name[launch] in replays
    )


def _captured_ns(calls: Calls, timeline: Timeline) -> int:
    durations = enumerate(timeline.kernels.duration)
    return sum(duration for kernel, duration in durations if calls.is_captured(kernel))


def _warnings(recording: Recording, notes: list[str]) -> tuple[str, ...]:
    found = recording.notes + notes
    for reason, count in recording.dropped.items():
        found.append(f"left out: {count} x {reason}")
    for kind, count in recording.repaired.items():
        found.append(f"mended: {count} x {kind}")
    return tuple(f"{recording.name}: {text}" for text in found)


def _no_kernels(recording: Recording) -> DataError:
    timeline = recording.timeline
    if recording.truncated:
        return DataError(
            f"the file ends early, before the first GPU kernel ({timeline.events:,} events read)",
            where=recording.name,
            remedy="Copy it again, or record it again: it was cut while it was written or sent.",
        )
    if timeline.events == 0:
        what = "the trace has no events"
    elif timeline.lost_kernels:
        what = f"none of its {timeline.lost_kernels} kernels has a valid time"
    elif not (timeline.ops.what or timeline.launches.name or timeline.annotations.what):
        what = f"no events of a PyTorch profiler among {timeline.events:,} events"
    else:
        what = f"no GPU kernels among {timeline.events:,} events"
    return DataError(
        what,
        where=recording.name,
        remedy="Likely causes: CPU activity only (add ProfilerActivity.CUDA), the engine runs in "
        "another process, this rank was not profiled, counters were recorded instead of kernels, "
        "or the work ran on another kind of accelerator.",
    )
