"""Describe the device that numbers are measured on, and choose its peaks.

Versions come from package metadata: nothing here imports torch, so that a report or the dashboard
can name an environment. Host and user names are never read.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from atrex.model import Environment, Peak

CPUINFO = Path("/proc/cpuinfo")
MEMINFO = Path("/proc/meminfo")
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
UNKNOWN_LLC_BYTES = 64 << 20  # larger than most; too large a flush is slow, too small a lie
_UNITS = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def environment(
    *, compiler: str | None = None, sandbox_tier: int = 0, huge_pages: bool | None = None
) -> Environment:
    """Describe this machine as a CPU device.

    Args:
        compiler: Version line of the C compiler that candidates are built with.
        sandbox_tier: The tier that the judge reached.
        huge_pages: Whether the judge lays tensors in huge pages.
    """
    return Environment(
        device=device_name(),
        kind="cpu",
        cpu=cpu_name(),
        cores=cores(),
        kernel=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        atrex=installed("atrex") or "unknown",
        torch=installed("torch"),
        triton=installed("triton"),
        numba=installed("numba"),
        compiler=compiler,
        sandbox_tier=sandbox_tier,
        huge_pages=huge_pages,
    )


def device_name() -> str:
    """Name the CPU device: its model and the cores that this process may use."""
    return f"{cpu_name()}, {cores()} cores"


def cpu_name(cpuinfo: Path = CPUINFO) -> str:
    """Name the CPU model.

    Virtual machines often shorten the name ("AMD EPYC"), which generations share, so family and
    model numbers follow it where they are known.
    """
    fields: dict[str, str] = {}
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields and "model" in fields:
        return f"{name} (family {fields['cpu family']} model {fields['model']})"
    return name


def cores() -> int:
    """Count the cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def llc_bytes(caches: Path = CACHES) -> int:
    """Return the size of the last-level cache that one core sees, in bytes.

    The kernel's view comes first: the C library multiplies it by the sockets' cache groups.
    """
    sizes = [
        (int(_read(index / "level")), _bytes(_read(index / "size")))
        for index in sorted(caches.glob("index*"))
        if _read(index / "type") in ("Unified", "Data") and _read(index / "size")
    ]
    return max(sizes)[1] if sizes else UNKNOWN_LLC_BYTES


def available_bytes(meminfo: Path = MEMINFO) -> int:
    """Return the memory that can be used without swapping; 0 if the kernel does not tell."""
    for line in _read(meminfo).splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) << 10
    return 0


def by_pipe(peaks: Iterable[Peak], kind: str, device: str | None = None) -> dict[str, Peak]:
    """Choose one peak per pipe: of the given kind and device, the latest, and of a day the last.

    Args:
        peaks: Peaks of one device, or of several if `device` chooses.
        kind: ``"measured"`` or ``"datasheet"``.
        device: `Environment.device` to keep; None keeps all.
    """
    kept = [peak for peak in peaks if peak.kind == kind and device in (None, peak.device)]
    return {peak.pipe: peak for peak in sorted(kept, key=lambda peak: peak.date)}


def installed(package: str) -> str | None:
    """Return the version of an installed package without importing it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _read(path: Path) -> str:
    return path.read_text().strip() if path.is_file() else ""


def _bytes(text: str) -> int:
    unit = _UNITS.get(text[-1:], 1)
    return int(text.rstrip("KMG")) * unit
