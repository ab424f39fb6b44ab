"""Align the kernels of a graph's replay with the launches that were recorded at its capture.

A replay is one launch with hundreds of kernels and neither operators nor shapes. The capture of the
same graph has both, and no kernels. They are paired by position, and a pairing counts only if names
agree: on ROCm a launch names its kernel; on CUDA an eager run of the same operators, in the capture
trace or in the trace itself, shows which kernels they launch.
"""

from __future__ import annotations

import re
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from atrex.operator import Step
from atrex.trace.join import Join, enclosing, graph_launches, join
from atrex.trace.recording import Recording
from atrex.trace.steps import parse_step
from atrex.trace.timeline import NO_LAUNCH, NO_NODE, Interner, Timeline

ENOUGH = 0.99  # of a replay's time must agree by name
CHECKED = 0.5  # of it must have a name to be checked by
BATCH_IN_NAME = re.compile(r"bs_(\d+)_rank")  # bs_32_rank0.json.gz
NO_MEMBER = -1
MEMBER = re.compile(r"Launch|Memcpy|Memset")

Stack = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One launch of a captured graph, in the numbers of the trace that replays it.

    Attributes:
        rows: Operators around it, outermost first: their rows in the capture.
        stack: Their signatures.
        names: Kernels that it may launch; empty if nothing tells.
        api, geometry: Name of the launch; its grid and block.
    """

    rows: Stack
    stack: Stack
    names: frozenset[int]
    api: int
    geometry: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """One captured graph.

    Attributes:
        tokens: Padded tokens that it was captured for, None if not told.
    """

    tokens: int | None
    members: tuple[Member, ...]


@dataclass(slots=True)
class Alignment:
    """What captures tell of replayed kernels.

    Attributes:
        members: Distinct launches that were captured.
        number: Each kernel's launch, an index into `members`; `NO_MEMBER` if none.
        notes: What could not be aligned and why, in sentences.
    """

    members: list[Member]
    number: array[int]
    notes: list[str]

    def of(self, kernel: int) -> Member | None:
        """Return the launch that was captured for a kernel, None if none is known."""
        number = self.number[kernel] if self.number else NO_MEMBER
        return None if number == NO_MEMBER else self.members[number]


def align(
    timeline: Timeline,
    joined: Join,
    step_of: Callable[[int], Step],
    captures: Sequence[Recording],
) -> Alignment:
    """Align every graph replay of a trace.

    Args:
        timeline: The trace; windows captured within it serve as well.
        joined: Launches of its kernels.
        step_of: Returns the step of a launch, by its row.
        captures: Capture traces.

    Source: the order of a stream's launches is the order of its graph's nodes (CUDA C++
    Programming Guide, "Creating a Graph Using Stream Capture").
    """
    replays = _replays(timeline, joined)
    if not replays:
        return Alignment([], array("q"), [])
    windows = list(_windows(timeline, timeline, joined, None))
    for capture in captures:
        named = BATCH_IN_NAME.search(capture.name)
        tokens = int(named[1]) if named else capture.captured_tokens
        windows += _windows(capture.timeline, timeline, join(capture.timeline), tokens)
    members: Interner[Member] = Interner()
    number = array("q", [NO_MEMBER]) * len(timeline.kernels)
    failed: Counter[str] = Counter()
    for step, launches in _by_step(replays, step_of, timeline.launches.time):
        fitting = _fitting(windows, step)
        for position, launch in enumerate(launches):
            replay = replays[launch]
            chosen, reason = _choose(timeline, replay, fitting, position, len(launches))
            failed[reason] += sum(kernel >= 0 for kernel in replay) if chosen is None else 0
            for kernel, member in zip(replay, chosen or (), strict=False):
                if kernel >= 0:
                    number[kernel] = members.id(member)
    notes = [f"{count:,} kernels of graphs: {why}" for why, count in failed.items() if count]
    return Alignment(members.values, number, notes if windows else [])


def _replays(timeline: Timeline, joined: Join) -> dict[int, list[int]]:
    """Return graph launch to what it replayed, in order; copies are negative numbers.

    Graph nodes, where recorded, order better than time does.
    """
    launches, graphs = timeline.launches, graph_launches(timeline)
    replays: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    kernels, copies = timeline.kernels, timeline.copies
    for kernel, row in enumerate(joined.launch):
        if row != NO_LAUNCH and launches.name[row] in graphs:
            replays[row].append((kernels.node[kernel], kernels.start[kernel], kernel))
    by_correlation = {launches.correlation[row]: row for row in replays}
    for copy, correlation in enumerate(copies.correlation):
        row = by_correlation.get(correlation, NO_LAUNCH)
        if row != NO_LAUNCH:
            replays[row].append((NO_NODE, copies.start[copy], -1 - copy))
    return {row: [number for _, _, number in _ordered(found)] for row, found in replays.items()}


def _ordered(found: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    if any(node == NO_NODE for node, _, _ in found):
        return sorted(found, key=lambda each: each[1:])
    return sorted(found)


def _by_step(
    replays: Mapping[int, list[int]], step_of: Callable[[int], Step], times: Sequence[int]
) -> Iterator[tuple[Step, list[int]]]:
    """Yield steps of one form with their graph launches, in order."""
    groups: defaultdict[Step, list[int]] = defaultdict(list)
    for row in sorted(replays, key=times.__getitem__):
        groups[step_of(row)].append(row)
    yield from groups.items()


def _windows(
    capture: Timeline, trace: Timeline, joined: Join, of_file: int | None
) -> Iterator[Window]:
    """Yield the graphs that a trace captured, in order."""
    launches, names = capture.launches, capture.names.values
    order = sorted(range(len(launches.name)), key=launches.time.__getitem__)
    begins = [row for row in order if "StreamBeginCapture" in names[launches.name[row]]]
    ends = [row for row in order if "StreamEndCapture" in names[launches.name[row]]]
    if not begins:
        return
    around = enclosing(
        capture.ops, {row: (launches.thread[row], launches.time[row]) for row in order}
    )
    times = [launches.time[row] for row in order]
    member_name = ["GraphLaunch" not in name and bool(MEMBER.search(name)) for name in names]
    tokens = _tokens(capture, begins, of_file)
    seen = _seen(capture, joined, around)
    for begin, end in zip(begins, ends, strict=False):
        first = bisect_right(times, launches.time[begin])
        inside = [
            row
            for row in order[first : bisect_left(times, launches.time[end])]
            if member_name[launches.name[row]]
        ]
        members = (_member(capture, trace, row, around.get(row, ()), seen) for row in inside)
        yield Window(tokens=tokens[begin], members=tuple(members))


def _tokens(capture: Timeline, begins: Sequence[int], of_file: int | None) -> dict[int, int | None]:
    """Return the padded tokens of each window: from its annotation, else those of the file."""
    annotations, names, launches = capture.annotations, capture.names.values, capture.launches
    steps = {what: parse_step(names[what]) for what in set(annotations.what)}
    around = enclosing(
        annotations, {row: (launches.thread[row], launches.time[row]) for row in begins}
    )
    tokens: dict[int, int | None] = {}
    for row in begins:
        found = [steps[annotations.what[each]] for each in around.get(row, ())]
        told = [step.tokens for step in found if step is not None and step.phase == "capture"]
        tokens[row] = told[-1] if told else of_file
    return tokens


def _seen(
    capture: Timeline, joined: Join, around: Mapping[int, Stack]
) -> dict[Stack, frozenset[str]]:
    """Return the names of the kernels that each stack of operators launched eagerly."""
    seen: defaultdict[Stack, set[str]] = defaultdict(set)
    for kernel, row in enumerate(joined.launch):
        rows = around.get(row, ())
        if rows:
            stack = tuple(capture.ops.what[each] for each in rows)
            seen[stack].add(capture.names.values[capture.kernels.name[kernel]])
    return {stack: frozenset(names) for stack, names in seen.items()}


def _member(
    capture: Timeline,
    trace: Timeline,
    row: int,
    rows: Stack,
    seen: Mapping[Stack, frozenset[str]],
) -> Member:
    launches, names = capture.launches, capture.names.values
    stack = tuple(capture.ops.what[each] for each in rows)
    named = launches.kernel[row]
    told = [names[named]] if named >= 0 else seen.get(stack, ())
    return Member(
        rows=rows,
        stack=tuple(trace.signatures.id(capture.signatures.values[each]) for each in stack),
        names=frozenset(trace.names.id(name) for name in told),
        api=trace.names.id(names[launches.name[row]]),
        geometry=trace.geometries.id(capture.geometries.values[launches.geometry[row]]),
    )


def _fitting(windows: Sequence[Window], step: Step) -> list[Window]:
    """Return the windows captured for a step's tokens; all that do not tell, if none was."""
    if step.tokens is not None:
        exact = [window for window in windows if window.tokens == step.tokens]
        return exact or [window for window in windows if window.tokens is None]
    return list(windows)


def _choose(
    timeline: Timeline,
    replay: Sequence[int],
    windows: Sequence[Window],
    position: int,
    launches: int,
) -> tuple[Sequence[Member] | None, str]:
    """Return the members for each kernel and copy of a replay, or None and why not."""
    if not windows:
        return None, "no capture of their batch size"
    if len(windows) > 1 and launches % len(windows) == 0:
        windows = [windows[position % len(windows)]]  # one round of the captures per pass
    fits = {}
    for window in windows:
        members = _paired(timeline, replay, window)
        if members is not None:
            fits[tuple(member.stack for member in members)] = members
    if not fits:
        return None, "their names or their number do not agree with the capture's"
    if len(fits) > 1:
        return None, "several captures agree and the step does not tell its batch size"
    return next(iter(fits.values())), ""


def _paired(timeline: Timeline, replay: Sequence[int], window: Window) -> tuple[Member, ...] | None:
    """Pair a replay with a window by position; launches left over at the window's end do no harm.

    Without that, the graph had two branches whose order differs: then each kernel name's first
    replay is its first launch, and so on.
    """
    members = window.members[: len(replay)]
    if len(members) == len(replay) and _agrees(timeline, replay, members):
        return members
    queues: defaultdict[int, list[Member]] = defaultdict(list)
    for member in reversed(window.members):
        for name in member.names if len(member.names) == 1 else ():
            queues[name].append(member)
    kernels = timeline.kernels
    if len(window.members) < len(replay) or any(
        kernel < 0 or not queues[kernels.name[kernel]] for kernel in replay
    ):
        return None
    paired = []
    for kernel in replay:
        queue = queues[kernels.name[kernel]]
        if not queue:
            return None
        paired.append(queue.pop())
    return tuple(paired)


def _agrees(timeline: Timeline, replay: Sequence[int], members: Sequence[Member]) -> bool:
    """Whether enough of a replay's time can be checked by name, and nearly all of it agrees."""
    kernels, names = timeline.kernels, timeline.names.values
    total = checked = agreed = 0
    for kernel, member in zip(replay, members, strict=True):
        if kernel < 0:
            if "Launch" in names[member.api]:
                return False
            continue
        duration = kernels.duration[kernel]
        total += duration
        if member.names:
            checked += duration
            agreed += duration * (kernels.name[kernel] in member.names)
    return checked >= CHECKED * total and agreed >= ENOUGH * checked
