"""One side of a timed comparison: fresh inputs, cold caches, one call, outputs kept for later."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Protocol

from atrex.judge.channel import Fault
from atrex.judge.generator import TIMED
from atrex.judge.table import Table
from atrex.judge.worker import CallResult
from atrex.model import Outcome

# integrity.md 2.1: outputs up to this size are all verified, else at least this share
VERIFY_ALL_BYTES = 16 << 20
VERIFY_SHARE = 0.2


class Stopwatch(Protocol):
    """The device's part in a timed call; see `atrex.judge.devices.Device`."""

    def flush(self) -> None:
        """Make every cache cold."""

    def time_ns(self, result: CallResult) -> int:
        """Return the time of a call."""

    def disturbed(self, result: CallResult) -> bool:
        """Whether a call is to be repeated."""


class TimedArm:
    """Makes cold timed calls of one contender.

    Args:
        table: The contender at the workload's desk.
        stopwatch: Makes calls cold and reads their times.
        numbers: Counter shared by both arms, so that no two calls have equal inputs.
        secret: Decides which outputs are verified.
        verify: Whether outputs are kept for `verified`.

    Attributes:
        results: Every call, in order.
        prepare_ns: What `prepare` took before the first call; None without it.
    """

    def __init__(
        self,
        table: Table,
        stopwatch: Stopwatch,
        numbers: Iterator[int],
        secret: random.Random,
        *,
        verify: bool,
    ) -> None:
        self.table = table
        self._stopwatch = stopwatch
        self._numbers = numbers
        self._secret = secret
        self._verify = verify
        self._kept: list[tuple[int, dict[str, Any], dict[str, Any]]] = []
        self._prepared = table.contender.library  # a library has nothing to prepare
        self._disturbed = False
        self.results: list[CallResult] = []
        self.prepare_ns: int | None = None

    def sample(self) -> int:
        """Make one cold call with fresh inputs and return its time in ns, charges included."""
        try:
            return self._sample()
        except Fault as fault:
            if self._verify:
                raise
            # a baseline's fault is never the candidate's
            reason = f"baseline {self.table.contender.name}: {fault.reason}"
            raise Fault(Outcome.INFRA_ERROR, reason) from fault

    def _sample(self) -> int:
        seat, task = self.table.seat, self.table.task
        number = next(self._numbers)
        laid = self.table.desk.lay(task.draw(TIMED, number), keep_static=True)
        if not self._prepared:
            self.prepare_ns = seat.bind(laid, prepare=True)
        else:
            seat.bind(laid)
        self._prepared = True
        self._stopwatch.flush()
        result = seat.call()
        self.results.append(result)
        self._disturbed = self._stopwatch.disturbed(result)
        if self._verify:
            self._keep(number, seat.take())
        return self._stopwatch.time_ns(result)

    def contaminated(self) -> bool:
        """Whether the last call was disturbed."""
        return self._disturbed

    def verified(self) -> int:
        """Compare the kept outputs of timed calls with the reference; return their number.

        Raises:
            Fault: One is wrong: incorrect, with its kind.
        """
        for number, outputs, poison in self._kept:
            inputs = self._inputs_of(number)
            finding = self.table.task.check(outputs, inputs, TIMED, poison)
            if finding.kind:
                raise Fault(Outcome.INCORRECT, f"a timed call: {finding.detail}", kind=finding.kind)
        return len(self._kept)

    def _keep(self, number: int, outputs: dict[str, Any]) -> None:
        size = sum(value.numel() * value.element_size() for value in outputs.values())
        # decided after the call has returned
        if size <= VERIFY_ALL_BYTES or self._secret.random() < VERIFY_SHARE:
            self._kept.append((number, outputs, dict(self.table.seat.poison)))

    def _inputs_of(self, number: int) -> dict[str, Any]:
        """Draw a call's inputs again, with the static ones that were in place at that time."""
        task = self.table.task
        inputs = task.draw(TIMED, number)
        fixed = self.table.desk.static_values
        return {name: fixed.get(name, value) for name, value in inputs.items()}
