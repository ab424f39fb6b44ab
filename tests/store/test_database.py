import os
import shutil
import tempfile
import time
from pathlib import Path

import msgspec
import pytest

from atrex.errors import DataError, UsageError
from atrex.model import Outcome
from atrex.store import Store
from atrex.store.database import build, state

TABLES = ("environment", "run", "candidate", "workload", "shape", "measurement", "sample", "score")


def write(store, run, measurements, status="complete"):
    with store.start_run(run) as writer:
        for measurement in measurements:
            writer.append(measurement)
        writer.finish(["5ecre7"], status)


@pytest.fixture
def filled(store, records):
    run = records.run()
    again = records.measured(run, 1, attempt=2, time_ns=500)
    write(store, run, [records.measured(run, 1), records.failed(run, 2), again])
    return store


def content(store):
    with store.open() as reader:
        return {table: reader.query(f"from {table} order by all").rows for table in TABLES}


def test_holds_what_was_measured(filled):
    table = filled.query(
        "select outcome, kind, time_ns, s, samples, weight, phase, axes from latest_measurement "
        "order by axes"
    )
    assert table.columns == ["outcome", "kind", "time_ns", "s", "samples", "weight", "phase",
                             "axes"]  # fmt: skip
    assert table.rows == [
        ("ok", "", 500, 0.8, 8, 0.1, "decode", '{"rows":1,"eps":"1e-6"}'),
        ("incorrect", "value", None, 0.0, 0, 0.2, "decode", '{"rows":2,"eps":"1e-6"}'),
    ]
    assert not table.truncated


def test_unnests_samples_by_arm_and_block(filled):
    table = filled.query("select arm, i, block, ns from sample where attempt = 2 order by all")
    assert table.rows[:3] == [("baseline", 0, 0, 1000), ("baseline", 1, 0, 1001),
                              ("baseline", 2, 1, 1002)]  # fmt: skip
    assert table.rows[8] == ("candidate", 0, 0, 500)
    assert len(table.rows) == 16


def test_weights_of_a_run_sum_to_one(filled):
    assert filled.query("select sum(weight) from shape group by run").rows == [(1.0,)]


def test_an_empty_store_has_every_view(store):
    with store.open() as reader:
        names = [name for (name,) in reader.query("show tables").rows]
        assert {name: reader.read(name).height for name in names if name != "built"} == {
            name: 0 for name in names if name != "built"
        }
    assert {"latest_measurement", "gpu_time", "funnel", "peak", "score"} <= set(names)


def test_a_running_run_and_a_torn_tail_are_included(store, records):
    run = records.run()
    with store.start_run(run) as writer:
        writer.append(records.measured(run, 1))
        with (store.path / "runs" / run.run / "measurements.jsonl").open("ab") as file:
            file.write(b'{"run":')
        assert store.query("select status, torn_bytes from run").rows == [("running", 7)]
        assert store.query("select count(*) from measurement").rows == [(1,)]


def test_a_compacted_run_gives_the_same_rows_as_its_journal(store, records):
    run = records.run()
    with store.start_run(run) as writer:
        for measurement in (records.measured(run, 2), records.failed(run, 1)):
            writer.append(measurement)
        before = content(store)
        writer.finish([], "complete")
    after = content(store)
    assert after["measurement"] == before["measurement"]
    assert after["sample"] == before["sample"]


def test_rebuilding_gives_an_equal_database(filled):
    before = content(filled)
    filled.database().unlink()
    assert content(filled) == before


def test_is_rebuilt_only_when_a_file_changed(filled, records):
    path = filled.database()
    first = path.stat().st_ino
    assert filled.database().stat().st_ino == first
    write(filled, records.run("20260102T000000000-000002"), [])
    assert filled.database().stat().st_ino != first
    assert filled.query("select count(*) from run").rows == [(2,)]


def test_a_torn_database_is_built_anew(filled):
    path = filled.database()
    os.truncate(path, 1000)
    assert filled.query("select count(*) from run").rows == [(1,)]


def test_leftovers_of_a_killed_builder_are_removed(filled):
    left = filled.path / ".atrex.duckdb.0123456789ab"
    left.write_bytes(b"half a database")
    filled.database()
    assert not left.exists()


def test_an_open_reader_keeps_its_view_while_the_database_is_replaced(filled, records):
    with filled.open() as reader:
        write(filled, records.run("20260102T000000000-000002"), [])
        assert filled.query("select count(*) from run").rows == [(2,)]
        assert reader.query("select count(*) from run").rows == [(1,)]


def test_a_copied_store_that_cannot_be_written_is_still_read(filled):
    # outside pytest's folders, which only their owner may enter
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        shutil.copytree(filled.path, place / "copy", ignore=shutil.ignore_patterns("*.duckdb"))
        for path in (place, place / "copy", *(place / "copy").rglob("*")):
            path.chmod(0o555 if path.is_dir() else 0o444)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # nobody: permissions do not bind root
        try:
            copy = Store(place / "copy")
            assert copy.query("select count(*) from measurement").rows == [(3,)]
            assert copy.database().parent != copy.path
            shutil.rmtree(copy.database().parent)
        finally:
            os.seteuid(user)
            place.chmod(0o755)
            (place / "copy").chmod(0o755)


@pytest.mark.parametrize(
    "query",
    [
        "delete from run",
        "create table more as select 1",
        "create temp table more as select 1",
        "copy run to 'out.csv'",
        "attach '/tmp/other.duckdb'",
        "set threads = 1",
        "install httpfs",
        "select 1; select 2",
        "",
        "begin",
    ],
)
def test_a_statement_that_does_not_only_read_is_refused(filled, query):
    with pytest.raises(UsageError, match="only one statement that reads"):
        filled.query(query)


@pytest.mark.parametrize(
    "query",
    [
        "from read_csv('/etc/passwd')",
        "from '/etc/passwd'",
        "from glob('/*')",
        "from read_text('/etc/hostname')",
        "from read_csv('https://example.com/x.csv')",
    ],
)
def test_nothing_outside_the_database_can_be_read(filled, query):
    with pytest.raises(UsageError):
        filled.query(query)


def test_a_wrong_query_shows_the_database_s_message(filled):
    with pytest.raises(UsageError, match="Did you mean"):
        filled.query("from mesurement")
    with pytest.raises(UsageError, match="syntax error"):
        filled.query("selec 1")


def test_rows_beyond_the_limit_are_left_out_and_said(filled):
    table = filled.query("from range(5)", limit=3)
    assert (table.rows, table.truncated) == ([(0,), (1,), (2,)], True)
    table = filled.query("from range(3)", limit=3)
    assert (len(table.rows), table.truncated) == (3, False)


def test_a_query_that_takes_too_long_is_stopped(filled):
    with pytest.raises(UsageError, match=r"longer than 0\.2 s"):
        filled.query("select count(*) from range(1000000) a, range(1000000) b "
                     "where (a.range * b.range) % 7 = 3", seconds=0.2)  # fmt: skip


def test_reads_views_and_queries_as_frames(filled):
    assert filled.read("candidate")["candidate"].to_list() == ["fast"]
    frame = filled.read("select outcome from measurement where time_ns > $1", [600])
    assert frame["outcome"].to_list() == ["ok"]
    frame = filled.read("select $a as a", {"a": 3})
    assert frame["a"].to_list() == [3]


def test_a_damaged_run_is_named(filled):
    path = next(filled.path.glob("runs/*/measurements.parquet"))
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(DataError) as caught:
        filled.database()
    assert caught.value.where == str(path)


def test_an_update_takes_over_unchanged_runs_and_equals_a_full_build(filled, records, tmp_path):
    filled.database()
    live = records.run("20260102T000000000-000002")
    with filled.start_run(live) as writer:
        for rows in (3, 1):
            writer.append(records.measured(live, rows))
            filled.database()
        writer.finish([], "complete")
    updated = content(filled)
    filled.database().unlink()
    assert content(filled) == updated
    assert len(updated["measurement"]) == 5


def test_a_run_that_ended_has_its_score(filled):
    table = filled.query("select candidate, candidate_sha, score, coverage, outcomes from score")
    ((candidate, sha, score, coverage, outcomes),) = table.rows
    assert (candidate, sha, outcomes) == ("fast", "c0ffee", '{"ok":1,"incorrect":1}')
    assert score == pytest.approx(0.1 * 0.8)  # weight 100 of 1000, and S
    assert coverage == pytest.approx(0.3)


def test_a_run_that_was_removed_disappears(filled, records):
    write(filled, records.run("20260102T000000000-000002", rows=(7, 8)), [])
    filled.database()
    shutil.rmtree(filled.path / "runs" / "20260102T000000000-000002")
    updated = content(filled)
    filled.database().unlink()
    assert content(filled) == updated
    assert len(updated["workload"]) == 4


@pytest.mark.slow
def test_fifty_thousand_measurements_are_built_and_read(store, records, tmp_path):
    workloads = tuple(range(1, 1001))
    for number in range(50):
        run = records.run(f"20260101T000000000-{number:06d}", rows=workloads)
        lines = [
            # inconclusive, so that the score's interval needs no resampling
            msgspec.json.encode(
                records.measured(run, rows, outcome=Outcome.INCONCLUSIVE, samples=20)
            )
            for rows in workloads
        ]
        with store.start_run(run) as writer:
            # in one write: the time of 50,000 separate ones is the disk's
            journal = store.path / "runs" / run.run / "measurements.jsonl"
            journal.write_bytes(b"\n".join(lines) + b"\n")
            writer.finish([], "complete")
    begun = time.perf_counter()
    build(store.path, tmp_path / "large.duckdb", state(store.path))
    print(f"50,000 measurements: built in {time.perf_counter() - begun:.2f} s")
    store.database()
    begun = time.perf_counter()
    frame = store.read("select outcome, count(*) as n from latest_measurement group by all")
    print(f"read in {time.perf_counter() - begun:.3f} s")
    assert frame.rows() == [("inconclusive", 50_000)]
