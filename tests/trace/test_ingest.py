"""From a trace to facts: joins, calls, phases, totals, and what is refused."""

import json
from dataclasses import replace

import polars as pl
import pytest

from atrex.errors import DataError
from atrex.model import UNKNOWN, Workload
from atrex.operator import Operator
from atrex.trace import check, read_trace, understand
from atrex.trace.kineto import read_kineto
from atrex.trace.source import Source

BF16 = "c10::BFloat16"
US = 1000


def match(call, step):
    """Recognise `my::norm` by name and `norm_kernel` without one; the grid tells the rows."""
    if call.name == "my::norm":
        rows, width = call.dims[0]
        axes = {"rows": rows, "width": width}
        return Workload(operator="norm", axes=axes, dtype=call.dtype(0))
    if call.name == "" and call.kernels[:1] == ("norm_kernel",):
        rows = call.grid[0] if call.grid else UNKNOWN
        return Workload(operator="norm", axes={"rows": rows, "width": UNKNOWN}, dtype="bf16")
    return None


NORM = Operator(
    name="norm", axes=("rows", "width"), inputs=None, outputs=None, reference=None, cost=None,
    match=match, tolerance={}, baselines=(), small=(),
)  # fmt: skip


def ingest(path, **options):
    found = read_trace(path, {"norm": NORM}, **options)
    check(found)
    return found


def facts(found):
    columns = ("operator", "axes", "dtype", "phase", "calls", "kernels", "gpu_ns", "rung")
    return [tuple(row[name] for name in columns) for row in found.facts.to_dicts()]


def norm(trace, rows=4):
    return trace.op("my::norm", dims=[[rows, 8]], types=[BF16])


def test_calls_of_one_shape_are_one_fact(trace):
    for _ in range(3):
        norm(trace).kernel("norm_kernel", ns=700).close()
    assert facts(ingest(trace.write())) == [
        ("norm", '{"rows":4,"width":8}', "bf16", "other", 3, 3, 2100, "op_exact")
    ]


def test_a_call_owns_all_kernels_of_its_operator(trace):
    norm(trace).kernel("first", ns=700).kernel("second", ns=300).close()
    assert facts(ingest(trace.write())) == [
        ("norm", '{"rows":4,"width":8}', "bf16", "other", 1, 2, 1000, "op_exact")
    ]


def test_a_fact_carries_the_identity_of_its_workload(trace):
    norm(trace).kernel()
    expected = Workload(operator="norm", axes={"width": 8, "rows": 4}, dtype="bf16")
    assert ingest(trace.write()).facts["workload"].to_list() == [expected.id]


def test_the_outermost_known_operator_names_the_call_and_the_innermost_gives_its_shape(trace):
    trace.op("aiter::gemm_a16w16", dims=[[2, 3, 16], [32, 16]], types=[BF16, BF16])
    trace.op("aten::mm", dims=[[6, 16], [16, 32]], types=[BF16, BF16], dur=50 * US)
    trace.kernel("Cijk_Alik")
    assert facts(ingest(trace.write()))[0][:3] == (
        "gemm_dense", '{"batch":1,"k_in":16,"n_out":32,"rows":6}', "bf16"
    )  # fmt: skip


def test_inside_a_container_the_kernels_name_decides(trace):
    trace.op("vllm::moe_forward", dims=[[8, 16], [8, 4]], types=[BF16, BF16])
    trace.kernel("_topk_forward", ns=100).kernel("_sum_bitmatrix_rows", ns=200)
    trace.kernel("_combined_routing_memset", ns=300)
    assert [(row[0], *row[4:7]) for row in facts(ingest(trace.write()))] == [
        ("moe_count_and_sort", 1, 2, 500),
        ("moe_topk_gating_softmax", 1, 1, 100),
    ]


def test_a_copy_launched_inside_a_known_operator_is_no_part_of_it(trace):
    norm(trace).kernel("norm_kernel", ns=500)
    trace.op("aten::copy_", dims=[[4, 8]], types=[BF16], dur=10 * US)
    trace.kernel("at::native::direct_copy_kernel_cuda", ns=40)
    assert [(row[0], row[6]) for row in facts(ingest(trace.write()))] == [
        ("norm", 500), ("memory", 40)
    ]  # fmt: skip


def test_a_kernel_is_joined_by_its_launch_and_not_by_its_time(trace):
    norm(trace).kernel("norm_kernel").close()
    trace.events[-1]["ts"] = "@9000000.000@"  # runs long after the operator is over
    assert facts(ingest(trace.write()))[0][0] == "norm"


def test_a_range_that_ends_where_a_launch_begins_does_not_enclose_it(trace):
    norm(trace).kernel("norm_kernel")
    trace.events[0]["dur"] = "@1.000@"  # ends at the launch
    assert facts(ingest(trace.write()))[0][0:2] == ("norm", '{"rows":"unknown","width":"unknown"}')


def test_replayed_kernels_are_named_and_have_no_shapes(trace):
    trace.kernel("norm_kernel", launch="cudaGraphLaunch", ns=100)
    trace.kernel("paged_attention_ll4mi_QKV", same=True, ns=200)
    trace.kernel("paged_attention_ll4mi_reduce_kernel", same=True, ns=50)
    found = ingest(trace.write())
    assert [(row[0], *row[4:]) for row in facts(found)] == [
        ("paged_attention_decode", 1, 2, 250, "none"),
        ("norm", 1, 1, 100, "none"),
    ]
    assert found.graph_ns == 350
    assert found.summary.launched_ns == 350
    assert found.facts["workload"].to_list() == ["", ""]


def test_axes_that_the_launch_grid_tells_are_on_the_rung_grid(trace):
    trace.kernel("norm_kernel", grid=[12, 1, 1], block=[64, 1, 1])
    assert facts(ingest(trace.write()))[0][1::6] == ('{"rows":12,"width":"unknown"}', "grid")


def test_grids_reported_in_threads_are_converted_to_blocks(trace):
    trace.kernel("norm_kernel", launch="hipExtModuleLaunchKernel", grid=[512, 1, 1],
                 block=[256, 1, 1])  # fmt: skip
    assert '"rows":2,' in facts(ingest(trace.write()))[0][1]


def test_the_phase_is_that_of_the_step_that_launched(trace):
    trace.step("step[DECODE bs=4]")
    norm(trace).kernel("norm_kernel").close()
    trace.step("step[EXTEND bs=1 toks=64]")
    norm(trace).kernel("norm_kernel", ns=1).close()
    assert [row[3] for row in facts(ingest(trace.write()))] == ["decode", "prefill"]


def test_operators_recorded_without_shapes_are_known_but_unshaped(trace):
    trace.op("my::norm").kernel("norm_kernel", ns=10)
    found = ingest(trace.write())
    assert facts(found)[0][:3] == ("norm", '{"rows":"unknown","width":"unknown"}', UNKNOWN)
    assert (found.summary.attributed_ns, found.summary.shaped_ns) == (10, 0)
    assert found.summary.rung_ns == {"none": 10}


def test_unknown_kernels_stay_in_the_total_and_are_listed(trace):
    norm(trace).kernel("norm_kernel", ns=300).close()
    trace.kernel("void nobody::knows<int>(int)", ns=700).kernel("ncclDevKernel_X()", ns=50)
    found = ingest(trace.write())
    assert found.summary.gpu_ns == 1050
    assert found.summary.attributed_ns == 350
    assert found.summary.trace_coverage == pytest.approx(300 / 1050)
    columns = ("kernel", "class", "calls", "gpu_ns")
    assert found.unattributed.select(columns).rows() == [
        ("nobody::knows<int>", UNKNOWN, 1, 700),
        ("ncclDevKernel_X", "collective", 1, 50),
    ]


def test_an_unknown_kernel_is_listed_with_the_operator_and_geometry_it_was_seen_with(trace):
    trace.op("my::op_7", dims=[[4, 8], []], types=["float", "Scalar"], concrete=["", "2"])
    trace.kernel("mine", ns=70, grid=[4, 1, 1], block=[64, 1, 1]).kernel("mine", ns=30)
    found = ingest(trace.write()).unattributed.drop("trace")
    assert found.rows() == [
        ("mine", UNKNOWN, "my::op_7", "[[4, 8], []]", '["float", "Scalar"]', '["", "2"]',
         "[4, 1, 1]", "[64, 1, 1]", 1, 70),
        ("mine", UNKNOWN, "my::op_7", "[[4, 8], []]", '["float", "Scalar"]', '["", "2"]',
         "", "", 1, 30),
    ]  # fmt: skip


def test_kernels_without_a_launch_are_kept_and_counted(trace):
    trace.kernel("norm_kernel", ns=10, launch=None).kernel("norm_kernel", ns=5, correlation=0)
    found = ingest(trace.write())
    assert (found.summary.kernels, found.summary.gpu_ns, found.summary.launched_ns) == (2, 15, 0)


def test_a_rule_sees_the_operators_of_its_step_and_of_no_other(trace):
    """The page of a cache is in its write alone, which runs before or after the attention."""

    def with_page(call, step):
        if call.name != "my::attention":
            return None
        pages = [each.dims[0][1] for each in step.siblings if each.name == "my::write"]
        axes = {"tokens": call.dims[0][0], "page": pages[0] if pages else UNKNOWN}
        return Workload(operator="attention", axes=axes, dtype=call.dtype(0))

    attention = replace(NORM, name="attention", axes=("tokens", "page"), match=with_page)
    for page, tokens in ((16, 4), (32, 5)):
        trace.step(f"execute_{tokens}_context_1({tokens}_16)_generation_0(0)")
        trace.op("my::attention", dims=[[tokens, 8]], types=[BF16], dur=10 * US).kernel().close(
            20 * US
        )
        trace.op("my::write", dims=[[99, page, 8]], types=[BF16], dur=10 * US).kernel().close()
    trace.op("my::attention", dims=[[7, 8]], types=[BF16]).kernel()
    found = read_trace(trace.write(), {"attention": attention})
    axes = [json.loads(row["axes"]) for row in found.facts.to_dicts() if row["kind"] == "operator"]
    assert sorted(axes, key=lambda each: each["tokens"]) == [
        {"tokens": 4, "page": 16}, {"tokens": 5, "page": 32}, {"tokens": 7, "page": "unknown"}
    ]  # fmt: skip


def test_copies_and_fills_are_beside_kernel_time(trace):
    trace.kernel(ns=10)
    trace.kernel(ns=40, category="gpu_memcpy").kernel(ns=2, category="Memset")
    found = ingest(trace.write())
    assert (found.summary.gpu_ns, found.copies, found.copy_ns) == (10, 2, 42)


def test_overlapping_kernels_count_twice_in_the_sum_and_once_in_busy_time(trace):
    trace.kernel(ns=5 * US).kernel(ns=5 * US)  # start 2 us apart
    trace.kernel(ns=5 * US, stream=8)
    summary = ingest(trace.write()).summary
    assert (summary.gpu_ns, summary.busy_ns, summary.span_ns) == (15 * US, 12 * US, 9 * US)


def test_absolute_times_of_sixteen_digits_lose_no_nanosecond(trace):
    trace.kernel(ns=1)
    for event in trace.events:
        event["ts"] = "@1712195495123456.789@"
    trace.kernel(ns=3)
    trace.events[-1]["ts"] = "@1712195495123456.791@"
    assert ingest(trace.write()).summary.span_ns == 5


def test_kernels_without_valid_time_are_lost_and_said(trace):
    trace.kernel(ns=10).kernel()
    trace.events[-1].update(ts=0, dur=0)
    found = ingest(trace.write())
    assert found.summary.kernels == 1
    assert found.summary.dropped == {"kernel without valid time": 1}
    assert not found.lossless
    assert found.warnings == (
        "trace.json: 1 kernels were lost, with 0 ns as far as known",
        "trace.json: left out: 1 x kernel without valid time",
    )


def test_a_cut_gzip_gives_facts_and_says_that_it_is_cut(trace):
    for _ in range(200):
        norm(trace).kernel("norm_kernel").close()
    path = trace.write("trace.json.gz")
    path.write_bytes(path.read_bytes()[:-600])
    found = ingest(path)
    assert found.summary.truncated
    assert not found.lossless
    assert 0 < found.summary.kernels < 200


def test_a_bare_array_and_old_spellings_are_a_trace_too(trace):
    norm(trace).kernel("norm_kernel", category="Kernel")
    text = trace.text().replace("cuda_runtime", "Runtime").replace("cpu_op", "Operator")
    bare = text[text.index("[") : text.rindex("]") + 1]
    assert facts(ingest(trace.write(text=bare)))[0][0] == "norm"


def test_results_do_not_depend_on_the_window(trace):
    for rows in range(1, 30):
        trace.step(f"step[DECODE bs={rows}]")
        norm(trace, rows).kernel("norm_kernel").kernel("other").close()
    path = trace.write()
    whole = ingest(path).facts
    for window in (1, 100, 1000, 10_000):
        found = understand(read_kineto(Source(path), window), {"norm": NORM})
        assert found.facts.equals(whole)


def test_a_marked_trace_gives_modelled_times(trace):
    trace.kernel()
    assert ingest(trace.write()).facts["time_source"].to_list() == ["measured"]
    trace.keys["atrex_synthetic"] = {}
    assert ingest(trace.write()).facts["time_source"].to_list() == ["modelled"]


def test_the_device_is_the_one_that_ran_kernels_even_without_a_name(trace):
    trace.kernel(device=1)
    trace.keys["deviceProperties"] = [
        {"id": 0, "name": "Other"},
        {"id": 1, "name": "", "computeMajor": 9, "computeMinor": 4, "numSms": 304},
    ]
    assert ingest(trace.write()).summary.gpu == "compute 9.4, 304 SMs"


def test_only_the_name_of_the_file_is_kept(trace):
    trace.kernel()
    assert ingest(trace.write("one.json.gz")).summary.path == "one.json.gz"


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([], "no events"),
        ([{"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}], "no GPU kernels"),
        ([{"file": "bs_32.json.gz", "batch_size": 32}], "no events of a PyTorch profiler"),
        ([{"cat": "kernel", "name": "k", "ts": 0, "dur": 0}], "valid time"),
    ],
)
def test_a_trace_without_kernels_is_refused_with_the_reason(trace, events, reason):
    with pytest.raises(DataError, match=reason):
        ingest(trace.write(text=json.dumps({"traceEvents": events})))


def test_a_trace_that_ends_before_its_first_kernel_is_said_to_be_cut(trace):
    op = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "ts": 1, "dur": 1}
    text = json.dumps({"traceEvents": [op, op, op]})
    with pytest.raises(DataError, match="ends early, before the first GPU kernel"):
        ingest(trace.write(text=text[:-30]))


def test_a_launch_wins_over_another_call_with_its_correlation(trace):
    norm(trace).kernel("norm_kernel").close()
    trace.range("cuda_runtime", "cudaEventRecord", US, {"correlation": 1})
    trace.events.insert(0, trace.events.pop())  # seen first, and outside of the operator
    assert facts(ingest(trace.write()))[0][0:2] == ("norm", '{"rows":4,"width":8}')


def test_facts_have_the_declared_schema(trace):
    trace.kernel()
    found = ingest(trace.write())
    assert found.facts.schema["gpu_ns"] == pl.Int64
    assert found.facts.columns == [
        "operator", "kind", "workload", "axes", "dtype", "trace", "phase", "calls", "kernels",
        "gpu_ns", "rung", "time_source",
    ]  # fmt: skip
