"""Read a file as a stream of plain bytes, gzip or not as its first bytes say.

Gzip members are taken apart here rather than by a library call, because a damaged file must give
all data before the damage, and say afterwards what was wrong.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from pathlib import Path

from isal import isal_zlib

from atrex.errors import DataError, UsageError

READ_BYTES = 1 << 13  # compressed; a trace inflates about thirteenfold, so to about one window
PIECE_BYTES = 1 << 17  # most plain bytes handed out at once, whatever the compression ratio
GZIP = b"\x1f\x8b"
RAW_DEFLATE = -15  # window bits of zlib's convention: no header, no trailer


class Source:
    """One file, read once from front to back.

    Attributes:
        truncated: Whether the file ended inside a gzip member.
        damage: What was wrong with the compressed form, "" if nothing.
        plain_bytes: Bytes handed out so far.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.truncated = False
        self.damage = ""
        self.plain_bytes = 0
        self._progress = progress
        self._hash = hashlib.sha256()
        self._ahead: Iterator[bytes] = self._read_pieces()

    @property
    def sha256(self) -> str:
        """Hex digest of the file as stored; complete once `pieces` is exhausted."""
        return self._hash.hexdigest()

    def beginning(self) -> bytes:
        """Return the first plain bytes, which `pieces` will still yield; as `pieces` raises."""
        first = next(self._ahead, b"")
        self._ahead = chain((first,), self._ahead)
        return first

    def pieces(self) -> Iterator[bytes]:
        """Yield the plain bytes, once, in pieces of at most `PIECE_BYTES`.

        Raises:
            UsageError: The path is missing or no file.
            DataError: The file is empty.
        """
        for piece in self._ahead:
            self.plain_bytes += len(piece)
            yield piece

    def _read_pieces(self) -> Iterator[bytes]:
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise UsageError(
                f"cannot read the trace: {error.strerror}", where=str(self.path)
            ) from error
        with self._file:
            first = self._read()
            if not first:
                raise DataError(
                    "the file is empty", where=self.path.name, remedy="Record the trace again."
                )
            pieces = self._members(first) if first.startswith(GZIP) else self._plain(first)
            yield from pieces
            while self._read():  # the hash covers the whole file, whatever follows the data
                pass

    def _read(self, size: int = READ_BYTES) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        if self._progress is not None:
            self._progress(len(data))
        return data

    def _plain(self, data: bytes) -> Iterator[bytes]:
        while data:
            yield data
            data = self._read(PIECE_BYTES)

    def _members(self, data: bytes) -> Iterator[bytes]:
        while data or (data := self._read()):
            if not data.startswith(GZIP):
                if data.strip(b"\0"):
                    self.damage = "bytes after the gzip data"
                return
            body = self._after_header(data)
            if body is None:
                self.truncated = True
                return
            rest = yield from self._member(body)
            if rest is None:
                return
            data = rest

    def _member(self, data: bytes) -> Generator[bytes, None, bytes | None]:
        """Yield one member's data and return what follows it, None at the end of what is usable."""
        inflate = isal_zlib.decompressobj(RAW_DEFLATE)
        checksum, length = 0, 0
        while not inflate.eof:
            if not data and not (data := self._read()):
                self.truncated = True
                return None
            try:
                piece = inflate.decompress(data, PIECE_BYTES)
                data = inflate.unconsumed_tail
                while piece:
                    checksum = isal_zlib.crc32(piece, checksum)
                    length += len(piece)
                    yield piece
                    full = len(piece) == PIECE_BYTES and not data and not inflate.eof
                    piece = inflate.decompress(b"", PIECE_BYTES) if full else b""
                    data = inflate.unconsumed_tail or data
            except isal_zlib.error:  # type: ignore[misc]  # its stub declares an instance
                self.damage = "broken compressed data"
                self.truncated = True
                return None
        data = inflate.unused_data
        while len(data) < 8 and (more := self._read()):
            data += more
        if len(data) < 8:
            self.truncated = True
            return None
        if struct.unpack("<II", data[:8]) != (checksum, length & 0xFFFFFFFF):
            self.damage = "the gzip checksum does not match"
        return data[8:]

    def _after_header(self, data: bytes) -> bytes | None:
        """Return what follows a member's header (RFC 1952), None if the file ends inside it."""
        while (end := _header_end(data)) is None:
            more = self._read()
            if not more:
                return None
            data += more
        return data[end:]


def _header_end(data: bytes) -> int | None:
    if len(data) < 12:
        return None
    flags, end = data[3], 10
    if flags & 4:  # extra field
        end += 2 + int.from_bytes(data[10:12], "little")
    for bit in (8, 16):  # name, comment: both end with a zero byte
        if flags & bit:
            zero = data.find(b"\0", end)
            if zero < 0:
                return None
            end = zero + 1
    if flags & 2:  # header checksum
        end += 2
    return end if end <= len(data) else None
