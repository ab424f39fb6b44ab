import pytest

from atrex.backends.compiler import Compiler, find
from atrex.errors import SetupError
from atrex.judge.peaks import (
    Sample,
    array_bytes,
    is_wide,
    measure_cpu_peaks,
    parse,
    peaks_of,
)


def samples(pipe, pattern, *rates_per_ns):
    return [
        Sample(pipe=pipe, pattern=pattern, work=rate * 1000, time_ns=1000) for rate in rates_per_ns
    ]


def by_pipe(peaks):
    return {peak.pipe: peak for peak in peaks}


def test_a_line_is_a_sample_or_a_round():
    assert parse("sample memory copy_2_32 134217728 3000000") == Sample(
        pipe="memory", pattern="copy_2_32", work=134217728, time_ns=3000000
    )
    assert parse("round 7") == 7


@pytest.mark.parametrize("line", ["", "sample memory read -1 5", "sample memory read 1e9 5", "ok"])
def test_any_other_line_is_refused(line):
    with pytest.raises(ValueError, match="unexpected line"):
        parse(line)


def test_the_peak_is_the_fastest_pass_of_the_fastest_pattern_with_its_spread():
    found = by_pipe(
        peaks_of(
            [
                *samples("fp32", "narrow", 50, 60, 55),
                *samples("fp32", "wide", 100, 110, 120, 130, 140),
            ],
            "a core",
            "2026-01-01",
        )
    )
    peak = found["fp32"]
    assert (peak.value, peak.low, peak.high, peak.n) == (140e9, 104e9, 136e9, 5)
    assert (peak.device, peak.source, peak.kind) == ("a core", "peaks.c fp32 wide", "measured")


def test_pipes_without_a_benchmark_run_at_the_rate_that_holds_their_values():
    found = by_pipe(peaks_of(samples("fp32", "fma", 100), "a core", "2026-01-01"))
    for pipe in ("vector", "bf16", "fp16", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2"):
        assert found[pipe].value == 100e9
        assert found[pipe].source == "peaks.c fp32 fma"


def test_fp8_runs_at_the_rate_of_bf16_and_fp16_does_not():
    found = by_pipe(
        peaks_of(
            [*samples("fp32", "fma", 100), *samples("bf16", "dot", 200)], "a core", "2026-01-01"
        )
    )
    assert found["fp8_e4m3fn"].value == 200e9
    assert found["fp16"].value == 100e9


def test_a_narrow_pipe_slower_than_fp32_is_widened():
    found = by_pipe(
        peaks_of(
            [*samples("fp32", "fma", 100), *samples("fp16", "fma", 60)], "a core", "2026-01-01"
        )
    )
    assert found["fp16"].value == 100e9


def test_without_int8_instructions_there_is_no_int8_peak():
    assert "int8" not in by_pipe(peaks_of(samples("fp32", "fma", 1), "a core", "2026-01-01"))


def test_a_spread_above_a_tenth_of_the_peak_is_wide():
    [quiet] = [
        peak
        for peak in peaks_of(samples("fp32", "fma", 100, 99, 98), "a", "2026-01-01")
        if peak.pipe == "fp32"
    ]
    [loaded] = [
        peak
        for peak in peaks_of(samples("fp32", "fma", 100, 60, 55), "a", "2026-01-01")
        if peak.pipe == "fp32"
    ]
    assert not is_wide(quiet)
    assert is_wide(loaded)


def test_arrays_too_large_for_the_memory_are_refused(monkeypatch):
    monkeypatch.setattr("atrex.judge.peaks.llc_bytes", lambda: 1 << 40)
    with pytest.raises(SetupError, match="more than half of the memory"):
        array_bytes()


def test_a_program_that_does_not_compile_is_said_so(tmp_path):
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho 'no such instruction'\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(SetupError, match="no such instruction"):
        measure_cpu_peaks(Compiler(command=(str(broken),), version="broken"))


def test_a_core_that_is_not_there_is_said_so():
    compiler = find()
    if compiler is None:
        pytest.skip("no C compiler")
    with pytest.raises(SetupError, match="sched_setaffinity"):
        measure_cpu_peaks(compiler, cpu=1000, rounds=1)


def test_this_machine_has_peaks_of_every_pipe():
    compiler = find()
    if compiler is None:
        pytest.skip("no C compiler")
    seen = []
    found = by_pipe(
        measure_cpu_peaks(compiler, rounds=3, progress=lambda done, of: seen.append((done, of)))
    )
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert {"memory", "vector", "fp32", "fp64", "bf16", "fp16", "fp8_e4m3fn"} <= found.keys()
    for peak in found.values():
        assert 0 < peak.low <= peak.high <= peak.value
        assert peak.n == 3
    assert found["bf16"].value >= found["fp32"].value > found["fp64"].value
    assert found["vector"].value == found["fp32"].value
