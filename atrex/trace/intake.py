"""Ingest several traces into a store, and keep account of what was refused."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

import msgspec
import polars as pl

from atrex import modelconfig, registry
from atrex.errors import AtrexError, DataError, NotATrace, SetupError
from atrex.model import TraceSummary
from atrex.trace import files
from atrex.trace.context import Context
from atrex.trace.formats import read_recording
from atrex.trace.ingest import Ingested, understand
from atrex.trace.join import graph_launches
from atrex.trace.recording import Progress, Recording
from atrex.trace.steplog import StepLog, log_of, read_log

CAPTURES_KEPT = 64  # read once for all ranks and steps of a server
WORTH_A_PROCESS = 4_000_000  # bytes of files; starting one takes as long as reading 2 MB


class TraceStore(Protocol):
    """Keeps the facts of traces; a trace read before is not added again."""

    def add_trace(
        self, summary: TraceSummary, facts: pl.DataFrame, unattributed: pl.DataFrame
    ) -> bool:
        """Add a trace; return False if this very reading is there already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How traces are read, the same for all of them.

    Attributes:
        operators: Folders of the user's own operators.
        captures: Traces of graph captures; empty to take those beside each trace.
        model: Sizes of the served model on one rank, by axis name.
    """

    operators: tuple[Path, ...] = ()
    captures: tuple[Path, ...] = ()
    model: Mapping[str, int | str] = field(default_factory=dict)


@dataclass(slots=True)
class IngestReport:
    """What came of ingesting traces.

    Attributes:
        read: Traces read, in order; files: where they lie.
        refused: Traces refused, with the reason; nothing of them was stored.
        added: Traces the store did not have yet.
        notes: What else the reader should know, in sentences.
    """

    read: list[Ingested] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    refused: list[tuple[Path, AtrexError]] = field(default_factory=list)
    added: int = 0
    notes: list[str] = field(default_factory=list)


def ingest(
    paths: Sequence[Path],
    store: TraceStore,
    reading: Reading,
    *,
    progress: Progress | None = None,
) -> IngestReport:
    """Read traces, files or folders or patterns, into facts and add them to the store.

    Several large ones are read side by side. What was read before an interruption is kept. In
    folders, files that are whole and no traces are left out with a note.

    Args:
        paths: Files, folders or patterns.
        store: Where the facts are kept.
        reading: How they are read.
        progress: Called with the bytes read since the last call.

    Raises:
        UsageError: A path is missing.
        DataError: The only file is refused; of several, refusals are in the report.
        SetupError: The only file needs a package that is not installed.
    """
    traces = files.trace_files(paths)
    job_of = files.jobs(traces)
    outcomes: dict[Path, Ingested | AtrexError] = {}
    report = IngestReport()
    for path, outcome in _outcomes(traces, reading, progress or (lambda count: None)):
        if isinstance(outcome, Ingested):
            summary = msgspec.structs.replace(outcome.summary, job=job_of.get(path, ""))
            outcome = replace(outcome, summary=summary)
            report.added += store.add_trace(summary, outcome.facts, outcome.unattributed)
        elif len(traces) == 1:
            raise outcome
        outcomes[path] = outcome
    for path in traces:
        outcome = outcomes[path]
        if isinstance(outcome, NotATrace) and path not in paths:
            report.notes.append(f"left out: {outcome}")
        elif isinstance(outcome, Ingested):
            report.read.append(outcome)
            report.files.append(path)
        else:
            report.refused.append((path, outcome))
    if not (report.read or report.refused):
        raise DataError("none of the files is a trace", where=", ".join(map(str, paths)))
    return report


def _outcomes(
    traces: Sequence[Path], reading: Reading, progress: Callable[[int], None]
) -> Iterator[tuple[Path, Ingested | AtrexError]]:
    """Yield what came of each trace as it is done."""
    sizes = {path: path.stat().st_size for path in traces}
    workers = min(len(traces), len(os.sched_getaffinity(0)))
    if workers < 2 or sum(sizes.values()) < WORTH_A_PROCESS:
        for path in traces:
            yield path, _read(path, reading, progress)
        return
    # spawn: a fork would copy the threads of Polars in any state
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        pending = {pool.submit(_read, path, reading): path for path in traces}
        try:
            for future in as_completed(pending):
                path = pending[future]
                progress(sizes[path])
                yield path, future.result()
        finally:
            pool.shutdown(cancel_futures=True)


def _read(path: Path, reading: Reading, progress: Progress | None = None) -> Ingested | AtrexError:
    try:
        recording = read_recording(path, progress)
        operators = registry.operators(reading.operators)
        return understand(recording, operators, _context(path, recording, reading))
    except (DataError, SetupError) as error:
        return error


def _context(path: Path, recording: Recording, reading: Reading) -> Context:
    """Gather what lies beside a trace; what cannot be read there is said, and does no harm."""
    notes: list[str] = []
    log = StepLog()
    if (beside := log_of(path)).is_file():
        try:
            log = read_log(beside)
        except DataError as error:
            notes.append(str(error))
    model = dict(reading.model)
    if not model and log.model:
        try:
            model = dict(modelconfig.from_fields(log.model, log.tensor_parallel))
        except DataError as error:
            notes.append(str(error))
    captures: list[Recording] = []
    if graph_launches(recording.timeline):
        captures, problems = _captures(path, recording.rank, reading.captures)
        notes += problems
    return Context(captures=captures, model=model, steps=log.steps, notes=(*log.notes, *notes))


def _captures(
    path: Path, rank: int | None, given: Sequence[Path]
) -> tuple[list[Recording], list[str]]:
    found = list(given) or files.captures_beside(path)
    ranks = {each: files.rank_in_name(each.name) for each in found}
    own = [each for each in found if rank is None or ranks[each] in (None, rank)]
    captures: list[Recording] = []
    problems: list[str] = []
    for each in own or found:
        try:
            captures.append(_capture(each, each.stat().st_mtime_ns))
        except (AtrexError, OSError) as error:
            problems.append(f"capture {each.name} is left out: {error}")
    return captures, problems


@lru_cache(maxsize=CAPTURES_KEPT)
def _capture(path: Path, changed_ns: int) -> Recording:
    recording = read_recording(path)
    recording.captured_tokens = files.captured_tokens(path)
    return recording
