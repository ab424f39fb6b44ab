import msgspec
import pytest

from atrex import reports
from atrex.model import Outcome, Score


@pytest.fixture
def run(records):
    return msgspec.structs.replace(
        records.run(), status="complete", seed=("5ecre7",), finished="2026-01-01T00:01:00+00:00"
    )


def score(**changes):
    values = {
        "run": "r", "candidate": "fast", "score": 0.08, "low": 0.07, "high": 0.09,
        "coverage": 0.3, "score_selected": 0.1, "with_fallbacks": 0.2, "weight_correct": 0.25,
        "outcomes": {"ok": 1},
    }  # fmt: skip
    return Score(**(values | changes))


def test_a_row_shows_time_interval_count_baseline_and_roofline(run, records):
    report = reports.report(run, [records.measured(run, 1)], [])
    assert dict(zip(report.columns, report.rows[0], strict=True)) == {
        "operator": "norm",
        "shape": "rows=1 eps=1e-6 bf16",
        "candidate": "fast",
        "outcome": "ok",
        "time": "1.00 µs",
        "95 % interval": "[990 ns, 1.01 µs]",
        "n": "8",
        "baseline": "eager",
        "baseline time": "2.00 µs",
        "speed-up": "2.00× ± 1.0 %",
        "of roofline": "80.0 %",
        "S": "0.800",
        "stop": "width",
    }


def test_a_failure_has_its_kind_and_reason_and_no_time(run, records):
    report = reports.report(run, [records.failed(run, 2)], [])
    row = dict(zip(report.columns, report.rows[0], strict=True))
    assert (row["outcome"], row["time"], row["n"]) == ("incorrect (value)", "–", "–")
    assert any(note.endswith("incorrect: out[0, 3] is off") for note in report.notes)


def test_what_was_only_interpreted_is_said_to_be_untimed(run, records):
    untimed = msgspec.structs.replace(
        records.failed(run, 1), outcome=Outcome.OK, kind="", reason="", method="interpreter", s=None
    )
    wrong = msgspec.structs.replace(records.failed(run, 2), method="interpreter")
    nothing = score(score=None, low=None, high=None, score_selected=None, with_fallbacks=None)
    report = reports.report(run, [untimed, wrong], [nothing])
    assert dict(report.header)["score of fast"] == (
        "none, nothing was timed; coverage 30.0 %; judged correct 25.0 % of the weight"
    )
    assert report.notes[1].startswith("1 workloads were judged in the interpreter on reduced")
    assert not any("Times are of this CPU" in note for note in report.notes)


def test_the_header_names_device_environment_seed_outcomes_and_score(run, records):
    header = dict(reports.report(run, [records.measured(run, 1)], [score()]).header)
    assert header["device"] == "Testor 9000, 2 cores (cpu, 2 cores)"
    assert header["environment"].startswith(f"{records.environment.id}: atrex 0.1.0, Python")
    assert header["seed"] == "5ecre7"
    assert header["outcomes"] == "1 ok"
    assert header["catalogue"] == "bundled, 4 of 4 shapes selected"
    assert header["score of fast"] == (
        "0.080 [0.070, 0.090], coverage 30.0 %; of the selected shapes 0.100; "
        "with fallbacks 0.200; judged correct 25.0 % of the weight"
    )


def test_a_seed_is_not_shown_before_the_run_ends(records):
    header = dict(reports.report(records.run(), [], []).header)
    assert header["seed"] == "not published yet; SHA-256 5eed"


def test_notes_say_what_is_measured_and_what_is_modelled(run):
    first, *rest = run.shapes
    modelled = msgspec.structs.replace(first, time_source="modelled")
    run = msgspec.structs.replace(run, shapes=(modelled, *rest))
    assert (
        "Weights: 90.0 % of the catalogue's GPU time is measured, 10.0 % modelled."
        in reports.report(run, [], []).notes
    )


def test_notes_say_what_counts_nothing(run, records):
    fallback = records.measured(run, 1, outcome=Outcome.FALLBACK)
    bound = msgspec.structs.replace(records.measured(run, 2), overhead_bound=True)
    notes = reports.report(run, [fallback, bound], []).notes
    assert "1 workloads fell back to a library; they count 0 in the score." in notes
    assert any(note.startswith("1 shapes are overhead-bound") for note in notes)


def test_a_reason_that_many_share_is_said_once(run, records):
    notes = reports.report(run, [records.failed(run, rows) for rows in (1, 2, 3)], []).notes
    first = records.workload(1).id
    assert notes[-1] == f"norm {first} and 2 more incorrect: out[0, 3] is off"


def test_foreign_text_cannot_colour_a_terminal_or_break_a_table(run, records):
    hostile = msgspec.structs.replace(
        records.failed(run, 2), candidate="a|b<script>`\x1b[31m\nrow", reason="\x1b[2J|"
    )
    report = reports.report(run, [hostile], [])
    assert "\x1b" not in reports.text(report)
    markdown = reports.markdown(report)
    assert "\x1b" not in markdown
    assert "a\\|b&lt;script>\\`" in markdown
    (line,) = (line for line in markdown.splitlines() if "rows=2" in line and "|" in line[:1])
    assert line.replace("\\|", "").count("|") == len(reports.COLUMNS) + 1


def test_text_aligns_numbers_to_the_right():
    assert reports.text_table(["name", "time"], [["a", "9.00 µs"], ["long", "10.0 µs"]]) == (
        "name     time\n"
        "----  -------\n"
        "a     9.00 µs\n"
        "long  10.0 µs"
    )  # fmt: skip


def test_a_table_without_rows_shows_its_columns():
    assert reports.text_table(["a", "b"], []) == "a  b\n-  -"


def test_programs_get_the_fields_of_the_contract(run, records):
    data = reports.answer(run, [records.measured(run, 1), records.failed(run, 2)], [score()])
    assert (data["run"], data["device"]) == (run.run, "Testor 9000, 2 cores")
    assert (data["score"], data["coverage"], data["score_selected"]) == (0.08, 0.3, 0.1)
    assert {
        "operator", "workload", "outcome", "reason", "method", "kernel_share", "attribution",
        "time_ns", "low_ns", "high_ns", "baseline", "baseline_ns", "sol_ns", "s", "samples",
        "peak_bytes", "baseline_peak_bytes",
    } <= set(data["measurements"][0])  # fmt: skip
    assert [m["samples"] for m in data["measurements"]] == [8, 0]
    assert msgspec.json.decode(msgspec.json.encode(data))["measurements"][1]["time_ns"] is None


def test_several_candidates_have_no_common_score(run):
    data = reports.answer(run, [], [score(), score(candidate="slow", score=0.01)])
    assert data["score"] is None
    assert [entry.candidate for entry in data["scores"]] == ["fast", "slow"]


def test_database_values_become_cells():
    assert [reports.plain(value) for value in (None, 1.5, 7, "x", [1, 2], True)] == [
        "–", "1.5", "7", "x", "[1,2]", "True",
    ]  # fmt: skip
