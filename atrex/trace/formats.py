"""Find a trace's format from its content, never from its name, and read it.

What is no trace is refused with what it is and what to do; only in that text may a name help.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atrex.errors import NotATrace
from atrex.trace.kineto import read_kineto
from atrex.trace.nsys import SQLITE, read_nsys
from atrex.trace.recording import Progress, Recording
from atrex.trace.rocprof import (
    is_rocprof_csv,
    is_rocprof_json,
    read_rocprof_csv,
    read_rocprof_json,
)
from atrex.trace.source import Source
from atrex.trace.xplane import is_xplane, read_xplane


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of trace file.

    Attributes:
        recognises: Whether the first plain bytes of a file are of this format.
        read: Reads the file.
    """

    recognises: Callable[[bytes], bool]
    read: Callable[[Source], Recording]


# kineto, which any other JSON is tried as, is the last resort
FORMATS: tuple[Format, ...] = (
    Format(lambda beginning: beginning.startswith(SQLITE), read_nsys),
    Format(is_rocprof_json, read_rocprof_json),
    Format(is_rocprof_csv, read_rocprof_csv),
    Format(is_xplane, read_xplane),
)

UNPACK = "Unpack it and pass the trace inside."
DECOMPRESS = "Decompress it, or compress it with gzip or zstd."
NO_TABLE = "Pass the trace that the table was made from."
# first bytes of what people pass by mistake, what it is, and what to do
FOREIGN: tuple[tuple[bytes, str, str], ...] = (
    (b"PK\x03\x04", "a ZIP archive", UNPACK),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", UNPACK),
    (b"\xfd7zXZ\0", "compressed with xz", DECOMPRESS),
    (b"BZh", "compressed with bzip2", DECOMPRESS),
    (
        b"\x04\x22\x4d\x18",
        "compressed with LZ4",
        DECOMPRESS,
    ),
    (b"PAR1", "a Parquet table", NO_TABLE),
    (b"ARROW1", "an Arrow table", NO_TABLE),
    (b"\x89HDF", "an HDF5 file", NO_TABLE),
    (b"\x80\x04", "a Python pickle (a snapshot of memory?)", "Pass a profiler's trace instead."),
    (b"\x7fELF", "a program", "Pass the trace that profiling it wrote."),
)
ARCHIVE_MARK, ARCHIVE_MARK_AT = b"ustar", 257
# reports whose names say what their bytes do not
BINARY: dict[str, tuple[str, str]] = {
    ".nsys-rep": (
        "an Nsight Systems report, which only Nsight Systems can read",
        "Convert it with nsys export --type sqlite FILE and pass the .sqlite file.",
    ),
    ".qdrep": (
        "an Nsight Systems report, which only Nsight Systems can read",
        "Convert it with nsys export --type sqlite FILE and pass the .sqlite file.",
    ),
    ".ncu-rep": (
        "an Nsight Compute report: counters of single kernels, no trace",
        "Record with Nsight Systems or torch.profiler.",
    ),
    ".pftrace": (
        "a Perfetto trace in protobuf",
        "Write JSON instead: rocprofv3 --output-format json, or torch.profiler.",
    ),
    ".etl": (
        "a Windows event log",
        "Record with torch.profiler, or with Nsight Systems and export to SQLite.",
    ),
}
UNKNOWN_BINARY = (
    "a binary file of unknown kind",
    "Pass kineto JSON, an Nsight Systems .sqlite, rocprofv3's JSON or kernel trace CSV, or an "
    ".xplane.pb of JAX; any of them may be compressed with gzip or zstd.",
)
# columns of tables that are no traces, what these are, and what to do
TABLES: tuple[tuple[str, str, str], ...] = (
    ("op category", "a report of TraceLens", NO_TABLE),
    ("time ms", "a report of TraceLens", NO_TABLE),
    ("Total Time (ns)", "statistics of Nsight Systems",
     "Pass what nsys export --type sqlite writes."),
    ("TotalDurationNs", "statistics of rocprof", "Pass the *_kernel_trace.csv beside it."),
    ("Function", "a trace of API calls by rocprofv3, without kernels",
     "Pass the *_kernel_trace.csv beside it."),
)  # fmt: skip


def read_recording(path: Path, progress: Progress | None = None) -> Recording:
    """Read a trace of any format.

    Raises:
        UsageError: The path is missing.
        SetupError: The format needs a package that is not installed; names it.
        NotATrace: The file is no trace; says what it is instead, as far as its beginning tells.
        DataError: It cannot be read.
    """
    source = Source(path, progress)
    beginning = source.beginning()
    for form in FORMATS:
        if form.recognises(beginning):
            return form.read(source)
    if refused := refusal(beginning, path):
        raise refused
    return read_kineto(source)


def refusal(beginning: bytes, path: Path) -> NotATrace | None:
    """Say what a file is that can hold no trace; None if it may be JSON, even if damaged."""
    found = _foreign(beginning)
    start = beginning.removeprefix(b"\xef\xbb\xbf").lstrip(b", \t\r\n")
    if not (found or start.startswith((b"{", b"[")) or b'"traceEvents"' in beginning):
        found = _binary(beginning, path) or _table(start)
    if found is None:
        return None
    what, remedy = found
    return NotATrace(f"not a trace, but {what}", where=path.name, remedy=remedy)


def _foreign(beginning: bytes) -> tuple[str, str] | None:
    for mark, what, remedy in FOREIGN:
        if beginning.startswith(mark):
            return what, remedy
    if beginning[ARCHIVE_MARK_AT:].startswith(ARCHIVE_MARK):
        return "a tar archive", UNPACK
    return None


def _binary(beginning: bytes, path: Path) -> tuple[str, str] | None:
    if b"\0" not in beginning:  # which no text holds
        return None
    return next((known for end, known in BINARY.items() if path.name.endswith(end)), UNKNOWN_BINARY)


def _table(start: bytes) -> tuple[str, str] | None:
    """Recognise a table by a first line of column names."""
    line = start.split(b"\n", 1)[0].strip()
    if b"," not in line or b'":' in line:
        return None
    columns = next(csv.reader([line.decode(errors="replace")]))
    for column, what, remedy in TABLES:
        if column in columns:
            return what, remedy
    return f"a CSV table with the columns {', '.join(columns[:4])}", NO_TABLE
