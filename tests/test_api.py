"""The Python interface: what the commands do, without printing or exiting."""

import pytest

import atrex
from atrex import api
from atrex.errors import AtrexError, UsageError


def test_the_package_offers_the_functions_of_the_api_and_nothing_hides_them():
    assert atrex.__all__ == api.__all__
    for name in atrex.__all__:
        assert getattr(atrex, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        atrex.nothing  # noqa: B018  reading it is the test


def test_a_report_is_records_and_prints_nothing(store, records, capsys):
    run = records.run()
    with store.start_run(run) as writer:
        writer.append(records.measured(run, 1))
        writer.finish(["seed"], "complete")
    found = atrex.report("last", store=store.path)
    assert found.run.run == run.run
    assert [m.workload.axes["rows"] for m in found.measurements] == [1]
    assert [score.candidate for score in found.scores] == ["fast"]
    assert capsys.readouterr() == ("", "")


def test_a_query_gives_columns_and_rows(store):
    table = atrex.sql("select 1 as one, 'x' as letter", store=store.path)
    assert (table.columns, table.rows) == (["one", "letter"], [(1, "x")])


def test_operators_are_listed_with_shares_that_sum_to_one():
    listed = atrex.list_operators()
    assert {row["name"] for row in listed} >= {"rms_norm", "fused_add_rms_norm", "silu_and_mul"}
    assert sum(row["weight"] for row in listed) == pytest.approx(1)
    assert all("eager" in row["baselines"] for row in listed)


def test_an_operator_shows_its_mathematics_and_a_template():
    pytest.importorskip("torch")
    shown = atrex.show_operator("rms_norm")
    assert "sqrt(mean_i(x[r, i]^2) + eps)" in shown.definition
    assert "int run(const struct rms_norm_args *args)" in shown.template
    assert [(each.name, each.role) for each in shown.arguments] == [
        ("x", "in"), ("weight", "static"), ("out", "out"), ("eps", "attribute"),
        ("weight_offset", "attribute"),
    ]  # fmt: skip
    with pytest.raises(UsageError, match="no template in 'cobol'"):
        atrex.show_operator("rms_norm", backend="cobol")
    with pytest.raises(UsageError, match="no example of rms_norm in int4"):
        atrex.show_operator("rms_norm", dtype="int4")


@pytest.mark.parametrize(
    ("candidates", "options", "message"),
    [
        (["missing.py"], {}, "No such file"),
        ([], {}, "no candidate"),
        (["kernel.py"], {"device": "cuda"}, "CUDA"),
        (["kernel.py"], {"resume": "nothing"}, "no run"),
    ],
)
def test_errors_are_raised_with_a_remedy(tmp_path, candidates, options, message):
    pytest.importorskip("torch")
    (tmp_path / "kernel.py").write_text('OPERATOR = "rms_norm"\nBACKEND = "c"\n')
    with pytest.raises(AtrexError, match=message):
        atrex.score([tmp_path / name for name in candidates], store=tmp_path / "store", **options)
