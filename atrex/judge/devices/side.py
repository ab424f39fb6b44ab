"""A worker's side of a device: it opens the judge's memory and times its calls there.

Candidate code shares this process, so that its times are worth no more than the judge's own clock
allows: a call that took longer there did something that these events do not show.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from atrex.judge.channel import Target
from atrex.judge.devices.accelerator import Accelerator, load
from atrex.judge.devices.memory import device_view
from atrex.judge.memory import Placement

_opened: list[Accelerator] = []  # a worker has one, which its audits ask for


def opened() -> Accelerator:
    """Return the device that this worker has opened."""
    return _opened[0]


class Side:
    """The device as one worker uses it."""

    def __init__(self, target: Target) -> None:
        self._accelerator = load(Path(target.accelerator))
        _opened.append(self._accelerator)
        self._arenas = [self._accelerator.open(handle, size) for handle, size in target.handles]

    def view(self, placement: Placement) -> Any:
        """Return a placed tensor."""
        return device_view(self._arenas[placement.arena], placement)

    def settle(self) -> None:
        """Wait until everything that was launched has ended."""
        self._accelerator.synchronise()

    def timed(self, run: Callable[[], Any]) -> tuple[Any, int]:
        """Call between two events and wait for every stream; return the device time in ns.

        A kernel that only waits goes ahead, so that the first event is reached when launches are
        already queued behind it, as they are in a server.
        """
        accelerator = self._accelerator
        accelerator.spin()
        start = accelerator.mark()
        returned = run()
        end = accelerator.mark()
        accelerator.synchronise()
        return returned, accelerator.elapsed_ns(start, end)
