import polars as pl
import pytest

from atrex.errors import DataError
from atrex.model import (
    Candidate,
    CompiledLaunch,
    CompileReport,
    Deployment,
    Fleet,
    Peak,
    TraceSummary,
)
from atrex.store import files

SUMMARY = TraceSummary(
    trace="0123456789abcdef", path="t.json.gz", format="kineto", gpu="H100", events=10, kernels=3,
    gpu_ns=1000, busy_ns=900, span_ns=2000, launched_ns=1000, attributed_ns=900, shaped_ns=600,
    rung_ns={"dims": 600}, trace_coverage=0.6, dropped={}, repaired={}, truncated=False,
)  # fmt: skip
FACTS = pl.DataFrame(
    {
        "operator": ["norm", "gemm"], "kind": ["operator", "class"], "workload": ["aaa", ""],
        "axes": ['{"rows":1}', "{}"], "dtype": ["bf16", "unknown"],
        "trace": ["0123456789abcdef"] * 2, "phase": ["decode", "prefill"], "calls": [2, 1],
        "kernels": [2, 1], "gpu_ns": [600, 300], "rung": ["dims", "none"],
        "time_source": ["measured"] * 2,
    }
)  # fmt: skip
UNATTRIBUTED = pl.DataFrame(
    {"trace": ["0123456789abcdef"], "kernel": ["k<|>"], "class": ["other"], "op": [""],
     "dims": [""], "types": [""], "concrete": [""], "grid": [""], "block": [""], "calls": [1],
     "gpu_ns": [100]}
)  # fmt: skip


def content(store):
    return {path.name: path.read_bytes() for path in (store.path / "facts").iterdir()}


def test_a_trace_comes_back_as_it_was_added(store):
    assert store.add_trace(SUMMARY, FACTS, UNATTRIBUTED)
    assert store.traces() == [SUMMARY]
    assert store.facts().sort("gpu_ns", descending=True).equals(FACTS)
    assert store.unattributed().equals(UNATTRIBUTED)


def test_adding_the_same_trace_again_changes_nothing(store):
    store.add_trace(SUMMARY, FACTS, UNATTRIBUTED)
    before = content(store)
    assert not store.add_trace(SUMMARY, FACTS.reverse(), UNATTRIBUTED)
    assert content(store) == before


def test_a_changed_reading_replaces_the_old_one(store):
    store.add_trace(SUMMARY, FACTS, UNATTRIBUTED)
    assert store.add_trace(SUMMARY, FACTS.head(1), UNATTRIBUTED)
    assert store.facts().height == 1
    assert len(content(store)) == 3


def test_a_part_without_its_header_does_not_exist(store):
    store.add_trace(SUMMARY, FACTS, UNATTRIBUTED)
    (store.path / "facts" / "0123456789abcdef.json").unlink()
    assert store.traces() == []
    assert store.facts().height == 0


def test_an_empty_store_has_facts_with_columns(store):
    assert store.facts().columns == FACTS.columns
    assert store.unattributed().columns == UNATTRIBUTED.columns


def test_a_damaged_part_is_named(store):
    store.add_trace(SUMMARY, FACTS, UNATTRIBUTED)
    part = next((store.path / "facts").glob("*.facts-*.parquet"))
    part.write_bytes(part.read_bytes()[:100])
    with pytest.raises(DataError) as caught:
        store.facts()
    assert caught.value.where == str(part)


def fleet(*traces, gpus=4):
    chat = Deployment(
        name="chat", model="Qwen3-8B", gpu="H100", gpus=gpus, hours_per_day=12.0,
        traces={trace: f"{trace}.json" for trace in traces},
    )  # fmt: skip
    return Fleet(deployments=(chat,))


def test_a_fleet_comes_back_and_a_new_one_replaces_it(store):
    assert store.fleet() is None
    store.set_fleet(fleet("0123456789abcdef"))
    store.set_fleet(fleet("0123456789abcdef", gpus=8))
    assert store.fleet() == fleet("0123456789abcdef", gpus=8)
    assert [path.name for path in store.path.glob("*fleet*")] == ["fleet.json"]


def test_a_fleet_is_no_trace_and_changes_no_fact(store):
    store.add_trace(SUMMARY, FACTS, UNATTRIBUTED)
    store.set_fleet(fleet("0123456789abcdef"))
    assert store.traces() == [SUMMARY]
    assert store.facts().sort("gpu_ns", descending=True).equals(FACTS)


def test_the_database_holds_what_each_trace_of_a_fleet_stands_for(store):
    store.add_trace(SUMMARY, FACTS, UNATTRIBUTED)
    assert store.read("deployment").height == 0
    store.set_fleet(fleet("0123456789abcdef", "not ingested"))
    assert store.query("from deployment order by trace").rows == [
        # 48 GPU h over 1 µs of kernel time
        ("chat", "Qwen3-8B", "H100", 4, 12.0, "0123456789abcdef", 172_800_000_000.0),
        ("chat", "Qwen3-8B", "H100", 4, 12.0, "not ingested", None),
    ]


def test_a_fleet_without_ingested_traces_has_no_factors(store):
    store.set_fleet(fleet("not ingested"))
    assert store.query("select trace, factor from deployment").rows == [("not ingested", None)]


def test_a_damaged_fleet_is_named(store):
    store.set_fleet(fleet("0123456789abcdef"))
    (store.path / "fleet.json").write_text('{"schema_version": 1}')
    with pytest.raises(DataError, match="deployments") as caught:
        store.fleet()
    assert caught.value.where == str(store.path / "fleet.json")


def peak(pipe, value, kind="measured", device="Testor 9000, 2 cores"):
    return Peak(device=device, pipe=pipe, kind=kind, value=value, low=value, high=value, n=5,
                source="triad", date="2026-01-01")  # fmt: skip


def test_names_made_one_after_the_other_sort_in_that_order():
    names = []
    for _ in range(200):
        names.append(files.stamp())
        while files.stamp()[:21] == names[-1][:21]:  # the clock's next microsecond
            pass
    assert names == sorted(names)


def test_the_newest_peak_of_each_pipe_counts(store, records):
    store.add_peaks([peak("memory", 1e10), peak("vector", 1e9)], records.environment)
    store.add_peaks([peak("memory", 2e10)], records.environment)
    store.add_peaks([peak("memory", 3e12, device="other")], records.environment)
    found = {p.pipe: p.value for p in store.peaks("Testor 9000, 2 cores")}
    assert found == {"memory": 2e10, "vector": 1e9}
    assert store.read("latest_peak").height == 3


def report(records, stamp, errors, sha="c0ffee"):
    return CompileReport(
        stamp=stamp, environment=records.environment, targets=("sm_90a",),
        candidate=Candidate(name="fast", path="fast.py", operator="norm", backend="triton",
                            source_sha=sha),
        launches=tuple(
            CompiledLaunch(workload=records.workload(number), target="sm_90a", kernel="norm_kernel",
                           registers=32, tensor_core={"HGMMA": 4}, error=error)
            for number, error in enumerate(errors, start=1)
        ),
    )  # fmt: skip


def test_what_compiling_found_comes_back_and_can_be_asked_for(store, records):
    store.add_compiled(report(records, "20260101T000000000-a", ["", "needs more"]))
    (found,) = store.compiled()
    assert [launch.error for launch in found.failures] == ["needs more"]
    table = store.query(
        "select line, dtype, compiled.kernel, registers, tensor_core->>'HGMMA', error "
        "from compiled join workload using (workload, dtype) "
        "join environment using (environment) order by line"
    )
    assert table.rows == [
        (0, "bf16", "norm_kernel", 32, "4", ""), (1, "bf16", "norm_kernel", 32, "4", "needs more"),
    ]  # fmt: skip


def test_the_newest_compilation_of_a_candidate_counts_for_each_workload(store, records):
    store.add_compiled(report(records, "20260101T000000000-a", ["old", "kept"]))
    store.add_compiled(report(records, "20260102T000000000-b", ["new"]))
    store.add_compiled(report(records, "20260101T000000000-c", ["other"], sha="0ther"))
    errors = store.query("select error from latest_compiled order by error").rows
    assert errors == [("kept",), ("new",), ("other",)]
