"""A CUDA device: the judge owns its memory, three clocks watch each call.

The events of a call are read in the worker, so that they are bounded by what the judge sees itself:
its own clock around the request, less what an empty call takes, and by the time that the profiler
saw any stream busy. Where they disagree the candidate is in violation; no clock is preferred
silently (METHOD.md 3.5).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import cached_property
from itertools import count
from pathlib import Path

import msgspec

from atrex.backends import BACKENDS
from atrex.judge.arm import TimedArm
from atrex.judge.builder import Artefact
from atrex.judge.channel import Fault, Target
from atrex.judge.devices.accelerator import Facts, Telemetry, load
from atrex.judge.devices.memory import DeviceMemory
from atrex.judge.devices.profile import Evidence, profile
from atrex.judge.forkserver import Flavour
from atrex.judge.generator import CASES
from atrex.judge.launcher import Forkserver
from atrex.judge.memory import Arena
from atrex.judge.table import Start, Table
from atrex.judge.task import Contender, Task
from atrex.judge.timing import Fitness, Rule, aa_fitness
from atrex.judge.worker import CallResult, Limits, Worker
from atrex.model import Candidate, Cost, DeviceKind, Environment, Outcome, Peak, Workload
from atrex.operator import Operator, TensorSpec
from atrex.roofline import LAUNCH_FLOOR
from atrex.stats import median, percentile

HERE = Path(__file__).parent
# Two clocks may differ by the larger of these (integrity.md 3.2).
CONFLICT_SHARE, CONFLICT_NS = 0.05, 5_000
CLOCK_SHARE = 0.02  # a quartet is repeated if the SM clock moved by more
CALIBRATION_CALLS, WARM_UP_CALLS = 60, 10
# A CUDA context takes a GiB of host memory, a compiler of kernels as much again.
HOST_BYTES = 8 << 30
CALL_S = 60.0  # a first call compiles
AA_SECONDS = 5.0


class CudaDevice:
    """One GPU; see `atrex.judge.devices.Device` for what the methods mean.

    Args:
        accelerator: Module of the vendor's calls, for the judge and for workers.
        flavour: Kind of worker.
    """

    kind: DeviceKind = "cuda"
    longest_sol_ns: int | None = None

    def __init__(self, accelerator: Path, flavour: Flavour = "cuda") -> None:
        self._module = accelerator
        self.accelerator = load(accelerator)
        self.facts = self.accelerator.facts()
        self.memory = DeviceMemory(self.accelerator)
        self.floors: dict[str, Peak] = {}
        self._server = Forkserver(flavour)
        self._last: Telemetry | None = None

    @property
    def architecture(self) -> str:
        """The device's architecture; from Hopper on with its special instructions."""
        number = self.facts.capability.replace(".", "")
        return f"sm_{number}{'a' if int(number) >= 90 else ''}"

    def start(self, contender: Contender, arenas: Sequence[Arena], limits: Limits) -> Worker:
        """Fork a worker that opens the device and the arenas."""
        target = msgspec.structs.replace(
            contender.target,
            accelerator=str(self._module),
            handles=tuple((arena.backing.handle, arena.size) for arena in arenas),
        )
        limits = msgspec.structs.replace(
            limits,
            virtual=False,
            memory_bytes=max(limits.memory_bytes, HOST_BYTES),
            call_s=max(limits.call_s, CALL_S),
        )
        return self._server.start(target, (), limits)

    def available_bytes(self) -> int:
        """Return the free device memory."""
        return self.accelerator.free_bytes()

    def rivals(self, backend: str) -> bool:
        """Whether a backend writes kernels for this device."""
        return backend != "torch" and backend in BACKENDS and BACKENDS[backend].supports("cuda")

    def flush(self) -> None:
        """Evict L2; the judge's own writes have ended before."""
        self.accelerator.synchronise()
        self.accelerator.flush()

    def time_ns(self, result: CallResult) -> int:
        """Return the device time, less what two events take around nothing."""
        return max(1, result.device_ns - self._overheads[0])

    def disturbed(self, result: CallResult) -> bool:
        """Whether heat or power hold the clocks down, or the SM clock moved since the last call."""
        now, before = self.accelerator.telemetry(), self._last
        self._last = now
        if now.throttled:
            return True
        if before is None or not before.sm_clock_mhz:
            return False
        return abs(now.sm_clock_mhz / before.sm_clock_mhz - 1) > CLOCK_SHARE

    def refuse_conflict(self, results: Sequence[CallResult], busy_ns: int | None) -> None:
        """Compare the medians of events, of the judge's clock and of the profiler."""
        if not results:
            return
        event = median([self.time_ns(result) for result in results])
        wall = median([result.elapsed_ns - self._overheads[1] for result in results])
        allowed = max(CONFLICT_SHARE * event, CONFLICT_NS)
        if wall - event > allowed + self._wall_noise_ns:
            raise _conflict(f"the judge's clock says {wall:.0f} ns, the events {event:.0f} ns")
        if busy_ns is not None and busy_ns - event > allowed:
            raise _conflict(f"streams were busy for {busy_ns} ns, the events say {event:.0f} ns")

    def attribute(
        self,
        candidate: Candidate,
        contender: Contender,
        artefact: Artefact,
        task: Task,
        start: Start,
        secret: random.Random,
    ) -> Evidence:
        """Record what runs on the device."""
        return profile(contender, artefact, task, start, secret)

    def floor(self, contender: Contender | None) -> Peak:
        """Return the device time of an empty kernel, under the same clocks."""
        if "cuda" not in self.floors:
            times = [max(1, r.device_ns - self._overheads[0]) for r in self._calls("launch")]
            self.floors["cuda"] = Peak(
                device=self.facts.name,
                pipe=LAUNCH_FLOOR,
                kind="measured",
                value=median(times),
                low=percentile(times, 0.1),
                high=percentile(times, 0.9),
                n=len(times),
                source="an empty kernel, by events",
                date=datetime.now(UTC).date().isoformat(),
            )
        return self.floors["cuda"]

    def fitness(self, rule: Rule, secret: random.Random) -> Fitness:
        """Time the library's copy against itself in two workers."""
        task = _copy_task(self.memory)
        contender = self._calibration("copy")
        numbers = count()
        rule = msgspec.structs.replace(rule, seconds=AA_SECONDS)
        with (
            Table(contender, task, self._start, secret) as one,
            Table(contender, task, self._start, secret) as other,
        ):
            arms = [TimedArm(table, self, numbers, secret, verify=False) for table in (one, other)]
            return aa_fitness(arms[0], arms[1], rule, time.monotonic_ns, secret)

    def close(self) -> None:
        """End the forkserver."""
        self._server.close()

    def _start(self, contender: Contender, arenas: tuple[Arena, ...]) -> Worker:
        return self.start(contender, arenas, Limits())

    def _calls(self, name: str) -> list[CallResult]:
        """Make cold calls of a calibration candidate."""
        secret = random.Random(0)
        task = _copy_task(self.memory)
        inputs = task.draw(CASES[0], 0)
        results = []
        with Table(self._calibration(name), task, self._start, secret) as table:
            for _ in range(WARM_UP_CALLS + CALIBRATION_CALLS):
                table.seat.bind(table.desk.lay(inputs))
                self.flush()
                results.append(table.seat.call())
        return results[WARM_UP_CALLS:]

    def _calibration(self, name: str) -> Contender:
        path = str(HERE / f"calibrate_{name}.py")
        return Contender(
            name=name, target=Target(kind="candidate", path=path), flavour=self._server.flavour
        )

    @cached_property
    def _empty_calls(self) -> list[CallResult]:
        """Calls of a candidate that does nothing."""
        return self._calls("nothing")

    @cached_property
    def _overheads(self) -> tuple[int, int]:
        """What an empty call takes: between two events, and by the judge's clock."""
        events = [result.device_ns for result in self._empty_calls]
        walls = [result.elapsed_ns for result in self._empty_calls]
        return round(median(events)), round(median(walls))

    @cached_property
    def _wall_noise_ns(self) -> float:
        """How far the judge's clock strays on empty calls: eight of ten lie within."""
        walls = [result.elapsed_ns for result in self._empty_calls]
        return percentile(walls, 0.9) - percentile(walls, 0.1)


def describe(host: Environment, facts: Facts) -> Environment:
    """Return the environment of a device in its host."""
    return msgspec.structs.replace(
        host,
        device=facts.name,
        kind="cuda",
        driver=facts.driver,
        cuda=facts.runtime,
        sm_clock_mhz=facts.sm_clock_mhz,
        mem_clock_mhz=facts.mem_clock_mhz,
        power_limit_w=facts.power_limit_w,
    )


def _copy_task(memory: DeviceMemory) -> Task:
    """Return the task of the calibration candidates: x [elements] to out, in bf16."""
    elements = memory.copy_bytes // 2
    spec = TensorSpec(shape=(elements,), dtype="bf16")
    operator = Operator(
        name="calibration",
        axes=("elements",),
        inputs=lambda workload, draw: {"x": draw.normal("x", (elements,), "bf16")},
        outputs=lambda workload: {"out": spec},
        reference=lambda x: {"out": x},
        cost=lambda workload, inputs: Cost(
            flop={}, read_bytes=2 * elements, write_bytes=2 * elements
        ),
        match=lambda call, step: None,
        tolerance={"out": "EXACT"},
        baselines=(),
        small=(),
    )
    workload = Workload(operator="calibration", axes={"elements": elements}, dtype="bf16")
    return Task(operator, workload, b"", (), memory)


def _conflict(reason: str) -> Fault:
    return Fault(Outcome.VIOLATION, reason, kind="clock_conflict")
