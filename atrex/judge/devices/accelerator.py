"""The seam to a GPU: what the judge and its workers ask of one, and nothing else.

Everything above it is logic that tests run on a fake; everything below it is calls of the vendor's
libraries (`atrex.judge.devices.nvidia`).
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal, Protocol

from atrex.model import Record
from atrex.registry import load_module

ActivityKind = Literal["kernel", "memcpy", "memset"]


class Facts(Record, frozen=True, kw_only=True):
    """What a device is.

    Attributes:
        name: As the vendor names it.
        driver, runtime: Versions of the driver and of CUDA.
        capability: Compute capability, e.g. ``"9.0"``.
        multiprocessors: Number of SMs.
        l2_bytes, memory_bytes: Sizes.
        power_limit_w: Enforced limit.
        sm_clock_mhz, mem_clock_mhz: Largest clocks that applications get.
    """

    name: str
    driver: str
    runtime: str
    capability: str
    multiprocessors: int
    l2_bytes: int
    memory_bytes: int
    power_limit_w: int | None = None
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None


class Telemetry(Record, frozen=True, kw_only=True):
    """What a device does at a moment.

    Attributes:
        throttled: Reasons why clocks are held down by heat or power; empty if they are not.
    """

    sm_clock_mhz: int
    mem_clock_mhz: int
    temperature_c: int
    power_w: float
    throttled: tuple[str, ...] = ()


class Activity(Record, frozen=True, kw_only=True):
    """One thing that a device did, as its profiler recorded it.

    Attributes:
        name: Of the kernel, as compiled.
        start_ns, duration_ns: By the device's clock.
        stream: Queue that it ran in.
        launcher: Innermost operator or range around its launch; "" if there was none.
    """

    kind: ActivityKind
    name: str
    start_ns: int
    duration_ns: int
    stream: int
    launcher: str = ""


class Recording(Record, frozen=True, kw_only=True):
    """What was recorded of a stretch of time.

    Attributes:
        lost: Records that the profiler says it dropped.
    """

    activities: tuple[Activity, ...]
    lost: int = 0


class Recorder(Protocol):
    """Records activities while it is entered."""

    def recording(self) -> Recording:
        """Return what was recorded; to be asked after it was left."""


class Accelerator(Protocol):
    """A device, seen from one process.

    Attributes:
        device: Name of the torch device, e.g. ``"cuda:0"``.
    """

    device: str

    def facts(self) -> Facts:
        """Describe the device."""

    def telemetry(self) -> Telemetry:
        """Read clocks, temperature, power and throttling."""

    def allocate(self, nbytes: int) -> Any:
        """Return device memory as a flat uint8 tensor; it lives as long as the tensor."""

    def share(self, memory: Any) -> bytes:
        """Return a handle by which another process opens what `allocate` gave."""

    def open(self, handle: bytes, nbytes: int) -> Any:
        """Return another process' memory as a flat uint8 tensor."""

    def synchronise(self) -> None:
        """Wait until every stream of this process is idle."""

    def spin(self) -> None:
        """Keep the current stream busy for 20 to 50 us, so that what follows queues up."""

    def mark(self) -> Any:
        """Record an event on the current stream."""

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the device time between two marks that have been reached."""

    def flush(self) -> None:
        """Evict the L2 cache, persisting lines too, and wait."""

    def recorder(self) -> AbstractContextManager[Recorder]:
        """Return a profiler of the activities of this process."""

    def own(self, label: str) -> AbstractContextManager[None]:
        """Mark launches inside as made by `label`."""

    def free_bytes(self) -> int:
        """Return the device memory that no process uses."""


def load(path: Path) -> Accelerator:
    """Return the `Device` of a module, which judge and workers open by the same file."""
    device: Accelerator = load_module(path).Device()
    return device


def busy_ns(activities: Iterable[Activity]) -> int:
    """Return the time during which at least one activity ran, over all streams.

    Gaps do not count: a profiler makes each launch slower, and with it the gaps.
    """
    busy = end = 0
    for each in sorted(activities, key=lambda activity: activity.start_ns):
        stop = each.start_ns + each.duration_ns
        busy += max(0, stop - max(end, each.start_ns))
        end = max(end, stop)
    return busy
