"""The time that no implementation can beat (METHOD.md section 1).

Three roofs of one workload: with datasheet peaks, with the peaks measured here, and the latter
with the launch floor, which is the attainable time that the score divides by.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from atrex.errors import DataError
from atrex.hardware import by_pipe
from atrex.model import Cost, DeviceKind, Peak

LAUNCH_FLOOR = "launch_floor"
MEMORY = "memory"
# CPU times hold the transport, some 10 us, which dwarfs a small roof; a GPU's floor is a launch
OVERHEAD_FLOORS: Mapping[DeviceKind, int] = {"cpu": 10, "cuda": 1}
BELOW_FLOOR = 0.95  # a time under this share of the measured roof is physically implausible


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """The roofs of one workload on one device.

    Attributes:
        roof_ns: With datasheet peaks; None if a needed one is missing.
        measured_ns: With measured peaks, launch floor left out.
        sol_ns: T_sol, `measured_ns` or the launch floor if that is longer.
        bound: What decides `sol_ns`: ``"memory"``, a pipe, or ``"launch"``.
        overhead_bound: Whether the launch dwarfs the work, so that S tells little of the kernel.
    """

    roof_ns: int | None
    measured_ns: int
    sol_ns: int
    bound: str
    overhead_bound: bool


def roofline(cost: Cost, peaks: Iterable[Peak], kind: DeviceKind = "cpu") -> Roof:
    """Compute the roofs of a workload from the peaks of one device.

    Args:
        cost: Work that cannot be avoided.
        peaks: Measured and datasheet peaks; of several for one pipe the latest counts.
        kind: Kind of the device, which decides when a workload is overhead-bound.

    Raises:
        DataError: A pipe that the workload needs, the memory or the launch floor has no
            measured peak.
    """
    known = list(peaks)
    measured, datasheet = by_pipe(known, "measured"), by_pipe(known, "datasheet")
    times = _times_ns(cost, measured)
    if LAUNCH_FLOOR not in measured:
        raise _missing(LAUNCH_FLOOR)
    floor_ns = measured[LAUNCH_FLOOR].value
    bound, measured_ns = max(times.items(), key=lambda item: item[1])
    has_datasheet = {MEMORY, *_needed(cost)} <= datasheet.keys()
    return Roof(
        roof_ns=_whole(max(_times_ns(cost, datasheet).values())) if has_datasheet else None,
        measured_ns=_whole(measured_ns),
        sol_ns=_whole(max(measured_ns, floor_ns)),
        bound="launch" if floor_ns > measured_ns else bound,
        overhead_bound=measured_ns < OVERHEAD_FLOORS[kind] * floor_ns,
    )


def below_floor(time_ns: int, roof: Roof) -> bool:
    """Whether a time is too short to be true; the launch floor is left out of the comparison."""
    return time_ns < BELOW_FLOOR * roof.measured_ns


def _needed(cost: Cost) -> list[str]:
    return [pipe for pipe, flop in cost.flop.items() if flop]


def _times_ns(cost: Cost, peaks: Mapping[str, Peak]) -> dict[str, float]:
    """Return the least time on each resource, in ns, as if the others were free."""
    work = {MEMORY: cost.bytes, **{pipe: cost.flop[pipe] for pipe in _needed(cost)}}
    for pipe in work:
        if pipe not in peaks:
            raise _missing(pipe)
    return {pipe: amount / peaks[pipe].value * 1e9 for pipe, amount in work.items()}


def _missing(pipe: str) -> DataError:
    return DataError(f"no measured peak for {pipe!r}", remedy="Run `atrex peaks` on this device.")


def _whole(time_ns: float) -> int:
    return max(1, round(time_ns))
