"""Golden facts of real captures; skipped where the captures are absent."""

import json

import polars as pl
import pytest

from atrex import modelconfig, registry
from atrex.errors import DataError
from atrex.model import UNKNOWN
from atrex.store import Store
from atrex.trace import check, intake, read_trace, understand
from atrex.trace.capture import align
from atrex.trace.formats import read_recording
from atrex.trace.join import Steps, enclosing, join
from atrex.trace.kineto import read_kineto
from atrex.trace.siblings import recover
from atrex.trace.source import Source
from atrex.trace.timeline import NO_LAUNCH

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
    (f"{INFERENCE}/sglang_decode/perf_csvs/ops_unique_args.csv", "report of TraceLens"),
]

# other formats: kernels, names, ns, kernels and ns without a launch, copies, device
OTHER = [
    ("nsys-ai/h100_2gpu_1s*", "nsys", 3_442, 41, 44_829_522, 1_810, 21_682_293, 926, ""),
    ("nsys-ai/mfu_2gpu_before*", "nsys", 4_010, 27, 535_200_650, 24, 18_511_301, 1_289, ""),
    ("nsys-ai/mock*", "nsys", 2, 2, 4_129, 0, 0, 1, "NVIDIA GeForce RTX 3080"),
    ("tracelens/rocprof/908_results*", "rocprofv3",
     43_915, 80, 4_441_741_378, 43_915, 4_441_741_378, 0, "AMD Instinct MI350X"),
    ("rocprofiler-sdk-docs/kernel_trace.csv", "rocprofv3", 7, 3, 795_453, 7, 795_453, 0, ""),
    ("tracelens/traces/mi300/jax_conv_minimal_08/*.pb", "xplane",
     235, 6, 28_137_077, 0, 0, 0, "AMD, compute 9.4, 304 SMs"),
    ("tracelens/traces/mi300/jax_conv_minimal_legacy/*.pb", "xplane",
     25, 5, 3_586_493, 25, 3_586_493, 53, "AMD, compute 9.4, 304 SMs"),
    ("tracelens/test_data_jax_te_fused_attn_categorization/*.pb", "xplane",
     150, 19, 12_133_585, 0, 0, 0, "AMD, compute 9.5, 256 SMs"),
]  # fmt: skip

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
    assert [text for text in found.warnings if "whole microseconds" not in text] == []


@pytest.mark.parametrize(("file", "reason"), REFUSED)
def test_what_holds_no_kernels_is_refused_with_the_reason(read, file, reason):
    with pytest.raises(DataError, match=reason):
        read(file)


@pytest.mark.parametrize(
    ("file", "form", "kernels", "names", "ns", "alone", "alone_ns", "copies", "gpu"), OTHER
)
def test_kernels_and_joins_of_a_capture_of_another_profiler(
    captures, file, form, kernels, names, ns, alone, alone_ns, copies, gpu
):
    (path,) = captures.glob(file)
    recording = read_recording(path)
    timeline = recording.timeline
    launch = join(timeline).launch
    found = understand(recording, registry.operators())
    summary = found.summary
    check(found)
    assert (summary.format, summary.gpu) == (form, gpu)
    assert (summary.kernels, len(set(timeline.kernels.name)), summary.gpu_ns) == (
        kernels,
        names,
        ns,
    )
    assert (launch.count(NO_LAUNCH), ns - summary.launched_ns) == (alone, alone_ns)
    assert (found.copies, found.lossless) == (copies, True)
    assert summary.shaped_ns == 0
    assert any("names only" in text for text in found.warnings)


def test_most_of_the_time_of_the_rocprof_capture_is_communication(read):
    found = read("tracelens/rocprof/908_results*")
    facts = found.facts.filter(pl.col("operator") == "collective")
    assert percent(facts["gpu_ns"].sum(), found.summary.gpu_ns) == 93.63


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


# trace, capture beside it, kernels of graphs, percent of all time by rung `capture` or further
REPLAYED = [
    (SGLANG_DECODE, f"{INFERENCE}/sglang_decode/capture_traces/*.gz", 544, 98.88),
    (VLLM, f"{INFERENCE}/vllm_prefilldecode_piecewise/capture_traces/*.gz", 361, 96.10),
    (f"{INFERENCE}/xdit_flux.1_aiter_sage/*.gz",
     f"{INFERENCE}/xdit_flux.1_aiter_sage/capture_traces/*.gz", 6_264, 85.01),
]  # fmt: skip


@pytest.mark.parametrize(("file", "capture", "kernels", "graph"), REPLAYED)
def test_every_kernel_of_a_graph_is_aligned_with_its_capture(
    captures, file, capture, kernels, graph
):
    (path,), (beside,) = captures.glob(file), captures.glob(capture)
    timeline = read_recording(path).timeline
    joined = join(timeline)
    steps = Steps(timeline, sorted({row for row in joined.launch if row >= 0}), {})
    found = align(
        timeline, joined, lambda row: steps.values[steps.of(row)], [read_recording(beside)]
    )
    aligned = [kernel for kernel in range(len(timeline.kernels)) if found.of(kernel)]
    assert len(aligned) == kernels
    time = sum(timeline.kernels.duration[kernel] for kernel in aligned)
    assert percent(time, sum(timeline.kernels.duration)) == graph
    for kernel in aligned:
        assert timeline.kernels.name[kernel] in found.of(kernel).names
    assert found.notes == []


@pytest.mark.parametrize(
    ("file", "model"), [(SGLANG_DECODE, "Qwen3-8B"), (VLLM, "gpt-oss-20b")]
)  # fmt: skip
def test_serving_with_its_capture_is_named_and_shaped(captures, tmp_path, file, model):
    report = intake.ingest(
        [captures / file], Store(tmp_path), intake.Reading(model=modelconfig.load(model))
    )
    [found] = report.read
    check(found)
    summary, facts = found.summary, found.facts
    assert summary.attributed_ns >= 0.99 * summary.gpu_ns
    operators = facts.filter(pl.col("kind") == "operator")
    known = operators.filter(~pl.col("axes").str.contains(UNKNOWN) & (pl.col("axes") != "{}"))
    assert known["gpu_ns"].sum() >= 0.99 * operators["gpu_ns"].sum()
    assert found.hints == ()


def test_alternate_layers_of_a_model_attend_within_its_window(captures, tmp_path):
    """The layers that are said to slide took less than half of the time of the others."""
    model = modelconfig.load("gpt-oss-20b")
    report = intake.ingest([captures / VLLM], Store(tmp_path), intake.Reading(model=model))
    rows = report.read[0].facts.filter(pl.col("operator") == "unified_attention")
    assert [
        (json.loads(axes)["window"], calls, ns)
        for axes, calls, ns in rows.select("axes", "calls", "gpu_ns").rows()
    ] == [(0, 12, 3_562_649), (128, 12, 1_584_257)]


def test_kernels_launched_before_the_window_are_recovered_from_their_like(read):
    """All but the first and last few, whose neighbours are not in the trace."""
    found = read("tracelens/traces/mi300/Qwen_*")
    ns = found.summary.gpu_ns
    assert percent(ns - found.summary.launched_ns, ns) == 30.93
    assert percent(found.summary.rung_ns["sibling"], ns) >= 28


@pytest.mark.parametrize("file", [SGLANG_PREFILL, B200])
def test_what_is_recovered_from_siblings_is_what_was_hidden(captures, file):
    """Launches of the first three tenths of the kernels are taken away."""
    timeline = read_recording(captures / file).timeline
    launch = join(timeline).launch
    launches, what = timeline.launches, timeline.ops.what
    moments = {row: (launches.thread[row], launches.time[row]) for row in set(launch) if row >= 0}
    around = enclosing(timeline.ops, moments)
    stacks = {
        kernel: tuple(what[op] for op in around[row])
        for kernel, row in enumerate(launch)
        if row in around
    }
    hidden = sorted(stacks, key=timeline.kernels.start.__getitem__)[: 3 * len(stacks) // 10]
    known = {kernel: stack for kernel, stack in stacks.items() if kernel not in set(hidden)}
    found = recover(timeline, known, hidden)
    assert len(found) >= 0.9 * len(hidden)

    def dims(stack):
        return [timeline.signatures.values[each][:2] for each in stack][-1:]

    wrong = [k for k, witness in found.items() if dims(stacks[k]) != dims(known[witness])]
    assert wrong == []
