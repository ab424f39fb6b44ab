"""Immutable parts: facts of each trace, measured peaks of each machine, what compiling found.

A part's header names its files by content and is written last. So a part appears, or is replaced,
at once: a reader sees all of the old one or all of the new one.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from atrex.model import (
    SCHEMA_VERSION,
    CompileReport,
    Environment,
    Fleet,
    Peak,
    Record,
    TraceSummary,
)
from atrex.store import files

if TYPE_CHECKING:
    import polars as pl

FLEET = "fleet.json"  # beside the folders of parts: a store has one, and a new one replaces it


class TracePart(Record, frozen=True, kw_only=True):
    """Header of an ingested trace.

    Attributes:
        facts: Name of the Parquet file of its facts.
        unattributed: Name of the Parquet file of the kernels that no operator claims.
    """

    schema_version: int = SCHEMA_VERSION
    summary: TraceSummary
    facts: str
    unattributed: str


class PeaksPart(Record, frozen=True, kw_only=True):
    """What one measurement of a machine's peaks found."""

    schema_version: int = SCHEMA_VERSION
    stamp: str
    environment: Environment
    peaks: tuple[Peak, ...]


def add_trace(
    folder: Path, summary: TraceSummary, facts: pl.DataFrame, unattributed: pl.DataFrame
) -> bool:
    """Add or replace a trace's part; return False if this very reading is there already."""
    folder.mkdir(parents=True, exist_ok=True)
    contents = [_parquet(facts), _parquet(unattributed)]
    names = [
        f"{summary.trace}.{kind}-{hashlib.sha256(content).hexdigest()[:12]}.parquet"
        for kind, content in zip(("facts", "unattributed"), contents, strict=True)
    ]
    header = msgspec.json.encode(TracePart(summary=summary, facts=names[0], unattributed=names[1]))
    path = folder / f"{summary.trace}.json"
    with files.locked(folder):
        if path.exists() and path.read_bytes() == header:
            return False
        for name, content in zip(names, contents, strict=True):
            files.write_atomic(folder / name, content)
        files.write_atomic(path, header)
        for old in folder.glob(f"{summary.trace}.*.parquet"):
            if old.name not in names:
                old.unlink()
    return True


def _parquet(frame: pl.DataFrame) -> bytes:
    # the order of rows is no part of a reading, and must not make the same one look changed
    buffer = io.BytesIO()
    frame.sort(frame.columns).write_parquet(buffer, compression="zstd")
    return buffer.getvalue()


def traces(folder: Path) -> list[TracePart]:
    """Read the headers of all ingested traces."""
    return [files.decode(path, TracePart) for path in sorted(folder.glob("*.json"))]


def set_fleet(store: Path, fleet: Fleet) -> None:
    """Keep what weighs the store's traces from now on."""
    files.write_atomic(store / FLEET, msgspec.json.encode(fleet))


def fleet(store: Path) -> Fleet | None:
    """Read what weighs the store's traces; None if they stand for themselves."""
    try:
        return files.decode(store / FLEET, Fleet)
    except FileNotFoundError:
        return None


def add_peaks(folder: Path, peaks: Sequence[Peak], environment: Environment) -> None:
    """Record measured peaks; earlier ones are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    part = PeaksPart(stamp=files.stamp(), environment=environment, peaks=tuple(peaks))
    files.write_atomic(folder / f"{environment.id}-{part.stamp}.json", msgspec.json.encode(part))


def peak_parts(folder: Path) -> list[PeaksPart]:
    """Read all recorded peaks, oldest first."""
    parts = (files.decode(path, PeaksPart) for path in folder.glob("*.json"))
    return sorted(parts, key=lambda part: part.stamp)


def newest_peaks(parts: Iterable[PeaksPart], device: str) -> list[Peak]:
    """Return a device's newest peak of every pipe and kind; `parts` come oldest first."""
    newest: dict[tuple[str, str], Peak] = {}
    for part in parts:
        for peak in part.peaks:
            if peak.device == device:
                newest[peak.pipe, peak.kind] = peak
    return list(newest.values())


def add_compiled(folder: Path, report: CompileReport) -> None:
    """Record what compiling a candidate found; earlier ones are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    files.write_atomic(folder / f"{report.stamp}.json", msgspec.json.encode(report))


def compiled(folder: Path) -> list[CompileReport]:
    """Read all reports of compilers, oldest first."""
    return [files.decode(path, CompileReport) for path in sorted(folder.glob("*.json"))]
