"""What the kernel says about a process, read from outside it.

Everything here is about a process that may be hostile and may end at any moment: a file that has
gone is an answer (no tasks, no memory), not an error.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def tasks(pid: int) -> dict[int, str]:
    """Return the state letter of every thread: R, S, D, T, Z, ...; empty if the process is gone."""
    states = {}
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    for name in names:
        fields = _stat(f"/proc/{pid}/task/{name}/stat")
        if fields:
            states[int(name)] = fields[0]
    return states


def ended(pid: int) -> bool:
    """Whether a process is gone or a zombie."""
    fields = _stat(f"/proc/{pid}/stat")
    return not fields or fields[0] in "ZX"


def session(pid: int) -> int:
    """Return the session of a process, 0 if it is gone."""
    fields = _stat(f"/proc/{pid}/stat")
    return int(fields[3]) if fields else 0


def _stat(path: str) -> list[str]:
    """Return the fields of a stat file after the name, which may itself hold ') R 1'."""
    text = _read(path)
    return text[text.rindex(")") + 2 :].split() if text else []


def _read(path: str) -> str:
    """Return a short file of one system call's length, "" if the process has ended."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except OSError:
        return ""
    try:
        return os.read(fd, 4096).decode(errors="replace")
    except OSError:  # it ended between the two calls
        return ""
    finally:
        os.close(fd)


def children(pid: int) -> list[int]:
    """Return the live children of all threads of a process."""
    found: list[int] = []
    for task in tasks(pid):
        found += [int(word) for word in _read(f"/proc/{pid}/task/{task}/children").split()]
    return [child for child in found if not ended(child)]


def descendants(pid: int) -> list[int]:
    """Return children, their children and so on, without the process itself."""
    found: list[int] = []
    waiting = children(pid)
    while waiting:
        child = waiting.pop()
        if child not in found:
            found.append(child)
            waiting += children(child)
    return found


def memory(pid: int) -> tuple[int, int]:
    """Return the virtual and the resident size in bytes, (0, 0) if the process is gone."""
    words = _read(f"/proc/{pid}/statm").split()
    return (int(words[0]) * PAGE_BYTES, int(words[1]) * PAGE_BYTES) if words else (0, 0)


def peak_resident(pid: int) -> int:
    """Return the resident high-water mark in bytes, 0 if the process is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    lines = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    return int(lines["VmHWM"].split()[0]) * 1024 if "VmHWM" in lines else 0


def reset_peak(pid: int) -> bool:
    """Set the resident high-water mark to the present size; tell whether the kernel let us."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def cpu_clock(pid: int) -> int:
    """Return the id of the clock that counts the CPU time of all threads, ended ones included.

    It is exact for sleeping threads only: the kernel brings a running thread of another process
    up to date at its next tick or sleep.
    """
    return (~pid << 3) | 2  # MAKE_PROCESS_CPUCLOCK with CPUCLOCK_SCHED, linux/posix-timers.h


def cpu_ns(clock: int) -> int:
    """Read a process's CPU clock in ns, 0 if it is gone."""
    try:
        return time.clock_gettime_ns(clock)
    except OSError:
        return 0


def queued_ns(pid: int) -> int:
    """Return how long the live threads of a process waited for a CPU, in ns."""
    try:
        names = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return 0
    words = [_read(f"/proc/{pid}/task/{name}/schedstat").split() for name in names]
    return sum(int(fields[1]) for fields in words if fields)


def mapped_files(pid: int) -> list[str]:
    """Return the files that a process has mapped, sorted; empty if it may not be read."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return []
    fields = [line.split(maxsplit=5) for line in lines]
    return sorted({field[5] for field in fields if len(field) == 6 and field[5].startswith("/")})


def oom_kills() -> int:
    """Return how many processes the kernel has killed for memory since boot."""
    for line in Path("/proc/vmstat").read_text().splitlines():
        if line.startswith("oom_kill "):
            return int(line.split()[1])
    return 0
