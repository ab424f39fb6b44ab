"""Read what rocprofv3 writes, JSON or CSV, into a recording.

The JSON is one object with arrays of records: only the arrays that matter are decoded, window by
window, wherever they stand. So kernels may come before their names, and are named at the end.
Grids are recorded in work-items and kept in blocks, as everywhere else.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated, Any

import msgspec

from atrex.errors import DataError
from atrex.trace.events import Malformed
from atrex.trace.recording import Recording
from atrex.trace.source import Source
from atrex.trace.timeline import NO_LAUNCH, NO_NODE, Geometry, Interner, Timeline

WINDOW_BYTES = 1 << 17  # text decoded at once; results do not depend on it
MOST_BYTES = 1 << 24  # the largest record; those of devices, with their caches, take 80 KiB
CUTS = 4  # guesses at the end of the last whole record
KEY_BYTES = 64  # more than a section's key takes, so that one cut by a window's end is found
MOST = (1 << 63) - 1  # that a column holds
CORRELATION_BITS = 40  # below the number of the tool that counted it
KERNEL = "KERNEL_DISPATCH"
NAMES_ONLY = "names only: rocprofv3 records no shapes, so axes are known at most from kernels"
NO_ROWS_REMEDY = "Record with rocprofv3 --kernel-trace; counters and API calls hold no kernels."


Word = Annotated[int, msgspec.Meta(ge=0, le=MOST)]


class Handle(msgspec.Struct, gc=False):
    """What the profiler wraps ids in."""

    handle: int = 0


class Size(msgspec.Struct, frozen=True, gc=False):
    """Three dimensions."""

    x: Word = 1
    y: Word = 1
    z: Word = 1


class Correlation(msgspec.Struct, gc=False):
    """The id that an API call and its kernels share."""

    internal: Word = 0


class Agent(msgspec.Struct):
    """A device; type 2 is a GPU."""

    id: Handle
    type: int = 0
    product_name: str = ""
    name: str = ""


class Symbol(msgspec.Struct, gc=False):
    """A kernel's names."""

    kernel_id: Word
    formatted_kernel_name: str = ""
    demangled_kernel_name: str = ""
    kernel_name: str = ""


class DispatchInfo(msgspec.Struct, gc=False):
    """Which kernel ran where, and in what geometry."""

    agent_id: Handle
    queue_id: Handle
    kernel_id: Word
    workgroup_size: Size
    grid_size: Size  # in work-items
    group_segment_size: Word = 0


class Dispatch(msgspec.Struct, gc=False):
    """A kernel that ran."""

    dispatch_info: DispatchInfo
    start_timestamp: Word
    end_timestamp: Word
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)
    stream_id: Handle | None = None


class MemoryCopy(msgspec.Struct, gc=False):
    """A copy between memories."""

    start_timestamp: Word
    end_timestamp: Word
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)
    dst_agent_id: Handle = msgspec.field(default_factory=Handle)
    stream_id: Handle | None = None


class ApiCall(msgspec.Struct, gc=False):
    """A call of the HIP runtime."""

    kind: Word
    operation: Word
    thread_id: Word
    start_timestamp: Word
    end_timestamp: Word
    correlation_id: Correlation = msgspec.field(default_factory=Correlation)


class Operations(msgspec.Struct):
    """The names of one kind of record; the n-th kind is the n-th of its array."""

    kind: str = ""
    operations: list[str] = []


SECTIONS: dict[str, type[Any]] = {
    "agents": Agent,
    "kernel_symbols": Symbol,
    "kernel_dispatch": Dispatch,
    "memory_copy": MemoryCopy,
    "hip_api": ApiCall,
    "buffer_records": Operations,  # an array inside of "strings"; elsewhere an object
    "counter_collection": msgspec.Raw,
}
DECODERS = {name: msgspec.json.Decoder(list[form]) for name, form in SECTIONS.items()}  # type: ignore[valid-type]
ONE = {name: msgspec.json.Decoder(form) for name, form in SECTIONS.items()}
SECTION = re.compile(b'"(' + "|".join(SECTIONS).encode() + rb')"\s*:\s*\[')
BETWEEN = re.compile(rb"\}\s*,\s*(?=\{)")
ROOT_END = re.compile(rb"\]\s*\}[\s\0]*$")
CLOSING = re.compile(rb"\}\s*\]")
SPACE = b" \t\r\n"
BOM = b"\xef\xbb\xbf"
GPU = 2  # the type of an agent


def is_rocprof_json(beginning: bytes) -> bool:
    """Whether a file begins like rocprofv3's JSON, to which some versions prepend a comma."""
    start = beginning.lstrip(BOM + SPACE + b",")
    return start.startswith(b"{") and b'"rocprofiler-sdk-tool"' in start[:256]


def is_rocprof_csv(beginning: bytes) -> bool:
    """Whether a file begins with the header of a kernel trace."""
    header = beginning.split(b"\n", 1)[0]
    return all(name in header for name in (b"Kernel_Name", b"Start_Timestamp", b"End_Timestamp"))


def read_rocprof_json(source: Source, window_bytes: int = WINDOW_BYTES) -> Recording:
    """Read rocprofv3's JSON as a stream.

    Args:
        source: The file.
        window_bytes: Text decoded at once; the result does not depend on it.

    Raises:
        DataError: It holds no kernels.
    """
    sections = Sections(source, window_bytes)
    rows = _Rows()
    for section, records in sections:
        rows.extend(section, records)
    rows.finish()
    timeline = rows.timeline
    timeline.events += sections.skipped.total()
    truncated = sections.truncated or source.truncated
    if not (timeline.kernels or truncated or sections.skipped or timeline.lost_kernels):
        counters = "; counters were collected instead" if rows.counters else ""
        raise DataError(
            f"rocprofv3 recorded no kernels: kernel_dispatch has no rows{counters}",
            where=source.path.name,
            remedy=NO_ROWS_REMEDY,
        )
    recording = Recording(
        format="rocprofv3",
        trace=source.sha256[:16],
        name=source.path.name,
        timeline=timeline,
        gpu=rows.gpu(),
        truncated=truncated,
        damaged=source.damaged,
        skipped=sections.skipped,
        repaired=sections.repaired,
        notes=_notes(source, truncated),
    )
    if sections.first_skipped is not None:
        recording.notes.append(f"the first malformed record is at byte {sections.first_skipped:,}")
    return recording


class Sections:
    """The arrays of records of rocprofv3's JSON, window by window.

    Attributes:
        truncated: Whether the text ended before its outermost bracket closed.
        skipped: Records left out, by reason.
        repaired: Defects that cost nothing, by kind.
        first_skipped: Offset of the first record left out, in plain bytes; None if none was.
    """

    def __init__(self, source: Source, window_bytes: int = WINDOW_BYTES) -> None:
        self.truncated = False
        self.skipped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.first_skipped: int | None = None
        self._pieces = source.pieces()
        self._window_bytes = window_bytes
        self._buffer = b""
        self._offset = 0  # of the buffer
        self._ended = False  # the file

    def __iter__(self) -> Iterator[tuple[str, list[Any]]]:
        """Yield (section, records)."""
        self._fill(self._window_bytes)
        if self._buffer.lstrip(BOM + SPACE).startswith(b","):
            self.repaired["leading comma"] += 1
        while True:
            found = SECTION.search(self._buffer)
            if found:
                self._drop(found.end())
                section = found[1].decode()
                for records in self._records(section):
                    yield section, records
            elif self._ended:
                break
            else:
                self._drop(max(0, len(self._buffer) - KEY_BYTES))
                self._fill(self._window_bytes)
        self.truncated = self.truncated or ROOT_END.search(self._buffer) is None

    def _records(self, section: str) -> Iterator[list[Any]]:
        """Yield the records of the array that starts at the front, and move past it."""
        closed, wanted = False, self._window_bytes
        while not closed:
            self._fill(wanted)
            self._drop_comma()
            records, used, closed = self._front(section)
            if records:
                yield records
            if not (used or closed) and self._ended:  # the file ends inside of a record
                self.truncated = closed = True
                used = len(self._buffer)
            wanted = self._window_bytes if used else 2 * len(self._buffer)
            self._drop(used)

    def _front(self, section: str) -> tuple[list[Any], int, bool]:
        """Decode the records at the front; return them, the bytes they took, and if they are all.

        No bytes taken means that none is there as a whole yet.
        """
        buffer, decode = self._buffer, DECODERS[section].decode
        cuts = _cuts(buffer)
        for end, start in [*cuts, (len(buffer), len(buffer))]:
            text = b"[" + buffer[:end] + (b"]" if start > end else b"")
            try:
                return decode(text), start, start == end
            except msgspec.ValidationError:
                return self._slowly(section, start)
            except msgspec.DecodeError as error:
                malformed = Malformed(error)
            if malformed.trailing and malformed.at is not None:
                return self._closed(section, text.rindex(b"]", 0, malformed.at))
            if not malformed.cut:
                return self._slowly(section, start)
        if len(buffer) < MOST_BYTES and not (self._ended and cuts):
            return [], 0, False
        return self._slowly(section, cuts[0][1] if cuts else len(buffer))

    def _closed(self, section: str, bracket: int) -> tuple[list[Any], int, bool]:
        """Decode an array up to its bracket, an index into "[" + buffer."""
        try:
            records = DECODERS[section].decode(b"[" + self._buffer[:bracket])
        except msgspec.ValidationError:
            return self._slowly(section, bracket)
        return records, bracket, True

    def _slowly(self, section: str, stop: int) -> tuple[list[Any], int, bool]:
        """Decode record by record up to `stop`; skip what is malformed."""
        buffer = self._buffer
        starts = [0, *(found.end() for found in BETWEEN.finditer(buffer, 0, stop)), stop]
        records: list[Any] = []
        for start, end in pairwise(starts):
            closing = CLOSING.search(buffer, start, end)
            text = buffer[start : closing.start() + 1 if closing else end]
            try:
                records.append(ONE[section].decode(text.rstrip(SPACE + b",")))
            except msgspec.DecodeError:
                self._skip(section, self._offset + start)
            if closing:
                return records, closing.end(), True
        return records, stop, False

    def _skip(self, section: str, offset: int) -> None:
        kernel = section == "kernel_dispatch"
        self.skipped["malformed kernel" if kernel else "malformed record"] += 1
        if self.first_skipped is None:
            self.first_skipped = offset

    def _drop_comma(self) -> None:
        """Drop a comma before the first record of an array, or doubled between two."""
        start = len(self._buffer) - len(self._buffer.lstrip(SPACE))
        if self._buffer[start : start + 1] == b",":
            self.repaired["leading comma"] += 1
            self._drop(start + 1)

    def _drop(self, count: int) -> None:
        self._buffer = self._buffer[count:]
        self._offset += count

    def _fill(self, wanted: int) -> None:
        """Read until so many bytes are at hand or the file ends."""
        parts, length = [self._buffer], len(self._buffer)
        while length < wanted and not self._ended:
            piece = next(self._pieces, b"")
            self._ended = not piece
            parts.append(piece)
            length += len(piece)
        self._buffer = b"".join(parts)


def _cuts(buffer: bytes) -> list[tuple[int, int]]:
    """Return (end of a record, start of the next), last first, as the layout suggests them."""
    found: list[tuple[int, int]] = []
    start = len(buffer)
    while len(found) < CUTS and (start := buffer.rfind(b"{", 0, start)) > 0:
        before = buffer[max(0, start - 64) : start].rstrip(SPACE)
        if before.endswith(b",") and (before := before[:-1].rstrip(SPACE)).endswith(b"}"):
            found.append((start - min(start, 64) + len(before), start))
    return found


class _Rows:
    """Adds rocprofv3's records to a timeline.

    Several tools (processes) may share a file; each counts its ids alike.
    """

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.counters = False
        self._products: dict[int, str] = {}  # of GPUs that ran kernels, by device
        self._unrecorded = self.timeline.geometries.id((b"", b"", b""))
        self._sizes: dict[tuple[Size, Size, int], int] = {}
        self._adders: dict[str, Callable[[list[Any]], None]] = {
            "agents": self._add_agents,
            "kernel_symbols": self._add_symbols,
            "kernel_dispatch": self._add_kernels,
            "memory_copy": self._add_copies,
            "hip_api": self._add_launches,
            "buffer_records": self._add_operations,
            "counter_collection": self._add_counters,
        }
        self._tool = -1
        self._section = ""
        self._start_tool()

    def _start_tool(self) -> None:
        timeline = self.timeline
        self._tool += 1
        self._seen: set[str] = set()
        self._agents: list[Agent] = []
        self._symbols: dict[int, str] = {}
        self._operations: list[Operations] = []
        self._kernel_ids: Interner[int] = Interner()
        self._calls: Interner[tuple[int, int]] = Interner()
        self._first = len(timeline.kernels), len(timeline.copies), len(timeline.launches.name)

    def extend(self, section: str, records: list[Any]) -> None:
        """Add one window's records."""
        if section != self._section and section in self._seen:
            self.finish()
            self._start_tool()
        self._section = section
        self._seen.add(section)
        self._adders[section](records)

    def finish(self) -> None:
        """Give what was read of a tool the names and devices that stand elsewhere in the file."""
        kernels, copies, launches = (
            self.timeline.kernels, self.timeline.copies, self.timeline.launches,
        )  # fmt: skip
        kernel, copy, launch = self._first
        text = self.timeline.names.id
        names = [
            text(self._symbols.get(each) or f"kernel_id {each}") for each in self._kernel_ids.values
        ]
        kernels.name[kernel:] = array("q", [names[each] for each in kernels.name[kernel:]])
        apis = [text(self._api(*each)) for each in self._calls.values]
        launches.name[launch:] = array("q", [apis[each] for each in launches.name[launch:]])
        gpus = [agent for agent in self._agents if agent.type == GPU]
        devices = {agent.id.handle & MOST: device for device, agent in enumerate(gpus)}
        for column, first in ((kernels.device, kernel), (copies.device, copy)):
            column[first:] = array("q", [devices.get(each, -1) for each in column[first:]])
        used = set(kernels.device[kernel:])
        self._products |= {
            device: agent.product_name or agent.name
            for device, agent in enumerate(gpus)
            if device in used
        }

    def gpu(self) -> str:
        """Name the devices that ran kernels."""
        return ", ".join(sorted(set(self._products.values())))

    def _api(self, kind: int, operation: int) -> str:
        try:
            return self._operations[kind].operations[operation]
        except IndexError:
            return f"HIP call {operation}"

    def _add_agents(self, records: list[Agent]) -> None:
        self._agents += records

    def _add_operations(self, records: list[Operations]) -> None:
        self._operations += records

    def _add_counters(self, records: list[Any]) -> None:
        self.counters = True

    def _add_symbols(self, records: list[Symbol]) -> None:
        for each in records:
            name = each.formatted_kernel_name or each.demangled_kernel_name or each.kernel_name
            self._symbols[each.kernel_id] = name.removesuffix(".kd")

    def _add_kernels(self, records: list[Dispatch]) -> None:
        timeline, kernels = self.timeline, self.timeline.kernels
        process = timeline.processes.id(b"%d" % self._tool)
        timeline.events += len(records)
        for each in records:
            start, end, info = each.start_timestamp, each.end_timestamp, each.dispatch_info
            if not 0 <= start <= end or not end:
                timeline.lose("kernel without valid time")
                continue
            kernels.name.append(self._kernel_ids.id(info.kernel_id))
            kernels.start.append(start)
            kernels.duration.append(end - start)
            kernels.correlation.append(self._correlation(each.correlation_id))
            kernels.device.append(info.agent_id.handle & MOST)
            kernels.stream.append((each.stream_id or info.queue_id).handle & MOST)
            kernels.geometry.append(self._geometry(info))
            kernels.process.append(process)
            kernels.node.append(NO_NODE)

    def _add_copies(self, records: list[MemoryCopy]) -> None:
        timeline, copies = self.timeline, self.timeline.copies
        timeline.events += len(records)
        name = timeline.names.id("memcpy")
        for each in records:
            if not 0 < each.start_timestamp <= each.end_timestamp:
                timeline.dropped["copy without valid time"] += 1
                continue
            copies.name.append(name)
            copies.start.append(each.start_timestamp)
            copies.duration.append(each.end_timestamp - each.start_timestamp)
            copies.correlation.append(self._correlation(each.correlation_id))
            copies.device.append(each.dst_agent_id.handle & MOST)
            copies.stream.append(each.stream_id.handle & MOST if each.stream_id else 0)

    def _add_launches(self, records: list[ApiCall]) -> None:
        timeline, launches = self.timeline, self.timeline.launches
        timeline.events += len(records)
        process = b"%d" % self._tool
        for each in records:
            launches.name.append(self._calls.id((each.kind, each.operation)))
            launches.time.append(each.start_timestamp)
            launches.duration.append(max(0, each.end_timestamp - each.start_timestamp))
            launches.thread.append(timeline.threads.id((process, b"%d" % each.thread_id)))
            launches.correlation.append(self._correlation(each.correlation_id))
            launches.kernel.append(-1)
            launches.geometry.append(self._unrecorded)

    def _correlation(self, recorded: Correlation) -> int:
        """Make a correlation unique among tools; 0 means none."""
        return (
            self._tool << CORRELATION_BITS | recorded.internal if recorded.internal else NO_LAUNCH
        )

    def _geometry(self, info: DispatchInfo) -> int:
        key = info.grid_size, info.workgroup_size, info.group_segment_size
        number = self._sizes.get(key)
        if number is None:
            grid, block = msgspec.structs.astuple(key[0]), msgspec.structs.astuple(key[1])
            number = self._sizes[key] = self.timeline.geometries.id(_geometry(grid, block, key[2]))
        return number


def _geometry(work_items: tuple[int, ...], block: tuple[int, ...], shared_bytes: int) -> Geometry:
    """Return grid in blocks, block and shared memory as JSON text."""
    grid = tuple(-(-total // max(1, size)) for total, size in zip(work_items, block, strict=True))
    return b"[%d, %d, %d]" % grid, b"[%d, %d, %d]" % block, b"%d" % shared_bytes


def read_rocprof_csv(source: Source) -> Recording:
    """Read rocprofv3's kernel trace in CSV, whose columns differ by version.

    Raises:
        DataError: It has no rows.
    """
    timeline = Timeline()
    lines = _Lines(source)
    rows = csv.reader(lines)
    header = next(rows)
    while True:
        first = rows.line_num
        try:
            row = next(rows, None)
            if row is None:
                break
            if row:
                timeline.events += 1
                _add_row(timeline, dict(zip(header, row, strict=True)))
        except (csv.Error, KeyError, ValueError):
            if not lines.ended or lines.complete:
                # a stray quote joins the lines up to the next one
                timeline.lose("kernel with unusable values", rows.line_num - first)
    truncated = source.truncated or not lines.complete  # rocprofv3 ends every line
    if not (timeline.kernels or timeline.lost_kernels or truncated):
        raise DataError(
            "a rocprofv3 kernel trace without rows", where=source.path.name, remedy=NO_ROWS_REMEDY
        )
    return Recording(
        format="rocprofv3",
        trace=source.sha256[:16],
        name=source.path.name,
        timeline=timeline,
        truncated=truncated,
        damaged=source.damaged,
        notes=_notes(source, truncated),
    )


class _Lines:
    """The lines of a file, with their ends, as `csv` wants them.

    Attributes:
        ended: Whether the last line was handed out.
        complete: Whether it had its end.
    """

    def __init__(self, source: Source) -> None:
        self._pieces = source.pieces()
        self.ended = False
        self.complete = False

    def __iter__(self) -> Iterator[str]:
        rest = b""
        for piece in self._pieces:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                yield _decoded(line) + "\n"
        self.ended, self.complete = True, not rest.strip(b"\0")
        if not self.complete:
            yield _decoded(rest)


def _decoded(line: bytes) -> str:
    return line.decode("utf-8-sig", "replace").replace("\r", "")


def _add_row(timeline: Timeline, cells: dict[str, str]) -> None:
    """Add a kernel; raises KeyError or ValueError, before it adds anything, where it cannot."""
    if cells.get("Kind", KERNEL) != KERNEL:
        raise ValueError(cells["Kind"])
    start, end = int(cells["Start_Timestamp"]), int(cells["End_Timestamp"])
    if not 0 <= start <= end <= MOST or not end:
        timeline.lose("kernel without valid time")
        return
    grid = tuple(int(cells[f"Grid_Size_{axis}"]) for axis in "XYZ")
    block = tuple(int(cells[f"Workgroup_Size_{axis}"]) for axis in "XYZ")
    shared = cells.get("Group_Segment_Size") or cells.get("LDS_Block_Size") or "0"
    device = int(cells["Agent_Id"].removeprefix("Agent ")) & MOST
    stream = int(cells.get("Stream_Id") or cells.get("Queue_Id") or 0) & MOST
    correlation = int(cells.get("Correlation_Id") or 0) & MOST or NO_LAUNCH
    geometry = timeline.geometries.id(_geometry(grid, block, int(shared)))
    kernels = timeline.kernels
    kernels.name.append(timeline.names.id(cells["Kernel_Name"].removesuffix(".kd")))
    kernels.start.append(start)
    kernels.duration.append(end - start)
    kernels.correlation.append(correlation)
    kernels.device.append(device)
    kernels.stream.append(stream)
    kernels.geometry.append(geometry)
    kernels.process.append(timeline.processes.id(b"0"))
    kernels.node.append(NO_NODE)


def _notes(source: Source, truncated: bool) -> list[str]:
    found = []
    if truncated:
        found.append(
            f"the input ends early, after {source.plain_bytes:,} bytes of text; "
            "complete records were kept"
        )
    if source.damage:
        found.append(source.damage)
    return [*found, NAMES_ONLY]
