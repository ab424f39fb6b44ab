"""Facts to shapes, shapes to weights and files."""

import gzip
import runpy
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from atrex import catalogue, registry
from atrex.catalogue import WeightInterval
from atrex.errors import DataError, UsageError
from atrex.fleet import pools
from atrex.model import Deployment, Shape, TraceSummary, Workload, canonical
from atrex.registry import read_shapes
from atrex.trace import read_trace
from atrex.trace.schema import FACTS, UNATTRIBUTED

ROOT = Path(__file__).parent.parent
OPERATORS = registry.operators()
SILU = OPERATORS["silu_and_mul"]


def silu(rows, dtype="bf16"):
    return Workload(operator="silu_and_mul", axes={"rows": rows, "width": 64}, dtype=dtype)


def shape(rows, gpu_ns, **changes):
    fields = {"phase": "decode", "source": "t", "calls": 1, "time_source": "measured"} | changes
    return Shape(workload=silu(rows), gpu_ns=gpu_ns, **fields)


def fact(workload, gpu_ns, trace="t1", phase="decode", calls=1, **changes):
    return {
        "operator": workload.operator, "kind": "operator",
        "workload": workload.id if workload.complete else "",
        "axes": canonical(workload.axes).decode(), "dtype": workload.dtype, "trace": trace,
        "phase": phase, "calls": calls, "kernels": calls, "gpu_ns": gpu_ns, "rung": "op_exact",
        "time_source": "measured",
    } | changes  # fmt: skip


def facts(*rows):
    return pl.DataFrame(list(rows), schema=FACTS)


def build(*rows, limit=None):
    return catalogue.build(facts(*rows), OPERATORS, {"t1": "one", "t2": "two"}, limit=limit)


def test_weights_are_shares_of_gpu_time_and_sum_to_one():
    shares = catalogue.weights([shape(1, 30), shape(2, 60), shape(3, 10)])
    assert shares == {silu(1).id: 0.3, silu(2).id: 0.6, silu(3).id: 0.1}
    assert sum(shares.values()) == pytest.approx(1)


def test_rows_of_one_workload_share_a_weight():
    assert catalogue.weights([shape(1, 10), shape(1, 30)]) == {silu(1).id: 1.0}


def test_a_catalogue_without_gpu_time_is_refused():
    assert catalogue.weights([]) == {}
    with pytest.raises(DataError, match="no GPU time"):
        catalogue.weights([shape(1, 0)])


def test_weighing_imports_no_frames():
    code = "import sys, atrex.catalogue; assert not {'polars', 'duckdb'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_shape_sums_traces_and_phases_and_names_the_largest():
    found = build(
        fact(silu(8), 10, calls=1, phase="prefill"),
        fact(silu(8), 20, calls=2, trace="t2"),
        fact(silu(8), 5, calls=4, phase="prefill", trace="t2"),
    )
    assert found == [shape(8, 35, calls=7, phase="decode", source="two")]


def test_any_modelled_time_makes_a_shape_modelled():
    found = build(fact(silu(8), 10), fact(silu(8), 1, trace="t2", time_source="modelled"))
    assert found == [shape(8, 11, calls=2, source="one", time_source="modelled")]


def test_classes_and_incomplete_workloads_are_no_shapes():
    assert (
        build(
            fact(silu("unknown"), 10),
            fact(silu(4), 10, kind="class", operator="gemm_dense"),
            fact(silu(4), 10, operator="an_operator_without_folder"),
        )
        == []
    )


def test_a_limit_keeps_the_shapes_with_most_time():
    found = build(fact(silu(1), 1), fact(silu(2), 3), fact(silu(3), 2), limit=2)
    assert [each.workload.axes["rows"] for each in found] == [2, 3]


def test_written_shapes_are_read_back_in_a_fixed_order(tmp_path):
    shapes = [shape(64, 1), shape(8, 9), shape(512, 5)]
    paths = catalogue.write(shapes, OPERATORS, tmp_path / "shapes")
    assert paths["silu_and_mul"].read_text() == (
        "rows,width,dtype,phase,source,calls,gpu_ns,time_source\n"
        "8,64,bf16,decode,t,1,9,measured\n"
        "64,64,bf16,decode,t,1,1,measured\n"
        "512,64,bf16,decode,t,1,5,measured\n"
    )
    assert read_shapes(paths["silu_and_mul"], SILU) == [shapes[1], shapes[0], shapes[2]]


def test_a_folder_that_cannot_be_written_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write"):
        catalogue.write([shape(1, 1)], OPERATORS, tmp_path / "file")


def test_a_store_without_complete_shapes_says_what_to_do(store):
    with pytest.raises(DataError, match="record_shapes"):
        catalogue.from_store(store, OPERATORS)


def summary(trace, gpu_ns):
    return TraceSummary(
        trace=trace, path=f"{trace}.json.gz", format="kineto", gpu="H100", events=1, kernels=1,
        gpu_ns=gpu_ns, busy_ns=gpu_ns, span_ns=gpu_ns, launched_ns=gpu_ns, attributed_ns=gpu_ns,
        shaped_ns=gpu_ns, rung_ns={}, trace_coverage=1.0, dropped={}, repaired={}, truncated=False,
    )  # fmt: skip


def deployment(name, gpus, *traces):
    return Deployment(
        name=name, model="m", gpu="H100", gpus=gpus, hours_per_day=1,
        traces={trace: trace for trace in traces},
    )  # fmt: skip


S = 10**9  # one second
# a long profile of one shape, a short one of another, and both in a deployment of its own
FLEET_FACTS = facts(
    fact(silu(1), S),
    fact(silu(2), 3 * S, trace="t2"),
    fact(silu(1), S // 2, trace="t3"),
    fact(silu(2), S // 2, trace="t3"),
    fact(silu(2), 100 * S, trace="t4"),
)
FLEET_TRACES = [summary("t1", S), summary("t2", 3 * S), summary("t3", S), summary("t4", 100 * S)]
DEPLOYMENTS = (deployment("pair", 2, "t1", "t2"), deployment("single", 1, "t3"))


def fleet_shapes():
    return catalogue.from_facts(FLEET_FACTS, FLEET_TRACES, OPERATORS, deployments=DEPLOYMENTS)


def fleet_intervals(**changes):
    return catalogue.weight_intervals(
        FLEET_FACTS, fleet_shapes(), pools(FLEET_TRACES, DEPLOYMENTS), **changes
    )


def test_a_fleet_weighs_a_trace_by_its_gpu_hours_and_leaves_others_out():
    shapes = fleet_shapes()
    # pair: 1800 s a second, single: 3600 s a second
    assert [(each.workload.axes["rows"], each.gpu_ns) for each in shapes] == [
        (2, 7200 * S), (1, 3600 * S),
    ]  # fmt: skip
    assert catalogue.weights(shapes) == {
        silu(1).id: pytest.approx(1 / 3), silu(2).id: pytest.approx(2 / 3),
    }  # fmt: skip
    assert shapes[0].source == "t2"


def test_a_written_catalogue_holds_the_calls_and_times_of_a_day(tmp_path):
    paths = catalogue.write(fleet_shapes(), OPERATORS, tmp_path)
    assert paths["silu_and_mul"].read_text().splitlines()[1:] == [
        "1,64,bf16,decode,t1,5400,3600000000000,measured",
        "2,64,bf16,decode,t2,5400,7200000000000,measured",
    ]


def test_a_fleet_of_other_traces_has_no_catalogue():
    with pytest.raises(DataError, match="the fleet's traces have no operator"):
        catalogue.from_facts(
            FLEET_FACTS, FLEET_TRACES, OPERATORS, deployments=[deployment("other", 1, "t9")]
        )


def test_a_weight_moves_as_far_as_the_traces_of_a_deployment_differ():
    # pair draws t1 twice, t2 twice or both, and keeps 2 GPU h; single adds 0.5 h of each shape
    assert fleet_intervals().workloads == {
        silu(1).id: WeightInterval(low=pytest.approx(1 / 6), high=pytest.approx(5 / 6), traces=2),
        silu(2).id: WeightInterval(low=pytest.approx(1 / 6), high=pytest.approx(5 / 6), traces=2),
    }


def test_an_interval_is_the_same_each_time_and_depends_on_the_seed():
    noisy = facts(
        *(fact(silu(1), S * (1 + n % 7), trace=f"t{n}") for n in range(40)),
        *(fact(silu(2), S * (1 + n % 5), trace=f"t{n}") for n in range(40)),
    )
    traces = [summary(f"t{n}", S * (2 + n % 7 + n % 5)) for n in range(40)]
    shapes = catalogue.from_facts(noisy, traces, OPERATORS)
    first, again, other = (
        catalogue.weight_intervals(noisy.sample(fraction=1, shuffle=True, seed=k), shapes,
                                   pools(traces[::step]), seed=seed)
        for k, step, seed in ((1, 1, "weights"), (2, -1, "weights"), (1, 1, "another"))
    )  # fmt: skip
    assert first == again != other


def test_an_interval_is_as_wide_as_the_error_of_a_ratio():
    a, b = [1 + n % 7 for n in range(40)], [1 + n % 5 for n in range(40)]
    noisy = facts(
        *(fact(silu(1), S * ns, trace=f"t{n}") for n, ns in enumerate(a)),
        *(fact(silu(2), S * ns, trace=f"t{n}") for n, ns in enumerate(b)),
    )
    traces = [summary(f"t{n}", S * (x + y)) for n, (x, y) in enumerate(zip(a, b, strict=True))]
    shapes = catalogue.from_facts(noisy, traces, OPERATORS)
    found = catalogue.weight_intervals(noisy, shapes, pools(traces)).workloads[silu(1).id]
    # standard error of sum(a) / sum(a + b) over 40 traces, to first order
    share = sum(a) / sum(a + b)
    residuals = [(1 - share) * x - share * y for x, y in zip(a, b, strict=True)]
    error = sum(each**2 for each in residuals) ** 0.5 / sum(a + b)
    assert found.traces == 40
    assert found.low == pytest.approx(share - 1.96 * error, abs=0.2 * error)
    assert found.high == pytest.approx(share + 1.96 * error, abs=0.2 * error)


def test_operators_share_the_weight_of_their_shapes():
    rms = Workload(
        operator="rms_norm",
        axes={"rows": 1, "width": 64, "eps": "1e-6", "weight_offset": 0, "row_stride": 64},
        dtype="bf16",
    )
    both = pl.concat([FLEET_FACTS, facts(fact(rms, 2 * S, trace="t2"))])
    traces = [summary("t1", S), summary("t2", 5 * S)]
    shapes = catalogue.from_facts(
        both.filter(pl.col("trace").is_in(["t1", "t2"])), traces, OPERATORS
    )
    assert catalogue.operator_weights(shapes) == {
        "silu_and_mul": pytest.approx(4 / 6), "rms_norm": pytest.approx(2 / 6),
    }  # fmt: skip
    found = catalogue.weight_intervals(both, shapes, pools(traces)).operators
    assert found == {  # t1 alone, t2 alone
        "silu_and_mul": WeightInterval(low=pytest.approx(3 / 5), high=1.0, traces=2),
        "rms_norm": WeightInterval(low=0.0, high=pytest.approx(2 / 5), traces=2),
    }


def test_one_trace_tells_nothing_of_the_spread():
    one = FLEET_FACTS.filter(pl.col("trace") == "t3")
    shapes = catalogue.from_facts(one, [summary("t3", S)], OPERATORS)
    found = catalogue.weight_intervals(one, shapes, pools([summary("t3", S)]))
    assert (found.workloads, found.operators) == ({}, {})


def test_what_only_a_deployment_with_one_trace_runs_has_no_interval():
    more = pl.concat([FLEET_FACTS, facts(fact(silu(3), S, trace="t5"))])
    traces = [*FLEET_TRACES, summary("t5", S)]
    deployments = (*DEPLOYMENTS, deployment("lonely", 1, "t5"))
    shapes = catalogue.from_facts(more, traces, OPERATORS, deployments=deployments)
    found = catalogue.weight_intervals(more, shapes, pools(traces, deployments))
    assert set(found.workloads) == {silu(1).id, silu(2).id}
    assert found.workloads[silu(1).id].high == pytest.approx(9000 / 14400)


def test_resamples_without_any_shape_say_nothing():
    mixed = facts(fact(silu(1), S), fact(silu("unknown"), S, trace="t2"))
    traces = [summary("t1", S), summary("t2", S)]
    shapes = catalogue.from_facts(mixed, traces, OPERATORS)
    found = catalogue.weight_intervals(mixed, shapes, pools(traces))
    assert found.workloads == {silu(1).id: WeightInterval(low=1.0, high=1.0, traces=2)}


def test_a_store_and_its_facts_give_one_catalogue(store):
    for each in FLEET_TRACES:
        own = FLEET_FACTS.filter(pl.col("trace") == each.trace)
        store.add_trace(each, own, pl.DataFrame(schema=UNATTRIBUTED))
    assert catalogue.from_store(store, OPERATORS, deployments=DEPLOYMENTS) == fleet_shapes()
    assert catalogue.from_store(store, OPERATORS)[0] == shape(
        2, 103 * S + S // 2, calls=3, source="t4"
    )


def test_a_shape_is_found_by_the_beginning_of_its_id():
    shapes = [shape(rows, 1) for rows in range(20)]
    assert catalogue.find(silu(7).id[:8], shapes) == shapes[7]
    with pytest.raises(UsageError, match="no shape"):
        catalogue.find("xyz", shapes)
    with pytest.raises(UsageError, match="20 shapes"):
        catalogue.find("", shapes)


@pytest.fixture(scope="module")
def sample():
    return read_trace(ROOT / "traces" / "synthetic_serving.json.gz", OPERATORS)


def test_the_bundled_sample_is_what_its_script_writes():
    packed = (ROOT / "traces" / "synthetic_serving.json.gz").read_bytes()
    assert (
        gzip.decompress(packed).decode()
        == runpy.run_path(str(ROOT / "traces/make_synthetic.py"))["text"]()
    )
    assert len(packed) < 200_000


def test_the_bundled_sample_is_modelled_and_fully_known(sample):
    assert sample.facts["time_source"].unique().to_list() == ["modelled"]
    assert sample.summary.attributed_ns == sample.summary.gpu_ns
    assert sample.facts.filter(pl.col("operator") == "unified_attention")["calls"].sum() == 207
    assert set(sample.facts["phase"]) == {"prefill", "decode", "mixed"}


def test_the_bundled_shapes_are_those_of_the_bundled_sample(sample):
    shapes = catalogue.build(sample.facts, OPERATORS, {sample.summary.trace: "synthetic_serving"})
    by_operator = {name: [s for s in shapes if s.workload.operator == name] for name in OPERATORS}
    for name, operator in OPERATORS.items():
        if by_operator[name]:
            bundled = (ROOT / "shapes" / f"{name}.csv").read_text()
            assert catalogue.csv_text(by_operator[name], operator) == bundled
    assert {name: len(found) for name, found in by_operator.items() if found} == {
        "block_scaled_mm": 12, "fused_add_rms_norm": 15, "fused_moe": 4,
        "moe_topk_gating_softmax": 4, "reshape_and_cache": 15, "rms_norm": 28, "silu_and_mul": 13,
        "unified_attention": 17,
    }  # fmt: skip
