"""`atrex shapes` on a store with a fleet, from the outside."""

import csv
import json

import polars as pl
import pytest
from typer.testing import CliRunner

from atrex import api, catalogue
from atrex.cli import shapes
from atrex.model import Deployment, Fleet, TraceSummary, Workload, canonical
from atrex.store import Store
from atrex.trace.schema import FACTS, UNATTRIBUTED

S = 10**9  # one second


def silu(rows):
    return Workload(operator="silu_and_mul", axes={"rows": rows, "width": 64}, dtype="bf16")


def add(store, trace, times):
    """Add a trace of the given seconds by rows of a workload."""
    facts = [
        {
            "operator": "silu_and_mul", "kind": "operator", "workload": silu(rows).id,
            "axes": canonical(silu(rows).axes).decode(), "dtype": "bf16", "trace": trace,
            "phase": "decode", "calls": 1, "kernels": 1, "gpu_ns": seconds * S,
            "rung": "op_exact", "time_source": "measured",
        }
        for rows, seconds in times.items()
    ]  # fmt: skip
    total = sum(times.values()) * S
    summary = TraceSummary(
        trace=trace, path=f"{trace}.json.gz", format="kineto", gpu="H100", events=1, kernels=1,
        gpu_ns=total, busy_ns=total, span_ns=total, launched_ns=total, attributed_ns=total,
        shaped_ns=total, rung_ns={}, trace_coverage=1.0, dropped={}, repaired={}, truncated=False,
    )  # fmt: skip
    store.add_trace(summary, pl.DataFrame(facts, schema=FACTS), pl.DataFrame(schema=UNATTRIBUTED))


def deployment(name, gpus, *traces):
    return Deployment(
        name=name, model="m", gpu="H100", gpus=gpus, hours_per_day=24,
        traces={trace: f"{trace}.json.gz" for trace in traces},
    )  # fmt: skip


@pytest.fixture
def store(tmp_path):
    """Long profiles of an idle deployment, a short one of a busy one, and one of neither."""
    store = Store(tmp_path / "store")
    add(store, "idle-0", {1: 100})
    add(store, "idle-1", {1: 200, 2: 100})
    add(store, "busy", {2: 1, 3: 1})
    add(store, "stray", {4: 5})
    return store


@pytest.fixture
def fleet(store):
    idle = deployment("idle", 1, "idle-0", "idle-1")
    store.set_fleet(Fleet(deployments=(idle, deployment("busy", 9, "busy"))))


@pytest.fixture
def run(store):
    def invoke(*arguments):
        arguments = [*map(str, arguments), "--store", str(store.path)]
        result = CliRunner().invoke(shapes.app, arguments, catch_exceptions=False)
        assert result.exit_code == 0
        return result

    return invoke


def rows_of(result):
    data = json.loads(result.stdout)["data"]
    return data, {row["axes"]["rows"]: row for row in data["shapes"]}


def test_traces_stand_for_their_own_time_without_a_fleet(run):
    data, rows = rows_of(run("list", "--weights", "store", "--json"))
    assert data["fleet"] is None
    assert rows[1]["weight"] == pytest.approx(300 / 407)
    assert (rows[1]["weight_traces"], rows[4]["weight_traces"]) == (4, 4)
    assert rows[1]["weight_low"] < 300 / 407 < rows[1]["weight_high"]


@pytest.mark.usefixtures("fleet")
def test_a_fleet_lets_a_busy_deployment_outweigh_a_long_profile(run):
    data, rows = rows_of(run("list", "--weights", "store", "--json"))
    # idle: 24 GPU h over 400 s; busy: 216 GPU h over 2 s
    assert {number: row["weight"] for number, row in rows.items()} == {
        1: pytest.approx(18 / 240), 2: pytest.approx(114 / 240), 3: pytest.approx(108 / 240),
    }  # fmt: skip
    assert rows[3]["gpu_ns"] == 108 * 3600 * S
    assert rows[1]["weight_low"] == pytest.approx(16 / 240)  # idle-1 twice
    assert rows[1]["weight_high"] == pytest.approx(24 / 240)  # idle-0 twice
    assert rows[1]["weight_traces"] == 2
    assert [rows[3][f"weight_{name}"] for name in ("low", "high", "traces")] == [None] * 3
    assert data["operators"] == [{
        "operator": "silu_and_mul", "weight": pytest.approx(1), "weight_low": pytest.approx(1),
        "weight_high": pytest.approx(1), "weight_traces": 2,
    }]  # fmt: skip


@pytest.mark.usefixtures("fleet")
def test_programs_are_told_of_the_fleet_and_of_what_it_leaves_out(run):
    answer = json.loads(run("list", "--weights", "store", "--json").stdout)
    assert answer["data"]["fleet"] == {
        "deployments": [
            {"name": "idle", "model": "m", "gpu": "H100", "gpus": 1, "hours_per_day": 24.0,
             "traces": 2, "factor": 216.0},
            {"name": "busy", "model": "m", "gpu": "H100", "gpus": 9, "hours_per_day": 24.0,
             "traces": 1, "factor": 388_800.0},
        ],
        "left_out": [{"trace": "stray", "path": "stray.json.gz", "gpu_ns": 5 * S}],
    }  # fmt: skip
    assert answer["warnings"] == [
        "left out, as no deployment of the fleet names them: stray.json.gz (5.00 s)",
        "deployments with one trace add nothing to the intervals of weights: busy",
    ]


@pytest.mark.usefixtures("fleet")
def test_people_see_the_fleet_its_hours_and_the_intervals(run):
    result = run("list", "--weights", "store")
    lines = result.stdout.splitlines()
    assert lines[0] == (
        "3 shapes, 240.00 h of GPU time a day (measured), "
        "weighed by a fleet of 2 deployments with 240 GPU hours a day"
    )
    assert "GPU time a day" in lines[1]
    assert "18.00 h" in result.stdout
    assert "[6.7 %, 10.0 %]" in result.stdout
    assert "warning: left out" in result.stderr


@pytest.mark.usefixtures("fleet")
def test_kernels_are_judged_by_the_weights_that_are_listed(run, store):
    _, rows = rows_of(run("list", "--weights", "store", "--json"))
    judged = catalogue.weights(api._catalogue("store", store.path, ()))
    assert judged == {row["id"]: row["weight"] for row in rows.values()}


@pytest.mark.usefixtures("fleet")
def test_a_fleet_can_be_ignored(run):
    data, rows = rows_of(run("list", "--weights", "store", "--no-fleet", "--json"))
    assert (data["fleet"], rows[1]["weight"]) == (None, pytest.approx(300 / 407))


@pytest.mark.usefixtures("fleet")
def test_the_bundled_catalogue_knows_no_intervals_and_no_fleet(run):
    data = json.loads(run("list", "--json").stdout)["data"]
    assert data["fleet"] is None
    assert {row["weight_low"] for row in data["shapes"]} == {None}
    assert {row["weight_traces"] for row in data["operators"]} == {None}
    assert "interval" not in run("list").stdout


@pytest.mark.usefixtures("fleet")
def test_a_shape_is_shown_with_its_interval(run):
    _, rows = rows_of(run("list", "--weights", "store", "--json"))
    arguments = ("show", rows[1]["id"], "--weights", "store")
    assert json.loads(run(*arguments, "--json").stdout)["data"] == rows[1]
    assert "[6.7 %, 10.0 %] of 2 traces" in run(*arguments).stdout


@pytest.mark.usefixtures("fleet")
def test_a_written_catalogue_holds_the_time_of_a_day(run, tmp_path):
    result = run("build", "--out", tmp_path / "out", "--json")
    with (tmp_path / "out" / "silu_and_mul.csv").open() as file:
        rows = {row["rows"]: int(row["gpu_ns"]) for row in csv.DictReader(file)}
    assert rows == {"1": 18 * 3600 * S, "2": 114 * 3600 * S, "3": 108 * 3600 * S}
    data = json.loads(result.stdout)["data"]
    assert [each["name"] for each in data["fleet"]["deployments"]] == ["idle", "busy"]
    assert "a day of a fleet of 2 deployments" in run("build", "--out", tmp_path / "out").stdout
    run("build", "--out", tmp_path / "own", "--no-fleet")
    assert (
        "1,64,bf16,decode,idle-1,2,300000000000"
        in (tmp_path / "own" / "silu_and_mul.csv").read_text()
    )
