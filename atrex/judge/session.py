"""Judge every pair of a plan: build, prove correct, attribute, time, decide.

The session owns the seed, the references, the clock and the verdict. Artefacts are built and
hashed before the seed is drawn. A failing candidate is a measurement, never an error.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from atrex import registry
from atrex.backends import BACKENDS, compiler, interprets
from atrex.judge.builder import Artefact, build
from atrex.judge.channel import Fault, Target
from atrex.judge.contest import Contest
from atrex.judge.correctness import Correctness, verify
from atrex.judge.desk import PLACES
from atrex.judge.devices import Device, cpu_device
from atrex.judge.interpreted import examine
from atrex.judge.memory import Arena
from atrex.judge.plan import Plan
from atrex.judge.sandbox import protect_judge
from atrex.judge.task import Contender, Task, TaskError
from atrex.judge.timing import Fitness, summarise
from atrex.judge.worker import Worker
from atrex.model import Candidate, Measurement, Outcome, Peak, Workload
from atrex.roofline import Roof, below_floor, roofline

# A budget in proportion to the tensors, so that an endless allocation is seen within the time of a
# call also where memory is slow (seen: 2.5 s per GiB); eager rms_norm took 2.7 times its arenas.
WORKSPACE_FACTOR = 4
COMPILE_BYTES = 4 << 30  # the C++ compiler that torch.compile starts counts too
COMPILE_S = 120.0  # torch.compile of a baseline; 39 s were seen cold on a loaded host
MEMORY_SHARE = 0.7  # of the memory that is free; the rest is for the file cache and others

Progress = Callable[[str], None]


@dataclass
class Stages:
    """Harness time by stage, in ns."""

    spent_ns: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Charge what happens inside to a stage."""
        start = time.monotonic_ns()
        try:
            yield
        finally:
            self.spent_ns[name] = self.spent_ns.get(name, 0) + time.monotonic_ns() - start


class Session:
    """One sitting of the judge over a plan.

    Args:
        plan: What to judge.
        peaks: Measured peaks of this device, launch floors by flavour included.
        environment: Id of the environment that measurements name.
        scratch: Private folder for artefacts and caches.
        progress: Told what is in hand, a short text.
        device: What candidates run on; this CPU by default.

    Attributes:
        seed: Secret of the session, drawn when every artefact is built.
        fitness: The A/A result of this host; None until something is timed.
    """

    def __init__(
        self,
        plan: Plan,
        peaks: list[Peak],
        environment: str,
        scratch: Path,
        progress: Progress = lambda text: None,
        device: Device | None = None,
    ) -> None:
        self.plan = plan
        self.peaks = peaks
        self.environment = environment
        self.scratch = scratch
        self.progress = progress
        self.seed = b""
        self.fitness: Fitness | None = None
        self.device = device or cpu_device(scratch)
        self._artefacts: dict[tuple[str, str], Artefact | Fault] = {}
        self._smalls: dict[tuple[str, str], Correctness] = {}
        self._examined: dict[tuple[str, str], Measurement] = {}
        self._threads: int | None = None

    def open(self) -> None:
        """Build every artefact, then draw the seed.

        Raises:
            SetupError: There is no compiler and something to time, or the workers cannot start.
        """
        import torch

        if not all(map(self._interprets, self.plan.candidates)):
            compiler.require()  # for the runner of native code, which calibrates too
        protect_judge()
        # A pool of our own would go on spinning for milliseconds after every draw, on the core
        # of the worker that is timed next.
        self._threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for candidate, workload in self.plan.pairs():
            self._artefact(candidate, workload)
        self.seed = os.urandom(32)

    @property
    def calibration(self) -> dict[str, str | int | float | bool | None]:
        """What the run's header keeps of the calibration; empty if nothing was timed."""
        floors = {
            f"floor_{name}_ns": round(peak.value) for name, peak in self.device.floors.items()
        }
        if self.fitness is None:
            return dict(floors)
        interval = self.fitness.log_ratio
        return {
            "aa_fit": self.fitness.fit,
            "aa_reason": self.fitness.reason,
            "aa_half_width": None if interval is None else interval.half_width,
            "aa_quartets": self.fitness.quartets,
            **floors,
        }

    @property
    def seed_sha(self) -> str:
        """SHA-256 of the seed, which may be told at once."""
        return hashlib.sha256(self.seed).hexdigest()

    def judge(
        self, candidate: Candidate, workload: Workload, *, run: str, attempt: int
    ) -> Measurement:
        """Judge one candidate on one workload."""
        stages = Stages()
        blank = Measurement(
            run=run,
            workload=workload,
            candidate=candidate.name,
            candidate_sha=candidate.source_sha,
            attempt=attempt,
            environment=self.environment,
            outcome=Outcome.SKIPPED,
            method="interpreter" if self._interprets(candidate) else "none",
        )
        try:
            verdict = self._judge(candidate, workload, blank, stages)
        except Fault as fault:
            verdict = _failed(blank, fault)
        except TaskError as error:
            verdict = msgspec.structs.replace(blank, outcome=Outcome.TASK_ERROR, reason=str(error))
        return msgspec.structs.replace(verdict, stage_ns=stages.spent_ns)

    def close(self) -> None:
        """End every worker and forkserver, and give torch its threads back."""
        if self._threads is not None:
            import torch

            torch.set_num_threads(self._threads)
        self.device.close()

    def _judge(
        self, candidate: Candidate, workload: Workload, blank: Measurement, stages: Stages
    ) -> Measurement:
        task = self._task(workload)
        refusal = self._refusal(candidate, task)
        if refusal is not None:
            return _failed(blank, refusal)
        with stages.stage("build"):
            artefact = self._artefact(candidate, workload)
        if isinstance(artefact, Fault):
            return _failed(blank, artefact)
        contender = _contender(candidate, artefact)
        if self._interprets(candidate):
            return self._examine(contender, candidate, artefact, task, blank, stages)
        roof = self._roof(task, contender)
        secret = random.Random(os.urandom(16))
        with stages.stage("correctness"):
            correct = self._correctness(contender, candidate, task, secret)
        result = msgspec.structs.replace(
            correct.recorded(blank),
            peak_bytes=correct.peak_bytes,
            sol_ns=roof.sol_ns,
            flop=task.cost.flop,
            moved_bytes=task.cost.bytes,
            overhead_bound=roof.overhead_bound,
            compile_ns=artefact.compile_ns,
        )
        if correct.outcome is not Outcome.OK:
            return result
        with stages.stage("audit"):
            try:
                evidence = self.device.attribute(
                    candidate, contender, artefact, task, self._start, secret
                )
            except Fault as fault:
                return _failed(result, fault)
        result = msgspec.structs.replace(
            result, attribution=evidence.attribution, kernel_share=evidence.kernel_share
        )
        return self._time(
            contender, candidate, task, roof, result, secret, stages, evidence.busy_ns
        )

    def _refusal(self, candidate: Candidate, task: Task) -> Fault | None:
        """Say why this pair cannot be judged here, before the candidate starts."""
        backend = BACKENDS.get(candidate.backend)
        if backend is not None and not backend.supports(self.plan.device):
            return Fault(Outcome.UNSUPPORTED, f"{candidate.backend}: {backend.reason}")
        if candidate.dtypes and task.workload.dtype not in candidate.dtypes:
            return Fault(Outcome.UNSUPPORTED, f"declared for {', '.join(candidate.dtypes)} only")
        if self._interprets(candidate):
            return self._not_interpretable(candidate, task)
        sol_ns, longest_ns = self._roof(task).sol_ns, self.device.longest_sol_ns
        if longest_ns is not None and sol_ns > longest_ns:
            return Fault(
                Outcome.SKIPPED,
                f"attainable time {sol_ns / 1e6:.0f} ms, above {longest_ns / 1e6:.0f} ms here",
            )
        # three places of every tensor for judge and workers, and some fp64 copies of half of them
        needed = 2 * PLACES * task.tensor_bytes + 5 * 4 * task.tensor_bytes
        available = self.device.available_bytes()
        if available and needed > MEMORY_SHARE * available:
            return Fault(Outcome.SKIPPED, f"judging it takes about {needed >> 30} GiB of memory")
        return None

    def _not_interpretable(self, candidate: Candidate, task: Task) -> Fault | None:
        """Say why the interpreter cannot judge this pair."""
        if importlib.util.find_spec(candidate.backend) is None:
            reason = f"{candidate.backend} is not installed; `pip install 'atrex[kernels]'`"
            return Fault(Outcome.UNSUPPORTED, reason)
        if not self._reduced(task):
            reason = f"no reduced shape in {task.workload.dtype} for the interpreter"
            return Fault(Outcome.UNSUPPORTED, reason)
        return None

    def _task(self, workload: Workload) -> Task:
        operator = registry.operator(workload.operator, self.plan.operators)
        return Task(operator, workload, self.seed, self.plan.operators, self.device.memory)

    def _artefact(self, candidate: Candidate, workload: Workload) -> Artefact | Fault:
        """Build once for each candidate and interface; a failure is kept too."""
        task = self._task(workload)
        key = candidate.source_sha, task.interface.signature
        if key not in self._artefacts:
            self.progress(f"building {candidate.name}")
            folder = self.scratch / f"{candidate.source_sha[:12]}-{task.interface.signature}"
            try:
                self._artefacts[key] = build(
                    candidate, task.interface, folder, self.device.architecture
                )
            except Fault as fault:
                self._artefacts[key] = fault
        return self._artefacts[key]

    def _correctness(
        self, contender: Contender, candidate: Candidate, task: Task, secret: random.Random
    ) -> Correctness:
        """Judge the small ragged shapes once for each interface, then the whole shape."""
        key = candidate.source_sha, task.interface.signature
        if key not in self._smalls:
            self._smalls[key] = verify(contender, self._reduced(task), self._start, secret)
        if self._smalls[key].outcome is not Outcome.OK:
            return self._smalls[key]
        return verify(contender, [task], self._start, secret)

    def _reduced(self, task: Task) -> list[Task]:
        """Return the operator's reduced shapes of a task's dtype."""
        dtype = task.workload.dtype
        return [self._task(small) for small in task.operator.small if small.dtype == dtype]

    def _interprets(self, candidate: Candidate) -> bool:
        """Whether this device can only interpret a candidate, so that nothing is timed."""
        return interprets(candidate.backend, self.plan.device)

    def _examine(
        self,
        contender: Contender,
        candidate: Candidate,
        artefact: Artefact,
        task: Task,
        blank: Measurement,
        stages: Stages,
    ) -> Measurement:
        """Judge reduced shapes in the interpreter, once for each candidate and interface."""
        key = candidate.source_sha, task.interface.signature
        if key not in self._examined:
            secret = random.Random(os.urandom(16))
            with stages.stage("correctness"):
                self._examined[key] = examine(
                    contender, artefact, self._reduced(task), blank, self._start, secret
                )
        return msgspec.structs.replace(self._examined[key], workload=blank.workload)

    def _time(
        self,
        contender: Contender,
        candidate: Candidate,
        task: Task,
        roof: Roof,
        result: Measurement,
        secret: random.Random,
        stages: Stages,
        busy_ns: int | None,
    ) -> Measurement:
        """Time against the fastest correct baseline and decide."""
        with Contest(task, self._start, self.device, secret) as contest:
            with stages.stage("baselines"):
                screening = contest.screen(self._baselines(candidate, task))
            result = msgspec.structs.replace(
                result, baselines_ns=screening.medians_ns, baselines_failed=screening.failed
            )
            try:
                with stages.stage("timing"):
                    paired, arm = contest.pair(contender, screening.fastest, self.plan.rule)
                    timing = summarise(paired, self.plan.rule, secret)
                self.device.refuse_conflict(arm.results, busy_ns)
                with stages.stage("verification"):
                    verified = arm.verified()
            except Fault as fault:
                return _failed(result, fault)
            baseline_peak = contest.peak_bytes(screening.fastest)
        timed = msgspec.structs.replace(
            result,
            outcome=Outcome.INCONCLUSIVE,
            method="none" if timing.time_ns is None else "paired",
            time_ns=timing.time_ns,
            low_ns=timing.low_ns,
            high_ns=timing.high_ns,
            noise=timing.noise,
            samples_ns=paired.candidate_ns,
            baseline_samples_ns=paired.baseline_ns,
            first_ns=paired.candidate_first_ns,
            verified=verified,
            prepare_ns=arm.prepare_ns,
            baseline=screening.fastest,
            baseline_ns=timing.baseline_ns,
            baseline_peak_bytes=baseline_peak,
            stop_reason=paired.stop_reason,
        )
        return self._decide(timed, roof, timing.conclusive, timing.reason)

    def _decide(self, timed: Measurement, roof: Roof, conclusive: bool, why: str) -> Measurement:
        """Give the verdict on a correct, timed candidate."""
        share = min(1.0, roof.sol_ns / timed.time_ns) if timed.time_ns else None
        if timed.time_ns and below_floor(timed.time_ns, roof):
            return msgspec.structs.replace(
                timed,
                outcome=Outcome.VIOLATION,
                kind="below_floor",
                s=0.0,
                reason=f"{timed.time_ns} ns, under 0.95 of the measured roof "
                f"of {roof.measured_ns} ns",
            )
        if timed.attribution is not None and not timed.attribution.own:
            reason = timed.attribution.evidence[0] if timed.attribution.evidence else ""
            return msgspec.structs.replace(timed, outcome=Outcome.FALLBACK, reason=reason, s=0.0)
        fitness = self._probe()
        if not fitness.fit:
            conclusive, why = False, f"this host cannot time: {fitness.reason}"
        if not conclusive:
            return msgspec.structs.replace(timed, outcome=Outcome.INCONCLUSIVE, reason=why, s=None)
        return msgspec.structs.replace(timed, outcome=Outcome.OK, s=share)

    def _baselines(self, candidate: Candidate, task: Task) -> list[Contender]:
        """List the library baselines, and the handwritten kernels that are not the candidate."""
        found = task.libraries(compiled=self.plan.compiled)
        for path in registry.kernels(task.operator.name, self.plan.operators):
            kernel = registry.candidate(path)
            fits = not kernel.dtypes or task.workload.dtype in kernel.dtypes
            if not fits or not self.device.rivals(kernel.backend):
                continue
            if kernel.source_sha == candidate.source_sha:
                continue
            artefact = self._artefact(kernel, task.workload)
            if isinstance(artefact, Artefact):
                found.append(_contender(kernel, artefact))
        return found

    def _start(self, contender: Contender, arenas: tuple[Arena, ...]) -> Worker:
        limits = self.plan.limits
        tensors = sum(arena.size for arena in arenas)
        memory = max(limits.memory_bytes, WORKSPACE_FACTOR * tensors)
        if contender.target.compiled:
            memory = max(memory, COMPILE_BYTES)
            limits = msgspec.structs.replace(limits, load_s=COMPILE_S)
        limits = msgspec.structs.replace(limits, memory_bytes=memory)
        return self.device.start(contender, arenas, limits)

    def _probe(self) -> Fitness:
        """Time equal calls against each other, once a session."""
        if self.fitness is None:
            self.progress("calibrating this host")
            self.fitness = self.device.fitness(self.plan.rule, random.Random(os.urandom(16)))
        return self.fitness

    def _roof(self, task: Task, contender: Contender | None = None) -> Roof:
        """Return the roofs of a task, with the launch floor of workers like a contender's."""
        peaks = [*self.peaks, self.device.floor(contender)]
        return roofline(task.cost, peaks, self.device.kind)


def _contender(candidate: Candidate, artefact: Artefact) -> Contender:
    flavour = BACKENDS[candidate.backend].flavour
    assert flavour is not None  # `_refusal` came first
    kind: Literal["native", "candidate"] = "native" if flavour == "native" else "candidate"
    return Contender(
        name=candidate.name, target=Target(kind=kind, path=str(artefact.path)), flavour=flavour
    )


def _failed(blank: Measurement, fault: Fault) -> Measurement:
    """Record a fault; what was never started has no share, the rest has none to claim."""
    never = (Outcome.UNSUPPORTED, Outcome.SKIPPED, Outcome.INFRA_ERROR)
    return msgspec.structs.replace(
        blank,
        outcome=fault.outcome,
        kind=fault.kind,
        reason=fault.reason,
        s=None if fault.outcome in never else 0.0,
    )
