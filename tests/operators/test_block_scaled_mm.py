"""block_scaled_mm: where the scales go, and how traces name the product."""

import pytest

torch = pytest.importorskip("torch")

from atrex import registry  # noqa: E402  torch must be there first
from atrex.operator import Call, Step  # noqa: E402
from atrex.trace.rules import load_rules  # noqa: E402

DEFINITION = registry.operators()["block_scaled_mm"]
FNUZ, FN, FLOAT = "c10::Float8_e4m3fnuz", "c10::Float8_e4m3fn", "float"


def test_a_scale_holds_for_a_group_of_k_and_a_block_of_n():
    wide = {"dtype": torch.float64}
    out = DEFINITION.reference(
        a=torch.ones(1, 130, **wide),
        a_scale=torch.tensor([[2.0, 3.0]], **wide),
        w=torch.ones(129, 130, **wide),
        w_scale=torch.tensor([[1.0, 10.0], [100.0, 1000.0]], **wide),
    )["out"]
    assert out[0, 0] == 2 * 1 * 128 + 3 * 10 * 2
    assert out[0, 127] == out[0, 0]
    assert out[0, 128] == 2 * 100 * 128 + 3 * 1000 * 2


def matched(call):
    found = DEFINITION.match(call, Step())
    return None if found is None else (*found.axes.values(), found.dtype)


def test_reads_the_weight_before_the_scales_or_behind_the_first():
    triton = Call(
        name="vllm::w8a8_triton_block_scaled_mm_func",
        kernels=(),
        dims=((64, 7168), (2112, 7168), (64, 56), (17, 56), (), ()),
        types=(FN, FN, FLOAT, FLOAT, "ScalarList", "Scalar"),
        concrete=("", "", "", "", "[128, 128]", "15"),
    )
    deep_gemm = Call(
        name="sglang::deep_gemm_fp8_fp8_bf16_nt",
        kernels=(),
        dims=((64, 7168), (64, 56), (2112, 7168), (17, 56), (64, 2112)),
        types=(FN, FLOAT, FN, FLOAT, "c10::BFloat16"),
    )
    assert matched(triton) == (64, 2112, 7168, "bf16", "fp8_e4m3fn")
    assert matched(deep_gemm) == matched(triton)


def test_reads_a_transposed_weight():
    call = Call(
        name="sgl_kernel::fp8_blockwise_scaled_mm",
        kernels=(),
        dims=((8, 4096), (4096, 2048), (8, 32), (32, 16), ()),
        types=(FN, FN, FLOAT, FLOAT, "Scalar"),
        concrete=("", "", "", "", "5"),
    )
    assert matched(call) == (8, 2048, 4096, "fp16", "fp8_e4m3fn")


def test_an_output_dtype_that_the_trace_does_not_tell_is_unknown():
    call = Call(
        name="vllm::rocm_aiter_gemm_a8w8_blockscale",
        kernels=(),
        dims=((2, 16, 512), (256, 512), (32, 4), (2, 4), ()),
        types=(FNUZ, FNUZ, FLOAT, FLOAT, ""),
    )
    assert matched(call) == (32, 256, 512, "unknown", "fp8_e4m3fnuz")


@pytest.mark.parametrize(
    ("template", "sizes"),
    [
        ("(cute::UMMA::Major)0, 0u, 4096u, 8192u, 1u, 256u", (4096, 8192)),
        ("0u, 4096u, 7168u, 1u, 64u", (4096, 7168)),
        ("(cute::UMMA::Major)0, 0u, 0u, 0u, 1u, 16u", ("unknown", "unknown")),
    ],
)
def test_the_template_of_a_kernel_tells_the_sizes_of_the_weight(template, sizes):
    call = Call(name="", kernels=(f"deep_gemm::sm90_fp8_gemm_1d2d_impl<{template}>",))
    assert matched(call) == ("unknown", *sizes, "bf16", "fp8_e4m3fn")


def test_a_kernel_with_a_product_for_each_expert_is_another_operator():
    template = "(cute::UMMA::Major)0, 0u, 4096u, 4096u, 32u, 128u, (deep_gemm::GemmType)1"
    kernel = f"deep_gemm::sm90_fp8_gemm_1d2d_impl<{template}>"
    assert matched(Call(name="", kernels=(kernel,))) is None
    assert load_rules().of_kernel(kernel).name == "fp8_blockscale_fused_moe"
