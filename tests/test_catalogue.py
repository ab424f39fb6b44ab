"""Facts to shapes, shapes to weights and files."""

import gzip
import runpy
import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

from atrex import catalogue, registry
from atrex.errors import DataError, UsageError
from atrex.model import Shape, Workload, canonical
from atrex.registry import read_shapes
from atrex.trace import read_trace
from atrex.trace.schema import FACTS

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
