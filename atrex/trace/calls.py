"""Group kernels into operator calls, and calls into forms.

Serving repeats itself, so every question is asked once per distinct form, not once per kernel.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from atrex.model import Phase
from atrex.operator import Call, Operator, Step
from atrex.trace.capture import Stack, align
from atrex.trace.classify import Classifier, Decision, Meaning, json_list
from atrex.trace.context import Context
from atrex.trace.gaps import number_steps
from atrex.trace.join import Steps, enclosing, join
from atrex.trace.names import normalise_kernel, normalise_op
from atrex.trace.siblings import recover
from atrex.trace.timeline import NO_LAUNCH, Geometry, Interner, Signature, Timeline, column

NO_SIGNATURE: Signature = ("", b"", b"", b"", b"")
NOT_RECORDED: Geometry = (b"", b"", b"")
NOBODY = -1  # no neighbour on the stream, or none needed


@dataclass(slots=True)
class Group:
    """Calls of one form: how many, their kernels and time."""

    meaning: Meaning
    phase: Phase
    calls: int = 0
    kernels: int = 0
    gpu_ns: int = 0


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a kernel came from, as far as the trace, its captures or its siblings tell.

    Attributes:
        occurrence: Tells one run of the operators in `rows` from another.
        rows: Operators around its launch, outermost first; stack: their signatures.
        rung: How they were found, "" if there are none.
        api, geometry: Name of the launch, -1 if none; grid and block.
    """

    occurrence: int
    rows: Stack
    stack: Stack
    rung: str
    api: int
    geometry: int


class Calls:
    """The calls of one trace.

    Attributes:
        joined: The launches of its kernels.
        order: Kernels by their start.
        call: Each kernel's call.
        step_of_launch: Each launch's step, as a number from 1 on; 0 outside of any step.
        group_of_call: Each call's group, once `groups` has run.
        notes: What captures could not tell, in sentences.
    """

    def __init__(
        self, timeline: Timeline, operators: Mapping[str, Operator], context: Context
    ) -> None:
        self._timeline = timeline
        self._model = context.model
        self._windows = [
            int(size) for size in str(context.model.get("windows", "")).split("-") if size
        ]
        self._classifier = Classifier(timeline, operators)
        self._decisions: Interner[tuple[Decision, Stack, str]] = Interner()
        self._known: dict[tuple[Stack, str, int, int], int] = {}
        self._targets: Interner[str] = Interner()
        self._sequences: Interner[tuple[int, int]] = Interner()  # (all but the last, last kernel)
        self._owner = column()  # by call
        self._step = column()
        self._geometry = column()
        self._sequence = column()
        self._launched_by = column()
        self._instance = column()
        self._after = column()
        self._before = column()
        self._gpu_ns = column()
        self._count = column()
        self.joined = join(timeline)
        self._find_origins(context)
        self._call_kernels()

    def _find_origins(self, context: Context) -> None:
        timeline, launch, launches = self._timeline, self.joined.launch, self._timeline.launches
        rows = sorted({row for row in launch if row != NO_LAUNCH})
        moments = {row: (launches.thread[row], launches.time[row]) for row in rows}
        self._around = enclosing(timeline.ops, moments)
        self._step_of = Steps(timeline, rows, context.steps)
        self.step_of_launch, _ = number_steps(timeline)
        self._steps = self._step_of.values
        aligned = align(
            timeline, self.joined, lambda row: self._steps[self._step_of.of(row)], context.captures
        )
        self._aligned, self.notes = aligned, aligned.notes
        self.order = sorted(range(len(launch)), key=timeline.kernels.start.__getitem__)
        self._witness: dict[int, int] = {}
        wanted = [kernel for kernel, row in enumerate(launch) if row == NO_LAUNCH]
        if wanted:
            known = {
                kernel: tuple(timeline.ops.what[op] for op in self._around[row])
                for kernel, row in enumerate(launch)
                if row in self._around
            }
            self._witness = recover(timeline, known, wanted)
            self._place = array("q", bytes(8 * len(launch)))
            for place, kernel in enumerate(self.order):
                self._place[kernel] = place

    def _origin(self, kernel: int) -> Origin:
        kernels, row = self._timeline.kernels, self.joined.launch[kernel]
        occurrence, rung, geometry = 0, "op_exact", kernels.geometry[kernel]
        if (member := self._aligned.of(kernel)) is not None:
            if self._timeline.geometries.values[geometry] == NOT_RECORDED:
                geometry = member.geometry
            return Origin(row + 1, member.rows, member.stack, "capture", member.api, geometry)
        if (witness := self._witness.get(kernel)) is not None:
            row, rung = self.joined.launch[witness], "sibling"
            geometry = kernels.geometry[witness]
            # kernels that run as many places before their witnesses belong together
            occurrence = self._place[witness] - self._place[kernel] - len(kernels)
        around = self._around.get(row, ())
        api = self._timeline.launches.name[row] if row != NO_LAUNCH else -1
        stack = tuple(self._timeline.ops.what[op] for op in around)
        return Origin(occurrence, around, stack, rung if stack else "", api, geometry)

    def _call_kernels(self) -> None:
        """Give every kernel to a call, in start order."""
        kernels, launch = self._timeline.kernels, self.joined.launch
        of_op: dict[tuple[int, int, str], int] = {}
        last: dict[tuple[int, int, str], int] = {}  # latest call by device, stream, target
        latest: dict[tuple[int, int], int] = {}  # by device and stream, helpers left out
        self.call = array("q", bytes(8 * len(kernels)))
        for kernel in self.order:
            row = launch[kernel]
            origin, step = self._origin(kernel), self._step_of.of(row)
            owner = self._decide(origin, kernels.name[kernel], step)
            decision = self._decisions.values[owner][0]
            call = None
            lane = (kernels.device[kernel], kernels.stream[kernel])
            place = (*lane, decision.target)
            if decision.level >= 0:
                run = (origin.occurrence, origin.rows[decision.level], decision.target)
                call = of_op.get(run)
            elif decision.continues:
                call = last.get(place)
            if call is None:
                call = self._begin(owner, step, origin)
                self._instance.append(0 if row == NO_LAUNCH else self.step_of_launch[row])
                self._meet(call, lane, decision.target, latest)
                if decision.level >= 0:
                    of_op[run] = call
            last[place] = call
            self._sequence[call] = self._sequences.id((self._sequence[call], kernels.name[kernel]))
            self._gpu_ns[call] += kernels.duration[kernel]
            self._count[call] += 1
            self.call[kernel] = call

    def _decide(self, origin: Origin, name: int, step: int) -> int:
        key = (origin.stack, origin.rung, name, step)
        owner = self._known.get(key)
        if owner is None:
            decision = self._classifier.decide(origin.stack, self._name(name), self._steps[step])
            owner = self._known[key] = self._decisions.id((decision, origin.stack, origin.rung))
        return owner

    def _name(self, number: int) -> str:
        return normalise_kernel(self._timeline.names.values[number])

    def _begin(self, owner: int, step: int, origin: Origin) -> int:
        self._owner.append(owner)
        self._step.append(step)
        self._geometry.append(origin.geometry)
        self._sequence.append(-1)
        self._launched_by.append(origin.api)
        self._after.append(NOBODY)
        self._before.append(NOBODY)
        self._gpu_ns.append(0)
        self._count.append(0)
        return len(self._owner) - 1

    def _meet(
        self, call: int, lane: tuple[int, int], target: str, latest: dict[tuple[int, int], int]
    ) -> None:
        """Tell a call and the one before it on the stream of each other, where inputs do not."""
        if self._classifier.transparent(target):
            return
        before = latest.get(lane)
        latest[lane] = call
        if before is None:
            return
        if not self._decisions.values[self._owner[before]][1]:
            self._before[before] = self._targets.id(target)
        if not self._decisions.values[self._owner[call]][1]:
            owner = self._decisions.values[self._owner[before]][0]
            self._after[call] = self._targets.id(owner.target)

    @property
    def communication(self) -> frozenset[str]:
        """Classes whose kernels wait for other ranks."""
        return self._classifier.communication

    def is_captured(self, kernel: int) -> bool:
        """Whether the launch of a replayed kernel is known from its graph's capture."""
        return self._aligned.of(kernel) is not None

    def phases(self) -> dict[int, Phase]:
        """Return the phase of every step, by its number."""
        return {
            step: self._steps[self._step_of.of(row)].phase
            for row, step in enumerate(self.step_of_launch)
            if step
        }

    def shaped_by(self, call: int) -> int:
        """Return the innermost signature around a call whose dims are known, -1 if none."""
        stack = self._decisions.values[self._owner[call]][1]
        return next((each for each in reversed(stack) if self._classifier.op_call(each).dims), -1)

    def groups(self) -> list[Group]:
        """Return the calls by form, each form explained once."""
        self._steps = self._told_steps()
        found: dict[tuple[int, ...], Group] = {}
        self.group_of_call: list[Group] = []
        columns = (
            self._owner, self._step, self._geometry, self._sequence, self._launched_by,
            self._before, self._after, self._layers(),
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

    def _told_steps(self) -> list[Step]:
        """Return the forms of steps, each with the distinct operators that it ran, and the model.

        A call does not always tell all of its axes: the KV write beside an attention knows the
        page. What ran outside any step has no siblings.
        """
        siblings: dict[int, dict[int, None]] = {}
        for step, owner in dict.fromkeys(zip(self._step, self._owner, strict=True)):
            seen = siblings.setdefault(step, {})
            seen.update(dict.fromkeys(self._decisions.values[owner][1]))
        return [
            replace(
                step,
                siblings=self._recorded(siblings.get(number, {})) if number else (),
                model=self._model,
            )
            for number, step in enumerate(self._steps)
        ]

    def _layers(self) -> Sequence[int]:
        """Return each call's layer where the model's layers attend differently, else -1.

        A step runs an operator equally often in every layer, or the layer is not known.
        """
        windows = self._windows
        layers = array("q", [-1]) * len(self._owner)
        if not windows:
            return layers
        calls: defaultdict[tuple[int, str], list[int]] = defaultdict(list)
        for call, (instance, owner) in enumerate(zip(self._instance, self._owner, strict=True)):
            if instance:
                calls[instance, self._decisions.values[owner][0].target].append(call)
        for found in calls.values():
            each, rest = divmod(len(found), len(windows))
            for place, call in enumerate(found if not rest else ()):
                layers[call] = place // each
        return layers

    def _recorded(self, signatures: Iterable[int]) -> tuple[Call, ...]:
        calls = (self._classifier.op_call(each) for each in signatures)
        return tuple(
            replace(call, dims=tuple(() if _is_list(dims) else dims for dims in call.dims))
            for call in calls
            if call.dims
        )

    def _explain(
        self,
        owner: int,
        step_form: int,
        geometry: int,
        sequence: int,
        api: int,
        before: int,
        after: int,
        layer: int,
    ) -> Group:
        step = self._steps[step_form]
        if layer >= 0:
            step = replace(step, model={**self._model, "window": self._windows[layer]})
        decision, stack, rung = self._decisions.values[owner]
        names: list[str] = []
        while sequence >= 0:
            sequence, name = self._sequences.values[sequence]
            names.append(self._name(name))
        grid, block = self._blocks(geometry, api)
        call = Call(
            name="",
            kernels=tuple(reversed(names)),
            grid=grid,
            block=block,
            before="" if before == NOBODY else self._targets.values[before],
            after="" if after == NOBODY else self._targets.values[after],
        )
        meaning = self._classifier.explain(decision, stack, rung, call, step)
        return Group(meaning=meaning, phase=step.phase)

    def _blocks(self, geometry: int, api: int) -> Sequence[tuple[int, int, int] | None]:
        timeline = self._timeline
        grid, block = (_triple(text) for text in timeline.geometries.values[geometry][:2])
        if grid and block and api >= 0 and timeline.names.values[api] in timeline.thread_grids:
            blocks = [-(-g // b) for g, b in zip(grid, block, strict=True)]
            return (blocks[0], blocks[1], blocks[2]), block
        return grid, block


def _is_list(dims: Sequence[object]) -> bool:
    """Whether an input is a list of tensors, which rules that look around do not expect."""
    return any(not isinstance(size, int) for size in dims)


def _triple(text: bytes) -> tuple[int, int, int] | None:
    value = json_list(text)
    if len(value) != 3 or not all(isinstance(each, int) and each > 0 for each in value):
        return None
    return value[0], value[1], value[2]


@dataclass(frozen=True, slots=True)
class Sighting:
    """How kernels outside the operators were seen, as recorded; "" where nothing was.

    Attributes:
        kernel: Normalised name.
        operator: Class, or ``"unknown"``.
        op: Innermost CPU operator around them whose dims are known, and its inputs.
    """

    kernel: str
    operator: str
    op: str
    dims: str
    types: str
    concrete: str
    grid: str
    block: str


def outside(calls: Calls, timeline: Timeline) -> dict[Sighting, tuple[int, int]]:
    """Return count and time in ns of the kernels that no operator claims, by how they were seen."""
    groups, kernels = calls.group_of_call, timeline.kernels
    sums: defaultdict[tuple[int, str, int, int], list[int]] = defaultdict(lambda: [0, 0])
    for kernel, call in enumerate(calls.call):
        meaning = groups[call].meaning
        if meaning.kind != "operator":
            seen = calls.shaped_by(call), kernels.geometry[kernel]
            entry = sums[kernels.name[kernel], meaning.operator, *seen]
            entry[0] += 1
            entry[1] += kernels.duration[kernel]
    merged: defaultdict[Sighting, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for (name, operator, signature, geometry), (count, gpu_ns) in sums.items():
        op, dims, types, _, concrete = (
            timeline.signatures.values[signature] if signature >= 0 else NO_SIGNATURE
        )
        grid, block, _ = timeline.geometries.values[geometry]
        texts = (text.decode(errors="replace") for text in (dims, types, concrete, grid, block))
        sighting = Sighting(
            normalise_kernel(timeline.names.values[name]), operator, normalise_op(op), *texts
        )
        before = merged[sighting]
        merged[sighting] = before[0] + count, before[1] + gpu_ns
    return merged
