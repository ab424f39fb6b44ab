"""Rules that are data: each must recognise its own examples, and nothing that is alike."""

import re
import tomllib

import pytest

from atrex.model import UNKNOWN
from atrex.operator import Call, Step
from atrex.registry import content, operators
from atrex.trace.names import normalise_kernel
from atrex.trace.recipes import BINDING, RUNGS
from atrex.trace.rules import FILES, load_rules

RULES = load_rules()
EXAMPLES = [(rule.name, example) for rule in RULES.rules for example in rule.examples]
TABLES = [
    (entry["name"], table)
    for file in FILES
    for entry in tomllib.loads((content("data") / file).read_text())["rule"]
    for table in entry.get("axes", [])
]
FA3 = (
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<"
    "flash::CollectiveMainloopFwdSm90<2, cute::tuple<cute::C<1>, cute::C<1>, cute::C<1> >, "
    "cute::tuple<cute::C<128>, cute::C<176>, cute::C<128> >, 128, cutlass::bfloat16_t, float, "
    "cutlass::arch::Sm90, {flags}>, int> > >(int)"
)
FA2 = (
    "void flash::flash_fwd_splitkv_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4, false, false, "
    "cutlass::bfloat16_t, Flash_kernel_traits<128, 64, 128, 4, cutlass::bfloat16_t> >, {flags}>"
    "(flash::Flash_fwd_params)"
)
FMHA = "fmhaSm100fKernel_QkvE4m3OBfloat16H64PagedKv{mask}P16VarSeqQ128Kv128PersistentContext"
# axes of the operators that have no folder yet, in their order
AXES = {
    "fp8_blockscale_fused_moe": "tokens hidden experts local_experts top_k expert_width ids",
    "paged_attention_decode": "seqs heads kv_heads head_dim page kv_lens",
    "topk_filter": "seqs vocab top_k",
    "gated_delta_rule_update": "tokens seqs key_heads value_heads key_dim value_dim slots "
    "state_dtype state_layout q_lens slot_ids",
    "fused_qkv_rope": "tokens heads kv_heads head_dim rope_dim bias positions",
    "mla_decode_attention": "tokens seqs heads lora_rank rope_dim page scale q_lens kv_lens",
    "attention_forward": "tokens seqs heads kv_heads head_dim causal q_lens",
    "causal_conv1d": "tokens seqs channels width slots bias q_lens slot_ids",
    "fused_qk_rmsnorm": "tokens heads kv_heads head_dim eps weight_offset",
    "chunk_gated_delta_rule_state": "tokens seqs key_heads value_heads key_dim value_dim chunk "
    "slots state_dtype state_layout q_lens slot_ids",
    "moe_align_block_size": "tokens top_k experts block ids",
    "mrope": "tokens heads kv_heads head_dim sections interleaved positions",
    "chunk_delta_rule_output": "tokens seqs key_heads value_heads key_dim value_dim chunk q_lens",
    "fp8_dynamic_per_token_quant": "rows width quant_max",
    "linear_sigmoid_mul": "tokens hidden bias",
    "per_token_group_quant_fp8": "rows width group scale_layout ue8m0 quant_max",
    "gated_rms_norm": "rows width eps gate_first",
    "l2_norm": "rows width",
    "moe_count_and_sort": "tokens top_k experts ids",
    "fused_rmsnorm_quant": "rows width eps weight_offset quant_max",
    "moe_sum_reduce": "tokens top_k hidden factor",
    "layer_norm": "rows width eps",
}
QWEN3_8B = {
    "hidden": 4096, "heads": 32, "kv_heads": 8, "head_dim": 128, "qkv_width": 6144,
    "mlp_width": 12288, "vocab": 151936, "eps": "1e-6", "weight_offset": 0, "rope_dim": 128,
    "window": 0,
}  # fmt: skip
DECODE = Step(
    phase="decode", tokens=32, query_tokens=30, kv_tokens=4096, sequences=30, model=QWEN3_8B
)


def templated(kernel, flags):
    """Write flags as template arguments: t and f for true and false."""
    return kernel.format(flags=", ".join({"t": "true", "f": "false"}[flag] for flag in flags))


def rule_of(name):
    return next(rule for rule in RULES.rules if rule.name == name)


def seen(kernel):
    found = RULES.of_kernel(normalise_kernel(kernel))
    return found.name if found else UNKNOWN


def read(kernel, step=DECODE, **more):
    """Read a call by its kernel alone."""
    name = normalise_kernel(kernel)
    call = Call(name="", kernels=(name,), **more)
    recipe = next(each for each in RULES.of_kernel(name).by_kernel if each.fits(call))
    return recipe.read(call, step)


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_a_rule_recognises_its_examples(name, example):
    assert seen(example) == name


def test_every_rule_has_an_example_and_a_unique_name():
    names = [rule.name for rule in RULES.rules]
    assert [rule.name for rule in RULES.rules if not rule.examples] == []
    assert len(names) == len(set(names))


def test_all_thirty_operators_have_a_name_to_be_seen_by():
    assert sum(rule.kind == "operator" for rule in RULES.rules) == 30


@pytest.mark.parametrize(
    ("kernel", "name"),
    [
        # the activation decides
        (
            "void vllm::act_and_mul_kernel<c10::BFloat16, "
            "&vllm::silu_kernel<c10::BFloat16>, true>(int)",
            "silu_and_mul",
        ),
        (
            "void vllm::act_and_mul_kernel<c10::BFloat16, "
            "&vllm::gelu_tanh_kernel<c10::BFloat16>, true>(int)",
            "activation_other",
        ),
        (
            "void flashinfer::activation::act_and_mul_kernel<__half, &gelu>(__half*)",
            "activation_other",
        ),
        ("_silu_and_mul_kernel", "silu_and_mul"),
        ("_silu_and_mul_post_quant_kernel", "quant_other"),
        ("silu_mul_fp8_quant_deep_gemm_kernel", "quant_other"),
        # one kernel, four roles by its template
        (
            "void aiter::add_rmsnorm_quant_kernel<__hip_bfloat16, __hip_bfloat16, 64, 8, "
            "false, false>(int)",
            "rms_norm",
        ),
        (
            "void aiter::add_rmsnorm_quant_kernel<__hip_bfloat16, __hip_bfloat16, 64, 8, "
            "true, false>(int)",
            "fused_add_rms_norm",
        ),
        (
            "void aiter::add_rmsnorm_quant_kernel<__hip_bfloat16, __hip_fp8_e4m3_fnuz, "
            "64, 8, true, false>(int)",
            "fused_rmsnorm_quant",
        ),
        (
            "void vllm::rms_norm_static_fp8_quant_kernel<c10::BFloat16, 8, "
            "c10::Float8_e4m3fn>(int)",
            "fused_rmsnorm_quant",
        ),
        (
            "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, "
            "float, true>(int)",
            "rms_norm",
        ),
        (
            "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float, (bool)0>(int)",
            "layer_norm",
        ),
        # attention: paged and causal, one query, contiguous, latent
        (
            templated(FA3, "tfftfffttfff"),
            "unified_attention",
        ),
        (
            templated(FA3, "fffttffttfff"),
            "unified_attention",
        ),
        (
            templated(FA3, "ffftfffttttf"),
            "unified_attention",
        ),
        (
            templated(FA3, "ffftfffttfff"),
            "attention_forward",
        ),
        (
            templated(FA2, "tffftfff"),
            "unified_attention",
        ),
        (
            templated(FA2, "fffftftf"),
            "paged_attention_decode",
        ),
        ("void flash::flash_fwd_splitkv_mla_kernel<Traits, false>(int)", "mla_decode_attention"),
        (
            "void flashinfer::BatchDecodeWithPagedKVCacheKernelMLA<Traits>(int)",
            "mla_decode_attention",
        ),
        ("void flashinfer::BatchPrefillWithRaggedKVCacheKernel<Traits>(int)", "attention_forward"),
        (
            "fmhaSm100fKernel_QkvBfloat16OBfloat16HQk192HV128SeparateQkvCausalVarSeqQ128Kv128",
            "attention_other",
        ),
        ("void flash_bwd_dq_dk_dv_loop_kernel<Traits>(int)", "training"),
        # GEMMs by what they multiply
        ("nvjet_qqtst_128x128_128x6_2x1_v_bz_TNT", "gemm_fp8"),
        ("nvjet_tst_128x128_64x6_2x1_v_bz_TNT", "gemm_dense"),
        ("_gemm_a8w8_kernel", "gemm_fp8"),
        ("_gemm_a8w8_blockscale_kernel", "block_scaled_mm"),
        (
            "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, "
            "2048u, 1u, 128u, (deep_gemm::GemmType)0>(int)",
            "block_scaled_mm",
        ),
        (
            "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, 0u, 4096u, "
            "2048u, 64u, 128u, (deep_gemm::GemmType)2>(int)",
            "fp8_blockscale_fused_moe",
        ),
        ("void marlin::Marlin<__nv_bfloat16, 1l, 256>(int)", "gemm_int4"),
        ("void marlin_moe_wna16::Marlin<__nv_bfloat16, 1l, 256>(int)", "moe_int4"),
        ("fused_moe_kernel_gptq_awq", "moe_int4"),
        ("_matmul_ogs_NNT_bf16xbf16xbf16_128x128x64x1", "fused_moe"),
        ("_matmul_ogs_NNT_bf16xbf16xmxfp4_128x128x128x1", "moe_fp4"),
        # routing: softmax over all experts, or something else
        (
            "void vllm::moe::topkGating<4, 128, 4, 8, 32, int, float, "
            "(vllm::moe::ScoringFunc)0>(int)",
            "moe_topk_gating_softmax",
        ),
        (
            "void vllm::moe::topkGating<4, 128, 4, 8, 32, int, float, "
            "(vllm::moe::ScoringFunc)1>(int)",
            "moe_routing",
        ),
        # a communication that does more is one still
        ("void vllm::cross_device_reduce_2stage<__half, 8>(int)", "collective"),
        (
            "void tensorrt_llm::kernels::lamport_style_one_shot_all_reduce_norm_kernel<1, flo"
            "at>(int)",
            "collective",
        ),
        ("void deep_ep::internode_ll::dispatch<true, 3, 7168>(int)", "expert_parallel"),
        # rotation with the norm is neither
        ("void tensorrt_llm::kernels::fusedQKNormRopeKernel<128, false>(int)", "norm_rope_fusion"),
        ("void vllm::rotary_embedding_kernel<c10::BFloat16, true>(int)", "rope"),
        ("nvjet_sm90_qqtst_128x128_128x6_2x1_v_bz_TNT", "gemm_fp8"),
        ("fmha_v2_flash_attention_bf16_64_32_S_q_paged_kv_64_sm86_kernel", "unified_attention"),
        ("fmha_v2_flash_attention_bf16_64_128_S_qkv_128_causal_sm90_kernel", "attention_forward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention_forward"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16", "training"),
        ("_lora_shrink_kernel", "lora"),
        ("my_own_kernel", "unknown"),
        ("matmul", "unknown"),
    ],
)
def test_names_that_are_alike_are_told_apart(kernel, name):
    assert seen(kernel) == name


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_a_table_of_axes_has_the_operators_axes_in_their_order(name, table):
    bundled = operators()
    of_name = [each["values"] for owner, each in TABLES if owner == name]
    expected = (
        bundled[name].axes if name in bundled else AXES.get(name, " ".join(of_name[0])).split()
    )
    assert list(table["values"]) == list(expected)


def test_every_operator_without_a_folder_has_a_table_of_axes():
    assert {*AXES, *operators()} == {rule.name for rule in RULES.rules if rule.kind == "operator"}
    assert {*AXES} <= {name for name, _ in TABLES}


TERM = re.compile(
    r"\w+:=?\d+(\.-?\w+)?|\w+:\d+\.\w+|=\d+|\$\w+|\d+\.(lead|-?\d+)|(grid|block)\.[012]|"
    r"(step|model)\.[a-z_]+|[\w-]+|total:|@[\w-]+|[()]"
)


@pytest.mark.parametrize(("name", "table"), TABLES)
def test_a_table_of_axes_holds_no_term_that_is_misspelt(name, table):
    groups = set(re.compile(table.get("kernel", "")).groupindex)
    dtypes = re.sub(r"(?<=.)[/>](?=.)", " ", str(table.get("dtype", "")))
    for text in (*table["values"].values(), dtypes):
        for token in re.sub(r"[{}]", " ", text).split():
            assert token in BINDING or TERM.fullmatch(token), token
            if token.startswith("$"):
                assert token[1:] in groups
            source, dot, field = token.partition(".")
            if dot and source == "step":
                assert field in Step.__dataclass_fields__
            assert not dot or source in RUNGS or source.rpartition(":")[2].isdigit()
    for place in ("after", "before"):
        known = {"", *(rule.name for rule in RULES.rules)}
        assert set(table.get(place, [])) <= known


@pytest.mark.parametrize(
    ("op", "dims", "axes"),
    [
        ("aten::mm", ((46, 2880), (2880, 512)), (46, 512, 2880, 1)),
        ("aten::addmm", ((640,), (888, 2880), (2880, 640)), (888, 640, 2880, 1)),
        ("aten::bmm", ((64, 256, 32), (64, 32, 128)), (256, 128, 32, 64)),
        ("aten::linear", ((3, 5, 7, 32), (16, 32), ()), (105, 16, 32, 1)),
        ("aiter::gemm_a16w16", ((15, 4096), (6144, 4096)), (15, 6144, 4096, 1)),
    ],
)
def test_gemm_axes_are_read_from_dims(op, dims, axes):
    recipe = rule_of("gemm_dense").recipes[op]
    types = ("c10::BFloat16",) * 3
    found, dtype, rung = recipe.read(Call(name=op, kernels=(), dims=dims, types=types), Step())
    assert found == dict(zip(("rows", "n_out", "k_in", "batch"), axes, strict=True))
    assert (dtype, rung) == ("bf16", "")


def test_heads_of_a_rotary_embedding_are_its_width_over_the_head_size():
    recipe = rule_of("rope").recipes["_C::rotary_embedding"]
    call = Call(
        name="_C::rotary_embedding", kernels=(), dims=((9,), (9, 512), (9, 64), (), (100, 64), ()),
        types=("long int", "c10::Half"), concrete=("", "", "", "64", "", "True"),
    )  # fmt: skip
    assert recipe.read(call, Step()) == (
        {"tokens": 9, "heads": 8, "kv_heads": 1, "head_dim": 64, "rope_dim": 64}, "fp16", ""
    )  # fmt: skip


def test_an_axis_that_the_trace_does_not_tell_is_unknown_and_never_a_guess():
    recipe = rule_of("rope").recipes["_C::rotary_embedding"]
    call = Call(name="_C::rotary_embedding", kernels=(), dims=((9,),))
    found, dtype, _ = recipe.read(call, Step())
    assert found == {
        "tokens": 9, "heads": UNKNOWN, "kv_heads": UNKNOWN, "head_dim": UNKNOWN,
        "rope_dim": UNKNOWN,
    }  # fmt: skip
    assert dtype == UNKNOWN


@pytest.mark.parametrize(
    ("op", "q", "k", "tokens", "q_lens"),
    [
        ("aten::scaled_dot_product_attention", (4, 12, 197, 64), (4, 12, 197, 64), 788, 197),
        ("aten::scaled_dot_product_attention", (4, 12, 256, 64), (4, 12, 128, 64), 1024, UNKNOWN),
        ("aten::scaled_dot_product_attention", (4, 12, 256, 64), (4, 12, 512, 64), 1024, UNKNOWN),
        ("aten::_flash_attention_forward", (4, 197, 12, 64), (4, 197, 12, 64), 788, 197),
    ],
)
def test_attention_to_other_lengths_than_the_queries_is_not_told(op, q, k, tokens, q_lens):
    recipe = rule_of("attention_forward").recipes[op]
    axes, _, _ = recipe.read(Call(name=op, kernels=(), dims=(q, k, k)), Step())
    assert (axes["tokens"], axes["heads"], axes["seqs"]) == (tokens, 12, 4)
    assert axes["q_lens"] == q_lens


@pytest.mark.parametrize(
    ("op", "eps"), [("aten::native_layer_norm", 4), ("aten::_fused_rms_norm", 3)]
)
@pytest.mark.parametrize(
    ("x", "weight", "rows", "width"),
    [
        ((2, 77, 768), (768,), 154, 768),
        ((8, 16, 32, 32), (16, 32, 32), 8, 16384),
        ((8, 16, 32), (), UNKNOWN, UNKNOWN),
    ],
)
def test_a_norm_reduces_over_the_sizes_of_its_weight(op, eps, x, weight, rows, width):
    name = RULES.of_op(op).name
    axes, _, _ = rule_of(name).recipes[op].read(
        Call(name=op, kernels=(), dims=(x, (), weight, weight)), Step()
    )  # fmt: skip
    assert (axes["rows"], axes["width"]) == (rows, width)


def test_top_k_comes_from_the_router_beside_the_experts():
    step = Step(siblings=(Call(name="TopK", kernels=(), dims=((888, 128),), concrete=("", "4")),))
    recipe = rule_of("moe_fp4").recipes["vllm::moe_forward"]
    call = Call(name="vllm::moe_forward", kernels=(), dims=((888, 3072), (888, 128)))
    axes, _, _ = recipe.read(call, step)
    assert axes == {
        "tokens": 888, "hidden": 3072, "experts": 128, "local_experts": UNKNOWN, "top_k": 4,
        "expert_width": UNKNOWN,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("after", "before", "rows", "n_out", "k_in"),
    [
        ("rms_norm", "rope", 32, 6144, 4096),
        ("fused_add_rms_norm", "rms_norm", 32, 6144, 4096),
        ("paged_attention_decode", "fused_add_rms_norm", 32, 4096, 4096),
        ("unified_attention", "collective", 32, 4096, 4096),
        ("fused_add_rms_norm", "silu_and_mul", 32, 24576, 4096),
        ("silu_and_mul", "fused_add_rms_norm", 32, 4096, 12288),
        ("fused_add_rms_norm", "sampling", 30, 151936, 4096),
        ("embedding_gather", "", 30, 151936, 4096),
        ("fused_add_rms_norm", "moe_topk_gating_softmax", 32, UNKNOWN, 4096),
        ("fused_add_rms_norm", "elementwise", UNKNOWN, UNKNOWN, UNKNOWN),
        ("", "", UNKNOWN, UNKNOWN, UNKNOWN),
    ],
)
def test_the_place_of_a_gemm_tells_its_role(after, before, rows, n_out, k_in):
    kernel = "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT16x16x512_MI16x16x1"
    axes, _, rung = read(kernel, after=after, before=before)
    assert axes == {
        "rows": rows, "n_out": n_out, "k_in": k_in, "batch": UNKNOWN if rows == UNKNOWN else 1
    }  # fmt: skip
    assert rung == ("" if rows == UNKNOWN else "period")


def test_a_role_without_a_model_tells_rows_only():
    axes, _, _ = read("nvjet_tst_64x8", Step(tokens=8), before="silu_and_mul", after="rms_norm")
    assert axes == {"rows": 8, "n_out": UNKNOWN, "k_in": UNKNOWN, "batch": 1}


@pytest.mark.parametrize(
    ("kernel", "grid", "after", "before", "expected"),
    [
        ("vllm::rms_norm_kernel<bf16, 8, 2>", (888, 1, 1), "embedding_gather", "gemm_dense",
         (888, 4096, 4096, "grid")),
        ("vllm::rms_norm_kernel<bf16, 8, 2>", (1024, 1, 1), "gemm_dense", "rms_norm",
         (1024, 128, 128, "period")),
        ("aiter::add_rmsnorm_quant_kernel<bf16, bf16, 64, 8, false>", None, "rms_norm", "rope",
         (256, 128, 128, "period")),
        ("vllm::rms_norm_kernel<bf16, 8, 3>", (32, 1, 1), "rms_norm", "rope",
         (256, 128, UNKNOWN, "period")),
        ("vllm::rms_norm_kernel<bf16, 8, 2>", (32, 1, 1), "gemm_dense", "gemm_dense",
         (32, UNKNOWN, UNKNOWN, "grid")),
        ("_rms_norm_kernel", (32, 1, 1), "gemm_dense", "gemm_dense", None),
    ],
)  # fmt: skip
def test_the_place_of_a_norm_tells_its_width(kernel, grid, after, before, expected):
    call = Call(name="", kernels=(kernel,), grid=grid, after=after, before=before)
    recipe = next((each for each in rule_of("rms_norm").by_kernel if each.fits(call)), None)
    if expected is None:
        assert recipe is None
        return
    axes, _, rung = recipe.read(call, DECODE)
    assert (axes["rows"], axes["width"], axes["row_stride"], rung) == expected


@pytest.mark.parametrize(
    ("sizes", "n_out", "k_in"),
    [
        ("(cute::UMMA::Major)0, 0u, 4096u, 2048u, 1u", 4096, 2048),
        ("0u, 4096u, 2048u, 1u", 4096, 2048),
        ("(cute::UMMA::Major)0, 0u, 0u, 0u, 1u", UNKNOWN, UNKNOWN),  # known at run time only
        ("(cute::UMMA::Major)0, 0u, 4096u, 512u, 1u", UNKNOWN, UNKNOWN),  # of cached tokens
    ],
)
def test_deep_gemm_names_what_was_compiled_in(sizes, n_out, k_in):
    kernel = f"void deep_gemm::sm90_fp8_gemm_1d2d_impl<{sizes}, 128u, (deep_gemm::GemmType)0>(int)"
    call = Call(name="", kernels=(normalise_kernel(kernel),))
    fitting = [each for each in rule_of("block_scaled_mm").by_kernel if each.fits(call)]
    if n_out == UNKNOWN:
        assert fitting == []
        return
    axes, dtype, rung = fitting[0].read(call, DECODE)
    assert axes == {"rows": 32, "n_out": n_out, "k_in": k_in, "out_dtype": "bf16"}
    assert (dtype, rung) == ("fp8_e4m3fn", "name")


@pytest.mark.parametrize(
    ("kernel", "model", "window"),
    [
        (FMHA.format(mask="Causal"), {}, 0),
        (FMHA.format(mask="SlidingOrChunkedCausal"), {}, UNKNOWN),
        (FMHA.format(mask="SlidingOrChunkedCausal"), {"sliding_window": 128}, 128),
        (templated(FA3, "tfftff"), {"sliding_window": 128}, 0),
        (templated(FA3, "ftftff"), {"sliding_window": 128}, 128),
        ("kernel_unified_attention_2d", {"sliding_window": 128}, UNKNOWN),
        ("kernel_unified_attention_2d", {"window": 0}, 0),
    ],
)
def test_a_window_is_known_by_name_or_where_all_layers_have_one(kernel, model, window):
    axes, _, _ = read(kernel, Step(model=model))
    assert axes["window"] == window


def test_names_tell_head_and_page_sizes_and_dtypes():
    rocm = (
        "void paged_attention_ll4mi_QKV_mfma16_kernel<__hip_bfloat16, __hip_fp8_e4m3, "
        "(vllm::Fp8KVCacheDataType)1, __hip_bfloat16, 16, 128, 256, false, 8>(int)"
    )
    axes, dtype, rung = read(rocm)
    assert axes == {
        "seqs": 30, "heads": 32, "kv_heads": 8, "head_dim": 128, "page": 16,
        "kv_lens": "total:4096@mooncake",
    }  # fmt: skip
    assert (dtype, rung) == ("bf16/fp8_e4m3fn", "name")
    axes, dtype, _ = read(FMHA.format(mask="Causal"), grid=(4, 8, 1))
    assert (axes["heads"], axes["seqs"], axes["head_dim"], axes["page"]) == (8, 1, 64, 16)
    assert dtype == "bf16/fp8_e4m3fn"
    axes, dtype, _ = read(
        "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, unsigned char, "
        "(vllm::Fp8KVCacheDataType)1>(int)", grid=(888, 1, 1),
    )  # fmt: skip
    assert (axes["tokens"], axes["kv_heads"], axes["pages"]) == (888, 8, UNKNOWN)
    assert dtype == "bf16/fp8_e4m3fn"


def test_a_verified_draft_has_several_queries_for_each_sequence():
    step = Step(query_tokens=128, sequences=32, kv_tokens=9000, model={"value_heads": 8})
    axes, _, _ = read("fused_recurrent_gated_delta_rule_fwd_kernel", step)
    assert (axes["tokens"], axes["seqs"], axes["q_lens"], axes["value_heads"]) == (128, 32, 4, 8)


def test_experts_of_a_routed_activation_multiply_its_rows():
    step = Step(tokens=32, model={"top_k": 8, "expert_width": 768, "mlp_width": 999})
    kernel = "_silu_and_mul_kernel"
    assert read(kernel, step, after="fused_moe")[0] == {"rows": 256, "width": 768}
    assert read(kernel, step, after="gemm_dense")[0] == {"rows": 32, "width": 999}


def test_kernels_that_only_continue_a_call_are_told_apart():
    rule = RULES.of_kernel("paged_attention_ll4mi_reduce_kernel<bf16>")
    assert rule.name == "paged_attention_decode"
    assert RULES.continues(rule, "paged_attention_ll4mi_reduce_kernel<bf16>")
    assert not RULES.continues(rule, "paged_attention_ll4mi_QKV_mfma16_kernel<0>")
