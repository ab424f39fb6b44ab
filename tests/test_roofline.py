import pytest

from atrex.errors import DataError
from atrex.model import Cost, Peak
from atrex.roofline import below_floor, roofline


def peak(pipe, value, kind="measured", date="2026-01-01"):
    return Peak(
        device="cpu",
        pipe=pipe,
        kind=kind,
        value=value,
        low=value,
        high=value,
        n=1,
        source="test",
        date=date,
    )


PEAKS = [
    peak("memory", 20e9),  # 0.05 ns per byte
    peak("vector", 100e9),  # 0.01 ns per FLOP
    peak("bf16", 200e9),
    peak("launch_floor", 10_000),
]


def cost(read_bytes, write_bytes=0, **flop):
    return Cost(flop=flop, read_bytes=read_bytes, write_bytes=write_bytes)


def test_a_copy_is_bound_by_memory():
    roof = roofline(cost(6_000_000, 4_000_000, vector=1_000), PEAKS)
    assert (roof.measured_ns, roof.sol_ns, roof.bound) == (500_000, 500_000, "memory")
    assert not roof.overhead_bound


def test_the_slowest_pipe_decides():
    roof = roofline(cost(1_000, vector=100_000_000, bf16=100_000_000), PEAKS)
    assert (roof.measured_ns, roof.bound) == (1_000_000, "vector")
    roof = roofline(cost(1_000, vector=100_000_000, bf16=400_000_000), PEAKS)
    assert (roof.measured_ns, roof.bound) == (2_000_000, "bf16")


def test_the_launch_floor_is_part_of_the_attainable_time_only():
    roof = roofline(cost(20_000, vector=10), PEAKS)
    assert (roof.measured_ns, roof.sol_ns, roof.bound) == (1_000, 10_000, "launch")


def test_below_ten_floors_a_cpu_workload_is_overhead_bound():
    assert roofline(cost(1_999_980), PEAKS).overhead_bound
    assert not roofline(cost(2_000_000), PEAKS).overhead_bound


def test_below_one_floor_a_cuda_workload_is_overhead_bound():
    assert roofline(cost(199_980), PEAKS, "cuda").overhead_bound
    assert not roofline(cost(200_000), PEAKS, "cuda").overhead_bound


def test_datasheet_peaks_give_the_roofline_time():
    sheet = [peak("memory", 40e9, "datasheet"), peak("vector", 400e9, "datasheet")]
    roof = roofline(cost(10_000_000, vector=4), [*PEAKS, *sheet])
    assert (roof.roof_ns, roof.measured_ns) == (250_000, 500_000)


def test_an_incomplete_datasheet_gives_no_roofline_time():
    roof = roofline(cost(10_000_000, vector=4), [*PEAKS, peak("memory", 40e9, "datasheet")])
    assert roof.roof_ns is None


def test_a_pipe_without_a_peak_is_refused():
    with pytest.raises(DataError, match="no measured peak for 'fp16'"):
        roofline(cost(10, fp16=10), PEAKS)


def test_a_pipe_without_work_needs_no_peak():
    assert roofline(cost(10_000_000, fp16=0), PEAKS).bound == "memory"


@pytest.mark.parametrize("pipe", ["memory", "launch_floor"])
def test_memory_and_launch_floor_are_always_needed(pipe):
    with pytest.raises(DataError, match=f"no measured peak for '{pipe}'"):
        roofline(cost(10, vector=10), [peak for peak in PEAKS if peak.pipe != pipe])


def test_a_time_under_95_percent_of_the_roof_without_floor_is_below_floor():
    roof = roofline(cost(10_000_000), PEAKS)
    assert below_floor(474_999, roof)
    assert not below_floor(475_000, roof)
    launch_bound = roofline(cost(20_000), PEAKS)
    assert not below_floor(1_000, launch_bound)  # faster than the no-op, not than the memory
