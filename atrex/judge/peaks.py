"""Measure the peaks of one CPU core, the denominators of the score (METHOD.md section 1).

The contract of a CPU candidate is one thread, so the peaks are those of one pinned core. The
micro-benchmarks are a C program of their own: a runtime in the same process would share the core.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from msgspec.structs import replace

from atrex.backends.compiler import Compiler, compile_c
from atrex.errors import SetupError
from atrex.hardware import device_name, llc_bytes
from atrex.model import Peak
from atrex.stats import percentile

SOURCE = Path(__file__).with_name("peaks.c")
ROUNDS = 60  # some 5 s, 12 on a busy host; METHOD.md 1.3 says how the maximum of 60 repeats
RUN_SECONDS = 120  # a host that needs this long cannot time anything
LLC_FACTOR = 4  # arrays of four caches leave nothing of the last pass in the cache
MEMORY_SHARE = 0.5  # of the memory, for three arrays
WIDE = 0.1  # a 10th percentile this far below the peak means that others use the machine

# Pipes without a benchmark of their own run at the rate of one that holds their values exactly.
# "vector" is the fp32 multiply-add; fp8 is exact in bf16.
WIDENED = (
    ("vector", "fp32"),
    ("bf16", "fp32"),
    ("fp16", "fp32"),
    ("fp8_e4m3fn", "bf16"),
    ("fp8_e4m3fnuz", "bf16"),
    ("fp8_e5m2", "bf16"),
)
_SAMPLE = re.compile(r"sample (\w+) (\w+) (\d+) (\d+)")
_ROUND = re.compile(r"round (\d+)")

Progress = Callable[[int, int], None]  # rounds done, rounds in all


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One timed pass of one pattern: FLOP or bytes, and ns."""

    pipe: str
    pattern: str
    work: int
    time_ns: int

    @property
    def per_s(self) -> float:
        """FLOP or bytes per second."""
        return self.work / max(1, self.time_ns) * 1e9


def measure_cpu_peaks(
    compiler: Compiler,
    *,
    cpu: int | None = None,
    rounds: int = ROUNDS,
    progress: Progress = lambda done, rounds: None,
) -> list[Peak]:
    """Compile and run the micro-benchmarks, in some 6 s, and return one peak per pipe.

    Args:
        compiler: Compiles for this machine.
        cpu: Core to pin to; the last that this process may use by default.
        rounds: Samples of each pattern.
        progress: Told after each round.

    Raises:
        SetupError: They do not compile or run here, or memory is short.
    """
    chosen = max(os.sched_getaffinity(0)) if cpu is None else cpu
    with tempfile.TemporaryDirectory(prefix="atrex-peaks-") as folder:
        program = Path(folder) / "peaks"
        built = compile_c(compiler, SOURCE, program, shared=False)
        if not built.ok:
            raise SetupError(f"the peaks program does not compile: {built.log}")
        command = [str(program), str(chosen), str(rounds), str(array_bytes())]
        samples = _run(command, rounds, progress)
    return peaks_of(samples, device_name(), _today())


def peaks_of(samples: Iterable[Sample], device: str, date: str) -> list[Peak]:
    """Reduce samples to one peak per pipe: the fastest pass of the fastest pattern.

    The maximum, not a percentile: only cache hits, which the program rules out, could make a pass
    faster than the core is, while neighbours on a shared host slow most passes, and a peak that
    is too low accuses honest kernels of being impossible. The percentiles of the same pattern
    stand beside it and tell how loaded the host was.
    """
    by_pattern: dict[tuple[str, str], list[float]] = defaultdict(list)
    for sample in samples:
        by_pattern[sample.pipe, sample.pattern].append(sample.per_s)
    peaks: dict[str, Peak] = {}
    for (pipe, pattern), rates in by_pattern.items():
        if pipe not in peaks or max(rates) > peaks[pipe].value:
            source = f"peaks.c {pipe} {pattern}"
            peaks[pipe] = _peak(device, pipe, max(rates), rates, source, date)
    for pipe, route in WIDENED:
        best = peaks[route]
        if pipe not in peaks or peaks[pipe].value < best.value:
            peaks[pipe] = replace(best, pipe=pipe)
    return list(peaks.values())


def is_wide(peak: Peak) -> bool:
    """Whether others used the machine while the peak was measured."""
    return peak.low < (1 - WIDE) * peak.value


def parse(line: str) -> Sample | int:
    """Read one line of the program: a sample, or the number of rounds done.

    Raises:
        ValueError: It is neither.
    """
    if found := _SAMPLE.fullmatch(line):
        pipe, pattern, work, time_ns = found.groups()
        return Sample(pipe=pipe, pattern=pattern, work=int(work), time_ns=int(time_ns))
    if found := _ROUND.fullmatch(line):
        return int(found[1])
    raise ValueError(f"unexpected line of the peaks program: {line!r}")


def array_bytes() -> int:
    """Return the size of each of the three arrays.

    Raises:
        SetupError: There is not enough memory to leave the caches.
    """
    needed = LLC_FACTOR * llc_bytes()
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if 3 * needed > MEMORY_SHARE * memory:
        raise SetupError(
            f"measuring memory bandwidth takes {3 * needed >> 20} MiB, more than half of the "
            f"memory of {memory >> 20} MiB"
        )
    return needed


def _run(command: Sequence[str], rounds: int, progress: Progress) -> list[Sample]:
    """Run the program and read its lines as they come."""
    samples: list[Sample] = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        watchdog = threading.Timer(RUN_SECONDS, process.kill)
        watchdog.start()
        try:
            for line in process.stdout:
                parsed = parse(line.rstrip("\n"))
                if isinstance(parsed, Sample):
                    samples.append(parsed)
                else:
                    progress(parsed, rounds)
            message = process.stderr.read().strip()
        except BaseException:
            process.kill()
            raise
        finally:
            watchdog.cancel()
    if process.returncode:
        raise SetupError(f"the peaks program failed ({process.returncode}): {message}")
    return samples


def _peak(
    device: str, pipe: str, value: float, samples: Sequence[float], source: str, date: str
) -> Peak:
    return Peak(
        device=device,
        pipe=pipe,
        kind="measured",
        value=value,
        low=percentile(samples, 0.1),
        high=percentile(samples, 0.9),
        n=len(samples),
        source=source,
        date=date,
    )


def _today() -> str:
    return datetime.now(UTC).date().isoformat()
