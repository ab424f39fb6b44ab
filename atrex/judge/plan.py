"""What a run is to judge: candidates, the catalogue they are weighed by, and the workloads chosen.

Nothing here needs polars, DuckDB or torch: the plan is also made on a bare GPU machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from atrex.errors import UsageError
from atrex.judge.timing import Rule
from atrex.judge.worker import Limits
from atrex.model import Candidate, DeviceKind, Shape, Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that fixes a run but the seed.

    Attributes:
        candidates: In the order they are judged.
        shapes: The whole catalogue that the score is weighed by.
        selected: Ids of the workloads to judge.
        device: Kind of device.
        rule: When timing stops.
        limits: Budgets of a worker.
        operators: Further operator folders.
        compiled: Whether torch.compile is among the baselines; compiling takes seconds a shape.
    """

    candidates: tuple[Candidate, ...]
    shapes: tuple[Shape, ...]
    selected: tuple[str, ...]
    device: DeviceKind = "cpu"
    rule: Rule = field(default_factory=Rule)
    limits: Limits = field(default_factory=Limits)
    operators: tuple[Path, ...] = ()
    compiled: bool = True

    def pairs(self) -> list[tuple[Candidate, Workload]]:
        """Return each candidate with each selected workload of its operator."""
        wanted = set(self.selected)
        return [
            (candidate, shape.workload)
            for candidate in self.candidates
            for shape in self.shapes
            if shape.workload.id in wanted and shape.workload.operator == candidate.operator
        ]


def select(shapes: Sequence[Shape], wanted: Sequence[str], operators: set[str]) -> tuple[str, ...]:
    """Choose workloads by ``all``, ``top:N`` (by GPU time) or the first digits of an id.

    Args:
        shapes: The catalogue.
        wanted: What the user asked for; all are united.
        operators: Operators of the candidates; other workloads are never chosen.

    Raises:
        UsageError: Something matches nothing, or more than one workload.
    """
    mine = [shape for shape in shapes if shape.workload.operator in operators]
    chosen: list[str] = []
    for word in wanted or ("all",):
        if word == "all":
            found = [shape.workload.id for shape in mine]
        elif word.startswith("top:"):
            found = _top(mine, word)
        else:
            found = [s.workload.id for s in mine if s.workload.id.startswith(word.lower())]
            if len(found) > 1:
                raise UsageError(
                    f"the id {word!r} fits {len(found)} workloads", remedy="Give more digits."
                )
        if not found:
            raise UsageError(
                f"no workload of {', '.join(sorted(operators)) or 'any operator'} fits {word!r}",
                remedy="`atrex shapes list` shows the ids.",
            )
        chosen += [workload for workload in found if workload not in chosen]
    return tuple(chosen)


def _top(shapes: Sequence[Shape], word: str) -> list[str]:
    count = word.removeprefix("top:")
    if not count.isdigit() or count == "0":
        raise UsageError(f"{word!r} is not top:N with a number N above 0")
    by_time = sorted(shapes, key=lambda shape: -shape.gpu_ns)
    return [shape.workload.id for shape in by_time[: int(count)]]
