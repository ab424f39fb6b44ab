import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import stores
from streamlit.testing.v1 import AppTest

from atrex.store import Store

APP = Path(__file__).parent.parent.parent / "dashboard" / "app.py"
PAGES = {"overview": "Overview", "roofline": "Roofline", "operators": "Operator", "run": "Run"}
KINDS = ("empty", "full", "torn", "large")
CHOSEN = f"{stores.C_SHA[:12]}.{stores.rms_norm(8).id}"


@pytest.fixture
def visit(monkeypatch):
    """Show a page of a store: ``visit(folder, "run", outcome="ok")``."""

    def show(folder, page="overview", **parameters):
        monkeypatch.setattr(sys, "argv", ["app.py", "--store", str(folder)])
        app = AppTest.from_file(APP, default_timeout=60)
        if page != "overview":
            app.run()
            app.switch_page(f"views/{page}.py")
        for name, value in parameters.items():
            app.query_params[name] = value
        return app.run()

    return show


def figures(app):
    return [json.loads(chart.proto.spec) for chart in app.get("plotly_chart")]


def metrics(app):
    return {metric.label: metric.value for metric in app.metric}


def said(app):
    """Everything a reader can read outside charts and tables."""
    kinds = (app.markdown, app.caption, app.code, app.error, app.warning, app.info)
    return "\n".join(element.value for kind in kinds for element in kind)


def box(app, label):
    return next(found for found in app.selectbox if found.label == label)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("page", PAGES)
def test_every_page_shows_every_kind_of_store(visit, store_of, page, kind):
    app = visit(store_of(kind), page)
    assert not app.exception
    assert not app.error
    assert app.title[0].value == PAGES[page]


@pytest.mark.parametrize("page", PAGES)
def test_an_empty_store_shows_the_command_that_fills_it(visit, store_of, page):
    app = visit(store_of("empty"), page)
    assert f"atrex demo --store {store_of('empty')}" in [code.value for code in app.code]
    assert not app.get("plotly_chart")


def test_a_store_that_is_not_there_is_not_made(visit, tmp_path):
    app = visit(tmp_path / "none")
    assert "There is no store" in app.info[0].value
    assert not (tmp_path / "none").exists()


def test_a_folder_of_something_else_is_an_error_with_a_remedy(visit, tmp_path):
    (tmp_path / "notes.txt").write_text("no store")
    app = visit(tmp_path)
    assert "not a store" in app.error[0].value
    assert str(tmp_path) in [code.value for code in app.code]
    assert not app.exception


def test_a_damaged_store_names_the_file(visit, tmp_path):
    folder = stores.full(tmp_path / "store")
    header = folder / "runs" / stores.RUN / "run.json"
    header.write_bytes(header.read_bytes()[:50])
    app = visit(folder)
    assert len(app.error) == 1
    assert str(header) in [code.value for code in app.code]


def test_the_overview_says_where_we_are_and_what_that_rests_on(visit, store_of):
    app = visit(store_of("full"))
    assert metrics(app) == {
        "Share of roofline": "0.392",  # 0.4 x 0.7 + 0.15 x 0.75
        "Selected shapes": "0.654",  # the same over 0.6
        "Coverage": "60.0 %",
        "Trace coverage": "12.0 %",
    }
    text = said(app)
    assert "95 % interval [0.392, 0.393]" in text
    assert "n = 3 of 5 workloads" in text
    assert "2 traces, 150 ms GPU time" in text
    assert "GPU time behind the weights: 100.0 % modelled." in text


def test_the_largest_gaps_come_first_and_in_words(visit, store_of):
    gaps = [text.value for text in visit(store_of("full")).markdown]
    assert gaps[0] == "**0.120**"
    assert "takes 1.00 ms" in gaps[1]
    assert "S = 0.700, over 40.0 % of production time (modelled)" in gaps[1]
    assert gaps[2] == "**0.050**"
    assert "is incorrect, so its 5.0 % of production time (modelled) counts as 0" in gaps[3]
    assert gaps[4] == "**0.037**"


def test_gpu_time_is_coloured_by_what_was_measured_in_that_environment(visit, store_of):
    tree = figures(visit(store_of("full")))[1]["data"][0]
    text = dict(zip(tree["ids"], tree["text"], strict=True))
    norm = next(value for key, value in text.items() if "rms_norm\x1frows 2048" in key)
    gemm = next(value for key, value in text.items() if "gemm_dense\x1frows 2048" in key)
    assert norm == "6.00 ms · 4.0 %<br>S 0.700"
    assert gemm == "75.0 ms · 50.0 %<br>not measured"


def test_a_filter_in_the_url_narrows_the_time_map(visit, store_of):
    app = visit(store_of("full"), trace=stores.TRACE, phase="decode")
    tree = figures(app)[1]["data"][0]
    assert tree["text"][0].startswith("33.0 ms · 100.0 %")
    assert (box(app, "Trace").value, box(app, "Phase").value) == (stores.TRACE, "decode")


def test_a_choice_is_kept_in_the_url(visit, store_of):
    app = visit(store_of("full"), "run")
    box(app, "Outcome").select("fallback").run()
    assert app.query_params["outcome"] in ("fallback", ["fallback"])
    assert app.dataframe[0].value["Candidate"].to_list() == ["torch_rms_norm"]


def test_an_unknown_value_in_the_url_is_reported(visit, store_of):
    app = visit(store_of("full"), "run", operator="softmax", run="yesterday")
    warnings = [warning.value for warning in app.warning]
    assert len(warnings) == 2
    assert "run “yesterday”" in warnings[0]
    assert "operator “softmax”" in warnings[1]
    assert box(app, "Operator").value == "all"


def test_a_run_lists_its_measurements_with_interval_n_and_baseline(visit, store_of):
    table = visit(store_of("full"), "run").dataframe[0].value
    first = table.iloc[0]
    assert table.shape[0] == 6
    assert first["Shape"] == "rows 2048"
    assert first[["Time, µs", "95 % low, µs", "95 % high, µs", "n"]].to_list() == [
        1000.0, 990.0, 1010.0, 60,
    ]  # fmt: skip
    assert first[["Baseline", "Baseline, µs", "Speed-up, ×", "S"]].to_list() == [
        "eager", 1900.0, 1.9, 0.7,
    ]  # fmt: skip
    assert first[["Stopped by", "Done by", "Weight is"]].to_list() == [
        "width", "own code (import rule)", "modelled",
    ]  # fmt: skip


def test_a_run_names_what_changed_since_the_run_before(visit, store_of):
    text = said(visit(store_of("full"), "run"))
    assert r"torch 2\.12\.0 → 2\.13\.0" in text
    assert "ab" * 32 in text
    assert (
        "atrex score operators/rms_norm/c_kernel.py operators/rms_norm/torch_rms_norm.py "
        "operators/silu_and_mul/c_kernel.py --quick"
    ) in text


def test_a_link_opens_one_measurement_and_foreign_text_stays_text(visit, store_of):
    app = visit(store_of("full"), "run", measurement=CHOSEN)
    text = said(app)
    assert box(app, "Measurement").value == CHOSEN
    assert r"\<img src\=x onerror\=alert\(1\)\> \[click\]\(http" in text
    assert "There are no samples" in text
    assert f"--shapes {stores.rms_norm(8).id} --device cpu" in text


def test_the_samples_of_both_arms_are_shown(visit, store_of):
    histogram, order = figures(visit(store_of("full"), "run"))[1:]
    assert [trace["name"] for trace in histogram["data"]] == [
        "candidate (n = 60)", "baseline (n = 60)",
    ]  # fmt: skip
    assert [trace["name"] for trace in order["data"]] == ["candidate", "baseline"]


def test_a_torn_run_says_that_it_is_unfinished_and_what_was_left_out(visit, store_of):
    app = visit(store_of("torn"), "run")
    warnings = " ".join(warning.value for warning in app.warning)
    assert f"atrex score --resume {stores.TORN_RUN}" in warnings
    assert "100 bytes are left out" in warnings
    assert app.dataframe[0].value.shape[0] == 1


def test_a_hundred_thousand_samples_are_drawn_with_few_points(visit, store_of):
    app = visit(store_of("large"), "run")
    shares, histogram, order = figures(app)
    assert "40 of 120 measurements" in said(app)
    assert len(shares["data"][0]["y"]) == 40
    assert histogram["data"][0]["name"] == "candidate (n = 50,000)"
    assert order["data"][0]["name"] == "candidate, medians of 25 neighbours"
    assert sum(len(chart.proto.spec) for chart in app.get("plotly_chart")) < 400_000


@pytest.mark.parametrize("page", PAGES)
def test_every_query_shown_runs_as_shown(visit, store_of, page):
    store = Store(store_of("full"))
    queries = [code.value for code in visit(store.path, page).code if code.language == "sql"]
    assert len(queries) >= 2
    for query in queries:
        assert store.query(query).rows


def test_a_copied_store_shows_the_same(visit, store_of, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(store_of("full"), copy, ignore=shutil.ignore_patterns("*.duckdb"))
    assert metrics(visit(copy)) == metrics(visit(store_of("full")))


def test_the_process_of_the_dashboard_never_loads_torch(store_of):
    script = f"""
import sys
sys.path.insert(0, {str(APP.parent)!r})
sys.argv = ["app.py", "--store", {str(store_of("full"))!r}]
from streamlit.testing.v1 import AppTest
app = AppTest.from_file({str(APP)!r}, default_timeout=60).run()
app.switch_page("views/run.py").run()
assert not app.exception and app.get("plotly_chart")
print([name for name in ("torch", "numba", "triton") if name in sys.modules])
"""
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert answer.stdout.strip() == "[]"


def traces(figure):
    return {trace.get("name", ""): trace for trace in figure["data"]}


def test_the_roofline_page_draws_points_below_measured_roofs(visit, store_of):
    app = visit(store_of("full"), "roofline")
    (figure,) = figures(app)
    drawn = traces(figure)
    assert "vector, measured: 60.0 GFLOP/s" in drawn
    assert drawn["vector, measured: 60.0 GFLOP/s"]["line"]["dash"] == "solid"
    assert "rms_norm, ok (2)" in drawn
    assert figure["layout"]["xaxis"]["type"] == "log"
    assert "fastest baseline" not in drawn
    assert "1 more ended untimed" in said(app)


def test_baselines_and_the_other_view_come_by_link(visit, store_of):
    app = visit(store_of("full"), "roofline", view="time", baselines="yes", operator="rms_norm")
    drawn = traces(figures(app)[0])
    assert "fastest baseline" in drawn
    assert "memory roof, measured: 21.0 GB/s" in drawn
    assert not any("silu" in name for name in drawn)


def test_what_the_interpreter_judged_is_counted_and_not_drawn_at_zero(visit, tmp_path):
    folder = stores.interpreted(tmp_path / "store")
    for page in ("roofline", "operators", "run"):
        app = visit(folder, page)
        assert not app.exception
        assert "interpreter" in said(app)
    assert not figures(visit(folder, "roofline"))
    shares = [f for f in figures(visit(folder, "run")) if "S = attainable" in json.dumps(f)]
    assert shares == []


def test_the_operator_page_shows_a_map_baselines_and_scaling(visit, store_of):
    app = visit(store_of("full"), "operators", operator="rms_norm", candidate=stores.C_SHA[:12])
    heat_map, scaling = figures(app)
    assert heat_map["data"][0]["type"] == "heatmap"
    marks = [text for row in heat_map["data"][0]["text"] for text in row]
    assert sorted(marks) == ["0.70", "0.75", "✕ incorrect"]
    assert "fastest baseline" in traces(scaling)
    table = next(each.value for each in app.dataframe if "eager, µs" in each.value.columns)
    assert table["eager, µs"].tolist()[0] == 1900.0
    assert table["compiled, µs"].tolist()[0] == 3800.0


def test_the_axes_of_the_map_are_chosen_by_the_link(visit, store_of):
    app = visit(store_of("full"), "operators", operator="rms_norm", x="dtype", y="rows")
    layout = figures(app)[0]["layout"]
    assert (layout["xaxis"]["title"]["text"], layout["yaxis"]["title"]["text"]) == ("dtype", "rows")
