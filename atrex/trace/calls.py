"""Group kernels into operator calls, and calls into forms.

Serving repeats itself, so every question is asked once per distinct form, not once per kernel.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from atrex.model import Phase
from atrex.operator import Call, Operator, Step
from atrex.trace.classify import Classifier, Decision, Meaning, json_list
from atrex.trace.join import Steps, enclosing, launch_of_kernels
from atrex.trace.names import normalise_kernel
from atrex.trace.timeline import NO_LAUNCH, Interner, Timeline, column

THREADS_IN_GRID = "hipExtModuleLaunchKernel"  # reports its grid in threads, all others in blocks


@dataclass(slots=True)
class Group:
    """Calls of one form: how many, their kernels and time."""

    meaning: Meaning
    phase: Phase
    calls: int = 0
    kernels: int = 0
    gpu_ns: int = 0


class Calls:
    """The calls of one trace.

    Attributes:
        launch: Each kernel's row in the launches, `NO_LAUNCH` if it has none.
        kernel_rule: Each kernel's group, an index into `groups`.
        groups: Calls by form.
    """

    def __init__(self, timeline: Timeline, operators: Mapping[str, Operator]) -> None:
        self._timeline = timeline
        self.launch = launch_of_kernels(timeline)
        self._classifier = Classifier(timeline, operators)
        self._decisions: Interner[tuple[Decision, tuple[int, ...]]] = Interner()
        self._known: dict[tuple[tuple[int, ...], int, int], int] = {}
        self._sequences: Interner[tuple[int, int]] = Interner()  # (all but the last, last kernel)
        self._owner = column()  # by call
        self._step = column()
        self._geometry = column()
        self._sequence = column()
        self._launched_by = column()
        self._gpu_ns = column()
        self._count = column()
        self._call_kernels()

    def _call_kernels(self) -> None:
        """Give every kernel to a call, in start order."""
        timeline, kernels = self._timeline, self._timeline.kernels
        rows = {row for row in self.launch if row != NO_LAUNCH}
        launches = timeline.launches
        moments = {row: (launches.thread[row], launches.time[row]) for row in rows}
        around = enclosing(timeline.ops, moments)
        steps = Steps(timeline, sorted(rows))
        self._steps = steps.values
        of_op: dict[tuple[int, str], int] = {}
        last: dict[tuple[int, int, str], int] = {}  # latest call by device, stream, target
        what = timeline.ops.what
        self.call = array("q", bytes(8 * len(kernels)))
        for kernel in sorted(range(len(kernels)), key=kernels.start.__getitem__):
            row = self.launch[kernel]
            ops = around.get(row, ())
            step = steps.of(row) if row != NO_LAUNCH else 0
            owner = self._decide(tuple(what[op] for op in ops), kernels.name[kernel], step)
            decision = self._decisions.values[owner][0]
            call = None
            place = (kernels.device[kernel], kernels.stream[kernel], decision.target)
            if decision.level >= 0:
                call = of_op.get((ops[decision.level], decision.target))
            elif decision.continues:
                call = last.get(place)
            if call is None:
                call = self._begin(owner, step, kernels.geometry[kernel], row)
                if decision.level >= 0:
                    of_op[ops[decision.level], decision.target] = call
            last[place] = call
            self._sequence[call] = self._sequences.id((self._sequence[call], kernels.name[kernel]))
            self._gpu_ns[call] += kernels.duration[kernel]
            self._count[call] += 1
            self.call[kernel] = call

    def _decide(self, stack: tuple[int, ...], name: int, step: int) -> int:
        key = (stack, name, step)
        owner = self._known.get(key)
        if owner is None:
            decision = self._classifier.decide(stack, self._name(name), self._steps[step])
            owner = self._known[key] = self._decisions.id((decision, stack))
        return owner

    def _name(self, number: int) -> str:
        return normalise_kernel(self._timeline.names.values[number])

    def _begin(self, owner: int, step: int, geometry: int, row: int) -> int:
        self._owner.append(owner)
        self._step.append(step)
        self._geometry.append(geometry)
        self._sequence.append(-1)
        self._launched_by.append(-1 if row == NO_LAUNCH else self._timeline.launches.name[row])
        self._gpu_ns.append(0)
        self._count.append(0)
        return len(self._owner) - 1

    def groups(self) -> list[Group]:
        """Return the calls by form, each form explained once."""
        self._steps = self._with_siblings()
        found: dict[tuple[int, ...], Group] = {}
        self.group_of_call: list[Group] = []
        columns = (
            self._owner, self._step, self._geometry, self._sequence, self._launched_by
        )  # fmt: skip
        for key, gpu_ns, count in zip(
            zip(*columns, strict=True), self._gpu_ns, self._count, strict=True
        ):
            group = found.get(key)
            if group is None:
                group = found[key] = self._explain(*key)
            group.calls += 1
            group.kernels += count
            group.gpu_ns += gpu_ns
            self.group_of_call.append(group)
        return list(found.values())

    def _with_siblings(self) -> list[Step]:
        """Return the forms of steps, each with the distinct operators that it ran.

        A call does not always tell all of its axes: the KV write beside an attention knows the
        page. What ran outside any step has no siblings.
        """
        siblings: dict[int, dict[int, None]] = {}
        for step, owner in dict.fromkeys(zip(self._step, self._owner, strict=True)):
            seen = siblings.setdefault(step, {})
            seen.update(dict.fromkeys(self._decisions.values[owner][1]))
        return [
            replace(step, siblings=self._recorded(siblings.get(number, {}))) if number else step
            for number, step in enumerate(self._steps)
        ]

    def _recorded(self, signatures: Iterable[int]) -> tuple[Call, ...]:
        calls = (self._classifier.op_call(each) for each in signatures)
        return tuple(call for call in calls if call.dims)

    def _explain(self, owner: int, step: int, geometry: int, sequence: int, api: int) -> Group:
        decision, stack = self._decisions.values[owner]
        names: list[str] = []
        while sequence >= 0:
            sequence, name = self._sequences.values[sequence]
            names.append(self._name(name))
        kernels = tuple(reversed(names))
        grid, block = (_triple(text) for text in self._timeline.geometries.values[geometry][:2])
        if grid and block and api >= 0 and self._timeline.names.values[api] == THREADS_IN_GRID:
            grid = tuple(-(-g // b) for g, b in zip(grid, block, strict=True))  # type: ignore[assignment]
        call = Call(name="", kernels=kernels, grid=grid, block=block)
        meaning = self._classifier.explain(decision, stack, call, self._steps[step])
        return Group(meaning=meaning, phase=self._steps[step].phase)


def _triple(text: bytes) -> tuple[int, int, int] | None:
    value = json_list(text)
    if len(value) != 3 or not all(isinstance(each, int) and each > 0 for each in value):
        return None
    return value[0], value[1], value[2]


def by_kernel_name(calls: Calls, timeline: Timeline) -> dict[tuple[str, str], tuple[int, int]]:
    """Sum kernels outside the operators by (normalised name, class): count and time in ns."""
    groups = calls.group_of_call
    sums: defaultdict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0])
    kernels = timeline.kernels
    for kernel, call in enumerate(calls.call):
        meaning = groups[call].meaning
        if meaning.kind != "operator":
            entry = sums[kernels.name[kernel], meaning.operator]
            entry[0] += 1
            entry[1] += kernels.duration[kernel]
    merged: dict[tuple[str, str], tuple[int, int]] = {}
    for (name, operator), (count, gpu_ns) in sums.items():
        key = (normalise_kernel(timeline.names.values[name]), operator)
        before = merged.get(key, (0, 0))
        merged[key] = (before[0] + count, before[1] + gpu_ns)
    return merged
