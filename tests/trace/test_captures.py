"""Golden facts of real captures; skipped where the captures are absent."""

import json

import polars as pl
import pytest

from atrex import registry
from atrex.errors import DataError
from atrex.trace import check, read_trace, understand
from atrex.trace.kineto import read_kineto
from atrex.trace.source import Source

INFERENCE = "tracelens/traces/inference"
SGLANG_PREFILL = f"{INFERENCE}/sglang_prefilldecode/sglang_Qwen3-8B_prefilldecode.json.gz"
SGLANG_DECODE = f"{INFERENCE}/sglang_decode/sglang_Qwen3-8B_decode.json.gz"
VLLM = f"{INFERENCE}/vllm_prefilldecode_piecewise/graph_execution.json.gz"
B200 = "tracelens/traces/b200/eager_trace.json.gz"

# file, kernels, ns, percent of time joined to an eager launch, to a graph, with operator shapes
GOLDEN = [
    (SGLANG_PREFILL, 527, 492_773_592, 100, 0, 100),
    (SGLANG_DECODE, 555, 9_765_437, 1.12, 98.88, 0.94),
    (f"{INFERENCE}/sglang_decode/capture_traces/*.gz", 2, 11_015, 100, 0, 100),
    (VLLM, 413, 156_008_506, 3.90, 96.10, 3.90),
    (f"{INFERENCE}/vllm_prefilldecode_piecewise/capture_traces/*.gz", 99, 841_097, 100, 0, 100),
    (B200, 768, 10_862_916, 100, 0, 99.95),
    (f"{INFERENCE}/xdit_flux.1_aiter_sage/*.gz", 7_830, 201_151_639, 14.99, 85.01, 14.99),
    (f"{INFERENCE}/xdit_flux.1_aiter_sage/capture_traces/*.gz",
     3_113, 72_877_416, 40.69, 59.31, 40.69),
    (f"{INFERENCE}/xdit_sd_3.5/*.gz", 8_042, 712_014_250, 100, 0, 100),
    ("tracelens/traces/mi300/Qwen_*", 1_516, 43_062_042, 69.07, 0, 69.07),
    ("tracelens/traces/mi300/google_owlv2*", 4_255, 327_419_870, 100, 0, 100),
    ("tracelens/traces/mi300/facebook_timesformer*", 447, 118_758_892, 100, 0, 100),
    ("tracelens/traces/mi300/Falconsai*", 155, 1_716_301, 100, 0, 100),
    ("tracelens/traces/mi300/gaunernst_bert*", 60, 388_344, 100, 0, 100),
    ("tracelens/traces/h100/facebook_timesformer*", 446, 154_855_595, 100, 0, 100),
    ("tracelens/traces/h100/Falconsai*", 154, 1_220_926, 100, 0, 100),
    ("tracelens/traces/h100/gaunernst_bert*", 60, 307_197, 100, 0, 100),
    ("tracelens/traces/mi300/resnet_act_checkpoint*", 2_995, 97_255_826, 68.31, 0, 68.31),
    ("tracelens/traces/mi210/gpu_only_trace/*.gz", 562, 5_343_422, 100, 0, 0),
    ("tracelens/traces/torch_compile_triton/trace.json.gz", 12, 12_549_021, 100, 0, 100),
    ("tracelens/traces/perf_model/normalization/*.gz", 168, 991_996, 100, 0, 100),
    ("hta/trace_diff/control/control.json.gz", 8_568, 446_813_000, 100, 0, 89.63),
    ("hta/df_index_resolver/*.gz", 19_370, 977_859_000, 100, 0, 0),
    ("hta/ns_resolution_trace/*.gz", 4_350, 468_153_602, 100, 0, 0),
    ("hta/nccl_parser_config/*.gz", 2_700, 162_532_340, 100, 0, 0),
    ("hta/critical_path/alexnet/*.gz", 79, 10_692_000, 100, 0, 0),
    ("hta/critical_path/end_to_end/simple_add/input/*.gz", 79, 10_728_000, 100, 0, 0),
    ("hta/critical_path/end_to_end/simple_add/output/*.gz", 79, 10_728_000, 100, 0, 0),
    ("hta/critical_path/cuda_event_sync/*.gz", 4, 49_000, 100, 0, 0),
    ("hta/critical_path/cuda_event_sync_multi_stream/*.gz", 3, 369_000, 100, 0, 0),
    ("hta/trace_compare/base/*.gz", 6, 432_000, 1.85, 0, 0),
    ("hta/trace_compare/test/*.gz", 5, 428_000, 0.93, 0, 0),
    ("hta/trace_file_list/*.gz", 4, 30_000, 100, 0, 0),
    ("hta/execution_trace/*_trace.json.gz", 4, 16_000, 100, 0, 0),
    ("hta/triton_example/*.gz", 1, 1_760, 100, 0, 100),
    ("hta/amd_trace/*.gz", 14, 110_881, 100, 0, 100),
    ("hta/call_stack/*.json", 1, 45_000, 100, 0, 100),
]  # fmt: skip

REFUSED = [
    ("hta/cpu_only/*.gz", "no GPU kernels"),
    ("hta/rank_non_gpu/*.gz", "no GPU kernels"),
    ("hta/rank_unavailable/*.gz", "no GPU kernels"),
    ("hta/distributed_info_unavailable/*.gz", "no GPU kernels"),
    ("hta/cupti_profiler/*.gz", "no GPU kernels"),
    ("hta/mtia_trace_single_rank/*.gz", "no GPU kernels"),
    ("hta/execution_trace/*_et.json.gz", "execution graph"),
    ("tracelens/rocprof/*.gz", "rocprofv3"),
    ("nsys-ai/mock.sqlite.gz", "SQLite"),
    ("tracelens/traces/mi300/jax_conv_minimal_08/*.pb", "no JSON"),
]

# calls and ns by operator or class
OPERATORS = {
    SGLANG_PREFILL: {
        "gemm_dense": (145, 420_305_748),
        "unified_attention": (36, 20_075_158),
        "rms_norm": (73, 17_559_439),
        "fused_add_rms_norm": (72, 8_699_121),
        "silu_and_mul": (36, 16_508_145),
        "rope": (36, 4_725_106),
        "reshape_and_cache": (36, 1_271_220),
    },
    SGLANG_DECODE: {
        "gemm_dense": (145, 5_782_257),
        "paged_attention_decode": (36, 2_127_869),
        "rms_norm": (73, 337_109),
        "fused_add_rms_norm": (72, 346_844),
        "silu_and_mul": (36, 324_367),
        "rope": (36, 195_815),
        "reshape_and_cache": (36, 173_545),
    },
    VLLM: {
        "gemm_dense": (73, 17_648_458),
        "unified_attention": (24, 5_146_906),
        "rms_norm": (1, 39_679),
        "fused_add_rms_norm": (48, 3_367_740),
        "rope": (24, 1_706_329),
        "reshape_and_cache": (24, 586_371),
        "moe_fp4": (24, 122_532_263),
        "moe_topk_gating_softmax": (24, 141_575),
        "moe_count_and_sort": (24, 431_366),
        "moe_sum_reduce": (24, 2_353_522),
    },
    B200: {
        "gemm_dense": (109, 784_762),
        "unified_attention": (36, 485_821),
        "rms_norm": (1, 4_576),
        "fused_add_rms_norm": (72, 452_068),
        "rope": (36, 133_085),
        "reshape_and_cache": (36, 162_686),
        "moe_fp4": (36, 5_214_837),
        "moe_topk_gating_softmax": (36, 97_313),
        "moe_count_and_sort": (36, 345_283),
        "moe_sum_reduce": (36, 253_471),
        "collective": (74, 2_141_501),
    },
    f"{INFERENCE}/xdit_sd_3.5/*.gz": {"attention_forward": (241, 208_721_729)},
}


@pytest.fixture
def read(captures):
    def read_capture(pattern):
        (path,) = captures.glob(pattern)
        return read_trace(path, registry.operators())

    return read_capture


def percent(part, whole):
    return round(100 * part / whole, 2)


@pytest.mark.parametrize(("file", "kernels", "ns", "eager", "graph", "op_exact"), GOLDEN)
def test_kernels_time_and_joins_of_a_capture(read, file, kernels, ns, eager, graph, op_exact):
    found = read(file)
    summary = found.summary
    check(found)
    assert (summary.kernels, summary.gpu_ns) == (kernels, ns)
    assert percent(summary.launched_ns - found.graph_ns, ns) == eager
    assert percent(found.graph_ns, ns) == graph
    assert percent(summary.rung_ns.get("op_exact", 0), ns) == op_exact
    assert found.lossless
    assert found.warnings == ()


@pytest.mark.parametrize(("file", "reason"), REFUSED)
def test_what_holds_no_kernels_is_refused_with_the_reason(read, file, reason):
    with pytest.raises(DataError, match=reason):
        read(file)


@pytest.mark.parametrize("file", OPERATORS)
def test_calls_and_time_of_the_operators_of_a_capture(read, file):
    facts = read(file).facts.group_by("operator").agg(pl.col("calls", "gpu_ns").sum())
    found = {name: (calls, ns) for name, calls, ns in facts.rows()}
    assert {name: found.get(name) for name in OPERATORS[file]} == OPERATORS[file]


@pytest.mark.parametrize("file", [SGLANG_PREFILL, SGLANG_DECODE, VLLM, B200])
def test_at_most_a_hundredth_of_llm_time_is_unknown(read, file):
    summary = read(file).summary
    assert summary.attributed_ns >= 0.99 * summary.gpu_ns


def test_overlaps_and_copies_of_the_b200_capture(read):
    found = read(B200)
    assert found.summary.busy_ns == 10_793_638
    assert (found.copies, found.copy_ns) == (161, 802_844)


def test_shapes_of_the_prefill_capture(read):
    facts = read(SGLANG_PREFILL).facts
    axes = {
        name: [json.loads(text) for text in facts.filter(pl.col("operator") == name)["axes"]]
        for name in ("silu_and_mul", "fused_add_rms_norm", "rms_norm", "gemm_dense")
    }
    assert axes["silu_and_mul"] == [{"rows": 15360, "width": 12288}]
    assert axes["fused_add_rms_norm"] == [
        {"rows": 15360, "width": 4096, "eps": "1e-6", "weight_offset": 0}
    ]
    assert [(each["rows"], each["width"]) for each in axes["rms_norm"]] == [
        (491_520, 128), (122_880, 128), (15_360, 4096)
    ]  # fmt: skip
    assert [(each["rows"], each["n_out"], each["k_in"]) for each in axes["gemm_dense"]] == [
        (15_360, 24_576, 4096), (15_360, 4096, 12_288), (15_360, 6144, 4096),
        (15_360, 4096, 4096), (15, 151_936, 4096),
    ]  # fmt: skip
    assert facts.filter(pl.col("operator") == "gemm_dense")["dtype"].unique().to_list() == ["bf16"]
    assert facts["phase"].unique().to_list() == ["prefill"]


def test_results_do_not_depend_on_the_window(captures):
    whole = read_trace(captures / B200, registry.operators()).facts
    for window in (64 << 10, 64 << 20):
        recording = read_kineto(Source(captures / B200), window)
        facts = understand(recording, registry.operators()).facts
        assert facts.equals(whole)


def test_attention_and_kv_write_of_a_prefill_have_every_axis(read):
    """Lengths come from the annotation, the KV write's head size from the attention beside it."""
    found = read(SGLANG_PREFILL)
    rows = found.facts.filter(pl.col("operator").is_in(["unified_attention", "reshape_and_cache"]))
    assert [
        (json.loads(row["axes"]), row["dtype"], row["calls"], row["gpu_ns"], row["workload"] != "")
        for row in rows.sort("operator").iter_rows(named=True)
    ] == [
        (
            {"tokens": 15360, "kv_heads": 8, "head_dim": 128, "page": 1, "pages": 835874,
             "slots": "paged"},
            "bf16", 36, 1_271_220, True,
        ),
        (
            {"tokens": 15360, "seqs": 15, "heads": 32, "kv_heads": 8, "head_dim": 128, "page": 1,
             "window": 0, "q_lens": "total:15360@mooncake-prompt",
             "kv_lens": "total:15360@mooncake-prompt"},
            "bf16", 36, 20_075_158, True,
        ),
    ]  # fmt: skip


def test_what_no_operator_and_no_annotation_tells_stays_unknown(read):
    found = read(B200)
    rows = found.facts.filter(pl.col("operator") == "unified_attention")
    axes = [json.loads(text) for text in rows["axes"].sort()]
    assert {each["kv_lens"] for each in axes} == {"unknown"}
    assert {each["window"] for each in axes} == {0, "unknown"}  # causal, and sliding by its name
    assert {(each["page"], each["q_lens"]) for each in axes} == {(16, 888)}
    assert set(rows["dtype"]) == {"bf16/fp8_e4m3fn"}
