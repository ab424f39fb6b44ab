"""The CPU as a device: workers of every flavour, timed by the judge's own clock."""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from atrex.backends import BACKENDS, compiler
from atrex.hardware import available_bytes, llc_bytes
from atrex.judge import calibrate
from atrex.judge.attribution import attribute
from atrex.judge.builder import Artefact
from atrex.judge.cache import Flush
from atrex.judge.devices.profile import Evidence
from atrex.judge.forkserver import Flavour
from atrex.judge.launcher import Forkserver, build_runner
from atrex.judge.memory import Arena, HostMemory
from atrex.judge.table import Start
from atrex.judge.task import Contender, Task
from atrex.judge.timing import Fitness, Rule
from atrex.judge.worker import CallResult, Limits, Worker
from atrex.model import Candidate, DeviceKind, Peak

QUEUED_SHARE = 0.05  # of a call spent waiting for a CPU: the sample is disturbed


class CpuDevice:
    """One core of this machine; see `atrex.judge.devices.Device` for what the methods mean.

    Args:
        scratch: Private folder for the runner and the calibration kernel.
    """

    kind: DeviceKind = "cpu"
    architecture = ""
    longest_sol_ns: int | None = 50_000_000  # design section 6

    def __init__(self, scratch: Path) -> None:
        self.memory = HostMemory()
        self._scratch = scratch
        self._flush: Flush | None = None
        self._servers: dict[Flavour, Forkserver] = {}
        self.floors: dict[str, Peak] = {}

    def start(self, contender: Contender, arenas: Sequence[Arena], limits: Limits) -> Worker:
        """Fork a worker of the contender's flavour."""
        return self._server(contender.flavour).start(contender.target, arenas, limits)

    def available_bytes(self) -> int:
        """Return the memory that is free."""
        return available_bytes()

    def rivals(self, backend: str) -> bool:
        """Whether a backend is native: numba would compile anew in every worker."""
        return backend in BACKENDS and BACKENDS[backend].flavour == "native"

    def flush(self) -> None:
        """Read through twice the last-level cache."""
        if self._flush is None:
            self._flush = Flush(llc_bytes())
        self._flush()

    def time_ns(self, result: CallResult) -> int:
        """Return what the judge's clock says, late work included."""
        return result.time_ns

    def disturbed(self, result: CallResult) -> bool:
        """Whether the call waited for a CPU."""
        return result.queued_ns > QUEUED_SHARE * result.time_ns

    def refuse_conflict(self, results: Sequence[CallResult], busy_ns: int | None) -> None:
        """Do nothing: there is one clock."""

    def attribute(
        self,
        candidate: Candidate,
        contender: Contender,
        artefact: Artefact,
        task: Task,
        start: Start,
        secret: random.Random,
    ) -> Evidence:
        """Apply the import rule, or audit; a CPU has no share of device time."""
        return Evidence(attribution=attribute(candidate, artefact, task, start, secret))

    def floor(self, contender: Contender | None) -> Peak:
        """Measure a no-op call at first use of a flavour."""
        flavour: Flavour = contender.flavour if contender else "native"
        if flavour not in self.floors:
            self.floors[flavour] = calibrate.launch_floor(
                self._server(flavour), self._kernel, self.flush
            )
        return self.floors[flavour]

    def fitness(self, rule: Rule, secret: random.Random) -> Fitness:
        """Time a copy against itself."""
        return calibrate.fitness(
            self._server("native"), self._kernel, self.flush, secret, rule.fitness
        )

    def close(self) -> None:
        """End every forkserver."""
        for server in self._servers.values():
            server.close()

    def _server(self, flavour: Flavour) -> Forkserver:
        if flavour not in self._servers:
            runner = None
            if flavour == "native":
                runner = build_runner(compiler.require(), self._scratch / "runner")
            self._servers[flavour] = Forkserver(flavour, runner=runner)
        return self._servers[flavour]

    @cached_property
    def _kernel(self) -> Path:
        """The calibration kernel."""
        return calibrate.build(compiler.require(), self._scratch / "calibrate")
