import fcntl
import mmap
import os
from pathlib import Path

import numpy
import pytest
import torch

from atrex.judge.mapping import HUGE_BYTES, huge_pages, map_arena
from atrex.judge.memory import (
    F_SEAL_FUTURE_WRITE,
    RED_ZONE_BYTES,
    Arena,
    Placement,
    contiguous,
    extent,
    numpy_view,
    required_bytes,
    torch_view,
)
from atrex.operator import TensorSpec

ROW = TensorSpec(shape=(100,), dtype="fp32")


@pytest.fixture
def sealed():
    arena = Arena(1 << 20, sealed=True)
    yield arena
    arena.close()


@pytest.fixture
def outputs():
    arena = Arena(1 << 20, sealed=False, index=1)
    yield arena
    arena.close()


def test_a_sealed_arena_refuses_a_second_writable_mapping(sealed):
    with pytest.raises(PermissionError):
        mmap.mmap(sealed.backing.fd, sealed.size, flags=mmap.MAP_SHARED, prot=mmap.PROT_WRITE)


def test_a_sealed_arena_refuses_writing_through_its_descriptor(sealed):
    with pytest.raises(PermissionError):
        os.pwrite(sealed.backing.fd, b"x", 0)


def test_a_sealed_arena_opened_again_still_refuses_writing(sealed):
    again = os.open(f"/proc/self/fd/{sealed.backing.fd}", os.O_RDWR)
    with pytest.raises(PermissionError):
        os.pwrite(again, b"x", 0)
    os.close(again)


def test_a_sealed_arena_refuses_punching_a_hole(sealed):
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    refused = libc.fallocate(sealed.backing.fd, 3, ctypes.c_long(0), ctypes.c_long(4096))
    assert refused == -1


@pytest.mark.parametrize("is_sealed", [True, False])
def test_no_arena_can_be_truncated_or_sealed_further(is_sealed):
    arena = Arena(8192, sealed=is_sealed)
    with pytest.raises(PermissionError):
        os.ftruncate(arena.backing.fd, 0)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.backing.fd, fcntl.F_ADD_SEALS, F_SEAL_FUTURE_WRITE)
    arena.close()


def test_the_judge_changes_what_a_read_only_mapping_shows(sealed):
    other = map_arena(sealed.backing.fd, sealed.size, writable=False)
    sealed.view(10, 3)[:] = [1, 2, 3]
    assert other[9:14] == b"\0\1\2\3\0"


def test_an_output_arena_can_be_written_through_a_second_mapping(outputs):
    other = map_arena(outputs.backing.fd, outputs.size, writable=True)
    other[5] = 7
    assert outputs.view(5, 1)[0] == 7


def test_a_view_outside_the_arena_is_refused(outputs):
    with pytest.raises(ValueError, match="an arena of 2097152"):
        outputs.view(HUGE_BYTES, 1)


def test_a_placed_tensor_is_aligned_and_lies_behind_a_red_zone(outputs):
    for alignment in (16, 64, 256):
        placed = outputs.place(ROW, alignment=alignment)
        assert placed.offset % alignment == 0
        assert placed.offset >= RED_ZONE_BYTES
        assert placed.arena == 1


def test_offsets_differ_between_two_layouts_of_the_same_tensor(outputs):
    seen = set()
    for _ in range(20):
        outputs.clear()
        seen.add(outputs.place(ROW).offset % 4096)
    assert len(seen) > 5


def test_an_alignment_outside_the_contract_is_refused(outputs):
    with pytest.raises(ValueError, match="alignment 8"):
        outputs.place(ROW, alignment=8)


def test_the_required_size_always_suffices_and_a_smaller_arena_is_refused():
    specs = [ROW, TensorSpec(shape=(7, 33), dtype="bf16"), TensorSpec(shape=(), dtype="int64")]
    for _ in range(50):
        arena = Arena(required_bytes(specs), sealed=False)
        for spec in specs:
            arena.place(spec, alignment=256)
        arena.close()
    small = Arena(HUGE_BYTES, sealed=False)
    with pytest.raises(ValueError, match="do not fit"):
        small.place(TensorSpec(shape=(HUGE_BYTES,), dtype="uint8"))


def test_a_mapping_starts_at_a_multiple_of_the_huge_page_and_shares_it(outputs):
    views = [outputs.backing.memory, map_arena(outputs.backing.fd, outputs.size, writable=True)]
    starts = [numpy.frombuffer(view, dtype=numpy.uint8).ctypes.data for view in views]
    assert [start % HUGE_BYTES for start in starts] == [0, 0]
    if huge_pages():
        assert Path("/proc/self/smaps").read_text().count("ShmemPmdMapped:     2048 kB") >= 2


def test_a_read_only_mapping_refuses_stores_from_python(outputs):
    view = map_arena(outputs.backing.fd, outputs.size, writable=False)
    with pytest.raises(TypeError, match="read-only"):
        view[0] = 1


def mapped():
    return Path("/proc/self/maps").read_text().count("memfd:atrex")


def test_a_mapping_is_gone_with_its_last_view(outputs):
    before = mapped()
    view = map_arena(outputs.backing.fd, outputs.size, writable=True)
    array = numpy.frombuffer(view, dtype=numpy.uint8)
    del view
    assert mapped() == before + 1
    assert array[0] == outputs.view(0, 1)[0]
    del array
    assert mapped() == before


def test_untouched_red_zones_pass_while_tensors_are_written(outputs):
    placed = [outputs.place(ROW), outputs.place(TensorSpec(shape=(3, 70_000), dtype="fp32"))]
    outputs.paint_red_zones()
    for place in placed:
        outputs.bytes_of(place)[:] = 255
    assert outputs.check_red_zones() is None


@pytest.mark.parametrize("distance", [-RED_ZONE_BYTES, -1, 400, 400 + RED_ZONE_BYTES - 1])
def test_one_byte_written_beside_a_tensor_is_found(outputs, distance):
    placed = outputs.place(ROW)
    outputs.paint_red_zones()
    at = placed.offset + distance
    outputs.view(at, 1)[0] ^= 1
    assert outputs.check_red_zones() == at


def test_the_pattern_depends_on_the_key():
    patterns = set()
    for key in (b"a", b"b", b"a"):
        arena = Arena(1 << 20, sealed=False, key=key)
        arena.place(ROW)
        arena.paint_red_zones()
        patterns.add(arena.view(0, 64).tobytes())
        arena.close()
    assert len(patterns) == 2


def test_strides_of_a_contiguous_shape_and_the_span_of_a_strided_one():
    assert contiguous((2, 3, 4)) == (12, 4, 1)
    assert contiguous(()) == ()
    assert extent((3, 5), (8, 1)) == 21
    assert extent((3, 0), (8, 1)) == 0


def test_a_torch_view_shares_memory_with_dtype_and_strides(outputs):
    place = outputs.place(TensorSpec(shape=(2, 3), dtype="bf16", strides=(8, 1)))
    view = torch_view(outputs.backing.memory, place)
    view.copy_(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]))
    assert view.dtype is torch.bfloat16
    assert view.stride() == (8, 1)
    bits = outputs.bytes_of(place).view(numpy.uint16)
    assert bits.tolist() == [0x3F80, 0x4000, 0x4040, 0, 0, 0, 0, 0, 0x4080, 0x40A0, 0x40C0]


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("bf16", "uint16"), ("fp16", "uint16"), ("fp8_e4m3fn", "uint8"), ("fp32", "float32"),
     ("int32", "int32"), ("bool", "bool")],
)  # fmt: skip
def test_a_numpy_view_shows_small_floats_as_unsigned_bits(outputs, dtype, expected):
    place = outputs.place(TensorSpec(shape=(2, 3), dtype=dtype, strides=(8, 1)))
    view = numpy_view(outputs.backing.memory, place)
    assert view.dtype == expected
    assert view.strides == (8 * view.itemsize, view.itemsize)
    view[1, 2] = 1
    assert outputs.bytes_of(place)[10 * view.itemsize :].any()


def test_empty_tensors_have_views():
    memory = mmap.mmap(-1, 4096)
    place = Placement(arena=0, offset=0, shape=(0, 4), strides=(4, 1), dtype="fp8_e4m3fn")
    assert numpy_view(memory, place).shape == (0, 4)
    assert torch_view(memory, place).shape == (0, 4)
