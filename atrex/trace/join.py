"""Join kernels to launches by correlation, and launches to what encloses them on their thread.

Never by kernel time: the GPU runs behind the CPU, and in some captures no kernel starts inside
the annotation that launched it.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence

from atrex.operator import Step
from atrex.trace.steps import NO_STEP, merge_steps, parse_step
from atrex.trace.timeline import NO_LAUNCH, Ranges, Timeline


def launch_of_kernels(timeline: Timeline) -> array[int]:
    """Return each kernel's row in `timeline.launches`, `NO_LAUNCH` if it has none.

    Where several runtime events share a correlation, one whose name says Launch wins.
    """
    launches = timeline.launches
    launching = [
        "launch" in name.lower() or name == "INVALID" for name in timeline.names.values
    ]  # INVALID: what some profilers print for a launch
    rows: dict[int, int] = {}
    for row, correlation in enumerate(launches.correlation):
        seen = rows.get(correlation)
        if seen is None or (launching[launches.name[row]] and not launching[launches.name[seen]]):
            rows[correlation] = row
    return array("q", (rows.get(number, NO_LAUNCH) for number in timeline.kernels.correlation))


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
        values: Distinct steps; number 0 is no step.
    """

    def __init__(self, timeline: Timeline, launch_rows: Sequence[int]) -> None:
        self.values: list[Step] = [NO_STEP]
        self._numbers: dict[tuple[Step, ...], int] = {(): 0}
        self._of: dict[int, int] = {}
        annotations = timeline.annotations
        parsed = {what: parse_step(timeline.names.values[what]) for what in set(annotations.what)}
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
        """Return the number of a launch's step, 0 if none encloses it."""
        return self._of.get(launch_row, 0)
