"""The store: one folder that keeps all results, and the database built from them."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from atrex.errors import DataError, SetupError, UsageError
from atrex.model import (
    SCHEMA_VERSION,
    CompileReport,
    Environment,
    Fleet,
    Measurement,
    Peak,
    Record,
    Run,
    Score,
    TraceSummary,
    short_hash,
)
from atrex.store import files, parts
from atrex.store import runs as run_files

if TYPE_CHECKING:
    import polars as pl

    from atrex.store.database import Reader, Table

MARKER = "atrex-store.json"
DATABASE = "atrex.duckdb"


class Marker(Record, frozen=True, kw_only=True):
    """What makes a folder a store."""

    schema_version: int = SCHEMA_VERSION


class Store:
    """A store folder, created if there is none.

    Attributes:
        path: The folder.

    Raises:
        DataError: The path is a file, a folder of something else, or a damaged store.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        if (path / MARKER).is_file():
            files.decode(path / MARKER, Marker)
            return
        if path.exists() and (not path.is_dir() or _visible(path)):
            raise DataError(
                f"not a store: {'a folder of something else' if path.is_dir() else 'a file'}",
                where=str(path),
                remedy="Name a store, or a new folder, with --store.",
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SetupError(
                f"cannot make the store: {error.strerror}",
                where=str(path),
                remedy="Name a writable place with --store.",
            ) from error
        files.write_atomic(path / MARKER, msgspec.json.encode(Marker()))

    @classmethod
    def existing(cls, path: Path) -> Store:
        """Open a store to read it; unlike `Store(path)` this never makes one.

        Raises:
            UsageError: Nothing is there.
            DataError: As for `Store`.
        """
        if not path.exists() or (path.is_dir() and not _visible(path)):
            raise UsageError(
                "there is no store",
                where=str(path),
                remedy="`atrex demo`, `ingest` or `score` makes one; --store names another.",
            )
        return cls(path)

    # runs

    def start_run(self, run: Run) -> run_files.RunWriter:
        """Begin a run and become its only writer.

        Raises:
            UsageError: A run of that id exists.
        """
        return run_files.start(self._runs, run)

    def resume_run(self, run_id: str, seed_sha: str) -> run_files.RunWriter:
        """Continue a run that was interrupted or killed, in a session with a seed of its own.

        Raises:
            UsageError: There is no such run, it is complete, or another process is writing it.
        """
        return run_files.resume(run_files.find(self._runs, run_id), seed_sha)

    def runs(self) -> list[Run]:
        """Read the headers of all runs, oldest first."""
        return [run_files.header(folder) for folder in run_files.folders(self._runs)]

    def run(self, run_id: str) -> Run:
        """Read one run's header, by its id, an unambiguous beginning of it, or ``"last"``.

        Raises:
            UsageError: There is no such run; says which are close.
        """
        return run_files.header(run_files.find(self._runs, run_id))

    def journal(self, run_id: str) -> run_files.Journal:
        """Read everything a run recorded, repeated attempts and torn bytes counted."""
        return run_files.read(run_files.find(self._runs, run_id))

    def measurements(self, run_id: str) -> list[Measurement]:
        """Read a run's measurements; of repeated ones the last attempt."""
        return self.journal(run_id).latest

    def scores(self, run_id: str) -> list[Score]:
        """Score every candidate of a run, finished or not; a complete run is scored only once."""
        from atrex.store import scores  # not needed to write a run

        return scores.scores(run_files.find(self._runs, run_id))

    def compact(self) -> int:
        """Compact complete runs that were written where Polars is missing; return how many."""
        waiting = [
            folder
            for folder in run_files.folders(self._runs)
            if (folder / run_files.JOURNAL).exists()
            and run_files.header(folder).status == "complete"
        ]
        for folder in waiting:
            run_files.compact(folder)
        return len(waiting)

    # facts, fleet, peaks and compilations

    def add_trace(
        self, summary: TraceSummary, facts: pl.DataFrame, unattributed: pl.DataFrame
    ) -> bool:
        """Add what a trace held; return False if the same reading of it is there already."""
        return parts.add_trace(self._facts, summary, facts, unattributed)

    def traces(self) -> list[TraceSummary]:
        """Read the summaries of all ingested traces."""
        return [part.summary for part in parts.traces(self._facts)]

    def facts(self) -> pl.DataFrame:
        """Read the facts of all traces, one row per (operator, axes, dtype, trace, phase)."""
        return self.read("fact")

    def unattributed(self) -> pl.DataFrame:
        """Read the kernels of all traces that no operator claims."""
        return self.read("unattributed")

    def set_fleet(self, fleet: Fleet) -> None:
        """Weigh the traces by a fleet from now on; it replaces an earlier one."""
        parts.set_fleet(self.path, fleet)

    def fleet(self) -> Fleet | None:
        """Read the fleet that weighs the traces; None without one."""
        return parts.fleet(self.path)

    def add_peaks(self, peaks: Sequence[Peak], environment: Environment) -> None:
        """Record measured peaks; earlier ones are kept."""
        parts.add_peaks(self._peaks, peaks, environment)

    def peaks(self, device: str) -> list[Peak]:
        """Return a device's newest peak of every pipe and kind."""
        return parts.newest_peaks(parts.peak_parts(self._peaks), device)

    def add_compiled(self, report: CompileReport) -> None:
        """Record what compiling a candidate found; earlier ones are kept."""
        parts.add_compiled(self._compiled, report)

    def compiled(self) -> list[CompileReport]:
        """Read what compiling found, oldest first."""
        return parts.compiled(self._compiled)

    # the database

    def database(self) -> Path:
        """Bring the database up to date and return its file.

        A store that cannot be written, such as a copy on read-only media, gets it in a folder of
        this user's below the temporary one.
        """
        from atrex.store import database

        path = self._database_folder() / DATABASE
        database.refresh(self.path, path)
        return path

    def open(self) -> Reader:
        """Open an up-to-date database for several reads that must agree with each other."""
        from atrex.store.database import Reader

        return Reader(self.database())

    def query(self, sql: str, *, limit: int = 1000, seconds: float = 30.0) -> Table:
        """Answer one query of a user; see `Reader.query`."""
        with self.open() as reader:
            return reader.query(sql, limit=limit, seconds=seconds)

    def read(self, sql: str, params: Sequence[object] | Mapping[str, object] = ()) -> pl.DataFrame:
        """Return a view, a table or a query's answer as a frame; see `Reader.read`."""
        with self.open() as reader:
            return reader.read(sql, params)

    @property
    def _runs(self) -> Path:
        return self.path / "runs"

    @property
    def _facts(self) -> Path:
        return self.path / "facts"

    @property
    def _peaks(self) -> Path:
        return self.path / "peaks"

    @property
    def _compiled(self) -> Path:
        return self.path / "compiled"

    def _database_folder(self) -> Path:
        try:
            with tempfile.TemporaryFile(dir=self.path):
                return self.path
        except OSError:
            place = f"{os.geteuid()}-{short_hash(str(self.path.resolve()))}"
            folder = Path(tempfile.gettempdir()) / f"atrex-{place}"
            folder.mkdir(mode=0o700, exist_ok=True)
            if folder.lstat().st_uid != os.geteuid():  # the name can be guessed
                raise SetupError(
                    "belongs to another user", where=str(folder), remedy="Set TMPDIR."
                ) from None
            return folder


def _visible(folder: Path) -> bool:
    """Whether a folder holds more than the temporary files of a process that is making it."""
    return any(not path.name.startswith(".") for path in folder.iterdir())
