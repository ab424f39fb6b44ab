"""The DuckDB database: built whole from a store's files, then only read.

DuckDB lets no reader in while a writer has a file open. So a database is built under another
name and put in place at once, and nobody ever writes to the one in use. Readers attach it to a
connection of their own, which sees a replaced file at the next opening.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import duckdb

import atrex
from atrex.closing import Closing
from atrex.errors import DataError, UsageError
from atrex.model import short_hash
from atrex.store import files, parts, rows
from atrex.store import runs as run_files

if TYPE_CHECKING:
    import polars as pl

SCHEMA = Path(__file__).with_name("schema.sql")
PER_RUN = (
    "run", "seen_environment", "candidate", "shape", "measurement", "latest_measurement", "score",
    "source",
)  # fmt: skip
WHOLE = ("peak", "trace", "fact", "unattributed", "deployment", "compiled", "workload", "built")
PARTS = ("facts/[!.]*", "peaks/[!.]*", "compiled/[!.]*", parts.FLEET)  # all but its runs
READABLE = frozenset({duckdb.StatementType.SELECT, duckdb.StatementType.EXPLAIN})
_NAME = re.compile(r"[a-z_]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The answer to a query.

    Attributes:
        truncated: Whether rows beyond the limit were left out.
    """

    columns: list[str]
    rows: list[tuple[Any, ...]]
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """What a database is built from, by names, sizes and times of the files.

    Attributes:
        form: Digest of the schema and the version of atrex.
        parts: Digest of facts, fleet, peaks and compilations.
        runs: Digest of every run.
    """

    form: str
    parts: str
    runs: dict[str, str]

    @property
    def digest(self) -> str:
        """Digest of everything."""
        return short_hash([self.form, self.parts, self.runs])


def state(folder: Path) -> State:
    """Look at a store's files, without reading them."""
    return State(
        form=short_hash([SCHEMA.read_text(), atrex.__version__]),
        parts=_listing(path for pattern in PARTS for path in folder.glob(pattern)),
        runs={
            path.name: _listing([path / name for name in run_files.FILES])
            for path in run_files.folders(folder / "runs")
        },
    )


def _listing(paths: Iterable[Path]) -> str:
    found = []
    for path in sorted(paths):
        try:
            status = path.stat()
        except FileNotFoundError:  # not written yet, or compacted meanwhile
            continue
        found.append((f"{path.parent.name}/{path.name}", status.st_size, status.st_mtime_ns))
    return short_hash(found)


def read_state(path: Path) -> State | None:
    """Return what a database was built from; None if it is missing, torn, or of another form."""
    if not path.is_file():
        return None
    try:
        with Reader(path) as reader:
            ((form, parts),) = reader.query("select form, parts from built").rows
            return State(
                form=form,
                parts=parts,
                runs=dict(reader.query("select run, digest from source", limit=sys.maxsize).rows),
            )
    except (DataError, UsageError, ValueError):
        return None  # it is only a derived file


def refresh(folder: Path, path: Path) -> None:
    """Bring the database at `path` up to date with the store in `folder`.

    Raises:
        DataError: A file of the store is damaged or from a newer atrex.
    """
    if state(folder) == read_state(path):
        return
    with files.locked(path.parent):  # one builder at a time; the others find its work done
        wanted, old = state(folder), read_state(path)
        if wanted == old:
            return
        for left in path.parent.glob(f".{path.name}.*"):  # of builders that were killed
            left.unlink()
        temporary = path.with_name(f".{path.name}.{wanted.digest}")
        try:
            build(folder, temporary, wanted, path, old)
        except FileNotFoundError:  # a run was compacted, or a part replaced, while it was read
            build(folder, temporary, wanted, path, old)
        temporary.replace(path)


def build(
    folder: Path, path: Path, wanted: State, old_path: Path | None = None, old: State | None = None
) -> None:
    """Write a database of everything in a store; every row comes from a file there.

    Args:
        folder: The store.
        path: The file to write.
        wanted: What is there now.
        old_path: An earlier database, whose unchanged runs are taken over.
        old: What it was built from.
    """
    path.unlink(missing_ok=True)
    usable = old is not None and old.form == wanted.form and old.runs.keys() <= wanted.runs.keys()
    known = old.runs if old is not None and usable else {}
    if old_path is not None and usable:
        shutil.copyfile(old_path, path)
    connection = duckdb.connect(str(path))
    try:
        connection.execute("begin")
        if not usable:
            connection.execute(SCHEMA.read_text())
        changed = [run for run, digest in wanted.runs.items() if known.get(run) != digest]
        for table in PER_RUN:  # rows of no run belong to the parts
            connection.execute(
                f"delete from {table} where run = '' or list_contains($1, run)", [changed]
            )
        for table in WHOLE:
            connection.execute(f"delete from {table}")
        _fill(connection, folder, changed)
        connection.execute(
            "insert into source select unnest($1), unnest($2)",
            [changed, [wanted.runs[run] for run in changed]],
        )
        connection.execute("insert into built values ($1, $2)", [wanted.form, wanted.parts])
        connection.execute("commit")
    finally:
        connection.close()


def _fill(connection: duckdb.DuckDBPyConnection, folder: Path, changed: Sequence[str]) -> None:
    folders = [folder / "runs" / run for run in changed]
    with tempfile.TemporaryDirectory() as scratch:
        for number, (table, frame) in enumerate(rows.tables(folder, folders)):
            # by way of Parquet: DuckDB reads frames only with another library's help
            part = Path(scratch) / f"{number}.parquet"
            frame.write_parquet(part)
            _load(connection, table, [part])
    for table, paths in rows.parquet_parts(folder, folders):
        _load(connection, table, paths)
    connection.execute("insert into latest_measurement from winner($1)", [changed])
    connection.execute("insert into workload from seen_workload")


def _load(connection: duckdb.DuckDBPyConnection, table: str, paths: Sequence[Path]) -> None:
    names = [str(path) for path in paths]
    try:
        described = connection.execute(
            "describe select * from read_parquet($1, union_by_name = true)", [names]
        ).fetchall()
        wanted = connection.execute(
            "select column_name from duckdb_columns() where table_name = $1", [table]
        ).fetchall()
        # older parts lack newer columns, which stay null; others' additions are left out
        known = {name for (name,) in wanted}
        columns = ", ".join(f'"{name}"' for name, *_ in described if name in known)
        connection.execute(
            f"insert into {table} by name "
            f"select {columns} from read_parquet($1, union_by_name = true)",
            [names],
        )
    except duckdb.IOException as error:
        if missing := next((path for path in paths if not path.exists()), None):
            raise FileNotFoundError(missing) from error
        raise DataError(_first_line(error), where=names[0], remedy="Restore that part.") from error
    except duckdb.Error as error:
        raise DataError(_first_line(error), where=names[0], remedy="Restore that part.") from error


class Reader(Closing):
    """A connection that can read one database and nothing else; a context manager.

    It sees the database as it was when opened.
    """

    def __init__(self, path: Path) -> None:
        # a connection of its own, not to the file: within one process DuckDB would hand out the
        # replaced file, and the settings, of whoever has it open
        self._connection = duckdb.connect()
        try:
            self._connection.execute(f"attach {_quoted(str(path))} as atrex (read_only)")
            self._connection.execute("use atrex")
            self._connection.execute(f"set temp_directory = {_quoted(tempfile.gettempdir())}")
            self._connection.execute("set enable_external_access = false")
            self._connection.execute("set lock_configuration = true")
        except duckdb.Error as error:
            self._connection.close()
            raise DataError(
                _first_line(error), where=str(path), remedy="Delete it; it is built anew."
            ) from error

    def read(self, sql: str, params: Sequence[object] | Mapping[str, object] = ()) -> pl.DataFrame:
        """Return a view or table by its name, or what a query selects, as a frame.

        Args:
            sql: Name of a view, or a query.
            params: Values of ``$1, $2`` or ``$name``.
        """
        import polars as pl

        text = f"select * from {sql}" if _NAME.fullmatch(sql) else sql
        return pl.DataFrame(
            self._connection.sql(text, params=params if isinstance(params, Mapping) else [*params])
        )

    def query(self, sql: str, *, limit: int = 1000, seconds: float = 30.0) -> Table:
        """Answer one query of a user.

        Args:
            sql: One statement that reads.
            limit: Most rows to return.
            seconds: Time after which it is stopped.

        Raises:
            UsageError: The query is wrong, writes, reaches outside, or takes too long.
        """
        with _as_usage_error(seconds):
            statements = duckdb.extract_statements(sql)
            if len(statements) != 1 or statements[0].type not in READABLE:
                raise UsageError(
                    "only one statement that reads is allowed",
                    remedy="The database is rebuilt from the store's files; change those.",
                )
            timer = threading.Timer(seconds, self._connection.interrupt)
            timer.start()
            try:
                result = self._connection.execute(statements[0])
                columns = [column[0] for column in result.description or ()]
                found = result.fetchmany(limit + 1)
            finally:
                timer.cancel()
        return Table(columns=columns, rows=found[:limit], truncated=len(found) > limit)

    def close(self) -> None:
        """Let go of the database."""
        self._connection.close()


@contextmanager
def _as_usage_error(seconds: float) -> Iterator[None]:
    try:
        yield
    except duckdb.InterruptException as error:
        raise UsageError(
            f"the query took longer than {seconds:g} s",
            remedy="Select fewer rows, or aggregate before joining.",
        ) from error
    except duckdb.Error as error:
        raise UsageError(str(error).strip()) from error


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
