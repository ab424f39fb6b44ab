"""One workload's contest: baselines are checked and screened, the fastest meets the candidate.

All contenders sit at one desk, so that both arms of a comparison read the same sealed inputs.
"""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Iterable
from dataclasses import dataclass

from atrex.closing import Closing
from atrex.judge.arm import Stopwatch, TimedArm
from atrex.judge.channel import Fault
from atrex.judge.desk import Desk
from atrex.judge.generator import TIMED
from atrex.judge.table import Start, Table
from atrex.judge.task import Contender, Task, TaskError
from atrex.judge.timing import Paired, Rule, pair, screen


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """What became of the baselines.

    Attributes:
        medians_ns: Screening median of every correct baseline, the fastest first.
        failed: Why the others are no denominator.
    """

    medians_ns: dict[str, int]
    failed: dict[str, str]

    @property
    def fastest(self) -> str:
        """Name of the denominator."""
        return next(iter(self.medians_ns))


class Contest(Closing):
    """A context manager that closes every worker it started.

    Args:
        task: The workload.
        start: Starts a contender's worker.
        stopwatch: Makes calls cold and reads their times.
        secret: Source of poison, order, and the choice of verified outputs.
    """

    def __init__(
        self, task: Task, start: Start, stopwatch: Stopwatch, secret: random.Random
    ) -> None:
        self._task = task
        self._start = start
        self._stopwatch = stopwatch
        self._secret = secret
        self._desk = Desk(task.operator.static, task.inputs, task.outputs, task.memory)
        self._numbers = itertools.count()
        self._tables: list[Table] = []
        self._rivals: dict[str, TimedArm] = {}

    def screen(self, baselines: Iterable[Contender]) -> Screening:
        """Check each baseline on hidden inputs and time the correct ones a few times.

        Raises:
            TaskError: None is correct.
        """
        failed: dict[str, str] = {}
        for baseline in baselines:
            try:
                arm = self._arm(baseline, verify=False)
                inputs = self._task.draw(TIMED, next(self._numbers))
                finding = self._task.check(arm.table.ask(inputs), inputs, TIMED)
            except Fault as fault:
                failed[baseline.name] = str(fault)
                continue
            if finding.kind:
                failed[baseline.name] = f"{finding.kind}: {finding.detail}"
            else:
                self._rivals[baseline.name] = arm
        if not self._rivals:
            raise TaskError(f"no baseline is correct on this workload: {failed}")
        return Screening(medians_ns=screen(self._rivals), failed=failed)

    def pair(self, contender: Contender, rival: str, rule: Rule) -> tuple[Paired, TimedArm]:
        """Time a contender against a screened baseline; its arm still has outputs to verify."""
        arm = self._arm(contender, verify=True)
        return pair(arm, self._rivals[rival], rule, time.monotonic_ns, self._secret), arm

    def peak_bytes(self, rival: str) -> int:
        """Return the peak workspace of a screened baseline."""
        return self._rivals[rival].table.seat.worker.peak_bytes()

    def close(self) -> None:
        """Kill every worker, and free the desk."""
        for table in self._tables:
            table.close()
        self._desk.close()

    def _arm(self, who: Contender, *, verify: bool) -> TimedArm:
        table = Table(who, self._task, self._start, self._secret, self._desk)
        self._tables.append(table)
        return TimedArm(table, self._stopwatch, self._numbers, self._secret, verify=verify)
