"""Rates that the axes of a trace amount to, against the peaks of its device."""

import subprocess
import sys

import polars as pl
import pytest

from atrex import registry
from atrex.lengths import resolve
from atrex.model import canonical
from atrex.trace.context import Context
from atrex.trace.formats import read_recording
from atrex.trace.ingest import understand
from atrex.trace.plausible import Numbers, check, suspicious
from atrex.trace.schema import FACTS

OPERATORS = registry.operators()
H100, MI300X = "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X"
NORM = {"rows": 65536, "width": 4096, "eps": "1e-6", "weight_offset": 0, "row_stride": 4096}
NORM_NS = 320_522  # of 2 x 65536 x 4096 x 2 + 8192 bytes at 3.35 TB/s
PRODUCT = {"rows": 8192, "n_out": 8192, "k_in": 8192, "batch": 1}
PRODUCT_NS = 1_111_291  # of 2 x 8192^3 FLOPs at 989.4 TFLOP/s
DECODE = {
    "tokens": 64, "seqs": 64, "heads": 64, "kv_heads": 8, "head_dim": 64, "page": 16, "window": 0,
    "q_lens": 1, "kv_lens": 8192,
}  # fmt: skip
ROUTED = {
    "tokens": 4096, "hidden": 2048, "experts": 64, "local_experts": 64, "top_k": 8,
    "expert_width": 1024, "ids": "skewed",
}  # fmt: skip


def row(operator, axes, gpu_ns, **more):
    return {
        "operator": operator, "kind": "operator", "workload": "0123456789ab",
        "axes": canonical(axes).decode(), "dtype": "bf16", "trace": "t", "phase": "prefill",
        "calls": 1, "kernels": 1, "gpu_ns": gpu_ns, "rung": "op_exact", "time_source": "measured",
        **more,
    }  # fmt: skip


def checked(*rows, gpu=H100):
    return check(pl.DataFrame(rows, schema=FACTS), gpu, OPERATORS)


def flags(*rows, gpu=H100):
    return [(each.operator, each.quantity) for each in checked(*rows, gpu=gpu).suspicions]


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.5, []), (1.04, []), (1.06, [("rms_norm", "memory")])]
)
def test_more_bytes_than_memory_delivers_are_flagged(ratio, expected):
    assert flags(row("rms_norm", NORM, round(NORM_NS / ratio))) == expected


@pytest.mark.parametrize(
    ("ratio", "expected"), [(0.5, []), (1.04, []), (1.06, [("gemm_dense", "bf16")])]
)
def test_more_flops_than_a_pipe_does_are_flagged(ratio, expected):
    assert flags(row("gemm_dense", PRODUCT, round(PRODUCT_NS / ratio), kind="class")) == expected


def test_a_rate_is_that_of_all_calls_of_a_row():
    (found,) = checked(row("rms_norm", NORM, 5 * NORM_NS, calls=10)).suspicions
    assert found.calls == 10
    assert found.peak == 3.35e12
    assert found.ratio == pytest.approx(2.0, rel=1e-5)
    assert "6.70 TB/s of memory is 2.00× the device's peak" in str(found)


def test_bytes_that_fit_in_the_cache_are_not_flagged():
    small = {**NORM, "rows": 2048}  # 33.6 MB of 52.4 MB
    verdict = checked(row("rms_norm", small, 3_000))  # 11 TB/s
    assert verdict.suspicions == ()
    assert verdict.checked_ns == verdict.cached_ns == 3_000


def test_flops_of_bytes_in_the_cache_are_flagged_all_the_same():
    axes = {"rows": 2048, "n_out": 2048, "k_in": 2048, "batch": 1}
    assert flags(row("gemm_dense", axes, 10_000, kind="class")) == [("gemm_dense", "bf16")]


def test_windowed_attention_counted_without_its_window_is_flagged():
    # 64 sequences read at most 128 of 8192 keys: 17 MB, not 1.1 GB
    assert flags(row("unified_attention", DECODE, 30_000)) == [("unified_attention", "memory")]
    assert flags(row("unified_attention", {**DECODE, "window": 128}, 30_000)) == []


def test_padding_that_was_skipped_is_flagged():
    padded = {**DECODE, "tokens": 512, "seqs": 512}
    assert flags(row("unified_attention", padded, 400_000)) != []
    assert flags(row("unified_attention", DECODE, 400_000)) == []


def test_lengths_from_a_profile_are_said_to_be_drawn():
    axes = {**DECODE, "kv_lens": "total:524288@mooncake"}
    (found,) = checked(row("unified_attention", axes, 30_000)).suspicions
    assert found.drawn
    assert "drawn from a profile" in str(found)
    (found,) = checked(row("unified_attention", DECODE, 30_000)).suspicions
    assert not found.drawn


def test_the_cost_without_torch_is_that_with_torch():
    torch = pytest.importorskip("torch")
    operator = OPERATORS["unified_attention"]
    for workload in operator.small:
        seqs, q_spec, kv_spec = (workload.axes[name] for name in ("seqs", "q_lens", "kv_lens"))
        q_lens = torch.tensor(resolve(q_spec, seqs))
        cu_q = torch.cat([q_lens.new_zeros(1), q_lens.cumsum(0)])
        kv_lens = torch.tensor(resolve(kv_spec, seqs)).maximum(q_lens)
        expected = operator.cost(workload, {"cu_q": cu_q, "kv_lens": kv_lens})
        inputs = {"cu_q": Numbers(cu_q.tolist()), "kv_lens": Numbers(kv_lens.tolist())}
        assert operator.cost(workload, inputs) == expected


def test_new_tokens_are_among_the_keys_of_their_sequence():
    axes = {
        **DECODE, "tokens": 200, "seqs": 2, "heads": 1, "kv_heads": 1, "q_lens": 100, "kv_lens": 50,
    }  # fmt: skip
    (found,) = checked(row("unified_attention", axes, 1)).suspicions
    assert found.achieved == 2_585_600e9  # 4 x 64 FLOPs of 2 x 5050 pairs, in a nanosecond


def test_what_the_data_decide_beyond_lengths_is_left_unchecked_and_named():
    verdict = checked(row("fused_moe", ROUTED, 1), row("rms_norm", NORM, NORM_NS))
    assert verdict.suspicions == ()
    assert verdict.unchecked == {"fused_moe": 1}
    assert verdict.checked_ns == NORM_NS
    assert verdict.sentences() == ["rates were not checked of fused_moe (1 ns)"]


def test_an_operator_without_a_folder_is_left_unchecked_and_named():
    verdict = checked(row("l2_norm", {"rows": 1, "width": 1}, 7))
    assert verdict.unchecked == {"l2_norm": 7}


def test_lengths_that_do_not_fit_their_sequences_are_left_unchecked():
    axes = {**DECODE, "kv_lens": "total:3@mooncake"}
    assert checked(row("unified_attention", axes, 5)).unchecked == {"unified_attention": 5}


def test_a_class_of_unlike_kernels_is_no_part_of_the_check():
    verdict = checked(row("elementwise", {"rows": 1}, 5, kind="class"))
    assert (verdict.checked_ns, verdict.unchecked) == (0, {})


def test_rows_of_unknown_axes_are_no_part_of_the_check():
    verdict = checked(row("rms_norm", {**NORM, "rows": "unknown"}, 5, workload=""))
    assert (verdict.checked_ns, verdict.unchecked) == (0, {})


def test_modelled_times_are_not_checked():
    verdict = checked(row("rms_norm", NORM, 1, time_source="modelled"))
    assert verdict.suspicions == ()
    assert verdict.unchecked == {"rms_norm": 1}


def test_a_shape_of_a_lower_rung_is_checked_too():
    assert flags(row("rms_norm", NORM, NORM_NS // 2, rung="grid")) == [("rms_norm", "memory")]


def test_a_pipe_without_a_known_peak_is_named():
    verdict = checked(
        row("gemm_dense", PRODUCT, 10_000_000, kind="class"), gpu="Tesla V100-SXM2-32GB"
    )
    assert verdict.suspicions == ()
    assert verdict.unknown_peaks == {"bf16": 10_000_000}
    assert verdict.sentences() == ["rates were not checked on pipe bf16 (10.0 ms)"]


def test_operands_that_a_batch_may_share_are_counted_once():
    # 256 products with one weight: the operands of one and all the outputs
    axes = {"rows": 64, "n_out": 4096, "k_in": 4096, "batch": 256}
    assert flags(row("gemm_dense", axes, 600_000, kind="class")) == []


def test_an_unknown_device_gives_no_check_and_says_so():
    verdict = checked(row("rms_norm", NORM, 1), gpu="AMD Radeon Graphics")
    assert verdict.device is None
    assert verdict.suspicions == ()
    assert verdict.unchecked == {"rms_norm": 1}
    assert verdict.sentences() == [
        "rates were not checked: no peaks are known of AMD Radeon Graphics"
    ]


def test_the_largest_times_come_first():
    facts = pl.DataFrame(
        [row("rms_norm", NORM, gpu_ns) for gpu_ns in (100_000, 300_000, 200_000)],
        schema=FACTS,
    )
    assert [each.gpu_ns for each in suspicious(facts, H100, OPERATORS)] == [
        300_000,
        200_000,
        100_000,
    ]


def test_numbers_answer_elementwise():
    three, two = Numbers([3, 0, 8]), Numbers([1, 2, 2])
    assert [*(three + two)] == [4, 2, 10]
    assert [*(1 + three - two)] == [3, -1, 7]
    assert [*(5 - three)] == [2, 5, -3]
    assert [*(2 * three * two)] == [6, 0, 32]
    assert [*((three + 1) // two)] == [4, 0, 4]
    assert [*(three > two)] == [1, 0, 1]
    assert [*(three >= 3)] == [1, 0, 1]
    assert [*(three < two)] == [0, 1, 0]
    assert [*(three <= 3)] == [1, 1, 0]
    assert [*three.minimum(two)] == [1, 0, 2]
    assert [*three.maximum(two)] == [3, 2, 8]
    assert [*three.clamp(min=1)] == [3, 1, 8]
    assert [*three.long()[1:]] == [0, 8]
    assert (three[0], len(three), three.sum()) == (3, 3, 11)


def test_numbers_of_unlike_counts_do_not_mix():
    with pytest.raises(ValueError, match="shorter"):
        Numbers([1, 2]) + Numbers([1])


def test_checking_needs_no_torch():
    code = (
        "import sys; from tests.trace import test_plausible as t;"
        "t.test_windowed_attention_counted_without_its_window_is_flagged();"
        "print('torch' in sys.modules)"
    )
    root = registry.content("operators").parent
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=root
    )
    assert answer.stdout.strip() == "False"


def test_a_real_prefill_stays_below_the_peaks(captures):
    folder = captures / "tracelens/traces/inference/sglang_prefilldecode"
    ingested = understand(
        read_recording(folder / "sglang_Qwen3-8B_prefilldecode.json.gz"), OPERATORS, Context()
    )
    verdict = check(ingested.facts, ingested.summary.gpu, OPERATORS)
    assert verdict.device.name == MI300X
    assert verdict.suspicions == ()
    assert verdict.checked_ns == 483_147_611  # of 492,773,592 ns
    assert verdict.unchecked == {"reshape_and_cache": 1_271_220}
