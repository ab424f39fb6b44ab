"""Ingest several traces into a store, and keep account of what was refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import polars as pl

from atrex.errors import DataError, UsageError
from atrex.model import TraceSummary
from atrex.operator import Operator
from atrex.trace.ingest import Ingested, read_trace


class TraceStore(Protocol):
    """Keeps the facts of traces; a trace read before is not added again."""

    def add_trace(
        self, summary: TraceSummary, facts: pl.DataFrame, unattributed: pl.DataFrame
    ) -> bool:
        """Add a trace; return False if this very reading is there already."""


@dataclass(slots=True)
class IngestReport:
    """What came of ingesting traces.

    Attributes:
        read: Traces read, in order.
        refused: Traces refused, with the reason; nothing of them was stored.
        added: Traces the store did not have yet.
    """

    read: list[Ingested] = field(default_factory=list)
    refused: list[tuple[Path, DataError]] = field(default_factory=list)
    added: int = 0


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files to read: a folder stands for the .json and .json.gz files inside it.

    Raises:
        UsageError: A path is missing, or a folder holds no trace files.
    """
    files: list[Path] = []
    for path in paths:
        if not path.is_dir():
            files.append(path)
            continue
        inside = sorted([*path.rglob("*.json"), *path.rglob("*.json.gz")])
        if not inside:
            raise UsageError("the folder holds no .json or .json.gz files", where=str(path))
        files += inside
    for path in files:
        if not path.is_file():
            raise UsageError("no such file", where=str(path))
    return files


def ingest(
    paths: Sequence[Path],
    store: TraceStore,
    operators: Mapping[str, Operator],
    *,
    progress: Callable[[int], None] | None = None,
) -> IngestReport:
    """Read traces, files or folders, into facts and add them to the store.

    Args:
        paths: Files or folders.
        store: Where the facts are kept.
        operators: Operators to recognise, by name.
        progress: Called with the bytes read since the last call.

    Raises:
        UsageError: A path is missing.
        DataError: The only file is refused; of several, refusals are in the report.
    """
    files = trace_files(paths)
    report = IngestReport()
    for path in files:
        try:
            trace = read_trace(path, operators, progress=progress)
        except DataError as error:
            if len(files) == 1:
                raise
            report.refused.append((path, error))
            continue
        report.read.append(trace)
        report.added += store.add_trace(trace.summary, trace.facts, trace.unattributed)
    return report
