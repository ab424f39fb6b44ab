"""Split each engine step's time on the GPU into busy, idle, launch-bound and exposed communication.

The GPU runs behind the CPU, and steps overlap on it: a step is what its launches started, whenever
that ran. Everything here is about a step's own work, so time in which only other steps ran is idle
time of this one.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from operator import add

from atrex.stats import median
from atrex.trace.steps import parse_step
from atrex.trace.timeline import NO_LAUNCH, Timeline, column

NO_STEP = 0  # number of the work that no step launched
# of the kernels of a device may start before their launch: a few do where clocks are converted
# by sampling, many only where the clocks are not aligned
EARLY = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Where the time of a step on one device went, in ns.

    Attributes:
        span_ns: From the start of the step's first kernel or copy to the end of its last.
        busy_ns: Time in which any of them ran, on any stream.
        compute_ns: Time in which any of them but collectives ran.
        exposed_communication_ns: Time in which only collectives ran; busy_ns - compute_ns.
        idle_ns: Time in which none of them ran; span_ns - busy_ns.
        launch_bound_ns: Part of idle_ns before the call returned that launched what ended the gap:
            the GPU waited for the CPU. None where the trace cannot tell.
    """

    span_ns: int
    busy_ns: int
    compute_ns: int
    exposed_communication_ns: int
    idle_ns: int
    launch_bound_ns: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """One step on one device.

    Attributes:
        device: Number of the device.
        step: Number of the step, `NO_STEP` for the work that no step launched.
        start_ns: Start of its first kernel or copy.
        kernels: How many kernels it ran.
        times: Where its time went.
    """

    device: int
    step: int
    start_ns: int
    kernels: int
    times: Times


@dataclass(frozen=True, slots=True, kw_only=True)
class FormTimes:
    """The steps of one form; a step counts once for each device that it ran on.

    Attributes:
        form: What they have in common, e.g. their phase.
        steps: How many.
        kernels: Kernels of all of them.
        total: Sums.
        median: Medians, each by itself, rounded down.
    """

    form: str
    steps: int
    kernels: int
    total: Times
    median: Times

    @property
    def exposed_share(self) -> float:
        """Part of the steps' time in which only collectives ran."""
        span_ns = self.total.span_ns
        return self.total.exposed_communication_ns / span_ns if span_ns else 0.0


def number_steps(timeline: Timeline) -> tuple[array[int], list[int]]:
    """Number the steps of a timeline: occurrences of annotations that mark one.

    Annotations inside another are part of its step.

    Returns:
        Each launch's step, `NO_STEP` if none encloses it; and each step's outermost annotation, a
        row of `timeline.annotations`, that of step 1 first.
    """
    annotations, launches = timeline.annotations, timeline.launches
    outermost = _outermost_steps(timeline)
    starts: defaultdict[int, list[int]] = defaultdict(list)  # by thread, ascending
    steps_of: defaultdict[int, list[int]] = defaultdict(list)
    for step, row in enumerate(outermost, start=1):
        starts[annotations.thread[row]].append(annotations.start[row])
        steps_of[annotations.thread[row]].append(step)
    steps = column()
    for thread, time in zip(launches.thread, launches.time, strict=True):
        before = bisect_right(starts[thread], time) if thread in starts else 0
        step = steps_of[thread][before - 1] if before else NO_STEP
        inside = step != NO_STEP and time < annotations.end[outermost[step - 1]]
        steps.append(step if inside else NO_STEP)
    return steps, outermost


def _outermost_steps(timeline: Timeline) -> list[int]:
    """Return the annotations that mark a step and lie inside no other such one, by start."""
    annotations = timeline.annotations
    marks = {what: parse_step(timeline.names.values[what]) for what in set(annotations.what)}
    rows = [row for row, what in enumerate(annotations.what) if marks[what] is not None]
    rows.sort(key=lambda row: (annotations.start[row], -annotations.end[row]))
    outermost = []
    over: dict[int, int] = {}  # end of the latest by thread
    for row in rows:
        thread = annotations.thread[row]
        if annotations.start[row] >= over.get(thread, annotations.start[row]):
            outermost.append(row)
            over[thread] = annotations.end[row]
    return outermost


def launch_of_copies(timeline: Timeline) -> array[int]:
    """Return each copy's row in the launches, `NO_LAUNCH` if none or several could be its."""
    launches, names = timeline.launches, timeline.names.values
    starting = [any(word in name for word in ("Memcpy", "Memset", "Launch")) for name in names]
    found: dict[int, int] = {}
    for row, correlation in enumerate(launches.correlation):
        if correlation != NO_LAUNCH and starting[launches.name[row]]:
            found[correlation] = NO_LAUNCH if correlation in found else row
    return array("q", (found.get(each, NO_LAUNCH) for each in timeline.copies.correlation))


def step_times(
    timeline: Timeline,
    launch: Sequence[int],
    step_of_launch: Sequence[int],
    communicates: Sequence[bool],
) -> list[StepTimes]:
    """Return where the time of every step went, by device and start.

    A gap that ends with a further kernel of a graph's replay is not launch-bound; one that ends
    with work whose launch is not in the trace is counted as idle and no more.

    Args:
        timeline: The trace.
        launch: Each kernel's row in the launches, `NO_LAUNCH` if it has none.
        step_of_launch: Each launch's step, `NO_STEP` if it has none; see `number_steps`.
        communicates: Whether each kernel is a collective.
    """
    work = _work(timeline, launch, communicates)
    unaligned = _unaligned_devices(timeline, launch)
    of_row = [*step_of_launch, NO_STEP]  # the last one is found by the row NO_LAUNCH
    width = max(of_row) + 1
    steps = map(of_row.__getitem__, work.launch)
    group = [device * width + step for device, step in zip(work.device, steps, strict=True)]
    order = sorted(range(len(group)), key=work.start.__getitem__)
    order.sort(key=group.__getitem__)  # stable: by group, then by start
    seen = bytearray(len(timeline.launches.name))
    kernels = Counter(group[: len(timeline.kernels)])
    found = []
    begin = 0
    for number, count in sorted(Counter(group).items()):
        device, step = divmod(number, width)
        rows = order[begin : begin + count]
        begin += count
        times = _sweep(work, rows, seen)
        if device in unaligned:
            times = replace(times, launch_bound_ns=None)
        found.append(
            StepTimes(
                device=device,
                step=step,
                start_ns=work.start[rows[0]],
                kernels=kernels[number],
                times=times,
            )
        )
    return sorted(found, key=lambda each: (each.device, each.start_ns, each.step))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Kernels, then copies.

    Attributes:
        launch: Row in the launches, `NO_LAUNCH` if none.
        ready: Moment at which its launch had handed it over at the latest; 0 if none.
    """

    start: array[int]
    end: array[int]
    device: array[int]
    launch: array[int]
    ready: array[int]
    communicates: bytearray


def _work(timeline: Timeline, launch: Sequence[int], communicates: Sequence[bool]) -> _Work:
    kernels, copies, launches = timeline.kernels, timeline.copies, timeline.launches
    start = kernels.start + copies.start
    end = array("q", map(add, start, kernels.duration + copies.duration))
    rows = array("q", launch) + launch_of_copies(timeline)
    returned = [*map(add, launches.time, launches.duration), 0]  # the last one for NO_LAUNCH
    ready = array("q", map(returned.__getitem__, rows))
    for each in range(len(kernels), len(rows)):
        # a call that waits for its own copy to end does not say when it handed it over
        if rows[each] != NO_LAUNCH and ready[each] >= end[each]:
            ready[each] = launches.time[rows[each]]
    return _Work(
        start=start,
        end=end,
        device=kernels.device + copies.device,
        launch=rows,
        ready=ready,
        communicates=bytearray(map(bool, communicates)) + bytes(len(copies)),
    )


def _unaligned_devices(timeline: Timeline, launch: Sequence[int]) -> set[int]:
    """Return the devices on which too many kernels start before their launch."""
    kernels, times = timeline.kernels, timeline.launches.time
    launched: Counter[int] = Counter()
    early: Counter[int] = Counter()
    for device, start, row in zip(kernels.device, kernels.start, launch, strict=True):
        if row != NO_LAUNCH:
            launched[device] += 1
            early[device] += start < times[row]
    return {device for device, count in launched.items() if early[device] > EARLY * count}


def _sweep(work: _Work, rows: Sequence[int], seen: bytearray) -> Times:
    """Return the times of one group's work, given by start; note its launches in `seen`."""
    starts, ends, launch, ready = work.start, work.end, work.launch, work.ready
    communicates = work.communicates
    first = until = compute_until = starts[rows[0]]
    busy = compute = bound = launched = 0
    for row in rows:
        start, end, by = starts[row], ends[row], launch[row]
        if by != NO_LAUNCH:
            if start > until and not seen[by]:
                bound += max(0, min(ready[row], start) - until)
            seen[by] = launched = 1
        if end > until:
            busy += end - max(start, until)
            until = end
        if end > compute_until and not communicates[row]:
            compute += end - max(start, compute_until)
            compute_until = end
    return Times(
        span_ns=until - first,
        busy_ns=busy,
        compute_ns=compute,
        exposed_communication_ns=busy - compute,
        idle_ns=until - first - busy,
        launch_bound_ns=bound if launched else None,
    )


def steps_without_kernels(
    timeline: Timeline, step_of_launch: Sequence[int], steps: Iterable[StepTimes]
) -> list[int]:
    """Return the steps that launched and of which no kernel was recorded.

    Profilers lose the first kernels of a window. Such a step has no times to average.
    """
    names = timeline.names.values
    launching = {number for number, name in enumerate(names) if "launch" in name.lower()}
    launched = {
        step
        for step, name in zip(step_of_launch, timeline.launches.name, strict=True)
        if step != NO_STEP and name in launching
    }
    return sorted(launched - {each.step for each in steps if each.kernels})


def summarise(steps: Iterable[StepTimes], forms: Mapping[int, str]) -> list[FormTimes]:
    """Sum up steps by form, the form with most time first.

    Left out is what has no step time: work outside any step, and steps without kernels.

    Args:
        steps: Steps, of one or several devices.
        forms: Each step's form.
    """
    by_form: defaultdict[str, list[StepTimes]] = defaultdict(list)
    for each in steps:
        if each.step != NO_STEP and each.kernels:
            by_form[forms[each.step]].append(each)
    found = [
        FormTimes(
            form=form,
            steps=len(members),
            kernels=sum(each.kernels for each in members),
            total=_combine(sum, members),
            median=_combine(lambda values: int(median(values)), members),
        )
        for form, members in by_form.items()
    ]
    return sorted(found, key=lambda each: (-each.total.span_ns, each.form))


def _combine(by: Callable[[list[int]], int], members: Sequence[StepTimes]) -> Times:
    """Combine each kind of time; launch-bound time is unknown if it is for any member."""
    combined: dict[str, int | None] = {}
    for field in fields(Times):
        values = [getattr(each.times, field.name) for each in members]
        combined[field.name] = None if None in values else by(values)
    return Times(**combined)  # type: ignore[arg-type]
