"""Join kernels to launches by correlation, and launches to what encloses them on their thread.

Never by kernel time: the GPU runs behind the CPU, and in some captures no kernel starts inside
the annotation that launched it.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from atrex.operator import Step
from atrex.trace.steps import NO_STEP, merge_steps, parse_step
from atrex.trace.timeline import NO_LAUNCH, Ranges, Timeline, column


@dataclass(frozen=True, slots=True)
class Join:
    """The launch of each kernel.

    Attributes:
        launch: Each kernel's row in the launches, `NO_LAUNCH` if it has none.
        ambiguous: Kernels left without a launch because several could be theirs.
        childless: Launches of which no kernel was recorded.
    """

    launch: array[int]
    ambiguous: int
    childless: int


def join(timeline: Timeline) -> Join:
    """Join kernels to launches by rank and correlation.

    Ranks that share a file count their correlations alike. A merger that writes the rank into the
    process (``"[TP00] 1234"``) tells them apart; else a device belongs to the process that launched
    its unmistakable kernels. A launch of one kernel that several share, as some profilers write it,
    keeps those that it names.
    """
    launches, kernels = timeline.launches, timeline.kernels
    first, shared = _candidates(timeline)
    owner = _owners(timeline) if shared else {}
    ranks = _rank_numbers(timeline)
    of_process = [ranks[_rank(pid)] for pid in timeline.processes.values]
    launch = column()
    ambiguous = 0
    for kernel, correlation in enumerate(kernels.correlation):
        key = correlation * len(ranks) + of_process[kernels.process[kernel]]
        row = first.get(key, NO_LAUNCH) if correlation != NO_LAUNCH else NO_LAUNCH
        if key in shared:
            pid = owner.get((kernels.process[kernel], kernels.device[kernel]))
            rows = [each for each in shared[key] if _pid(timeline, each) == pid]
            named = [each for each in rows if launches.kernel[each] == kernels.name[kernel]]
            row = next(iter(named or rows), NO_LAUNCH)
            ambiguous += row == NO_LAUNCH
        launch.append(row)
    ambiguous += _unshare(timeline, launch)
    used, launching = set(launch), _launching(timeline)
    childless = sum(
        launching[name] and row not in used and "Graph" not in timeline.names.values[name]
        for row, name in enumerate(launches.name)
    )
    return Join(launch, ambiguous, childless)


def _candidates(timeline: Timeline) -> tuple[dict[int, int], dict[int, list[int]]]:
    """Return launches by (correlation, rank): the only one, and all where there are several.

    Of several events one whose name says Launch wins over the others.
    """
    launches = timeline.launches
    launching = _launching(timeline)
    ranks = _rank_numbers(timeline)
    of_thread = [ranks[_rank(pid)] for pid, _ in timeline.threads.values]
    first: dict[int, int] = {}
    shared: defaultdict[int, list[int]] = defaultdict(list)
    for row, correlation in enumerate(launches.correlation):
        if correlation == NO_LAUNCH:
            continue
        key = correlation * len(ranks) + of_thread[launches.thread[row]]
        seen = first.setdefault(key, row)
        if seen == row or launching[launches.name[row]] < launching[launches.name[seen]]:
            continue
        if launching[launches.name[row]] > launching[launches.name[seen]]:
            first[key] = row
            shared.pop(key, None)
        elif launching[launches.name[row]]:
            shared[key] = [*(shared[key] or [seen]), row]
    return first, dict(shared)


def graph_launches(timeline: Timeline) -> set[int]:
    """Return the names that replay a graph: cudaGraphLaunch, hipGraphLaunch, cuGraphLaunch."""
    return {number for number, name in enumerate(timeline.names.values) if "GraphLaunch" in name}


def _launching(timeline: Timeline) -> list[bool]:
    """Return which names launch; INVALID is what some profilers print for a launch."""
    return ["launch" in name.lower() or name == "INVALID" for name in timeline.names.values]


def _rank_numbers(timeline: Timeline) -> dict[bytes, int]:
    pids = [pid for pid, _ in timeline.threads.values] + timeline.processes.values
    return {rank: number for number, rank in enumerate(dict.fromkeys(map(_rank, pids)))}


def _rank(pid: bytes) -> bytes:
    """Return the rank that a merger wrote in front of a process, b"" if none."""
    return pid[: pid.rfind(b"]") + 1] if pid.startswith(b'"[') else b""


def _pid(timeline: Timeline, row: int) -> bytes:
    return timeline.threads.values[timeline.launches.thread[row]][0]


def _owners(timeline: Timeline) -> dict[tuple[int, int], bytes]:
    """Return the process that launches to each (process, device) of kernels, where one fits best.

    A process fits a kernel if its launch came before it and, where told, names it.
    """
    kernels, launches = timeline.kernels, timeline.launches
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    for row, correlation in enumerate(launches.correlation):
        rows_of[correlation].append(row)
    votes: defaultdict[tuple[int, int], Counter[bytes]] = defaultdict(Counter)
    for kernel, correlation in enumerate(kernels.correlation):
        if correlation == NO_LAUNCH:
            continue
        lane = kernels.process[kernel], kernels.device[kernel]
        for row in rows_of.get(correlation, ()):
            named = launches.kernel[row] in (-1, kernels.name[kernel])
            votes[lane][_pid(timeline, row)] += (
                named and launches.time[row] <= kernels.start[kernel]
            )
    owner = {}
    for lane, counts in votes.items():
        (best, most), *others = counts.most_common(2)
        if not others or others[0][1] < most:
            owner[lane] = best
    return owner


def _unshare(timeline: Timeline, launch: array[int]) -> int:
    """Take kernels off a launch that names another kernel and has one of that name.

    Returns:
        How many.
    """
    launches, kernels = timeline.launches, timeline.kernels
    counts = Counter(row for row in launch if row != NO_LAUNCH and launches.kernel[row] >= 0)
    shared = {row for row, count in counts.items() if count > 1}
    named = {
        row
        for kernel, row in enumerate(launch)
        if row in shared and launches.kernel[row] == kernels.name[kernel]
    }
    taken = 0
    for kernel, row in enumerate(launch):
        if row in named and launches.kernel[row] != kernels.name[kernel]:
            launch[kernel] = NO_LAUNCH
            taken += 1
    return taken


def enclosing(ranges: Ranges, moments: dict[int, tuple[int, int]]) -> dict[int, tuple[int, ...]]:
    """Find the ranges around moments.

    Args:
        ranges: Ranges on threads, in any order.
        moments: Key to (thread, time).

    Returns:
        Key to rows of `ranges`, outermost first; keys without any are left out.
    """
    by_thread: defaultdict[int, list[int]] = defaultdict(list)
    for key, (thread, _) in moments.items():
        by_thread[thread].append(key)
    rows_of: dict[int, list[int]] = {thread: [] for thread in by_thread}
    for row, thread in enumerate(ranges.thread):
        if thread in rows_of:
            rows_of[thread].append(row)
    found: dict[int, tuple[int, ...]] = {}
    for thread, keys in by_thread.items():
        keys.sort(key=lambda key: moments[key][1])
        rows = rows_of[thread]
        rows.sort(key=ranges.end.__getitem__, reverse=True)
        rows.sort(key=ranges.start.__getitem__)  # stable: of equal starts the longer comes first
        _sweep(ranges, rows, [(key, moments[key][1]) for key in keys], found)
    return found


def _sweep(
    ranges: Ranges,
    rows: Sequence[int],
    moments: Sequence[tuple[int, int]],
    found: dict[int, tuple[int, ...]],
) -> None:
    start, end = ranges.start, ranges.end
    stack: list[int] = []
    position, count = 0, len(rows)
    for key, time in moments:
        while position < count and start[rows[position]] <= time:
            row = rows[position]
            position += 1
            while stack and end[stack[-1]] < start[row]:
                stack.pop()
            stack.append(row)
        while stack and end[stack[-1]] < time:
            stack.pop()
        # a range that ends at this very moment is over, unless it is too short to tell
        around = tuple(row for row in stack if end[row] > time or start[row] == time)
        if around:
            found[key] = around


class Steps:
    """The engine step of each launch.

    Attributes:
        values: Distinct forms of steps; number 0 is no step.
    """

    def __init__(
        self, timeline: Timeline, launch_rows: Sequence[int], log: Mapping[int, Step]
    ) -> None:
        self.values: list[Step] = [NO_STEP]
        self._numbers: dict[tuple[Step, ...], int] = {(): 0}
        self._of: dict[int, int] = {}
        annotations = timeline.annotations
        parsed = {
            what: parse_step(timeline.names.values[what], log) for what in set(annotations.what)
        }
        steps = Ranges()
        for row, what in enumerate(annotations.what):
            if parsed[what] is not None:
                steps.thread.append(annotations.thread[row])
                steps.start.append(annotations.start[row])
                steps.end.append(annotations.end[row])
                steps.what.append(what)
        launches = timeline.launches
        moments = {row: (launches.thread[row], launches.time[row]) for row in launch_rows}
        for row, around in enclosing(steps, moments).items():
            nested = tuple(step for r in around if (step := parsed[steps.what[r]]) is not None)
            self._of[row] = self._number(nested)

    def _number(self, nested: tuple[Step, ...]) -> int:
        number = self._numbers.get(nested)
        if number is None:
            number = self._numbers[nested] = len(self.values)
            self.values.append(merge_steps(nested))
        return number

    def of(self, launch_row: int) -> int:
        """Return the form of a launch's step, a number; 0 if none encloses it."""
        return self._of.get(launch_row, 0)
