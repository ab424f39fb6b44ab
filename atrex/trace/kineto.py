"""Read kineto JSON, as torch.profiler writes it, into a recording."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from atrex.trace.events import (
    KIND,
    LONGEST_NS,
    Annotation,
    Copy,
    Kernel,
    Launch,
    Malformed,
    Op,
    Unusable,
    nanoseconds,
)
from atrex.trace.files import rank_in_name
from atrex.trace.recording import Recording
from atrex.trace.source import Source
from atrex.trace.timeline import NO_LAUNCH, NO_NODE, Interner, Ranges, Timeline
from atrex.trace.window import WINDOW_BYTES, Windows, mend

SYNTHETIC_KEY = "atrex_synthetic"  # top-level key of traces whose times are modelled
THREAD_GRIDS = frozenset({"hipExtModuleLaunchKernel"})  # Tensile's; HIP's other calls tell blocks
PROCESSES = range(1 << 20)  # ranks and world sizes that are taken seriously
SIGNED = 1 << 63
Key = TypeVar("Key")


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
    timeline.thread_grids = THREAD_GRIDS
    rows = Rows(timeline)
    for events in windows:
        rows.extend(events)
    timeline.events += windows.skipped.total()
    timeline.lost_ns += windows.lost_ns
    header = read_keys(windows)
    rank, world_size, notes = _rank(header, source.path.name)
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
        damaged=source.damaged,
        skipped=windows.skipped,
        repaired=windows.repaired + rows.repaired,
        notes=notes,
    )
    recording.notes += _notes(source, windows, recording)
    if timeline.kernels and rows.whole:
        recording.notes.append("its times are whole microseconds: short kernels are inexact")
    return recording


class Rows:
    """Adds kineto events to the columns of a timeline.

    Attributes:
        repaired: Values changed, by kind.
        whole: Whether every kernel's times are whole microseconds, without any decimals.
    """

    def __init__(self, timeline: Timeline) -> None:
        self._timeline = timeline
        self.repaired: Counter[str] = Counter()
        self.whole = True
        adders: dict[type[Any], Callable[[Sequence[Any]], None]] = {
            Kernel: self._add_kernels,
            Copy: self._add_copies,
            Launch: self._add_launches,
            Op: self._add_ops,
            Annotation: self._add_annotations,
            Unusable: self._add_unusable,
        }
        self._adders = [
            ({form for form, its in KIND.items() if its is kind} | {kind}, add)
            for kind, add in adders.items()
        ]
        self._signatures = Numbers(timeline.signatures)
        self._threads = Numbers(timeline.threads)

    def extend(self, events: Sequence[Any]) -> None:
        """Add one window's events."""
        self._timeline.events += len(events)
        present = set(map(type, events))  # one window of ten has anything but Python frames
        for forms, add in self._adders:
            if not present.isdisjoint(forms):
                add([event for event in events if type(event) in forms])

    def _add_kernels(self, events: Sequence[Kernel]) -> None:
        timeline = self._timeline
        kernels = timeline.kernels
        for event in events:
            times = _times(event)
            if times is None:
                timeline.lose("kernel without valid time", ns=_known_ns(event.dur))
                continue
            args = event.args
            kernels.name.append(timeline.names.id(event.name))
            kernels.start.append(times[0])
            kernels.duration.append(times[1])
            kernels.correlation.append(self._word(args.correlation or NO_LAUNCH))  # 0 means none
            kernels.device.append(self._word(-1 if args.device is None else args.device))
            kernels.stream.append(self._stream(event))
            kernels.geometry.append(self._geometry(args.grid, args.block, args.shared_memory))
            kernels.process.append(timeline.processes.id(bytes(event.pid)))
            kernels.node.append(NO_NODE if args.graph_node is None else self._word(args.graph_node))
            if self.whole:
                self.whole = b"." not in bytes(event.ts) and b"." not in bytes(event.dur)

    def _add_copies(self, events: Sequence[Copy]) -> None:
        timeline = self._timeline
        copies = timeline.copies
        for event in events:
            times = _times(event)
            if times is None:
                timeline.dropped["copy without valid time"] += 1
                continue
            args = event.args
            copies.name.append(timeline.names.id(event.name))
            copies.start.append(times[0])
            copies.duration.append(times[1])
            copies.correlation.append(self._word(args.correlation or NO_LAUNCH))
            copies.device.append(self._word(-1 if args.device is None else args.device))
            copies.stream.append(self._stream(event))

    def _add_launches(self, events: Sequence[Launch]) -> None:
        timeline, threads = self._timeline, self._threads
        launches = timeline.launches
        for event in events:
            args = event.args
            if not args.correlation and "Capture" not in event.name:
                continue
            try:
                time = nanoseconds(event.ts)
                duration = nanoseconds(event.dur) if event.dur else 0
            except ValueError:
                timeline.dropped["launch without valid time"] += 1
                continue
            launches.name.append(timeline.names.id(event.name))
            launches.time.append(time)
            launches.duration.append(duration)
            launches.thread.append(threads[bytes(event.pid), bytes(event.tid)])
            launches.correlation.append(self._word(args.correlation or NO_LAUNCH))
            launches.kernel.append(timeline.names.id(args.kernel) if args.kernel else -1)
            launches.geometry.append(self._geometry(args.grid, args.block, b""))

    def _add_ops(self, events: Sequence[Op]) -> None:
        signatures, raw = self._signatures, bytes
        self._add_ranges(self._timeline.ops, events, [
            signatures[
                event.name, raw(args.dims), raw(args.types), raw(args.strides), raw(args.concrete)
            ]
            for event in events for args in (event.args,)
        ])  # fmt: skip

    def _add_annotations(self, events: Sequence[Annotation]) -> None:
        names = self._timeline.names
        self._add_ranges(
            self._timeline.annotations, events, [names.id(event.name) for event in events]
        )

    def _add_ranges(
        self, ranges: Ranges, events: Sequence[Op | Annotation], whats: Sequence[int]
    ) -> None:
        threads = self._threads
        for event, what in zip(events, whats, strict=True):
            try:
                start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
            except ValueError:
                self._timeline.dropped["operator or annotation without valid time"] += 1
                continue
            ranges.thread.append(threads[bytes(event.pid), bytes(event.tid)])
            ranges.start.append(start)
            ranges.end.append(start + duration)
            ranges.what.append(what)

    def _add_unusable(self, events: Sequence[Unusable]) -> None:
        for event in events:
            if event.kernel:
                self._timeline.lose("kernel with unusable values", ns=_known_ns(event.dur))
            else:
                self._timeline.dropped["event with unusable values"] += 1

    def _geometry(self, grid: Raw | bytes, block: Raw | bytes, shared_memory: Raw | bytes) -> int:
        return self._timeline.geometries.id((bytes(grid), bytes(block), bytes(shared_memory)))

    def _stream(self, event: Kernel | Copy) -> int:
        """Return the stream; the oldest traces name it in the thread only, as "stream 7"."""
        if event.args.stream is not None:
            return self._word(event.args.stream)
        found = re.search(rb"\d{1,18}", bytes(event.tid))
        return int(found[0]) if found else 0

    def _word(self, value: int) -> int:
        """Fold an integer into 64 bits with a sign; profilers write pointers without one."""
        if -SIGNED <= value < SIGNED:
            return value
        if not -SIGNED <= value < 2 * SIGNED:
            self.repaired["integer beyond 64 bits"] += 1
        return (value + SIGNED) % (2 * SIGNED) - SIGNED


class Numbers(dict[Key, int]):
    """Remembers an interner's numbers: a lookup costs a third of a call."""

    def __init__(self, interner: Interner[Key]) -> None:
        super().__init__()
        self._interner = interner

    def __missing__(self, value: Key) -> int:
        number = self[value] = self._interner.id(value)
        return number


def _times(event: Kernel | Copy) -> tuple[int, int] | None:
    """Return start and duration in ns; None where they cannot be, as both zero cannot."""
    try:
        start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
    except ValueError:
        return None
    if not 0 <= duration < LONGEST_NS or (start == 0 and duration == 0):
        return None
    return start, duration


def _known_ns(duration: Raw) -> int:
    try:
        ns = nanoseconds(duration)
    except ValueError:
        return 0
    return ns if 0 <= ns < LONGEST_NS else 0


def read_keys(windows: Windows) -> dict[str, Any]:
    """Decode the keys before and after the events; a broken part is no loss of facts."""
    before = windows.head + b'"traceEvents":0}' if windows.head else b"{}"
    after = b'{"traceEvents":0' + windows.tail if windows.head else b"{}" + windows.tail
    return _keys(before, windows) | ({} if windows.truncated else _keys(after, windows))


def _keys(text: bytes, windows: Windows) -> dict[str, Any]:
    """Decode an object that more may follow."""
    for attempt in (text, mend(text)[0]):
        try:
            return _object(attempt)
        except Malformed as error:
            if not error.trailing or error.at is None:
                continue
            end = attempt.rfind(b"}", 0, error.at) + 1
            windows.repaired["bytes after the trace"] += 1
            return _object(attempt[:end])
    windows.repaired["keys beside the events that cannot be read"] += 1
    return {}


def _object(text: bytes) -> dict[str, Any]:
    try:
        value: dict[str, Any] = msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(error) from error
    return value


def _rank(header: dict[str, Any], name: str) -> tuple[int | None, int | None, list[str]]:
    """Return rank, world size and notes; the file's name may tell the rank where keys do not."""
    info = header.get("distributedInfo")
    known = info if isinstance(info, dict) else {}
    rank, world_size = (
        value if type(value) is int and value in PROCESSES else None
        for value in (known.get("rank"), known.get("world_size"))
    )
    if rank is None:
        rank = rank_in_name(name)
    if rank is None and known:
        return 0, world_size, ["it does not tell its rank, which is taken to be 0"]
    return rank, world_size, []


def _gpu(header: dict[str, Any], timeline: Timeline) -> str:
    """Name the device that ran the kernels; some ROCm versions leave the name empty."""
    properties = header.get("deviceProperties")
    if not isinstance(properties, list):
        return ""
    used = set(timeline.kernels.device)
    devices = [each for each in properties if isinstance(each, dict)]
    devices = [
        each for each in devices if isinstance(each.get("id"), int) and each["id"] in used
    ] or devices
    return ", ".join(sorted({str(each.get("name") or _unnamed(each)) for each in devices}))


def _unnamed(device: dict[str, Any]) -> str:
    major, minor = device.get("computeMajor"), device.get("computeMinor")
    return f"compute {major}.{minor}, {device.get('numSms')} SMs"


def _notes(source: Source, windows: Windows, recording: Recording) -> list[str]:
    found = []
    if recording.truncated:
        found.append(
            f"the input ends early, after {source.plain_bytes:,} bytes of text; "
            "complete events were kept"
        )
    if source.damage:
        found.append(source.damage)
    lost = recording.timeline.lost_kernels + windows.skipped["malformed kernel"]
    if lost:
        found.append(
            f"{lost:,} kernels were lost, with {recording.timeline.lost_ns:,} ns as far as known"
        )
    for kind, offset in windows.first.items():
        found.append(f"the first {kind} is at byte {offset:,}")
    return found
