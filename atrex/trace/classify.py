"""Say what a kernel and a call are: operator folders first, then the rules that are data.

The outermost operator that is known gives a call its identity; inside an operator that only
encloses others, and where none is known, the kernel's name does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from atrex.model import UNKNOWN, Workload
from atrex.operator import Call, Operator, Step
from atrex.trace.names import normalise_op
from atrex.trace.rules import Rule, Rules, load_rules
from atrex.trace.schema import RUNGS
from atrex.trace.timeline import Signature, Timeline

NO_LEVEL = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What a call is.

    Attributes:
        operator: Name of the operator or class, or ``"unknown"``.
        kind: ``"operator"``, ``"class"`` or ``"unknown"``.
        axes: Axes as far as known.
        workload: Identity, "" where something is unknown.
        shaped: Whether every axis and the dtype are known.
        rung: How the axes were found.
    """

    operator: str
    kind: str
    axes: Mapping[str, int | str]
    dtype: str
    workload: str
    shaped: bool
    rung: str


@dataclass(frozen=True, slots=True)
class Decision:
    """Who owns a kernel: the level in its operator stack, or `NO_LEVEL` by the kernel's name."""

    level: int
    target: str
    rule: Rule | None
    continues: bool


class Classifier:
    """Names kernels and calls by operator folders first, then by the rules that are data."""

    def __init__(self, timeline: Timeline, operators: Mapping[str, Operator]) -> None:
        self._timeline = timeline
        self._operators = operators
        self._rules: Rules = load_rules()
        self._op_calls: dict[int, Call] = {}
        self._of_op: dict[str, Rule | None] = {}
        self._of_kernel: dict[str, Rule | None] = {}

    def decide(self, stack: Sequence[int], kernel: str, step: Step) -> Decision:
        """Find the owner of a kernel launched inside `stack` (signatures, outermost first)."""
        by_name = self._by_kernel_name(stack, kernel, step)
        for level, signature in enumerate(stack):
            target, rule = self._by_op(signature, kernel, step)
            if target == UNKNOWN:
                continue
            # a helper (copy, fill) that some other operator inside launched is not the owner's
            inner = self._by_op(stack[-1], kernel, step)[0]
            helper = by_name.target not in (UNKNOWN, target) and inner != target
            return by_name if helper else Decision(level, target, rule, False)
        return by_name

    def _by_op(self, signature: int, kernel: str, step: Step) -> tuple[str, Rule | None]:
        call = self.op_call(signature)
        if self._rules.encloses(call.name):
            return UNKNOWN, None
        found = self.match(replace(call, kernels=(kernel,)), step)
        if found is not None:
            return found.operator, None
        rule = self._rule_of_op(call.name)
        return (rule.name, rule) if rule else (UNKNOWN, None)

    def _by_kernel_name(self, stack: Sequence[int], kernel: str, step: Step) -> Decision:
        rule = self._rule_of_kernel(kernel)
        found = self.match(Call(name="", kernels=(kernel,)), step)
        if found is None and rule is None:
            return Decision(NO_LEVEL, UNKNOWN, None, False)
        target = found.operator if found else rule.name if rule else UNKNOWN
        same = rule is not None and rule.name == target
        continues = rule is not None and same and self._rules.continues(rule, kernel)
        return Decision(self._container(stack), target, None if found else rule, continues)

    def _container(self, stack: Sequence[int]) -> int:
        """Return the level of the innermost enclosing container, else the innermost operator."""
        for level in range(len(stack) - 1, -1, -1):
            if self._rules.encloses(self.op_call(stack[level]).name):
                return level
        return len(stack) - 1

    def match(self, call: Call, step: Step) -> Workload | None:
        """Ask every operator folder; one that runs out of dims has recognised the name."""
        for operator in self._operators.values():
            try:
                found = operator.match(call, step)
            except (IndexError, TypeError, ValueError):
                axes: dict[str, int | str] = dict.fromkeys(operator.axes, UNKNOWN)
                return Workload(operator=operator.name, axes=axes, dtype=UNKNOWN)
            if found is not None:
                return found
        return None

    def explain(
        self, decision: Decision, stack: Sequence[int], rung: str, call: Call, step: Step
    ) -> Meaning:
        """Find the axes of a whole call.

        Inputs of operators come first; what they leave open is read from the kernel's name, its
        geometry, its place and the step.

        Args:
            decision: Who owns its kernels.
            stack: Signatures around its first kernel, outermost first.
            rung: How they were found.
            call: Its kernels and launch geometry, without an operator.
            step: The step that launched it.
        """
        if not any(self.op_call(each).dims for each in stack):
            rung = "none"
        operator = self._operators.get(decision.target)
        workload: Workload | None = None
        if operator is not None:
            workload, rung = self._matched(decision, stack, call, step, rung)
        rule = decision.rule or self._rules.named(decision.target)
        if workload is None and rule is not None:
            workload = self._by_recipe(rule, stack, decision.level, step)
        if workload is None:
            axes: dict[str, int | str] = dict.fromkeys(operator.axes if operator else (), UNKNOWN)
            workload = Workload(operator=decision.target, axes=axes, dtype=UNKNOWN)
        if rule is not None:
            workload, rung = _filled(workload, rung, rule, call, step)
        if decision.target == UNKNOWN:
            kind = "unknown"
        else:
            kind = "operator" if decision.rule is None else decision.rule.kind
        shaped = workload.complete and bool(workload.axes)
        # without a folder the axes may be fewer than the operator's: no identity yet
        identified = shaped and (kind == "class" or workload.operator in self._operators)
        return Meaning(
            operator=workload.operator,
            kind=kind,
            axes=workload.axes,
            dtype=workload.dtype,
            workload=workload.id if identified else "",
            shaped=shaped,
            rung=rung,
        )

    @property
    def communication(self) -> frozenset[str]:
        """Classes whose kernels wait for other ranks."""
        return self._rules.communication

    def transparent(self, target: str) -> bool:
        """Whether a class stands between others without telling anything of them."""
        return target in self._rules.transparent

    def _matched(
        self, decision: Decision, stack: Sequence[int], call: Call, step: Step, rung: str
    ) -> tuple[Workload | None, str]:
        if decision.level >= 0:
            op = replace(
                self.op_call(stack[decision.level]),
                kernels=call.kernels, grid=call.grid, block=call.block,
            )  # fmt: skip
            found = self.match(op, step)
            if found is not None and found.operator == decision.target:
                return found, rung
        found = self.match(call, step)
        if found is None or rung != "none" or set(found.axes.values()) == {UNKNOWN}:
            return found, rung
        without_grid = self.match(replace(call, grid=None, block=None), step)
        return found, "name" if found == without_grid else "grid"

    def _by_recipe(
        self, rule: Rule, stack: Sequence[int], level: int, step: Step
    ) -> Workload | None:
        """Read axes from the innermost operator that the rule can read, at or inside the owner."""
        for signature in reversed(stack[max(level, 0) :]):
            call = self.op_call(signature)
            recipe = rule.recipes.get(call.name)
            if recipe is not None and call.dims:
                axes, dtype, _ = recipe.read(call, step)
                return Workload(operator=rule.name, axes=axes, dtype=dtype)
        return None

    def op_call(self, signature: int) -> Call:
        """Return a recorded operator as a call without kernels."""
        call = self._op_calls.get(signature)
        if call is None:
            call = _op_call(self._timeline.signatures.values[signature])
            self._op_calls[signature] = call
        return call

    def _rule_of_op(self, name: str) -> Rule | None:
        if name not in self._of_op:
            self._of_op[name] = self._rules.of_op(name)
        return self._of_op[name]

    def _rule_of_kernel(self, name: str) -> Rule | None:
        if name not in self._of_kernel:
            self._of_kernel[name] = self._rules.of_kernel(name)
        return self._of_kernel[name]


def _filled(
    workload: Workload, rung: str, rule: Rule, call: Call, step: Step
) -> tuple[Workload, str]:
    """Fill unknown axes by the first recipe that fits; the rung is the furthest that was needed.

    Axes that the operator does not have are not added to those of its folder.
    """
    if workload.complete and workload.axes:
        return workload, rung
    for recipe in rule.by_kernel:
        if not recipe.fits(call):
            continue
        axes, dtype, needed = recipe.read(call, step)
        known = {
            name: value if value != UNKNOWN else axes.get(name, UNKNOWN)
            for name, value in (workload.axes or axes).items()
        }
        told = workload.dtype if workload.dtype != UNKNOWN else dtype
        filled = Workload(operator=workload.operator, axes=known, dtype=told)
        if filled == workload or not needed:
            return filled, rung
        return filled, needed if rung == "none" else max(rung, needed, key=RUNGS.index)
    return workload, rung


def _op_call(signature: Signature) -> Call:
    name, dims, types, strides, concrete = signature
    return Call(
        name=normalise_op(name),
        kernels=(),
        dims=_tuples(json_list(dims)),
        types=tuple(str(each) for each in json_list(types)),
        strides=_tuples(json_list(strides)),
        concrete=tuple(str(each) for each in json_list(concrete)),
    )


def json_list(text: bytes) -> list[Any]:
    """Decode a JSON array; anything else is empty."""
    try:
        value = msgspec.json.decode(text) if text else []
    except msgspec.DecodeError:
        return []
    return value if isinstance(value, list) else []


def _tuples(value: Any) -> Any:
    return tuple(_tuples(each) for each in value) if isinstance(value, list) else value
