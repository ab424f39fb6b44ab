"""Devices that candidates are judged on: what the judge asks of one, whichever it is.

`cpu` times by the judge's own clock alone; `cuda` adds the device's clock and profiler, behind the
seam of `accelerator`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from atrex.judge.builder import Artefact
from atrex.judge.devices.profile import Evidence
from atrex.judge.memory import Arena, Memory
from atrex.judge.table import Start
from atrex.judge.task import Contender, Task
from atrex.judge.timing import Fitness, Rule
from atrex.judge.worker import CallResult, Limits, Worker
from atrex.model import Candidate, DeviceKind, Peak

__all__ = ["Device", "Evidence"]

NVIDIA = Path(__file__).with_name("nvidia.py")


class Device(Protocol):
    """One device, opened for a session."""

    @property
    def kind(self) -> DeviceKind:
        """``"cpu"`` or ``"cuda"``."""

    @property
    def architecture(self) -> str:
        """What CUDA C++ is compiled for; "" on the CPU."""

    @property
    def longest_sol_ns(self) -> int | None:
        """Workloads whose attainable time is above are skipped; None keeps all."""

    @property
    def memory(self) -> Memory:
        """Where tensors lie."""

    @property
    def floors(self) -> Mapping[str, Peak]:
        """Launch floors that were measured, by kind of worker."""

    def start(self, contender: Contender, arenas: Sequence[Arena], limits: Limits) -> Worker:
        """Start a worker that runs a contender."""

    def available_bytes(self) -> int:
        """Return the memory that tensors may take; 0 if nobody knows."""

    def rivals(self, backend: str) -> bool:
        """Whether handwritten kernels of a backend are baselines here."""

    def flush(self) -> None:
        """Make every cache cold."""

    def time_ns(self, result: CallResult) -> int:
        """Return the time of a call, by this device's rules."""

    def disturbed(self, result: CallResult) -> bool:
        """Whether something else ran during a call, or the clocks changed since the last."""

    def refuse_conflict(self, results: Sequence[CallResult], busy_ns: int | None) -> None:
        """Check that the clocks agree about the timed calls of a candidate.

        Raises:
            Fault: They do not: clock_conflict.
        """

    def attribute(
        self,
        candidate: Candidate,
        contender: Contender,
        artefact: Artefact,
        task: Task,
        start: Start,
        secret: random.Random,
    ) -> Evidence:
        """Find whose work the outputs of a correct candidate are."""

    def floor(self, contender: Contender | None) -> Peak:
        """Return the time of a call that does nothing, for workers like a contender's."""

    def fitness(self, rule: Rule, secret: random.Random) -> Fitness:
        """Time equal calls against each other."""

    def close(self) -> None:
        """End everything that was started."""


def cpu_device(scratch: Path) -> Device:
    """Return the CPU of this machine."""
    from atrex.judge.devices.cpu import CpuDevice

    return CpuDevice(scratch)


def cuda_device(accelerator: Path = NVIDIA) -> Device:
    """Return the current CUDA device.

    Args:
        accelerator: Module with the class `Device` that the judge and its workers open.

    Raises:
        SetupError: There is none.
    """
    from atrex.judge.devices.cuda import CudaDevice

    return CudaDevice(accelerator)
