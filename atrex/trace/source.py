"""Read a file as a stream of plain bytes, gzip, zstd or neither as its first bytes say.

Gzip members are taken apart here rather than by a library call, because a damaged file must give
all data before the damage, and say afterwards what was wrong.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Generator, Iterator
from itertools import chain
from pathlib import Path

from backports.zstd import ZstdDecompressor, ZstdError
from isal import isal_zlib

from atrex.errors import DataError, UsageError

READ_BYTES = 1 << 13  # compressed; a trace inflates about thirteenfold, so to about one window
PIECE_BYTES = 1 << 17  # most plain bytes handed out at once, whatever the compression ratio
GZIP = b"\x1f\x8b"
ZSTD = b"\x28\xb5\x2f\xfd"
SKIPPABLE = b"\x2a\x4d\x18"  # bytes 1 to 3 of a zstd frame without data; some writers begin so
CHECKSUM_BYTES = 4  # at the end of a zstd frame
BROKEN = "broken compressed data"
WRONG_CHECKSUM = "checksum does not match"
RAW_DEFLATE = -15  # window bits of zlib's convention: no header, no trailer


class Source:
    """One file, read once from front to back.

    Attributes:
        truncated: Whether the file ended inside a gzip member or zstd frame.
        damage: What was wrong with the compressed form, "" if nothing.
        damaged: Whether data were lost by it or may be wrong; bytes after the data do no harm.
        plain_bytes: Bytes handed out so far.
    """

    def __init__(self, path: Path, progress: Callable[[int], None] | None = None) -> None:
        self.path = path
        self.truncated = False
        self.damage = ""
        self.damaged = False
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
            yield from self._members(first) if _compression(first) else self._plain(first)
            while self._read():  # the hash covers the whole file, whatever follows the data
                pass

    def _read(self, size: int = READ_BYTES) -> bytes:
        data = self._file.read(size)
        self._hash.update(data)
        if self._progress is not None:
            self._progress(len(data))
        return data

    def _harm(self, damage: str) -> None:
        self.damage, self.damaged = damage, True

    def _plain(self, data: bytes) -> Iterator[bytes]:
        while data:
            yield data
            data = self._read(PIECE_BYTES)

    def _members(self, data: bytes) -> Iterator[bytes]:
        kind = _compression(data)
        read = self._member if kind == "gzip" else self._frame
        while data or (data := self._read()):
            while len(data) < len(ZSTD) and (more := self._read()):
                data += more
            if _compression(data) != kind:
                if data.strip(b"\0"):
                    self.damage = f"bytes after the {kind} data"
                return
            rest = yield from read(data)
            if rest is None:
                return
            data = rest

    def _frame(self, data: bytes) -> Generator[bytes, None, bytes | None]:
        """Yield one zstd frame's data and return what follows, None at the end of what is usable.

        The decoder keeps the output of a call that fails, so what may be the checksum goes in last.
        """
        decoder = ZstdDecompressor()
        while not decoder.eof:
            ready = b""
            if decoder.needs_input:
                if len(data) <= CHECKSUM_BYTES:
                    data += self._read()
                if not data:
                    self.truncated = True
                    return None
                ready = data[:-CHECKSUM_BYTES] or data
                data = data[len(ready) :]
            try:
                piece = decoder.decompress(ready, PIECE_BYTES)
            except ZstdError as error:
                wrong = "checksum" in str(error)  # all data were given before
                self._harm(f"the zstd {WRONG_CHECKSUM}" if wrong else BROKEN)
                self.truncated = not wrong
                return None
            if piece:
                yield piece
        return decoder.unused_data + data

    def _member(self, data: bytes) -> Generator[bytes, None, bytes | None]:
        """Yield a gzip member's data and return what follows, None at the end of what is usable."""
        body = self._after_header(data)
        if body is None:
            self.truncated = True
            return None
        data = body
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
                self._harm(BROKEN)
                self.truncated = True
                return None
        data = inflate.unused_data
        while len(data) < 8 and (more := self._read()):
            data += more
        if len(data) < 8:
            self.truncated = True
            return None
        if struct.unpack("<II", data[:8]) != (checksum, length & 0xFFFFFFFF):
            self._harm(f"the gzip {WRONG_CHECKSUM}")
        return data[8:]

    def _after_header(self, data: bytes) -> bytes | None:
        """Return what follows a member's header (RFC 1952), None if the file ends inside it."""
        while (end := _header_end(data)) is None:
            more = self._read()
            if not more:
                return None
            data += more
        return data[end:]


def _compression(data: bytes) -> str:
    if data.startswith(GZIP):
        return "gzip"
    if data.startswith(ZSTD) or (data[1:4] == SKIPPABLE and data[0] >> 4 == 5):
        return "zstd"
    return ""


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
