"""Read kineto JSON, as torch.profiler writes it, into a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from atrex.trace.events import (
    KIND,
    Annotation,
    Copy,
    Kernel,
    Launch,
    Op,
    Unusable,
    nanoseconds,
)
from atrex.trace.files import rank_in_name
from atrex.trace.recording import Recording
from atrex.trace.source import Source
from atrex.trace.timeline import NO_LAUNCH, NO_NODE, Ranges, Timeline
from atrex.trace.window import WINDOW_BYTES, Windows

SYNTHETIC_KEY = "atrex_synthetic"  # top-level key of traces whose times are modelled


def read_kineto(source: Source, window_bytes: int = WINDOW_BYTES) -> Recording:
    """Read a kineto trace as a stream.

    Args:
        source: The file.
        window_bytes: Text parsed at once; the result does not depend on it.

    Raises:
        DataError: The text is no kineto trace.
    """
    windows = Windows(source, window_bytes)
    timeline = Timeline()
    rows = Rows(timeline)
    for events in windows:
        rows.extend(events)
    timeline.events += windows.skipped.total()
    header = _header(windows)
    rank, world_size = _rank(header, source.path.name)
    recording = Recording(
        format="kineto",
        trace=source.sha256[:16],
        name=source.path.name,
        timeline=timeline,
        gpu=_gpu(header, timeline),
        rank=rank,
        world_size=world_size,
        synthetic=SYNTHETIC_KEY in header,
        truncated=windows.truncated or source.truncated,
        damaged="checksum" in source.damage or "broken" in source.damage,
        skipped=windows.skipped,
        repaired=windows.repaired,
    )
    recording.notes += _notes(source, windows, recording.truncated)
    return recording


class Rows:
    """Adds kineto events to the columns of a timeline."""

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        adders: dict[type[Any], Callable[[Any], None]] = {
            Kernel: self._kernel,
            Copy: self._copy,
            Launch: self._launch,
            Op: self._op,
            Annotation: self._annotation,
            Unusable: self._unusable,
        }
        self._add = {form: adders[kind] for form, kind in KIND.items() if kind in adders}
        self._add[Unusable] = self._unusable

    def extend(self, events: Sequence[Any]) -> None:
        """Add one window's events."""
        self._timeline.events += len(events)
        adders = self._add
        for event in [event for event in events if type(event) in adders]:  # one of ten
            adders[type(event)](event)

    def _kernel(self, event: Kernel) -> None:
        timeline, args = self._timeline, event.args
        times = _times(event)
        if times is None:
            timeline.lose("kernel without valid time")
            return
        kernels = timeline.kernels
        kernels.name.append(timeline.names.id(event.name))
        kernels.start.append(times[0])
        kernels.duration.append(times[1])
        kernels.correlation.append(args.correlation or NO_LAUNCH)  # 0 means none
        kernels.device.append(-1 if args.device is None else args.device)
        kernels.stream.append(args.stream or 0)
        kernels.geometry.append(self._geometry(args.grid, args.block, args.shared_memory))
        kernels.process.append(timeline.processes.id(bytes(event.pid)))
        kernels.node.append(NO_NODE if args.graph_node is None else args.graph_node)

    def _copy(self, event: Copy) -> None:
        timeline, args = self._timeline, event.args
        times = _times(event)
        if times is None:
            timeline.dropped["copy without valid time"] += 1
            return
        copies = timeline.copies
        copies.name.append(timeline.names.id(event.name))
        copies.start.append(times[0])
        copies.duration.append(times[1])
        copies.correlation.append(args.correlation or NO_LAUNCH)
        copies.device.append(-1 if args.device is None else args.device)
        copies.stream.append(args.stream or 0)

    def _launch(self, event: Launch) -> None:
        timeline, args = self._timeline, event.args
        if not args.correlation and "Capture" not in event.name:
            return
        try:
            time = nanoseconds(event.ts)
            duration = nanoseconds(event.dur) if event.dur else 0
        except ValueError:
            timeline.dropped["launch without valid time"] += 1
            return
        launches = timeline.launches
        launches.name.append(timeline.names.id(event.name))
        launches.time.append(time)
        launches.duration.append(duration)
        launches.thread.append(timeline.threads.id((bytes(event.pid), bytes(event.tid))))
        launches.correlation.append(args.correlation or NO_LAUNCH)
        launches.kernel.append(timeline.names.id(args.kernel) if args.kernel else -1)
        launches.geometry.append(self._geometry(args.grid, args.block, b""))

    def _op(self, event: Op) -> None:
        args = event.args
        signature = (
            event.name,
            bytes(args.dims),
            bytes(args.types),
            bytes(args.strides),
            bytes(args.concrete),
        )
        self._range(self._timeline.ops, event, self._timeline.signatures.id(signature))

    def _annotation(self, event: Annotation) -> None:
        self._range(self._timeline.annotations, event, self._timeline.names.id(event.name))

    def _range(self, ranges: Ranges, event: Op | Annotation, what: int) -> None:
        timeline = self._timeline
        try:
            start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
        except ValueError:
            timeline.dropped["operator or annotation without valid time"] += 1
            return
        ranges.thread.append(timeline.threads.id((bytes(event.pid), bytes(event.tid))))
        ranges.start.append(start)
        ranges.end.append(start + duration)
        ranges.what.append(what)

    def _unusable(self, event: Unusable) -> None:
        if event.kernel:
            self._timeline.lose("kernel with unusable values")
        else:
            self._timeline.dropped["event with unusable values"] += 1

    def _geometry(self, grid: Raw | bytes, block: Raw | bytes, shared_memory: Raw | bytes) -> int:
        return self._timeline.geometries.id((bytes(grid), bytes(block), bytes(shared_memory)))


def _times(event: Kernel | Copy) -> tuple[int, int] | None:
    """Return start and duration in ns; None where they cannot be, as both zero cannot."""
    try:
        start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
    except ValueError:
        return None
    return None if duration < 0 or (start == 0 and duration == 0) else (start, duration)


def _header(windows: Windows) -> dict[str, Any]:
    """Decode the keys before and after the events; a broken part is no loss of facts."""
    found: dict[str, Any] = {}
    before = windows.head + b'"traceEvents":0}' if windows.head else b"{}"
    after = b'{"traceEvents":0' + windows.tail.rstrip(b"\0 \t\r\n")
    for text in (before, after):
        try:
            value = msgspec.json.decode(text)
        except msgspec.DecodeError:
            continue
        if isinstance(value, dict):
            found |= value
    return found


def _rank(header: dict[str, Any], name: str) -> tuple[int | None, int | None]:
    """Return rank and world size; a trace without them may name its rank in the file's name."""
    info = header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank, world_size = info.get("rank"), info.get("world_size")
    if not isinstance(rank, int):
        rank = rank_in_name(name)
    return rank, world_size if isinstance(world_size, int) else None


def _gpu(header: dict[str, Any], timeline: Timeline) -> str:
    """Name the device that ran the kernels; some ROCm versions leave the name empty."""
    properties = header.get("deviceProperties")
    if not isinstance(properties, list):
        return ""
    used = set(timeline.kernels.device)
    devices = [each for each in properties if isinstance(each, dict)]
    devices = [each for each in devices if each.get("id") in used] or devices
    return ", ".join(sorted({str(each.get("name") or _unnamed(each)) for each in devices}))


def _unnamed(device: dict[str, Any]) -> str:
    major, minor = device.get("computeMajor"), device.get("computeMinor")
    return f"compute {major}.{minor}, {device.get('numSms')} SMs"


def _notes(source: Source, windows: Windows, truncated: bool) -> list[str]:
    found = []
    if truncated:
        found.append(
            f"the input ends early, after {source.plain_bytes:,} bytes of text; "
            "complete events were kept"
        )
    if source.damage:
        found.append(source.damage)
    if windows.first_skipped is not None:
        found.append(f"the first malformed event is at byte {windows.first_skipped:,}")
    return found
