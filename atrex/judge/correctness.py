"""The correctness stage: hidden cases on the whole shape and on small ragged ones.

Every call goes through a fresh, poisoned output and is compared element by element. A worker is
fresh for each shape, so that what an earlier shape taught a candidate is gone.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import msgspec

from atrex.judge.channel import Fault
from atrex.judge.gates import Finding
from atrex.judge.generator import CASES, Case
from atrex.judge.table import Start, Table
from atrex.judge.task import Contender, Task
from atrex.model import Measurement, Outcome

# A whole shape gets every case up to this many output elements; above, two and one drawn in
# secret, because fp64 references of large shapes cost more than they tell beside small twins.
EVERY_CASE_ELEMENTS = 1 << 20
REPEATS = 2  # calls with equal inputs, which must agree bit for bit


@dataclass(frozen=True, slots=True, kw_only=True)
class Correctness:
    """What the stage found.

    Attributes:
        outcome: `ok`, or how it failed.
        kind: The kind within the outcome.
        reason: Case, output, gate and magnitude; never an expected value.
        cases: Cases that passed, with the number of shapes.
        max_abs, max_rel: Largest errors over the cases that passed, or of the failing one.
        index: First failing element.
        peak_bytes: Peak workspace on the whole shape.
    """

    outcome: Outcome = Outcome.OK
    kind: str = ""
    reason: str = ""
    cases: tuple[str, ...] = ()
    max_abs: float = 0.0
    max_rel: float = 0.0
    index: tuple[int, ...] | None = None
    peak_bytes: int | None = None

    def recorded(self, blank: Measurement) -> Measurement:
        """Return a measurement with what was found; a failure has no share of the roofline."""
        return msgspec.structs.replace(
            blank,
            outcome=self.outcome,
            kind=self.kind,
            reason=self.reason,
            cases=self.cases,
            max_abs_error=self.max_abs,
            max_rel_error=self.max_rel,
            first_mismatch=self.index,
            s=blank.s if self.outcome is Outcome.OK else 0.0,
        )


def verify(
    contender: Contender,
    tasks: list[Task],
    start: Start,
    secret: random.Random,
    cases: tuple[Case, ...] = CASES,
) -> Correctness:
    """Judge the outputs of a contender; the last task is the whole shape.

    Raises:
        TaskError: A definition is at fault.
    """
    passed: list[str] = []
    worst = Finding()
    peak_bytes = None
    for task in tasks:
        chosen = _chosen(task, task is tasks[-1], secret, cases)
        with Table(contender, task, start, secret) as table:
            try:
                for case in chosen:
                    finding = _try(table, case)
                    if finding.kind:
                        return _incorrect(finding, case, task, passed)
                    passed.append(case.name)
                    worst = Finding(
                        max_abs=max(worst.max_abs, finding.max_abs),
                        max_rel=max(worst.max_rel, finding.max_rel),
                    )
                peak_bytes = table.seat.worker.peak_bytes()
            except Fault as fault:
                return Correctness(
                    outcome=fault.outcome, kind=fault.kind, reason=fault.reason, cases=tuple(passed)
                )
    return Correctness(
        cases=tuple(passed), max_abs=worst.max_abs, max_rel=worst.max_rel, peak_bytes=peak_bytes
    )


def _try(table: Table, case: Case) -> Finding:
    """Judge one case; the plain one is repeated with equal inputs at other addresses."""
    import torch

    number = 0
    inputs = table.task.draw(case, number)
    first = table.ask(inputs)
    finding = table.task.check(first, inputs, case, table.seat.poison)
    if finding.kind:
        table.refuse_late_writes(first)
    if finding.kind or case is not CASES[0]:
        return finding
    for _ in range(REPEATS - 1):
        again = table.ask(inputs)
        for name, value in again.items():
            if not torch.equal(value.view(torch.uint8), first[name].view(torch.uint8)):
                return Finding(
                    kind="nondeterministic",
                    checked=finding.checked,
                    detail=f"{name} differs between two calls with equal inputs",
                )
    return finding


def _chosen(task: Task, whole: bool, secret: random.Random, cases: tuple[Case, ...]) -> list[Case]:
    chosen = list(cases)
    if whole and task.output_elements > EVERY_CASE_ELEMENTS and len(chosen) > 3:
        chosen = [*chosen[:2], secret.choice(chosen[2:])]
    secret.shuffle(chosen)
    return chosen


def _incorrect(finding: Finding, case: Case, task: Task, passed: list[str]) -> Correctness:
    return Correctness(
        outcome=Outcome.INCORRECT,
        kind=finding.kind,
        reason=f"case {case.name} on {task.workload}: {finding.detail}",
        cases=tuple(passed),
        max_abs=finding.max_abs,
        max_rel=finding.max_rel,
        index=finding.index,
    )
