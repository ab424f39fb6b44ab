"""Bytes out of plain and gzipped files, whole and damaged."""

import gzip
import hashlib

import pytest

from atrex.errors import DataError, UsageError
from atrex.trace.source import PIECE_BYTES, Source

TEXT = b"".join(b"%d," % n for n in range(400_000))  # more than two pieces


def read(tmp_path, data):
    path = tmp_path / "file"
    path.write_bytes(data)
    source = Source(path)
    return b"".join(source.pieces()), source


def test_reads_plain_and_gzipped_text_alike(tmp_path):
    assert read(tmp_path, TEXT)[0] == TEXT
    assert read(tmp_path, gzip.compress(TEXT))[0] == TEXT


def test_pieces_stay_small_whatever_the_compression_ratio(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(bytes(5_000_000)))
    sizes = [len(piece) for piece in Source(path).pieces()]
    assert sum(sizes) == 5_000_000
    assert max(sizes) <= PIECE_BYTES


def test_reads_every_member_and_their_names(tmp_path):
    named = tmp_path / "named.gz"
    with gzip.GzipFile(filename="a name", fileobj=named.open("wb"), mode="wb") as file:
        file.write(b"one ")
    data = named.read_bytes() + gzip.compress(b"two ") + gzip.compress(TEXT)
    text, source = read(tmp_path, data)
    assert text == b"one two " + TEXT
    assert (source.truncated, source.damage) == (False, "")


def test_the_hash_is_that_of_the_file_as_stored(tmp_path):
    data = gzip.compress(TEXT) + b"\0" * 100_000
    source = read(tmp_path, data)[1]
    assert source.sha256 == hashlib.sha256(data).hexdigest()
    assert source.damage == ""


def test_a_cut_member_gives_its_beginning(tmp_path):
    data = gzip.compress(TEXT)
    text, source = read(tmp_path, data[: len(data) // 2])
    assert source.truncated
    assert len(text) > 100_000
    assert TEXT.startswith(text)


@pytest.mark.parametrize("lost", [1, 8])
def test_a_missing_trailer_loses_no_data(tmp_path, lost):
    text, source = read(tmp_path, gzip.compress(TEXT)[:-lost])
    assert text == TEXT
    assert source.truncated


def test_a_wrong_checksum_is_said_after_all_data(tmp_path):
    data = bytearray(gzip.compress(TEXT))
    data[-6] ^= 1
    text, source = read(tmp_path, bytes(data))
    assert text == TEXT
    assert source.damage == "the gzip checksum does not match"


def test_bytes_after_the_last_member_are_said(tmp_path):
    text, source = read(tmp_path, gzip.compress(TEXT) + b"garbage")
    assert text == TEXT
    assert source.damage == "bytes after the gzip data"


def test_an_empty_file_is_refused(tmp_path):
    with pytest.raises(DataError, match="empty"):
        read(tmp_path, b"")


def test_a_missing_file_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        list(Source(tmp_path / "none").pieces())


def test_progress_counts_the_bytes_on_disk(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(TEXT))
    counts = []
    list(Source(path, counts.append).pieces())
    assert sum(counts) == path.stat().st_size
