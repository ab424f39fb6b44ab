"""fused_moe: what it computes, what it needs to read, and how traces name it."""

import pytest

torch = pytest.importorskip("torch")

from torch.nn.functional import silu  # noqa: E402  torch must be there first

from atrex import registry  # noqa: E402
from atrex.judge.generator import CASES, Generator  # noqa: E402
from atrex.operator import Call, Step  # noqa: E402

DEFINITION = registry.operators()["fused_moe"]
BF16, FP8, FLOAT, INT, SCALAR = (
    "c10::BFloat16", "c10::Float8_e4m3fn", "float", "int", "Scalar",
)  # fmt: skip
EMPTY = DEFINITION.small[1]  # one token, four of sixteen experts


def test_gates_the_upper_half_of_w1_by_the_activated_lower_half():
    wide = {"dtype": torch.float64}
    out = DEFINITION.reference(
        x=torch.tensor([[2.0]], **wide),
        w1=torch.tensor([[[1.0], [3.0]], [[0.0], [5.0]]], **wide),  # expert 1 has a closed gate
        w2=torch.tensor([[[10.0]], [[10.0]]], **wide),
        topk_w=torch.tensor([[0.25, 0.75]], **wide),
        topk_ids=torch.tensor([[0, 1]]),
    )["out"]
    silu_of_2 = 2 / (1 + 2.718281828459045**-2)
    assert out.tolist() == [[pytest.approx(silu_of_2 * 6 * 10 * 0.25, rel=1e-12)]]


def test_agrees_with_one_product_for_each_token_and_slot():
    for workload in DEFINITION.small:
        drawn = DEFINITION.inputs(workload, Generator(b"key", CASES[1]))
        x, w1, w2, topk_w, topk_ids = (value.double() for value in drawn.values())
        expected = torch.zeros_like(x)
        for token, slot in (topk_ids >= 0).nonzero().tolist():
            expert = int(topk_ids[token, slot])
            gate, up = (w1[expert] @ x[token]).chunk(2)
            expected[token] += topk_w[token, slot] * (w2[expert] @ (silu(gate) * up))
        out = DEFINITION.reference(x, w1, w2, topk_w, topk_ids.int())["out"]
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


def test_a_token_without_a_local_expert_is_zero():
    weights = torch.ones(1, 2, 4, dtype=torch.float64)
    out = DEFINITION.reference(
        x=torch.ones(2, 4, dtype=torch.float64),
        w1=weights,
        w2=torch.ones(1, 4, 1, dtype=torch.float64),
        topk_w=torch.ones(2, 2, dtype=torch.float64),
        topk_ids=torch.tensor([[-1, -1], [-1, 0]]),
    )["out"]
    assert out[0].tolist() == [0, 0, 0, 0]
    assert out[1, 0] > 0


def test_costs_the_weights_of_hit_experts_only():
    ids = torch.tensor([[0, 2, -1, 5]])
    cost = DEFINITION.cost(EMPTY, {"topk_ids": ids})
    hidden, width = 256, 200
    assert cost.flop == {"bf16": 6 * 3 * hidden * width}
    assert cost.read_bytes == 2 * hidden + 3 * 3 * hidden * width * 2 + 8 * 4


def call(name="vllm::outplace_fused_experts", weights=BF16, more=((), (128,)), concrete="silu"):
    return Call(
        name=name,
        kernels=("fused_moe_kernel",),
        dims=((32, 2048), (16, 1536, 2048), (16, 2048, 768), (32, 8), (32, 8), *more),
        types=(BF16, weights, weights, FLOAT, INT, SCALAR, INT),
        concrete=("", "", "", "", "", concrete, ""),
    )


def matched(call):
    found = DEFINITION.match(call, Step())
    return None if found is None else (*found.axes.values(), found.dtype)


def test_reads_the_sizes_off_the_weights_and_the_experts_off_their_map():
    assert matched(call()) == (32, 2048, 128, 16, 8, 768, "skewed", "bf16")
    assert matched(call(more=((), ()))) == (32, 2048, 16, 16, 8, 768, "skewed", "bf16")
    assert matched(call(name="sglang::inplace_fused_experts")) == matched(call())


@pytest.mark.parametrize(
    "other",
    [
        call(weights=FP8),
        call(concrete="gelu"),
        call(concrete="swigluoai"),
        call(more=((), (), (16, 1536))),  # a bias of the first layer
    ],
    ids=["fp8 weights", "gelu", "swiglu of another form", "bias"],
)
def test_quantised_biased_and_otherwise_activated_experts_are_not_this_operator(other):
    assert matched(other) is None


def test_a_container_tells_neither_width_nor_dtype_of_the_experts():
    container = Call(
        name="vllm::moe_forward",
        kernels=("fused_moe_kernel",),
        dims=((8, 4096), (8, 128)),
        types=(BF16, BF16),
    )
    no = "unknown"
    assert matched(container) == (8, 4096, 128, no, no, no, "skewed", no)
    assert matched(Call(name="", kernels=("fused_moe_kernel",))) == (no,) * 8


def test_other_kernels_of_the_container_are_not_this_operator():
    router = Call(name="vllm::moe_forward", kernels=("_topk_forward",), dims=((8, 4096), (8, 128)))
    assert matched(router) is None
