"""Measure what a call costs that does nothing, and whether equal calls take equal time.

Both go through the same workers, channel and cold caches as candidates do. The first is the launch
floor of T_sol, the second decides whether this host may publish times at all.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import UTC, datetime
from itertools import cycle
from pathlib import Path

from atrex.backends.compiler import Compiler, compile_c
from atrex.errors import SetupError
from atrex.hardware import device_name
from atrex.judge.channel import Arguments, Block, Target
from atrex.judge.desk import PLACES
from atrex.judge.forkserver import Flavour
from atrex.judge.launcher import Forkserver
from atrex.judge.memory import Arena, required_bytes
from atrex.judge.timing import Fitness, Rule, aa_fitness
from atrex.judge.worker import Worker
from atrex.model import Peak
from atrex.operator import TensorSpec
from atrex.roofline import LAUNCH_FLOOR
from atrex.stats import median, percentile

HERE = Path(__file__).parent
FLOOR_CALLS = 40  # some 0.2 s; the median of 40 repeats within 2 %
WARM_UP_CALLS = 5
COPY_BYTES = 8 << 20  # of the A/A kernel: about a millisecond, and bound by memory like most
AA_SECONDS = 6.0  # at most; a quiet host is done in one
AA_QUARTETS = 1000
AA_STOP = 0.75  # of the threshold: the bootstrap interval comes out a little wider than the rule's


def build(compiler: Compiler, folder: Path) -> Path:
    """Compile the calibration kernel.

    Raises:
        SetupError: The compiler cannot.
    """
    folder.mkdir(parents=True, exist_ok=True)
    artefact = folder / "calibrate.so"
    built = compile_c(compiler, HERE / "calibrate.c", artefact)
    if not built.ok:
        raise SetupError(f"the calibration kernel does not compile: {built.log.strip()}")
    return artefact


def launch_floor(server: Forkserver, kernel: Path, flush: Callable[[], None]) -> Peak:
    """Time calls that do nothing, cold, in a worker of this flavour."""
    target, message = _nothing(server.flavour, kernel)
    times: list[int] = []
    with server.start(target, ()) as worker:
        worker.bind(message)
        for _ in range(WARM_UP_CALLS + FLOOR_CALLS):
            flush()
            times.append(worker.call().time_ns)
    kept = times[WARM_UP_CALLS:]
    return Peak(
        device=device_name(),
        pipe=LAUNCH_FLOOR,
        kind="measured",
        value=median(kept),
        low=percentile(kept, 0.1),
        high=percentile(kept, 0.9),
        n=len(kept),
        source=f"no-op call of a {server.flavour} worker",
        date=datetime.now(UTC).date().isoformat(),
    )


def fitness(
    server: Forkserver,
    kernel: Path,
    flush: Callable[[], None],
    secret: random.Random,
    threshold: float,
) -> Fitness:
    """Time one kernel against itself in two workers; once more if the host was disturbed.

    Args:
        server: Native forkserver.
        kernel: The calibration kernel.
        flush: Makes the caches cold.
        secret: Source of the order of calls.
        threshold: Half-width of the log-ratio that a fit host reaches.
    """
    rule = Rule(
        seconds=AA_SECONDS, max_quartets=AA_QUARTETS, stop=AA_STOP * threshold, fitness=threshold
    )
    found = _against_itself(server, kernel, flush, secret, rule)
    return found if found.fit else _against_itself(server, kernel, flush, secret, rule)


def _against_itself(
    server: Forkserver,
    kernel: Path,
    flush: Callable[[], None],
    secret: random.Random,
    rule: Rule,
) -> Fitness:
    """Time two fresh workers, so that a second attempt does not inherit where pages lay."""
    spec = TensorSpec(shape=(COPY_BYTES,), dtype="uint8")
    size = PLACES * required_bytes([spec])
    target = Target(kind="native", path=str(kernel))
    with ExitStack() as stack:
        arenas = [Arena(size, sealed=n == 0, index=min(n, 1)) for n in range(3)]
        for arena in arenas:
            stack.callback(arena.close)
        starts, *ends = ([arena.place(spec).offset for _ in range(PLACES)] for arena in arenas)
        arms = [
            _Copy(
                stack.enter_context(server.start(target, (arenas[0], arena))), flush, starts, places
            )
            for arena, places in zip(arenas[1:], ends, strict=True)
        ]
        return aa_fitness(arms[0], arms[1], rule, time.monotonic_ns, secret)


class _Copy:
    """An arm that copies a buffer, from and to places that rotate as those of a candidate do."""

    def __init__(
        self, worker: Worker, flush: Callable[[], None], starts: list[int], ends: list[int]
    ) -> None:
        self._worker = worker
        self._flush = flush
        self._places = cycle(zip(starts, ends, strict=True))

    def sample(self) -> int:
        start, end = next(self._places)
        size = COPY_BYTES.to_bytes(8, "little")
        block = Block(data=bytes(16) + size, relocations=((0, 0, start), (8, 1, end)))
        self._worker.bind(block)
        self._flush()
        return self._worker.call().time_ns


def _nothing(flavour: Flavour, kernel: Path) -> tuple[Target, Arguments | Block]:
    if flavour == "native":
        return Target(kind="native", path=str(kernel)), Block(data=bytes(24), relocations=())
    target = Target(kind="candidate", path=str(HERE / "calibrate_noop.py"))
    return target, Arguments(inputs={}, outputs={})
