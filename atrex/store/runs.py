"""Run files: an append-only journal while a run is under way, one Parquet file afterwards.

A record is one write of one line, on disk before the next workload starts, so a kill loses at
most the line being written. This path runs on a machine that has neither Polars nor DuckDB.
"""

from __future__ import annotations

import difflib
import importlib.util
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import msgspec

from atrex.closing import Closing
from atrex.errors import DataError, SetupError, UsageError
from atrex.model import Measurement, Run
from atrex.store import files

HEADER = "run.json"
JOURNAL = "measurements.jsonl"
COMPACTED = "measurements.parquet"
FILES = (HEADER, JOURNAL, COMPACTED)  # what a run is; anything else beside them is derived
RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # it names a folder


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a run recorded.

    Attributes:
        attempts: Every complete record, in order of arrival.
        torn_bytes: Length of an unfinished last line, which is left out.
    """

    attempts: list[Measurement]
    torn_bytes: int = 0

    @property
    def latest(self) -> list[Measurement]:
        """The last attempt of every (candidate, workload), in order of first arrival."""
        chosen: dict[tuple[str, str], Measurement] = {}
        for measurement in self.attempts:
            key = measurement.key
            if key not in chosen or measurement.attempt >= chosen[key].attempt:
                chosen[key] = measurement
        return list(chosen.values())

    @property
    def duplicates(self) -> int:
        """Number of attempts that a later one replaces."""
        return len(self.attempts) - len(self.latest)


class RunWriter(Closing):
    """The only writer of a run; a context manager that leaves the run resumable.

    Attributes:
        run: The header as it stands on disk.
        torn_bytes: Length of the unfinished line that resuming removed.
    """

    def __init__(self, folder: Path, run: Run, lock: int) -> None:
        self._folder = folder
        self._lock: int | None = lock
        self.run = run
        files.write_atomic(folder / HEADER, msgspec.json.encode(run))
        journal = read(folder)
        self.torn_bytes = journal.torn_bytes
        self._done = {measurement.key for measurement in journal.attempts}
        self._file = os.open(folder / JOURNAL, os.O_CREAT | os.O_APPEND | os.O_RDWR, 0o644)
        if self.torn_bytes:  # else the next record would be glued to the torn one
            os.ftruncate(self._file, os.fstat(self._file).st_size - self.torn_bytes)
        files.sync_folder(folder)

    def done(self) -> set[tuple[str, str]]:
        """Return the (candidate hash, workload id) pairs that have a record."""
        return set(self._done)

    def append(self, measurement: Measurement) -> None:
        """Put one record on disk.

        Raises:
            SetupError: The file system refuses it; the journal then ends as it did before.
        """
        if measurement.run != self.run.run:
            raise ValueError(f"a record of {measurement.run} in {self.run.run}")
        line = msgspec.json.encode(measurement) + b"\n"
        size = os.fstat(self._file).st_size
        try:
            if os.write(self._file, line) != len(line):
                raise OSError(28, "no space left on the device")
            os.fdatasync(self._file)
        except OSError as error:
            os.ftruncate(self._file, size)
            raise SetupError(
                f"cannot write: {error.strerror}",
                where=str(self._folder / JOURNAL),
                remedy=f"Free space and continue with --resume {self.run.run}.",
            ) from error
        self._done.add(measurement.key)

    def finish(
        self,
        seeds: Sequence[str],
        status: Literal["complete", "interrupted"],
        found: Mapping[str, str | int | float | bool | None] = MappingProxyType({}),
    ) -> None:
        """Publish this session's seeds and close; a complete run is compacted and scored.

        Without Polars the journal stays as it is, until `Store.compact` is called elsewhere.

        Args:
            seeds: The seeds of this session, hex.
            status: How the session ended.
            found: What it found out about the host, added to the run's options.
        """
        from atrex.store.scores import scores

        self.run = msgspec.structs.replace(
            self.run,
            seed=(*self.run.seed, *seeds),
            finished=files.utc_now(),
            status=status,
            options=self.run.options | dict(found),
        )
        files.write_atomic(self._folder / HEADER, msgspec.json.encode(self.run))
        try:
            if status == "complete":
                scores(self._folder)
                if importlib.util.find_spec("polars") is not None:
                    compact(self._folder)
        finally:
            self.close()

    def close(self) -> None:
        """Let go of the run without finishing it; closing twice is harmless."""
        if self._lock is not None:
            os.close(self._file)
            os.close(self._lock)
            self._lock = None


def start(runs: Path, run: Run) -> RunWriter:
    """Create a run's folder and header.

    Raises:
        UsageError: The run exists, or its id cannot name a folder.
    """
    if not RUN_ID.fullmatch(run.run):
        raise UsageError(f"{run.run!r} cannot name a run")
    folder = runs / run.run
    runs.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise UsageError(
            f"the run {run.run} exists", remedy=f"Continue it with --resume {run.run}."
        ) from None
    return RunWriter(folder, run, _lock(folder))


def resume(folder: Path, seed_sha: str) -> RunWriter:
    """Continue a run that is not complete, with a further session's seed hash.

    Raises:
        UsageError: The run is complete, or another process is writing it.
    """
    lock = _lock(folder)
    try:
        run = header(folder)  # read under the lock: it may have been finished meanwhile
        if run.status == "complete":
            raise UsageError(
                f"the run {run.run} is complete", remedy=f"See `atrex report {run.run}`."
            )
        run = msgspec.structs.replace(
            run, seed_sha=(*run.seed_sha, seed_sha), status="running", finished=None
        )
        return RunWriter(folder, run, lock)
    except BaseException:
        os.close(lock)
        raise


def _lock(folder: Path) -> int:
    lock = files.try_lock(folder)
    if lock is None:
        raise UsageError(
            f"the run {folder.name} is being written by another process",
            remedy="Wait for it, or start a new run.",
        )
    return lock


def header(folder: Path) -> Run:
    """Read a run's header."""
    return files.decode(folder / HEADER, Run)


def folders(runs: Path) -> list[Path]:
    """Return the folders of all runs, oldest first; one without a header never started."""
    return sorted(path.parent for path in runs.glob(f"*/{HEADER}"))


def find(runs: Path, name: str) -> Path:
    """Return the folder of a run by its id, by a beginning that only one has, or by ``"last"``.

    Raises:
        UsageError: No run has that name, or several do; says which are close.
    """
    known = {folder.name: folder for folder in folders(runs)}
    if name in known:
        return known[name]
    if name == "last" and known:
        return known[max(known)]
    matching = [run for run in known if name and run.startswith(name)]
    if len(matching) == 1:
        return known[matching[0]]
    close = matching or difflib.get_close_matches(name, known, n=3)
    if close:
        remedy = f"Did you mean {' or '.join(close[:5])}?"
    elif known:
        remedy = f"The newest is {max(known)}."
    else:
        remedy = "This store has no runs; `atrex score` makes one."
    raise UsageError(
        f"{'several runs begin with' if matching else 'no run'} {name!r}", remedy=remedy
    )


def read(folder: Path) -> Journal:
    """Read a run's records, whether it is being written, was killed, or is compacted.

    Raises:
        DataError: A complete line, or the Parquet file, is damaged.
    """
    journal = folder / JOURNAL
    # the journal first: compaction removes it only after the Parquet file is in place
    content = journal.read_bytes() if journal.exists() else b""
    if (folder / COMPACTED).exists():
        return Journal(attempts=_compacted(folder / COMPACTED))
    end = content.rfind(b"\n") + 1
    return Journal(
        attempts=list(_decode(content[:end].splitlines(), journal)),
        torn_bytes=len(content) - end,
    )


def _decode(lines: Iterable[bytes], path: Path) -> Iterable[Measurement]:
    decoder = msgspec.json.Decoder(Measurement)
    for number, line in enumerate(lines, start=1):
        try:
            yield decoder.decode(line)
        except msgspec.DecodeError as error:
            raise DataError(
                f"damaged record: {error}",
                where=f"{path}:{number}",
                remedy="Delete that line, or restore the run from a copy.",
            ) from error


def _compacted(path: Path) -> list[Measurement]:
    try:
        from atrex.store import frames
    except ImportError as error:
        raise SetupError(
            "reading a compacted run needs Polars", remedy="Install it with `pip install polars`."
        ) from error
    return frames.measurements(path)


def compact(folder: Path) -> None:
    """Replace a finished run's journal by a Parquet file, sorted by workload.

    Killed at any point it leaves the journal, the checked Parquet file, or both.
    """
    import polars as pl

    from atrex.store import frames

    if not (folder / COMPACTED).exists():
        table = frames.frame(read(folder).attempts).sort("workload", "line")
        temporary = folder / f".{COMPACTED}.tmp"
        table.write_parquet(temporary, compression="zstd")
        rows = pl.scan_parquet(temporary).select(pl.len()).collect().item()
        if rows != table.height:
            raise DataError(f"wrote {rows} of {table.height} records", where=str(temporary))
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(folder / COMPACTED)
        files.sync_folder(folder)
    (folder / JOURNAL).unlink(missing_ok=True)
