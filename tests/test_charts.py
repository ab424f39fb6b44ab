import polars as pl
import pytest

from atrex import charts

HOSTILE = "<img src=x onerror=alert(1)>"


def time_map(**changes):
    rows = [
        {"phase": "prefill", "operator": "norm", "label": "rows 8", "gpu_ns": 3_000_000,
         "calls": 3, "time_source": "measured", "s": 0.5},
        {"phase": "prefill", "operator": "norm", "label": "rows 9", "gpu_ns": 1_000_000,
         "calls": 1, "time_source": "modelled", "s": None},
        {"phase": "decode", "operator": "gemm", "label": "axes unknown", "gpu_ns": 4_000_000,
         "calls": 2, "time_source": "measured", "s": None},
    ]  # fmt: skip
    return pl.DataFrame([{**row, **changes} for row in rows])


def nodes(figure):
    tree = figure.data[0]
    names = [name.rpartition("\x1f")[2] for name in tree.ids]
    return {name: i for i, name in enumerate(names)}, tree


def test_the_area_of_a_tile_is_the_time_of_all_that_it_holds():
    place, tree = nodes(charts.time_treemap(time_map()))
    assert tree.branchvalues == "total"
    assert {name: tree.values[i] for name, i in place.items()} == {
        "GPU time": 8_000_000, "prefill": 4_000_000, "decode": 4_000_000, "norm": 4_000_000,
        "gemm": 4_000_000, "rows 8": 3_000_000, "rows 9": 1_000_000, "axes unknown": 4_000_000,
    }  # fmt: skip


def test_a_tile_without_a_measurement_is_grey_hatched_and_says_so():
    place, tree = nodes(charts.time_treemap(time_map()))
    measured, unmeasured = place["rows 8"], place["rows 9"]
    assert tree.marker.colors[unmeasured] == charts.UNMEASURED
    assert tree.marker.pattern.shape[unmeasured] == "/"
    assert tree.text[unmeasured] == "1.00 ms · 12.5 %<br>not measured"
    assert tree.marker.pattern.shape[measured] == ""
    assert tree.text[measured] == "3.00 ms · 37.5 %<br>S 0.500"


def test_an_operator_shows_the_share_of_its_measured_time_and_how_much_that_is():
    place, tree = nodes(charts.time_treemap(time_map()))
    assert "Share of roofline 0.500, measured for 75.0 % of it" in tree.hovertext[place["norm"]]
    assert "time measured and modelled" in tree.hovertext[place["norm"]]


@pytest.mark.parametrize(
    ("s", "colour"),
    [(0.0, "rgb(194, 87, 26)"), (0.65, "rgb(180, 200, 207)"), (1.0, "rgb(31, 106, 165)")],
)
def test_the_colour_of_a_tile_runs_from_orange_to_blue(s, colour):
    place, tree = nodes(charts.time_treemap(time_map(s=s)))
    assert tree.marker.colors[place["rows 8"]] == colour


def test_tiles_of_one_name_in_two_phases_stay_apart():
    frame = pl.concat([time_map(), time_map(phase="other")])
    tree = charts.time_treemap(frame).data[0]
    assert len(set(tree.ids)) == len(tree.ids)
    assert set(tree.parents) - {""} <= set(tree.ids)


def test_foreign_names_are_escaped_wherever_plotly_reads_html():
    treemap = charts.time_treemap(time_map(operator=HOSTILE, label=HOSTILE))
    shares = charts.share_of_roofline(measurements(label=HOSTILE))
    for figure in (treemap, shares):
        assert "<img" not in figure.to_json().replace("\\u003c", "<")


def test_the_funnel_goes_from_all_time_to_complete_shapes():
    frame = pl.DataFrame(
        {
            "level": ["shaped", "gpu", "attributed", "launched"],
            "gpu_ns": [60_000, 100_000, 80_000, 90_000],
            "share": [0.6, 1.0, 0.8, 0.9],
        }
    )
    bars = charts.coverage_funnel(frame).data[0]
    assert list(bars.y) == [
        "All GPU time", "With its launch", "Operator or class known", "All axes known",
    ]  # fmt: skip
    assert list(bars.x) == [1.0, 0.9, 0.8, 0.6]
    assert bars.text[-1] == "60.0 % · 60.0 µs"


def test_outcomes_are_told_by_name_and_pattern_besides_colour():
    frame = pl.DataFrame(
        {
            "outcome": ["ok", "out_of_memory", "not judged"],
            "workloads": [2, 1, 3],
            "weight": [0.5, 0.2, 0.3],
        }
    )
    figure = charts.outcomes(frame)
    assert [bar.name for bar in figure.data] == ["ok (2)", "out of memory (1)", "not judged (3)"]
    assert [bar.x[0] for bar in figure.data] == [0.5, 0.2, 0.3]
    assert [bar.marker.pattern.shape for bar in figure.data] == ["", "x", ""]


def measurements(**changes):
    rows = [
        {"workload": "a.1", "label": "norm, rows 8", "outcome": "ok", "s": 0.8, "s_low": 0.75,
         "s_high": 0.9, "weight": 0.5, "time_ns": 1000, "sol_ns": 800, "n": 60},
        {"workload": "a.2", "label": "norm, rows 9", "outcome": "incorrect", "s": 0.0,
         "s_low": None, "s_high": None, "weight": 0.1, "time_ns": None, "sol_ns": None, "n": 0},
    ]  # fmt: skip
    return pl.DataFrame([{**row, **changes} for row in rows])


def test_each_workload_has_its_share_with_its_interval():
    ok, incorrect = charts.share_of_roofline(measurements()).data
    assert (list(ok.x), list(ok.y)) == ([0.8], ["norm, rows 8"])
    assert ok.error_x.array[0] == pytest.approx(0.1)
    assert ok.error_x.arrayminus[0] == pytest.approx(0.05)
    assert (incorrect.name, incorrect.marker.symbol, list(incorrect.x)) == ("incorrect", "x", [0.0])
    assert "time 1.00 µs, attainable 800 ns, n = 60" in ok.hovertext[0]
    assert "S 0.000 –" in incorrect.hovertext[0]


def test_a_point_carries_the_id_that_a_click_returns():
    figure = charts.share_of_roofline(measurements())
    assert [trace.customdata[0] for trace in figure.data] == ["a.1", "a.2"]


def arms(candidate, baseline):
    return pl.DataFrame(
        {
            "arm": ["candidate"] * len(candidate) + ["baseline"] * len(baseline),
            "i": [*range(len(candidate)), *range(len(baseline))],
            "ns": [*candidate, *baseline],
        }
    )


def test_the_histogram_counts_every_sample_of_both_arms():
    figure = charts.sample_histogram(arms([1000, 1000, 1100], [2000, 2100]))
    candidate, baseline = figure.data
    assert (sum(candidate.y), sum(baseline.y)) == (3, 2)
    assert (candidate.name, baseline.name) == ("candidate (n = 3)", "baseline (n = 2)")
    assert figure.layout.xaxis.title.text == "Time of a call, µs"
    assert [note.text for note in figure.layout.annotations] == ["median 1.00 µs", "median 2.05 µs"]


def test_an_interruption_of_the_host_does_not_squeeze_the_histogram():
    figure = charts.sample_histogram(arms([1000] * 50 + [1010] * 50, [1100] * 99 + [90_000_000]))
    assert max(figure.data[1].x) < 2.0  # µs
    assert sum(figure.data[1].y) == 100
    assert "1 beyond it too" in figure.layout.xaxis.title.text


def test_samples_stand_in_the_order_they_were_taken():
    candidate, baseline = charts.sample_order(arms([1000, 3000, 2000], [4000])).data
    assert (list(candidate.x), list(candidate.y)) == ([0, 1, 2], [1.0, 3.0, 2.0])
    assert candidate.marker.symbol != baseline.marker.symbol


def test_very_many_samples_are_drawn_as_medians_of_neighbours_and_that_is_said():
    figure = charts.sample_order(arms([1000, 3000, 2000] * 2000, [5000]))
    candidate = figure.data[0]
    assert candidate.name == "candidate, medians of 3 neighbours"
    assert (len(candidate.y), set(candidate.y)) == (2000, {2.0})


def test_very_long_calls_are_shown_in_milliseconds():
    figure = charts.sample_order(arms([200_000_000], [300_000_000]))
    assert figure.layout.yaxis.title.text == "Time of a call, ms"
    assert list(figure.data[0].y) == [200.0]
