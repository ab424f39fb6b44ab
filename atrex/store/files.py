"""Files that survive a kill: atomic replacement, versioned decoding, one writer at a time.

Names that begin with a dot are temporary and never part of a store's content.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

import msgspec

from atrex.errors import DataError, SetupError
from atrex.model import SCHEMA_VERSION

T = TypeVar("T")


class _Versioned(msgspec.Struct):
    schema_version: int


def write_atomic(path: Path, content: bytes) -> None:
    """Replace a file so that a reader, or a kill at any moment, sees the old or the new content.

    Raises:
        SetupError: The file system refuses the write.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise SetupError(
            f"cannot write: {error.strerror}",
            where=str(path),
            remedy="Free space, or name a writable store with --store.",
        ) from error


def sync_folder(folder: Path) -> None:
    """Make renames inside a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def decode(path: Path, kind: type[T]) -> T:
    """Decode a versioned JSON file of the store.

    Raises:
        DataError: The file is torn, does not fit, or comes from a newer atrex.
    """
    content = path.read_bytes()
    try:
        # the version first: a newer file may hold fields that `kind` forbids
        version = msgspec.json.decode(content, type=_Versioned).schema_version
        if version > SCHEMA_VERSION:
            raise DataError(
                f"schema version {version} is newer than {SCHEMA_VERSION}",
                where=str(path),
                remedy="Update atrex to read this store.",
            )
        return msgspec.json.decode(content, type=kind)
    except msgspec.DecodeError as error:  # a ValidationError too
        raise DataError(
            f"torn or foreign: {error}",
            where=str(path),
            remedy="Remove the part it belongs to, or restore it from a copy.",
        ) from error


def try_lock(folder: Path) -> int | None:
    """Lock a folder for its only writer; None if another process holds it.

    The kernel releases the lock with the descriptor, so a killed writer leaves none behind.
    """
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Wait for a folder's lock and hold it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def stamp() -> str:
    """Return a name that sorts by time: UTC to the microsecond, then random hex digits.

    One process names nothing twice within a microsecond, since each name is written to disk; within
    a millisecond it does, and the newest would then be a matter of chance.
    """
    return f"{datetime.now(UTC):%Y%m%dT%H%M%S%f}-{secrets.token_hex(3)}"


def utc_now() -> str:
    """Return the current UTC time, ISO 8601, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
