"""Read what `nsys export --type sqlite` writes into a recording.

Every table and column is optional: versions of Nsight Systems add and drop them, and an export
leaves out tables without rows. So the schema is asked first, what is absent reads as NULL, and
only a file without kernels is refused.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from atrex.errors import DataError
from atrex.trace.recording import Recording
from atrex.trace.source import Source
from atrex.trace.timeline import NO_LAUNCH, NO_NODE, Geometry, Interner, Timeline

SQLITE = b"SQLite format 3\0"
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
LAUNCHES = "CUPTI_ACTIVITY_KIND_RUNTIME"
COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "memset"}
GRAPHS = "CUPTI_ACTIVITY_KIND_GRAPH_TRACE"
RANGES = "NVTX_EVENTS"
STRINGS = "StringIds"
DEVICES = "TARGET_INFO_GPU"
LACKING = {  # what a recording without the table cannot tell
    LAUNCHES: "kernels cannot be joined to their launches",
    RANGES: "operators and steps are unknown",
    STRINGS: "kernels have no names",
    DEVICES: "the GPU has no name",
}
# columns of strings or of their ids
TEXTS = {"demangledName", "shortName", "mangledName", "nameId", "text", "textId", "name"}
THREAD_BITS = 24  # of a global id, the rest is the process: globalPid and globalTid agree in it
CORRELATION_BITS = 32
API_VERSION = re.compile(r"_v\d+$")  # cudaLaunchKernel_v7000
# torch's emit_nvtx: "aten::mm, seq = 4, op_id = 7, sizes = [[2, 3], [3, 4]], input_op_ids = ..."
OPERATOR = re.compile(
    r"(?P<name>.+?)(?=, (?:seq|op_id|sizes) = )(?:, seq = \d+)?(?:, op_id = \d+)?"
    r"(?:, sizes = (?P<sizes>\[.*?\]))?(?:, input_op_ids = .*)?"
)
CAPTURE_HINT = "See CAPTURE.md, Nsight Systems."


def read_nsys(source: Source) -> Recording:
    """Read an Nsight Systems export; a compressed one by way of a temporary file.

    Raises:
        DataError: The database holds no kernels, or is of something else.
    """
    with _database(source) as connection:
        try:
            database = _Database(connection)
            reader = _Reader(database)
            reader.read()
        except sqlite3.DatabaseError as error:
            raise DataError(
                f"the SQLite database cannot be read: {error}",
                where=source.path.name,
                remedy="Export or copy it again.",
            ) from error
        if not reader.timeline.events:
            raise _refusal(database, source)
        return Recording(
            format="nsys",
            trace=source.sha256[:16],
            name=source.path.name,
            timeline=reader.timeline,
            gpu=database.gpu(set(reader.timeline.kernels.device)),
            truncated=bool(database.broken) or source.truncated,
            damaged=source.damaged,
            notes=reader.notes(source),
        )


@contextmanager
def _database(source: Source) -> Iterator[sqlite3.Connection]:
    """Open the database; SQLite needs a file, so compressed data go through a temporary one."""
    with NamedTemporaryFile(prefix="atrex-", suffix=".sqlite") as file:
        with source.path.open("rb") as stored:
            plain = stored.read(len(SQLITE)) == SQLITE
        for piece in source.pieces():  # read in any case, for hash and progress
            if not plain:
                file.write(piece)
        file.flush()
        path = source.path if plain else Path(file.name)
        # immutable: no lock and no journal beside somebody's file
        uri = f"{path.absolute().as_uri()}?mode=ro&immutable=1"
        with closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.text_factory = lambda text: text.decode(errors="replace")
            connection.execute(
                "PRAGMA writable_schema = ON"
            )  # else a cut file gives nothing at all
            yield connection


class _Database:
    """A database of unknown schema.

    Attributes:
        columns: Names of the columns, by table.
        broken: Tables of which only a beginning could be read.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._texts: dict[int, str] = {}
        self.broken: set[str] = set()
        tables = connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.columns: dict[str, set[str]] = {
            table: {row[1] for row in connection.execute(f"PRAGMA table_info({_quoted(table)})")}
            for (table,) in tables.fetchall()
        }

    def rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield rows, NULL for absent columns, until the table ends or is found damaged."""
        present = self.columns.get(table)
        if not present:
            return
        names = ", ".join(_selected(each) if each in present else "NULL" for each in columns)
        try:
            yield from self._connection.execute(f"SELECT {names} FROM {_quoted(table)}")
        except sqlite3.DatabaseError:
            self.broken.add(table)

    def filled(self, table: str, column: str) -> bool:
        """Whether any row of a column has a value."""
        if column not in self.columns.get(table, ()):
            return False
        query = f"SELECT 1 FROM {_quoted(table)} WHERE {_quoted(column)} IS NOT NULL LIMIT 1"
        try:
            return self._connection.execute(query).fetchone() is not None
        except sqlite3.DatabaseError:
            return True  # damaged, so nobody knows

    def text(self, value: Any) -> str:
        """Return a string by its id; some exports hold the string itself."""
        if not isinstance(value, int):
            return value if isinstance(value, str) else ""
        if value not in self._texts:
            self._texts[value] = self._look_up(value)
        return self._texts[value]

    def _look_up(self, number: int) -> str:
        if not {"id", "value"} <= self.columns.get(STRINGS, set()):
            return ""
        query = f"SELECT CAST(value AS TEXT) FROM {STRINGS} WHERE id = ?"
        try:
            row = self._connection.execute(query, (number,)).fetchone()
        except sqlite3.DatabaseError:
            self.broken.add(STRINGS)
            return ""
        return (row[0] or "") if row else ""

    def gpu(self, used: set[int]) -> str:
        """Name the devices that ran kernels, "" if the file does not tell."""
        devices = list(self.rows(DEVICES, "cuDevice", "id", "name"))
        named = [
            (number if cuda is None else cuda, name)
            for cuda, number, text in devices
            if (name := self.text(text))
        ]
        names = {name for device, name in named if device in used} or {name for _, name in named}
        return ", ".join(sorted(names))


class _Reader:
    """Fills a timeline from the tables that are there."""

    def __init__(self, database: _Database) -> None:
        self.timeline = Timeline()
        self._database = database
        self._processes: Interner[int] = Interner()
        self._geometries: dict[tuple[int | None, ...], int] = {}
        self._shaped = False
        self._graphs = 0
        self._graph_ns = 0
        # where one side does not tell its process, correlations alone must do
        self._by_process = database.filled(KERNELS, "globalPid") and database.filled(
            LAUNCHES, "globalTid"
        )

    def read(self) -> None:
        """Read every table that matters; without kernels, nothing."""
        self._read_kernels()
        if not self.timeline.events:
            return
        for table, kind in COPIES.items():
            self._read_copies(table, kind)
        self._read_launches()
        self._read_ranges()
        for start, end in self._database.rows(GRAPHS, "start", "end"):
            self._graphs += 1
            self._graph_ns += max(0, (end or 0) - (start or 0))
        if self._graphs:
            self.timeline.lose("graph recorded without its kernels", self._graphs, self._graph_ns)

    def _read_kernels(self) -> None:
        timeline, kernels, database = self.timeline, self.timeline.kernels, self._database
        for start, end, device, stream, pid, correlation, node, *rest in database.rows(
            KERNELS, "start", "end", "deviceId", "streamId", "globalPid", "correlationId",
            "graphNodeId", "demangledName", "shortName", "mangledName", "gridX", "gridY", "gridZ",
            "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory",
        ):  # fmt: skip
            timeline.events += 1
            if not _valid(start, end):
                timeline.lose("kernel without valid time")
                continue
            names = filter(None, map(database.text, rest[:3]))
            kernels.name.append(timeline.names.id(next(names, "unnamed kernel")))
            kernels.start.append(start)
            kernels.duration.append(end - start)
            kernels.correlation.append(self._correlation(pid, correlation))
            kernels.device.append(-1 if device is None else device)
            kernels.stream.append(stream or 0)
            kernels.geometry.append(self._geometry(tuple(rest[3:])))
            kernels.process.append(timeline.processes.id(_process(pid)))
            kernels.node.append(NO_NODE if node is None else node)

    def _read_copies(self, table: str, kind: str) -> None:
        timeline, copies = self.timeline, self.timeline.copies
        name = timeline.names.id(kind)
        for start, end, device, stream, pid, correlation in self._database.rows(
            table, "start", "end", "deviceId", "streamId", "globalPid", "correlationId"
        ):
            timeline.events += 1
            if not _valid(start, end):
                timeline.dropped["copy without valid time"] += 1
                continue
            copies.name.append(name)
            copies.start.append(start)
            copies.duration.append(end - start)
            copies.correlation.append(self._correlation(pid, correlation))
            copies.device.append(-1 if device is None else device)
            copies.stream.append(stream or 0)

    def _read_launches(self) -> None:
        timeline, launches = self.timeline, self.timeline.launches
        unrecorded = timeline.geometries.id((b"", b"", b""))
        for start, end, thread, correlation, name in self._database.rows(
            LAUNCHES, "start", "end", "globalTid", "correlationId", "nameId"
        ):
            timeline.events += 1
            if not correlation:
                continue
            if start is None or start < 0:
                timeline.dropped["launch without valid time"] += 1
                continue
            api = API_VERSION.sub("", self._database.text(name)) or "unnamed launch"
            launches.name.append(timeline.names.id(api))
            launches.time.append(start)
            launches.duration.append(max(0, (end or start) - start))
            launches.thread.append(self._thread(thread))
            launches.correlation.append(self._correlation(thread, correlation))
            launches.kernel.append(-1)
            launches.geometry.append(unrecorded)

    def _read_ranges(self) -> None:
        timeline, database = self.timeline, self._database
        for start, end, thread, text, text_id in database.rows(
            RANGES, "start", "end", "globalTid", "text", "textId"
        ):
            timeline.events += 1
            text = database.text(text) or database.text(text_id)
            if not (text and _valid(start, end)):  # marks, domains and categories have no end
                continue
            found = OPERATOR.fullmatch(text)
            ranges = timeline.ops if found else timeline.annotations
            ranges.thread.append(self._thread(thread))
            ranges.start.append(start)
            ranges.end.append(end)
            if found:
                dims = (found["sizes"] or "").encode()
                self._shaped = self._shaped or bool(dims)
                ranges.what.append(timeline.signatures.id((found["name"], dims, b"", b"", b"")))
            else:
                ranges.what.append(timeline.names.id(text))

    def _correlation(self, process: int | None, correlation: int | None) -> int:
        """Make a correlation unique among processes, which all count from one."""
        if not correlation:
            return NO_LAUNCH
        pid = (process or 0) >> THREAD_BITS if self._by_process else 0
        number = correlation & (1 << CORRELATION_BITS) - 1
        return self._processes.id(pid) << CORRELATION_BITS | number

    def _thread(self, thread: int | None) -> int:
        return self.timeline.threads.id((_process(thread), b"%d" % (thread or 0)))

    def _geometry(self, sizes: tuple[int | None, ...]) -> int:
        """Return the number of grid, block, and shared memory (static, dynamic)."""
        number = self._geometries.get(sizes)
        if number is None:
            geometry: Geometry = _triple(sizes[:3]), _triple(sizes[3:6]), _sum(sizes[6:])
            number = self._geometries[sizes] = self.timeline.geometries.id(geometry)
        return number

    def notes(self, source: Source) -> list[str]:
        """Say what the recording lacks, in sentences."""
        database, found = self._database, []
        if source.damage:
            found.append(source.damage)
        found += [f"the table {table} is damaged: only its beginning was read"
                  for table in sorted(database.broken)]  # fmt: skip
        found += [f"the table {table} is missing: {lack}" for table, lack in LACKING.items()
                  if table not in database.columns]  # fmt: skip
        if not database.filled(KERNELS, "correlationId"):
            found.append(f"{KERNELS}.correlationId is missing or empty: {LACKING[LAUNCHES]}")
        if not database.filled(KERNELS, "demangledName"):
            found.append(f"{KERNELS}.demangledName is missing or empty: names lack their templates")
        if self._graphs:
            found.append(
                f"{self._graphs:,} CUDA graph launches ({self._graph_ns:,} ns) were recorded "
                "without their kernels; record with nsys profile --cuda-graph-trace=node. "
                + CAPTURE_HINT
            )
        if not self._shaped:
            found.append(
                "names only: no operator shapes were recorded, so axes are known at most from "
                "kernels; torch.autograd.profiler.emit_nvtx(record_shapes=True) records them"
            )
        return found


def _refusal(database: _Database, source: Source) -> DataError:
    """Say why a database without kernels is refused."""
    tables = database.columns
    graphs = sum(1 for _ in database.rows(GRAPHS, "start"))
    if graphs:
        what = f"{graphs:,} CUDA graph launches were recorded without their kernels, and no others"
        remedy = f"Record with nsys profile --cuda-graph-trace=node. {CAPTURE_HINT}"
    elif any(table.startswith("rocpd_") for table in tables):
        what = "this is a rocpd database of rocprofv3, which is not read directly"
        remedy = (
            "Convert it with python3 -m rocpd convert -i FILE --output-format csv, "
            "and pass the kernel trace that it writes."
        )
    elif STRINGS in tables or "META_DATA_EXPORT" in tables or KERNELS in tables:
        lack = "has no rows" if KERNELS in tables else "is missing"
        what = f"an Nsight Systems export without GPU kernels: the table {KERNELS} {lack}"
        remedy = f"Record with nsys profile --trace=cuda,nvtx. {CAPTURE_HINT}"
    else:
        names = ", ".join(sorted(tables)[:5]) or "none"
        what = f"a SQLite database, but no Nsight Systems export; its tables: {names}"
        remedy = "Pass what nsys export --type sqlite wrote."
    if source.truncated:
        what = f"the file ends early, and what is left of it holds no kernels ({what})"
    return DataError(what, where=source.path.name, remedy=remedy)


def _valid(start: int | None, end: int | None) -> bool:
    """Whether something can have run then; both times zero mean that nobody knows."""
    return start is not None and end is not None and 0 <= start <= end and end > 0


def _process(global_id: int | None) -> bytes:
    return b"%d" % ((global_id or 0) >> THREAD_BITS)


def _triple(sizes: tuple[int | None, ...]) -> bytes:
    known = [size for size in sizes if size is not None]
    return b"[%d, %d, %d]" % (known[0], known[1], known[2]) if len(known) == 3 else b""


def _sum(sizes: tuple[int | None, ...]) -> bytes:
    known = [size for size in sizes if size is not None]
    return b"%d" % sum(known) if known else b""


def _selected(column: str) -> str:
    """Return what to select; in SQLite any row of a column may hold any type."""
    return _quoted(column) if column in TEXTS else f"CAST({_quoted(column)} AS INTEGER)"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
