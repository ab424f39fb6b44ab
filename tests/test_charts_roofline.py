import polars as pl
import pytest

from atrex.charts import roofline

PEAKS = pl.DataFrame([
    {"pipe": "memory", "kind": "measured", "value": 1e12},
    {"pipe": "bf16", "kind": "measured", "value": 1e14},
    {"pipe": "memory", "kind": "datasheet", "value": 2e12},
    {"pipe": "bf16", "kind": "datasheet", "value": 2e14},
])  # fmt: skip
ROW = {
    "label": "rows 8", "operator": "gemm", "outcome": "ok", "pipe": "bf16", "flop": 10**9,
    "moved_bytes": 10**6, "time_ns": 20_000, "low_ns": 19_000, "high_ns": 21_000, "n": 60,
    "weight": 0.25, "s": 0.5, "baseline": "eager", "baseline_ns": 40_000, "measurement": "a.b",
    "environment": "e",
}  # fmt: skip


def frame(*changes):
    return pl.DataFrame([{**ROW, **each} for each in changes or ({},)])


def named(figure):
    return {trace.name: trace for trace in figure.data}


def test_a_point_stands_at_its_intensity_and_rate():
    point = named(roofline.roofline(frame(), PEAKS))["gemm, ok (1)"]
    assert (point.x[0], point.y[0]) == (1000.0, 5e13)
    assert point.customdata == ("a.b",)
    assert "n = 60, measured" in point.hovertext[0]


def test_roofs_bend_at_the_ridge_and_datasheets_are_dashed():
    drawn = named(roofline.roofline(frame({"moved_bytes": 10**7}), PEAKS))
    measured = drawn["bf16, measured: 100 TFLOP/s"]
    assert list(measured.x) == [50.0, 100.0, 200.0]
    assert list(measured.y) == [5e13, 1e14, 1e14]
    assert measured.line.dash == "solid"
    assert drawn["bf16, datasheet: 200 TFLOP/s"].line.dash == "dash"


def test_a_baseline_is_hollow_and_joined_to_its_point():
    drawn = named(roofline.roofline(frame(), PEAKS, baselines=True))
    assert drawn["fastest baseline"].marker.symbol == "diamond-open"
    assert list(drawn["fastest baseline"].y) == [2.5e13]
    line = next(trace for trace in roofline.roofline(frame(), PEAKS, baselines=True).data
                if trace.name is None)  # fmt: skip
    assert list(line.y) == [2.5e13, 5e13, None]


def test_colour_is_not_the_only_sign_of_an_outcome():
    drawn = named(roofline.roofline(frame({}, {"outcome": "fallback"}), PEAKS))
    assert drawn["gemm, ok (1)"].marker.symbol == "circle"
    assert drawn["gemm, fallback (1)"].marker.symbol == "square-open"


def test_the_heaviest_point_is_the_largest():
    drawn = named(roofline.roofline(frame({"weight": 0.01}, {"weight": 1.0}), PEAKS))
    assert list(drawn["gemm, ok (2)"].marker.size) == pytest.approx([8.9, 26.0])


def test_times_stand_above_the_memory_roof_and_the_launch_floor():
    drawn = named(roofline.time_by_size(frame(), PEAKS, {"torch": 5_000}))
    roof = drawn["memory roof, measured: 1.00 TB/s"]
    assert list(roof.x) == [5e5, 2e6]
    assert list(roof.y) == [0.5, 2.0]
    assert list(drawn["launch floor, torch: 5.00 µs"].y) == [5.0, 5.0]


def test_a_map_marks_failures_and_doubts_and_leaves_gaps_empty():
    cells = frame(
        {"rows": "64", "width": "8"},
        {"rows": "128", "width": "8", "outcome": "inconclusive", "s": None},
        {"rows": "128", "width": "16", "outcome": "incorrect", "s": 0.0},
        {"rows": "9", "width": "16", "s": 0.25, "weight": 3.0},
        {"rows": "9", "width": "16", "s": 0.75, "weight": 1.0},
    )
    heat_map = roofline.share_map(cells, "rows", "width").data[0]
    assert list(heat_map.x) == ["9", "64", "128"]
    assert list(heat_map.y) == ["8", "16"]
    assert [list(row) for row in heat_map.text] == [
        ["", "0.50", "untimed ?"],
        ["0.38", "", "✕ incorrect"],
    ]


def test_foreign_text_is_escaped():
    hostile = "<img src=x onerror=alert(1)>"
    figure = roofline.roofline(
        frame({"label": hostile, "baseline": hostile}), PEAKS, baselines=True
    )
    assert hostile not in figure.to_json()
