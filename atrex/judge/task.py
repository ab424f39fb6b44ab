"""One workload as the judge sees it: its draws, its reference, its interface and its contenders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from atrex import registry
from atrex.backends.c import Interface
from atrex.judge.channel import Target
from atrex.judge.desk import specs_of
from atrex.judge.forkserver import Flavour
from atrex.judge.gates import Finding, check
from atrex.judge.generator import Case, Generator, Sketch, call_key
from atrex.judge.memory import HostMemory, Memory, required_bytes
from atrex.judge.tensors import FLOATS, dtype_name
from atrex.model import Cost, Workload
from atrex.operator import Inputs, Operator, TensorSpec


class TaskError(Exception):
    """The definition is at fault: its reference is not finite, or compares nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something that computes the operator: the candidate, or a baseline.

    Attributes:
        name: Shown name.
        target: What its worker runs.
        flavour: Forkserver that starts it.
        library: Whether it returns its outputs, so that they are collected after a call.
    """

    name: str
    target: Target
    flavour: Flavour
    library: bool = False

    def under(self, audit: Path) -> Contender:
        """Return the contender as the module of an audit runs it."""
        return replace(self, target=Target(kind="candidate", path=str(audit)))


@dataclass(frozen=True)
class Task:
    """A workload with everything that only the judge may know of it.

    Attributes:
        seed: Secret of this session; the key of every call is derived from it.
        memory: Where tensors are drawn, laid and compared.
    """

    operator: Operator
    workload: Workload
    seed: bytes
    folders: tuple[Path, ...] = ()
    memory: Memory = field(default_factory=HostMemory)

    @cached_property
    def layout(self) -> Inputs:
        """Inputs without values: shapes, attributes, and the lengths that the cost counts."""
        return self.operator.inputs(self.workload, Sketch())

    @cached_property
    def inputs(self) -> dict[str, TensorSpec]:
        """Specification of every input tensor."""
        return specs_of(self.layout)

    @cached_property
    def outputs(self) -> dict[str, TensorSpec]:
        """Specification of every output."""
        return self.operator.outputs(self.workload)

    @cached_property
    def output_elements(self) -> int:
        """Elements over all outputs, which decide how many cases the whole shape gets."""
        total = 0
        for spec in self.outputs.values():
            count = 1
            for extent in spec.shape:
                count *= extent
            total += count
        return total

    @cached_property
    def tensor_bytes(self) -> int:
        """Bytes of all inputs and outputs together."""
        return required_bytes([*(self.inputs | self.outputs).values()])

    @cached_property
    def cost(self) -> Cost:
        """Unavoidable work."""
        return self.operator.cost(self.workload, self.layout)

    @cached_property
    def interface(self) -> Interface:
        """What a native kernel is compiled against."""
        return Interface(
            operator=self.operator.name,
            inputs=self.layout | self.inputs,
            outputs=self.outputs,
        )

    def reporting(self, name: str, nbytes: int) -> Task:
        """Return the task with room for an audit's report, which travels like one more output."""
        outputs = {**self.outputs, name: TensorSpec(shape=(nbytes,), dtype="uint8")}
        return replace(self, operator=replace(self.operator, outputs=lambda workload: outputs))

    def draw(self, case: Case, number: int) -> Inputs:
        """Draw the hidden inputs of one call."""
        key = call_key(self.seed, self.operator.name, self.workload.id, case.name, number)
        return self.operator.inputs(self.workload, Generator(key, case, self.memory.device))

    def check(
        self,
        actual: Mapping[str, Any],
        inputs: Inputs,
        case: Case,
        poison: Mapping[str, Any] | None = None,
    ) -> Finding:
        """Compare outputs with the fp64 reference of these inputs.

        Raises:
            TaskError: The reference fails or is not finite, or nothing was compared.
        """
        wide = _widened(inputs)
        try:
            expected = self.operator.reference(**wide)
        except Exception as error:  # a definition of the user's own may be unfinished
            raise TaskError(f"the reference fails: {type(error).__name__}: {error}") from error
        for name, reference in expected.items():
            if reference.is_floating_point() and not bool(reference.isfinite().all()):
                raise TaskError(f"the reference of {name} is not finite in case {case.name}")
        if canonical := self.operator.canonical:
            actual, expected = (canonical(wide, dict(each)) for each in (actual, expected))
            poison = poison and canonical(wide, dict(poison))
        scale = None if self.operator.scale is None else self.operator.scale(self.workload, wide)
        finding = check(
            actual,
            expected,
            self.operator.tolerance,
            precise=case.precise,
            scale=scale,
            poison=poison,
        )
        if finding.checked == 0:
            raise TaskError("the comparator saw no element")
        return finding

    def libraries(self, *, compiled: bool) -> list[Contender]:
        """Return the library baselines of this dtype.

        Args:
            compiled: Whether torch.compile is among them.
        """
        path = str(registry.folder(self.operator.name, self.folders) / "definition.py")
        return [
            Contender(
                name=baseline.name,
                target=Target(
                    kind="baseline", path=path, name=baseline.name, compiled=baseline.compiled
                ),
                flavour="inductor" if baseline.compiled else "torch",
                library=True,
            )
            for baseline in self.operator.baselines
            if (not baseline.dtypes or self.workload.dtype in baseline.dtypes)
            and (compiled or not baseline.compiled)
        ]


def _widened(inputs: Inputs) -> Inputs:
    """Return floats in fp64: the reference sees the values that the candidate saw."""
    import torch

    return {
        name: value.double() if torch.is_tensor(value) and dtype_name(value) in FLOATS else value
        for name, value in inputs.items()
    }
