"""A contender with its worker and its memory, ready to be asked for outputs."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from atrex.closing import Closing
from atrex.judge.channel import Fault
from atrex.judge.desk import Desk, Seat
from atrex.judge.memory import Arena
from atrex.judge.task import Contender, Task
from atrex.judge.worker import Worker
from atrex.model import Outcome

Start = Callable[[Contender, tuple[Arena, ...]], Worker]

LINGER_S = 0.1  # given to threads that outlive a wrong call, to show that they write late


class Table(Closing):
    """A contender at a desk, that can be asked for outputs.

    Args:
        contender: What the worker runs.
        task: The workload.
        start: Starts the worker.
        secret: Source of poison.
        desk: A desk shared with others; by default the table has its own.
    """

    def __init__(
        self,
        contender: Contender,
        task: Task,
        start: Start,
        secret: random.Random,
        desk: Desk | None = None,
    ) -> None:
        self.task = task
        self.contender = contender
        self._owns_desk = desk is None
        self.desk = desk or Desk(task.operator.static, task.inputs, task.outputs, task.memory)
        interface = task.interface if contender.flavour == "native" else None
        try:
            self.seat = Seat(
                self.desk, task.outputs, lambda arenas: start(contender, arenas), secret, interface
            )
        except BaseException:
            self._close_desk()
            raise

    def ask(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Run one call, untimed, with new static inputs, and return the copied outputs."""
        self.seat.bind(self.desk.lay(inputs), prepare=not self.contender.library)
        self.seat.call()
        if self.contender.library:
            self.seat.worker.collect()
        return self.seat.take()

    def refuse_late_writes(self, taken: dict[str, Any]) -> None:
        """After a wrong answer, let threads that are left run on and see whether outputs change.

        Raises:
            Fault: They do: async_escape.
        """
        import torch

        if len(self.seat.worker.tasks()) < 2:
            return
        self.seat.worker.linger(LINGER_S)
        for name, value in self.seat.take().items():
            if not torch.equal(value.view(torch.uint8), taken[name].view(torch.uint8)):
                raise Fault(
                    Outcome.VIOLATION,
                    f"a thread wrote {name} after the call had returned",
                    kind="async_escape",
                )

    def close(self) -> None:
        """Kill the worker, and free the desk if it is the table's own."""
        self.seat.close()
        self._close_desk()

    def _close_desk(self) -> None:
        if self._owns_desk:
            self.desk.close()
