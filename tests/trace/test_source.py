"""Bytes out of plain, gzip and zstd files, whole and damaged."""

import gzip
import hashlib

import pytest
from backports import zstd

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


@pytest.mark.parametrize("compress", [gzip.compress, zstd.compress])
def test_pieces_stay_small_whatever_the_compression_ratio(tmp_path, compress):
    path = tmp_path / "file"
    path.write_bytes(compress(bytes(5_000_000)))
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
    assert source.damaged


def test_bytes_after_the_last_member_are_said(tmp_path):
    text, source = read(tmp_path, gzip.compress(TEXT) + b"garbage")
    assert text == TEXT
    assert source.damage == "bytes after the gzip data"
    assert not source.damaged


def checked(data):
    """One zstd frame that ends with a checksum."""
    return zstd.compress(data, options={zstd.CompressionParameter.checksum_flag: 1})


EMPTY_FRAME = b"\x50\x2a\x4d\x18\x04\0\0\0note"  # one that carries no data


def test_reads_every_zstd_frame_and_skips_those_without_data(tmp_path):
    data = EMPTY_FRAME + zstd.compress(b"one ") + checked(b"two ") + EMPTY_FRAME + checked(TEXT)
    text, source = read(tmp_path, data)
    assert text == b"one two " + TEXT
    assert (source.truncated, source.damage) == (False, "")
    assert source.sha256 == hashlib.sha256(data).hexdigest()


def test_zstd_frames_may_end_anywhere_in_a_read(tmp_path):
    for padding in range(8180, 8200):  # around the first read of 8 KiB
        frame = b"\x50\x2a\x4d\x18" + padding.to_bytes(4, "little") + bytes(padding)
        text, source = read(tmp_path, frame + checked(b"data"))
        assert (text, source.truncated, source.damage) == (b"data", False, "")


def test_a_cut_zstd_frame_gives_its_beginning(tmp_path):
    data = zstd.compress(TEXT)
    text, source = read(tmp_path, data[: len(data) // 2])
    assert (source.truncated, source.damage) == (True, "")
    assert len(text) > 100_000
    assert TEXT.startswith(text)


def test_a_zstd_checksum_that_is_missing_or_wrong_loses_no_data(tmp_path):
    data = bytearray(checked(TEXT))
    text, source = read(tmp_path, data[:-1])
    assert (text, source.truncated) == (TEXT, True)
    data[-1] ^= 1
    text, source = read(tmp_path, data)
    assert (text, source.truncated) == (TEXT, False)
    assert source.damage == "the zstd checksum does not match"
    assert source.damaged


def test_broken_zstd_data_gives_what_came_before(tmp_path):
    data = bytearray(zstd.compress(TEXT))
    data[len(data) // 2 :] = b"\xff" * 300_000  # a block's header among them, of no valid kind
    text, source = read(tmp_path, data)
    assert (source.truncated, source.damage) == (True, "broken compressed data")
    assert len(text) > 100_000


def test_bytes_after_the_last_zstd_frame_are_said_unless_they_pad(tmp_path):
    assert read(tmp_path, zstd.compress(TEXT) + b"\0" * 9000)[1].damage == ""
    text, source = read(tmp_path, zstd.compress(TEXT) + b"garbage")
    assert (text, source.damage) == (TEXT, "bytes after the zstd data")


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
