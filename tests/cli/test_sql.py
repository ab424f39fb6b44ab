import json

import pytest
import typer
from typer.testing import CliRunner

from atrex.cli import report, sql

app = typer.Typer()
app.command("sql")(sql.command)
app.command("report")(report.command)


@pytest.fixture
def filled(store, records):
    run = records.run()
    with store.start_run(run) as writer:
        writer.append(records.measured(run, 1))
        writer.append(records.failed(run, 2))
        writer.finish(["5ecre7"], "complete")
    return store


@pytest.fixture
def atrex(filled):
    def call(*arguments):
        return CliRunner().invoke(app, [*arguments, "--store", str(filled.path)])

    return call


def test_prints_a_table(atrex):
    result = atrex("sql", "select outcome, time_ns from measurement order by outcome")
    assert result.exit_code == 0
    assert result.stdout.split() == ["outcome", "time_ns", "---------", "-------", "incorrect",
                                     "–", "ok", "1000"]  # fmt: skip


def test_answers_programs_with_columns_rows_and_whether_it_was_cut(atrex):
    query = "select range as n, 0.5 as half, null as gap from range(3)"
    result = atrex("sql", query, "--json", "--limit", "2")
    assert json.loads(result.stdout) == {
        "schema": "atrex.sql/1",
        "ok": True,
        "data": {
            "columns": ["n", "half", "gap"],
            "rows": [[0, 0.5, None], [1, 0.5, None]],
            "truncated": True,
        },
        "warnings": ["only the first 2 rows are shown; --limit shows more"],
    }


def test_numbers_that_json_cannot_hold_stay_numbers_or_become_null(atrex):
    query = "select 2::hugeint ** 70 as wide, 10::hugeint * 10 ** 20 as big, 'nan'::double as nan"
    result = atrex("sql", query, "--json")
    assert json.loads(result.stdout)["data"]["rows"] == [[2.0**70, 1e21, None]]


def test_a_wrong_query_exits_2_with_the_database_s_words(atrex):
    result = atrex("sql", "from nowhere")
    assert result.exit_code == 2
    assert "nowhere does not exist" in result.stderr
    assert result.stdout == ""


def test_a_write_exits_2(atrex, filled):
    result = atrex("sql", "drop table run", "--json")
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert (answer["ok"], answer["error"]["code"]) == (False, "usage")
    assert len(filled.runs()) == 1


def test_a_store_that_is_a_file_exits_4(tmp_path):
    (tmp_path / "file").write_text("x")
    result = CliRunner().invoke(app, ["sql", "from run", "--store", str(tmp_path / "file")])
    assert result.exit_code == 4


def test_a_store_that_is_not_there_exits_2_and_is_not_made(tmp_path):
    result = CliRunner().invoke(app, ["sql", "from run", "--store", str(tmp_path / "typo")])
    assert result.exit_code == 2
    assert not (tmp_path / "typo").exists()


def test_reports_a_run_as_text_markdown_and_json(atrex, records):
    name = records.run().run
    text = atrex("report", name).stdout
    assert text.startswith(f"atrex run {name}")
    assert "rows=1 eps=1e-6 bf16" in text
    markdown = atrex("report", "last", "--format", "md").stdout
    assert markdown.startswith(f"# atrex run {name}")
    assert "| norm | rows=1 eps=1e-6 bf16 | fast | ok | 1.00 µs |" in markdown
    answer = json.loads(atrex("report", name, "--json").stdout)
    assert answer["schema"] == "atrex.report/1"
    assert [m["outcome"] for m in answer["data"]["measurements"]] == ["ok", "incorrect"]
    assert answer["data"]["coverage"] == pytest.approx(0.3)


def test_an_unknown_run_exits_2_and_names_the_newest(atrex):
    result = atrex("report", "nonsense")
    assert result.exit_code == 2
    assert "The newest is 20260101T000000000-000001." in result.stderr
