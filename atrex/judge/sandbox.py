"""What confines a worker, and how much of it is proven to be in force.

Tiers are those of integrity.md section 7. This module implements tier 0: own session, clean
environment, resource limits, no new privileges, death with the parent. The achieved tier is
read from the kernel, outside the worker, and is recorded with every result.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from atrex.judge import procfs

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
OOM_SCORE = 1000  # the kernel's own killer takes a worker first, never the judge

_libc = ctypes.CDLL(None, use_errno=True)


def clean_environment(home: Path) -> dict[str, str]:
    """Return the whole environment of workers: nothing of the caller's but PATH.

    Settings bind candidates and baselines alike: one thread, passive waiting, and an allocator
    that keeps its memory. Without the last, page faults of PyTorch's allocator make every C
    kernel win seven- to fifty-fold. `MALLOC_MMAP_THRESHOLD_` ends at 32 MiB in glibc, so mmap is
    turned off instead.
    """
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "LC_ALL": "C.UTF-8",
        "HOME": str(home),
        "TMPDIR": str(home),
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "NUMBA_NUM_THREADS": "1",
        "OMP_WAIT_POLICY": "passive",
        "TORCHINDUCTOR_COMPILE_THREADS": "1",  # a pool would leave processes behind
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
        "MALLOC_TOP_PAD_": str(64 << 20),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",  # heaps like arenas (mapping.py), glibc 2.35
    }


def device_environment() -> dict[str, str]:
    """Return what workers on a GPU need besides: which device, and where its libraries are."""
    names = ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "CUDA_HOME", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in names if name in os.environ}


def prctl(option: int, value: int) -> None:
    """Call prctl.

    Raises:
        OSError: The kernel refuses.
    """
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Who computes where during a call; both empty on a machine that has no core to spare.

    Attributes:
        worker: CPUs of every worker, baseline and candidate alike.
        judge: CPUs that share no core with them.
    """

    worker: frozenset[int] = frozenset()
    judge: frozenset[int] = frozenset()

    @property
    def apart(self) -> bool:
        """Whether the worker has cores of its own."""
        return bool(self.worker)

    @contextlib.contextmanager
    def judge_apart(self) -> Iterator[None]:
        """Keep the calling thread off the worker's cores."""
        if not self.apart:
            yield
            return
        before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, self.judge)
        try:
            yield
        finally:
            os.sched_setaffinity(0, before)


def split_cores(threads: int) -> Cores:
    """Give the last `threads` allowed CPUs to workers, and the judge what shares no core."""
    allowed = sorted(os.sched_getaffinity(0))
    worker = frozenset(allowed[-threads:])
    judge = frozenset(allowed) - frozenset().union(*(_siblings(cpu) for cpu in worker))
    return Cores(worker=worker, judge=judge) if judge else Cores()


def _siblings(cpu: int) -> set[int]:
    """Return the CPUs of one core, as the kernel lists them: "0,64" or "0-1"."""
    path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    try:
        text = path.read_text()
    except OSError:
        return {cpu}
    found: set[int] = {cpu}
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        found.update(range(int(first), int(last or first) + 1))
    return found


def enter(parent: int, file_bytes: int, cpus: Collection[int]) -> None:
    """Confine the calling process, just forked by `parent`, to tier 0.

    Address space is not limited: a limit makes malloc return NULL, and the crash that follows
    hides the reason. The judge watches the size instead and ends the worker.
    """
    os.setsid()
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os._exit(0)
    prctl(PR_SET_NO_NEW_PRIVS, 1)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    if cpus:
        os.sched_setaffinity(0, cpus)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE))


def adopt_orphans() -> None:
    """Become the parent of every orphan among the descendants, so that none escapes by forking."""
    prctl(PR_SET_CHILD_SUBREAPER, 1)


def protect_judge() -> None:
    """Forbid other processes of the same user to read or trace this one."""
    prctl(PR_SET_DUMPABLE, 0)


def achieved_tier(pid: int) -> int | None:
    """Return the tier that a worker is seen to have, None if not even tier 0 is in force."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        core, _ = resource.prlimit(pid, resource.RLIMIT_CORE)
    except OSError:
        return None
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    tier_0 = procfs.session(pid) == pid and fields.get("NoNewPrivs") == "1" and core == 0
    return 0 if tier_0 else None
