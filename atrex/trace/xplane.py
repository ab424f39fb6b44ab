"""Read what the JAX profiler writes (`*.xplane.pb`) into a recording.

The file is one protobuf message of planes, lines and events. The few fields that matter are read
from the wire format directly, so no protobuf package is needed, and lines that do not matter,
such as those of Python frames, are skipped without being held in memory.

Source: field numbers of `xplane.proto` in openxla/xla; protobuf's description of its wire format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from atrex.errors import DataError
from atrex.trace.recording import Recording
from atrex.trace.source import Source
from atrex.trace.timeline import NO_LAUNCH, NO_NODE, Timeline

Value = int | bytes
VARINT, FIXED64, LENGTH, FIXED32 = 0, 1, 2, 5  # wire types
PLANE = 1  # field of the file
NAME, LINE, EVENT_NAME, STATISTIC_NAME, PLANE_STATISTIC = 2, 3, 4, 5, 6  # fields of a plane
HEAD_BYTES = 512  # of a plane or line; its id and name come first
PS = 1000  # per ns
DEVICE = re.compile(r"/device:(GPU|TPU):(\d{1,9})")
STREAM = re.compile(
    r"Stream #(\d{1,18})"
)  # other lines of a GPU, such as "XLA Ops", repeat its kernels
PLANES = ("/host:", "/device:", "Task Environment")
LAUNCHING = re.compile(r"Host Threads/")  # lines of the host's plane; other tracers have their own
DETAILS = re.compile(r"grid:(\d+),(\d+),(\d+) block:(\d+),(\d+),(\d+)")  # in blocks, in threads
SHARED = re.compile(r"(?:static_shared|dynamic_shared|group_mem):(\d+)")
OBJECT_SUFFIX = re.compile(r"(?: \[clone )?\.kd\]?$")  # of a kernel's name on ROCm
NUMBERS = re.compile(r"(?:\.\d+)+$")  # tell equal HLO operators of a program apart
KERNEL_DETAILS = "kernel_details"
COPY_DETAILS = {"memcpy_details", "memset_details"}
MEMORY_DETAILS = {"memalloc_details", "memfree_details", "memoryresidency_details"}
WANTED = {"correlation_id", "hlo_op", KERNEL_DETAILS, *COPY_DETAILS, *MEMORY_DETAILS}
NAMES_ONLY = "names only: XPlane records no shapes, so axes are known at most from kernels"
MOST = (1 << 63) - 1  # that a column holds


class Broken(ValueError):
    """Bytes that are no protobuf message."""


def is_xplane(beginning: bytes) -> bool:
    """Whether a file begins with a plane that is named like one of a profile."""
    try:
        number, value = next(_fields(beginning))
        return number == PLANE and isinstance(value, bytes) and _name(value).startswith(PLANES)
    except (Broken, StopIteration):
        return False


def read_xplane(source: Source) -> Recording:
    """Read an XPlane trace plane by plane.

    Raises:
        DataError: The work ran on another kind of accelerator than a GPU.
    """
    rows = _Rows()
    stream = _Stream(source)
    try:
        while not stream.at_end():
            number, kind = divmod(stream.varint(), 8)
            size = stream.varint() if kind == LENGTH else _size_of(kind)
            if number == PLANE:
                rows.add(_read_plane(stream, size))
            else:
                stream.skip(size)
    except Broken:
        rows.broken = True
    timeline = rows.timeline
    if not (len(timeline.kernels) or rows.broken) and rows.others:
        raise DataError(
            f"no GPU kernels: the work ran on another kind of accelerator ({rows.others[0]})",
            where=source.path.name,
            remedy="Record on a GPU.",
        )
    return Recording(
        format="xplane",
        trace=source.sha256[:16],
        name=source.path.name,
        timeline=timeline,
        gpu=", ".join(sorted(rows.gpus)),
        truncated=rows.broken or source.truncated,
        damaged=source.damaged,
        notes=_notes(source, rows),
    )


@dataclass(slots=True)
class _Plane:
    """A plane of which only the lines that matter were read."""

    name: str = ""
    lines: list[bytes] = field(default_factory=list)
    event_names: dict[int, str] = field(default_factory=dict)
    statistic_names: dict[int, str] = field(default_factory=dict)
    statistics: list[bytes] = field(default_factory=list)
    texts: dict[bytes, tuple[str, str]] = field(default_factory=dict)  # decoded before; they recur


def _read_plane(stream: _Stream, size: int) -> _Plane:
    plane = _Plane()
    end = stream.position + size
    matters = True
    while stream.position < end:
        number, kind = divmod(stream.varint(), 8)
        if kind == VARINT:
            stream.varint()
            continue
        length = stream.varint() if kind == LENGTH else _size_of(kind)
        if number == NAME:
            plane.name = _text(stream.take(length))
            matters = plane.name != "/host:metadata"  # which holds compiled programs
        elif not matters:
            stream.skip(length)
        elif number == LINE:
            if _line_matters(plane.name, _name(stream.peek(min(length, HEAD_BYTES)))):
                plane.lines.append(stream.take(length))
            else:
                stream.skip(length)
        elif number == EVENT_NAME:
            key, name = _entry(stream.take(length))
            plane.event_names[key] = OBJECT_SUFFIX.sub("", name)
        elif number == STATISTIC_NAME:
            key, name = _entry(stream.take(length))
            plane.statistic_names[key] = name
        elif number == PLANE_STATISTIC:
            plane.statistics.append(stream.take(length))
        else:
            stream.skip(length)
    if stream.position > end:
        raise Broken
    return plane


def _line_matters(plane: str, line: str) -> bool:
    if DEVICE.match(plane):
        return STREAM.match(line) is not None
    return plane != "/host:CPU" or LAUNCHING.match(line) is not None


@dataclass(slots=True)
class _Event:
    """An event of a line; times in ns."""

    name: str
    start: int
    duration: int
    statistics: dict[str, str | int]


class _Rows:
    """Adds planes to a timeline.

    Attributes:
        gpus: Descriptions of the GPUs that ran kernels; the file does not name them.
        others: Planes of other accelerators.
        unknown: Planes that are none of a profile.
        broken: Whether the file is cut or malformed; what came before is kept.
    """

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.gpus: set[str] = set()
        self.others: list[str] = []
        self.unknown: list[str] = []
        self.broken = False
        self._unrecorded = self.timeline.geometries.id((b"", b"", b""))
        self._geometries: dict[str, int] = {}
        self._signatures: dict[str, int] = {}

    def add(self, plane: _Plane) -> None:
        """Add a plane's kernels, copies or launches."""
        device = DEVICE.match(plane.name)
        if plane.lines and not plane.name.startswith(PLANES):
            self.unknown.append(plane.name)
            return
        if device and device[1] != "GPU":
            self.others.append(plane.name)
            return
        before = len(self.timeline.kernels)
        for data in plane.lines:
            try:
                if device:
                    self._add_stream(plane, data, int(device[2]))
                else:
                    self._add_thread(plane, data)
            except Broken:
                self.broken = True
        if len(self.timeline.kernels) > before:
            self.gpus.add(_describe(plane))

    def _add_stream(self, plane: _Plane, data: bytes, device: int) -> None:
        found = STREAM.match(_name(data))
        stream = int(found[1]) if found else 0
        for event in _events(plane, data):
            self.timeline.events += 1
            statistics = event.statistics
            if KERNEL_DETAILS in statistics:
                self._add_kernel(event, device, stream)
            elif COPY_DETAILS & statistics.keys():
                self._add_copy(event, device, stream)
            elif not MEMORY_DETAILS & statistics.keys():
                self._add_kernel(event, device, stream)

    def _add_kernel(self, event: _Event, device: int, stream: int) -> None:
        timeline, kernels = self.timeline, self.timeline.kernels
        kernels.name.append(timeline.names.id(event.name))
        kernels.start.append(event.start)
        kernels.duration.append(event.duration)
        kernels.correlation.append(_correlation(event))
        kernels.device.append(device)
        kernels.stream.append(stream)
        kernels.geometry.append(self._geometry(str(event.statistics.get(KERNEL_DETAILS, ""))))
        kernels.process.append(timeline.processes.id(b"0"))
        kernels.node.append(NO_NODE)

    def _add_copy(self, event: _Event, device: int, stream: int) -> None:
        copies = self.timeline.copies
        copies.name.append(self.timeline.names.id(event.name))
        copies.start.append(event.start)
        copies.duration.append(event.duration)
        copies.correlation.append(_correlation(event))
        copies.device.append(device)
        copies.stream.append(stream)

    def _add_thread(self, plane: _Plane, data: bytes) -> None:
        """Add launches, and the HLO operators that they launch for."""
        timeline, launches, ops = self.timeline, self.timeline.launches, self.timeline.ops
        thread = timeline.threads.id((b"0", _name(data).encode()))
        for event in _events(plane, data):
            timeline.events += 1
            correlation = _correlation(event)
            if correlation == NO_LAUNCH:
                continue
            launches.name.append(timeline.names.id(event.name))
            launches.time.append(event.start)
            launches.duration.append(event.duration)
            launches.thread.append(thread)
            launches.correlation.append(correlation)
            launches.kernel.append(-1)
            launches.geometry.append(self._unrecorded)
            if operator := str(event.statistics.get("hlo_op", "")):
                ops.thread.append(thread)
                ops.start.append(event.start)
                ops.end.append(event.start + event.duration)
                ops.what.append(self._signature(operator))

    def _signature(self, operator: str) -> int:
        if operator not in self._signatures:
            name = NUMBERS.sub("", operator)
            self._signatures[operator] = self.timeline.signatures.id((name, b"", b"", b"", b""))
        return self._signatures[operator]

    def _geometry(self, details: str) -> int:
        if details not in self._geometries:
            self._geometries[details] = self._parse_geometry(details)
        return self._geometries[details]

    def _parse_geometry(self, details: str) -> int:
        found = DETAILS.search(details)
        if not found:
            return self._unrecorded
        sizes = [int(text) for text in found.groups()]
        shared = sum(map(int, SHARED.findall(details)))
        grid, block = (b"[%d, %d, %d]" % (x, y, z) for x, y, z in (sizes[:3], sizes[3:]))
        return self.timeline.geometries.id((grid, block, b"%d" % shared))


def _events(plane: _Plane, data: bytes) -> Iterator[_Event]:
    """Yield the events of a line.

    Raises:
        Broken: The line is malformed; events before the defect were yielded.
    """
    origin_ps = 0
    for number, value in _fields(data):
        if number == 3 and isinstance(value, int):  # before all events
            origin_ps = value * PS
        elif number == 4 and isinstance(value, bytes):
            event = _event(plane, value, origin_ps)
            if not 0 < event.start <= MOST - event.duration:
                raise Broken
            yield event


def _event(plane: _Plane, data: bytes, origin_ps: int) -> _Event:
    metadata = offset_ps = duration_ps = 0
    statistics: dict[str, str | int] = {}
    for number, value in _fields(data):
        if isinstance(value, int):
            if number == 1:
                metadata = value
            elif number == 2:
                offset_ps = value if value <= MOST else value - (1 << 64)  # signed
            elif number == 3:
                duration_ps = value
        elif number == 4:
            name, found = _statistic(plane, value)
            if name in WANTED:
                statistics[name] = found
    return _Event(
        name=plane.event_names.get(metadata) or f"event {metadata}",
        start=(origin_ps + offset_ps) // PS,
        duration=duration_ps // PS,
        statistics=statistics,
    )


def _statistic(plane: _Plane, data: bytes) -> tuple[str, str | int]:
    """Return name and value; a value may be the number of a text among the names."""
    if data in plane.texts:
        return plane.texts[data]
    name, found = "", 0
    text = ""
    for number, value in _fields(data):
        if isinstance(value, bytes):
            text = _text(value) if number == 5 else text
        elif number == 1:
            name = plane.statistic_names.get(value, "")
        elif number in (3, 4):
            found = value
        elif number == 7:
            text = plane.statistic_names.get(value, "")
    if text:
        plane.texts[data] = name.lower(), text
    return name.lower(), text or found


def _correlation(event: _Event) -> int:
    found = event.statistics.get("correlation_id")
    return found if isinstance(found, int) and 0 < found <= MOST else NO_LAUNCH


def _describe(plane: _Plane) -> str:
    """Describe a GPU by its statistics: "AMD, compute 9.4, 304 SMs"."""
    known = dict(_statistic(plane, data) for data in plane.statistics)
    if name := known.get("device_type_string"):
        return str(name)
    major, minor = known.get("compute_cap_major"), known.get("compute_cap_minor", 0)
    parts = [str(known.get("device_vendor") or "")]
    parts += [f"compute {major}.{minor}"] if major else []
    parts += [f"{known['core_count']} SMs"] if "core_count" in known else []
    return ", ".join(filter(None, parts))


def _notes(source: Source, rows: _Rows) -> list[str]:
    found = []
    if rows.broken or source.truncated:
        found.append(
            f"the input ends early or is malformed, at {source.plain_bytes:,} bytes; "
            "what came before was kept"
        )
    if source.damage:
        found.append(source.damage)
    if rows.others:
        found.append(f"left out: {', '.join(rows.others)}, another kind of accelerator")
    if rows.unknown:
        found.append(f"left out: planes of unknown names, {', '.join(map(repr, rows.unknown))}")
    return [*found, NAMES_ONLY]


class _Stream:
    """A message as it is read from the file.

    Attributes:
        position: Bytes consumed.
    """

    def __init__(self, source: Source) -> None:
        self._pieces = source.pieces()
        self._buffer = b""
        self.position = 0

    def at_end(self) -> bool:
        """Whether nothing is left."""
        return not self.peek(1)

    def peek(self, size: int) -> bytes:
        """Return the next bytes without consuming them; fewer where the file ends."""
        if len(self._buffer) < size:
            parts, length = [self._buffer], len(self._buffer)
            while length < size and (piece := next(self._pieces, b"")):
                parts.append(piece)
                length += len(piece)
            self._buffer = b"".join(parts)
        return self._buffer[:size]

    def take(self, size: int) -> bytes:
        """Return and consume the next bytes.

        Raises:
            Broken: The file ends before.
        """
        data = self.peek(size)
        if len(data) < size:
            raise Broken
        self._buffer = self._buffer[size:]
        self.position += size
        return data

    def skip(self, size: int) -> None:
        """Consume bytes without holding them; raises as `take`."""
        while size > len(self._buffer):
            size -= len(self._buffer)
            self.position += len(self._buffer)
            self._buffer = next(self._pieces, b"")
            if not self._buffer:
                raise Broken
        self.take(size)

    def varint(self) -> int:
        """Return and consume a number of variable length; raises as `take`."""
        value, used = _varint(self.peek(10), 0)
        self.take(used)
        return value


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """Yield (field number, value) of a message.

    Raises:
        Broken: The message is malformed, or cut; a value that is cut is yielded before.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        size, at = _varint(data, at) if kind == LENGTH else (_size_of(kind), at)
        yield tag >> 3, data[at : at + size]
        at += size
    if at > end:
        raise Broken


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number, seven bits a byte, least first, and where it ends."""
    value = shift = 0
    try:
        while (byte := data[at]) > 127:
            value |= (byte & 127) << shift
            shift += 7
            at += 1
    except IndexError as error:
        raise Broken from error
    return (value | byte << shift) & (1 << 64) - 1, at + 1


def _size_of(kind: int) -> int:
    if kind == FIXED64:
        return 8
    if kind == FIXED32:
        return 4
    raise Broken


def _entry(data: bytes) -> tuple[int, str]:
    """Return number and name of an entry of a map of named things."""
    key, name = 0, ""
    for number, value in _fields(data):
        if number == 1 and isinstance(value, int):
            key = value
        elif number == 2 and isinstance(value, bytes):
            name = _name(value)
    return key, name


def _name(data: bytes) -> str:
    """Return the name of a plane, line, or thing, of which the end may be missing."""
    for number, value in _fields(data):
        if number == NAME and isinstance(value, bytes):
            return _text(value)
    return ""


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
