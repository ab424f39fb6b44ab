import os
import resource
import signal
import subprocess
import sys

import msgspec
import pytest

from atrex.errors import DataError, SetupError, UsageError
from atrex.model import Outcome
from atrex.store import Store, new_run_id

ENDLESS_WRITER = """
import sys
from pathlib import Path
import msgspec
from atrex.model import Measurement, Run
from atrex.store import Store

folder, run, measurement = sys.argv[1:]
writer = Store(Path(folder)).start_run(msgspec.json.decode(run, type=Run))
measurement = msgspec.json.decode(measurement, type=Measurement)
attempt = 0
while True:
    attempt += 1
    writer.append(msgspec.structs.replace(measurement, attempt=attempt))
    print(attempt, flush=True)
"""


def start_endless_writer(store, run, measurement):
    return subprocess.Popen(
        [sys.executable, "-c", ENDLESS_WRITER, str(store.path),
         msgspec.json.encode(run).decode(), msgspec.json.encode(measurement).decode()],
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def journal_of(store, run):
    return store.path / "runs" / run.run / "measurements.jsonl"


def write(store, run, measurements, status="complete"):
    with store.start_run(run) as writer:
        for measurement in measurements:
            writer.append(measurement)
        writer.finish(["5ecre7"], status)


def test_reads_back_what_was_written_before_and_after_compaction(store, records):
    run = records.run()
    written = [records.measured(run, 2), records.failed(run, 1), records.measured(run, 3)]
    with store.start_run(run) as writer:
        for measurement in written:
            writer.append(measurement)
        assert store.measurements(run.run) == written
        assert journal_of(store, run).exists()
        writer.finish(["5ecre7"], "complete")
    assert not journal_of(store, run).exists()
    assert store.measurements(run.run) == written


def test_publishes_the_seed_only_when_the_run_ends(store, records):
    with store.start_run(records.run()) as writer:
        assert store.runs()[0].seed == ()
        writer.finish(["5ecre7"], "complete")
    ended = store.run(records.run().run)
    assert (ended.seed, ended.seed_sha, ended.status) == (("5ecre7",), ("5eed",), "complete")


def test_a_killed_writer_loses_no_acknowledged_record_and_doubles_none(store, records):
    run = records.run()
    process = start_endless_writer(store, run, records.measured(run, 1, samples=2000))
    acknowledged = [int(process.stdout.readline()) for _ in range(40)][-1]
    process.send_signal(signal.SIGKILL)
    acknowledged = max([acknowledged, *map(int, process.stdout.read().split())])
    process.wait()
    attempts = [m.attempt for m in store.journal(run.run).attempts]
    assert attempts == list(range(1, len(attempts) + 1))
    assert acknowledged <= len(attempts) <= acknowledged + 1
    with store.resume_run(run.run, "5eed2") as writer:  # the lock died with its holder
        assert writer.done() == {("c0ffee", records.workload(1).id)}


def test_a_torn_last_line_is_left_out_counted_and_removed_on_resume(store, records):
    run = records.run()
    with store.start_run(run) as writer:
        writer.append(records.measured(run, 1))
    with journal_of(store, run).open("ab") as file:
        file.write(b'{"run":"2026')
    journal = store.journal(run.run)
    assert (len(journal.attempts), journal.torn_bytes) == (1, 12)
    with store.resume_run(run.run, "5eed2") as writer:
        assert writer.torn_bytes == 12
        writer.append(records.measured(run, 2))
    journal = store.journal(run.run)
    assert [m.workload.axes["rows"] for m in journal.attempts] == [1, 2]
    assert journal.torn_bytes == 0


def test_a_damaged_line_in_the_middle_is_named(store, records):
    run = records.run()
    with store.start_run(run) as writer:
        writer.append(records.measured(run, 1))
    with journal_of(store, run).open("ab") as file:
        file.write(b'{"run": 3}\n')
    with pytest.raises(DataError) as caught:
        store.measurements(run.run)
    assert caught.value.where.endswith("measurements.jsonl:2")


def test_of_repeated_attempts_the_last_counts(store, records):
    run = records.run()
    first, second = records.failed(run, 1), records.measured(run, 1, attempt=2)
    write(store, run, [first, records.measured(run, 2), second])
    journal = store.journal(run.run)
    assert journal.duplicates == 1
    assert [(m.workload.axes["rows"], m.outcome) for m in journal.latest] == [
        (1, Outcome.OK),
        (2, Outcome.OK),
    ]


def test_resuming_knows_what_is_done_and_adds_the_new_seed(store, records):
    run = records.run()
    write(store, run, [records.measured(run, 1)], status="interrupted")
    assert journal_of(store, run).exists()
    with store.resume_run(run.run, "5eed2") as writer:
        assert writer.done() == {("c0ffee", records.workload(1).id)}
        writer.append(records.measured(run, 2))
        writer.finish(["5ecre7-2"], "complete")
    ended = store.run(run.run)
    assert ended.seed_sha == ("5eed", "5eed2")
    assert ended.seed == ("5ecre7", "5ecre7-2")
    assert len(store.measurements(run.run)) == 2


def test_a_complete_run_is_not_resumed(store, records):
    write(store, records.run(), [])
    with pytest.raises(UsageError, match="complete"):
        store.resume_run(records.run().run, "5eed2")


def test_a_second_writer_of_a_run_is_refused(store, records):
    run = records.run()
    with (
        store.start_run(run),
        pytest.raises(UsageError, match="being written by another process"),
    ):
        store.resume_run(run.run, "5eed2")
    store.resume_run(run.run, "5eed2").close()


def test_a_run_id_is_used_once(store, records):
    write(store, records.run(), [])
    with pytest.raises(UsageError, match="exists"):
        store.start_run(records.run())


def test_an_unknown_run_names_those_that_are_close(store, records):
    write(store, records.run("20260101T000000000-aaaaaa"), [])
    write(store, records.run("20260102T000000000-bbbbbb"), [])
    assert store.run("20260101").run == "20260101T000000000-aaaaaa"
    assert store.run("last").run == "20260102T000000000-bbbbbb"
    with pytest.raises(UsageError) as caught:
        store.run("20260102T000000000-bbbbbc")
    assert "Did you mean 20260102T000000000-bbbbbb" in caught.value.remedy
    with pytest.raises(UsageError, match="several runs begin with '2026'"):
        store.run("2026")


def test_a_run_id_cannot_leave_the_store(store, records):
    with pytest.raises(UsageError, match="cannot name a run"):
        store.start_run(records.run("../outside"))


def test_a_reader_beside_a_writer_sees_whole_records_in_order(store, records):
    run = records.run()
    process = start_endless_writer(store, run, records.measured(run, 1, samples=200))
    process.stdout.readline()
    seen = []
    for _ in range(10):
        attempts = [m.attempt for m in store.journal(run.run).attempts]
        assert attempts == list(range(1, len(attempts) + 1))
        seen.append(len(attempts))
    process.kill()
    process.communicate()
    assert seen == sorted(seen)
    assert seen[0] >= 1


def test_queries_beside_a_writer_see_a_growing_run(store, records):
    run = records.run()
    process = start_endless_writer(store, run, records.measured(run, 1, samples=200))
    process.stdout.readline()
    seen = []
    for _ in range(5):
        ((count, last),) = store.query("select count(*), max(attempt) from measurement").rows
        assert count == last
        seen.append(count)
        process.stdout.readline()
    process.kill()
    process.communicate()
    assert seen == sorted(seen)
    assert seen[0] >= 1


def test_compaction_killed_before_the_journal_was_removed_is_finished_later(store, records):
    run = records.run()
    with store.start_run(run) as writer:
        writer.append(records.measured(run, 1))
        content = journal_of(store, run).read_bytes()
        writer.finish([], "complete")
    journal_of(store, run).write_bytes(content)
    assert len(store.measurements(run.run)) == 1
    assert store.compact() == 1
    assert not journal_of(store, run).exists()
    assert store.compact() == 0


def test_a_full_disk_leaves_the_journal_as_it_was(store, records):
    run = records.run()
    with store.start_run(run) as writer:
        writer.append(records.measured(run, 1))
        size = journal_of(store, run).stat().st_size
        old = resource.getrlimit(resource.RLIMIT_FSIZE)
        ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, old[1]))
        try:
            with pytest.raises(SetupError, match="cannot write"):
                writer.append(records.measured(run, 2))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            signal.signal(signal.SIGXFSZ, ignored)
        assert journal_of(store, run).stat().st_size == size
        writer.append(records.measured(run, 3))
    assert [m.workload.axes["rows"] for m in store.measurements(run.run)] == [1, 3]


def test_new_run_ids_sort_by_time_and_differ():
    ids = [new_run_id() for _ in range(100)]
    assert len(set(ids)) == 100
    assert [name[:18] for name in ids] == sorted(name[:18] for name in ids)


def test_a_run_is_written_without_polars_or_duckdb_and_compacted_elsewhere(tmp_path, records):
    code = """
import sys
sys.modules["polars"] = sys.modules["duckdb"] = None
from pathlib import Path
import msgspec
from atrex.model import Measurement, Run
from atrex.store import Store
with Store(Path(sys.argv[1])).start_run(msgspec.json.decode(sys.argv[2], type=Run)) as writer:
    writer.append(msgspec.json.decode(sys.argv[3], type=Measurement))
    writer.finish(["5ecre7"], "complete")
"""
    run = records.run()
    arguments = [msgspec.json.encode(record) for record in (run, records.measured(run, 1))]
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "store"), *arguments], check=True)
    store = Store(tmp_path / "store")
    assert journal_of(store, run).exists()
    assert store.compact() == 1
    assert store.measurements(run.run) == [records.measured(run, 1)]


def test_a_run_of_a_newer_atrex_is_refused(store, records):
    run = records.run()
    write(store, run, [])
    header = store.path / "runs" / run.run / "run.json"
    header.write_bytes(header.read_bytes().replace(b'"schema_version":1', b'"schema_version":99'))
    with pytest.raises(DataError, match="schema version 99 is newer than 1"):
        store.runs()


def test_a_torn_header_is_refused(store, records):
    run = records.run()
    write(store, run, [])
    header = store.path / "runs" / run.run / "run.json"
    os.truncate(header, 20)
    with pytest.raises(DataError, match="torn or foreign"):
        store.run(run.run)
