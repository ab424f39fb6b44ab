"""JAX profiles, built here from bytes; the wire format is all that the reader knows of protobuf."""

import pytest

from atrex.errors import DataError
from atrex.trace.formats import read_recording
from atrex.trace.join import join


def varint(value):
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def number(field, value):
    return varint(field << 3) + varint(value)


def nested(field, *parts):
    data = b"".join(part.encode() if isinstance(part, str) else part for part in parts)
    return varint(field << 3 | 2) + varint(len(data)) + data


STATISTICS = {1: "correlation_id", 2: "kernel_details", 3: "memcpy_details", 4: "hlo_op",
              5: "grid:64,2,1 block:256,1,1 private_mem:0 group_mem:512 occ_pct:0", 6: "fusion.12",
              7: "compute_cap_major", 8: "compute_cap_minor", 9: "core_count",
              10: "device_vendor"}  # fmt: skip
EVENTS = {1: "gemm.kd", 2: "void k(int) [clone .kd]", 3: "MemcpyD2D", 4: "hipModuleLaunchKernel"}


def statistic(name, value=None, ref=None):
    return nested(4, number(1, name), number(7, ref) if ref else number(4, value))


def event(name, offset_ps, duration_ps, *statistics):
    times = number(2, offset_ps) + number(3, duration_ps)
    return nested(4, number(1, name), times, *statistics)


def line(name, *events, timestamp_ns=1000):
    return nested(3, number(1, 1), nested(2, name), number(3, timestamp_ns), *events)


def plane(name, *lines):
    entries = [
        *(nested(4, number(1, key), nested(2, number(1, key), nested(2, text)))
          for key, text in EVENTS.items()),
        *(nested(5, number(1, key), nested(2, number(1, key), nested(2, text)))
          for key, text in STATISTICS.items()),
        *(nested(6, number(1, key), number(3, value)) for key, value in ((7, 9), (8, 4), (9, 304))),
        nested(6, number(1, 10), nested(5, "AMD")),
    ]  # fmt: skip
    return nested(1, nested(2, name), *lines, *entries)


KERNEL = event(1, 5_000_000, 1_234_999, statistic(1, 7), statistic(2, ref=5), statistic(4, ref=6))
COPY = event(3, 9_000_000, 2_000_000, statistic(1, 8), statistic(3, ref=5))
LAUNCH = event(4, 1_000_000, 500_000, statistic(1, 7), statistic(4, ref=6))
GPU = plane("/device:GPU:3", line("Stream #16(Kernel)", KERNEL, COPY))
HOST = plane("/host:CPU", line("Host Threads/5", LAUNCH), line("python", LAUNCH, LAUNCH))


@pytest.fixture
def read(tmp_path):
    def write_and_read(*parts):
        path = tmp_path / "file"
        path.write_bytes(b"".join(parts))
        return read_recording(path)

    return write_and_read


def test_kernels_copies_and_launches_of_a_profile(read):
    recording = read(GPU, HOST)
    timeline = recording.timeline
    kernels = timeline.kernels
    assert [timeline.names.values[each] for each in kernels.name] == ["gemm"]
    assert (list(kernels.start), list(kernels.duration)) == ([6000], [1234])  # ps are cut
    assert (list(kernels.device), list(kernels.stream)) == ([3], [16])
    assert timeline.geometries.values[kernels.geometry[0]] == (
        b"[64, 2, 1]", b"[256, 1, 1]", b"512",
    )  # fmt: skip
    assert list(timeline.copies.duration) == [2000]
    assert list(join(timeline).launch) == [0]
    assert len(timeline.launches.name) == 1  # those of Python frames are none
    assert timeline.signatures.values == [("fusion", b"", b"", b"", b"")]
    assert (recording.format, recording.gpu) == ("xplane", "AMD, compute 9.4, 304 SMs")
    assert recording.lossless
    assert recording.notes == [
        "names only: XPlane records no shapes, so axes are known at most from kernels"
    ]


def test_lines_that_repeat_the_kernels_count_nothing(read):
    lines = [line(name, KERNEL) for name in ("Stream #1", "XLA Ops", "XLA Modules", "Steps")]
    assert len(read(plane("/device:GPU:0", *lines)).timeline.kernels) == 1


def test_the_object_suffix_of_names_is_dropped(read):
    recording = read(plane("/device:GPU:0", line("Stream #1", event(2, 1, 1000, statistic(1, 7)))))
    assert "void k(int)" in recording.timeline.names.values


def test_compiled_programs_and_fields_of_other_types_are_skipped(read):
    programs = plane("/host:metadata", nested(3, b"\xff" * 300_000))
    fixed = varint(9 << 3 | 5) + b"abcd" + varint(9 << 3 | 1) + b"abcdefgh" + nested(4, "host")
    assert len(read(programs, fixed, GPU).timeline.kernels) == 1


def test_work_of_another_accelerator_is_refused_by_its_name(read):
    with pytest.raises(DataError, match=r"another kind of accelerator \(/device:TPU:0\)"):
        read(plane("/device:TPU:0", line("XLA Ops", KERNEL)))


def test_another_accelerator_beside_a_gpu_is_noted(read):
    recording = read(GPU, plane("/device:TPU:0"))
    assert any("/device:TPU:0" in note for note in recording.notes)


@pytest.mark.parametrize("cut", [1, 40, 200])
def test_a_cut_profile_keeps_the_planes_before_the_cut_and_says_so(read, cut):
    second = plane("/device:GPU:4", line("Stream #16(Kernel)", KERNEL))
    recording = read(GPU, second[:-cut])
    assert len(recording.timeline.kernels) == 1
    assert recording.truncated
    assert not recording.lossless


def test_an_event_of_impossible_time_ends_its_line_and_is_no_silent_loss(read):
    recording = read(plane("/device:GPU:0", line("Stream #1", KERNEL, event(1, -(10**9), 1))))
    assert len(recording.timeline.kernels) == 1
    assert not recording.lossless
