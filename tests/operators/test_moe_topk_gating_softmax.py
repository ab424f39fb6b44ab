"""moe_topk_gating_softmax: which answers count as right, and how traces name the operator."""

import math

import pytest

torch = pytest.importorskip("torch")

from atrex import registry  # noqa: E402  torch must be there first
from atrex.operator import Call, Step  # noqa: E402

DEFINITION = registry.operators()["moe_topk_gating_softmax"]
BF16, FLOAT, INT, SCALAR, BOOL = "c10::BFloat16", "float", "int", "Scalar", "Scalar"
LOGITS = torch.tensor([[math.log(4), 0.0, math.log(2), 0.0]], dtype=torch.float64)


def test_takes_the_largest_scores_of_a_softmax_over_all_experts():
    out = DEFINITION.reference(LOGITS, top_k=2, renormalise=0)
    assert out["topk_ids"].tolist() == [[0, 2]]
    assert out["topk_w"].tolist() == [[pytest.approx(0.5), pytest.approx(0.25)]]


def test_renormalises_to_a_sum_of_one():
    out = DEFINITION.reference(LOGITS, top_k=2, renormalise=1)
    assert out["topk_w"].tolist() == [[pytest.approx(2 / 3), pytest.approx(1 / 3)]]


def judged(ids, weights=(0.5, 0.25, 0.125), logits=LOGITS):
    outputs = {"topk_ids": torch.tensor([ids]), "topk_w": torch.tensor([weights])}
    return DEFINITION.canonical({"logits": logits}, outputs)


def test_of_equal_scores_any_may_be_chosen():
    assert torch.equal(judged([0, 2, 1])["scores"], judged([0, 2, 3])["scores"])


@pytest.mark.parametrize("ids", [[0, 2, 4], [0, 2, -1], [0, 2, 2]])
def test_impossible_and_repeated_ids_are_no_numbers(ids):
    assert bool(judged(ids)["scores"].isnan().any())


def test_only_small_weights_are_as_good_as_none():
    floored = judged([0, 1, 2], weights=(-0.5, 1e-35, float("nan")))["topk_w"][0]
    assert floored[:2].tolist() == [-0.5, 1e-30]
    assert bool(floored[2].isnan())


def test_scores_that_fp32_loses_count_as_equal():
    logits = torch.tensor([[200.0, 0.0, -50.0]], dtype=torch.float64)
    scores = judged([0, 1, 2], logits=logits)["scores"]
    assert scores.tolist() == [[1.0, 1e-30, 1e-30]]


def matched(call):
    found = DEFINITION.match(call, Step())
    return None if found is None else (*found.axes.values(), found.dtype)


def vllm(more=((),), flag="True"):
    return Call(
        name="_moe_C::topk_softmax",
        kernels=(),
        dims=((64, 8), (64, 8), (64, 8), (64, 128), *more),
        types=(FLOAT, INT, INT, BF16, BOOL, FLOAT),
        concrete=("", "", "", "", flag, "")[: 4 + len(more)],
    )


def test_reads_the_flag_behind_the_logits():
    assert matched(vllm()) == (64, 128, 8, 1, "bf16")
    assert matched(vllm(flag="False")) == (64, 128, 8, 0, "bf16")
    assert matched(vllm(flag="")) == (64, 128, 8, "unknown", "bf16")


def test_an_operator_without_the_flag_does_not_renormalise():
    assert matched(vllm(more=())) == (64, 128, 8, 0, "bf16")


def test_a_correction_by_a_bias_is_not_this_operator():
    assert matched(vllm(more=((), (128,)))) is None


def sglang(cap):
    return Call(
        name="sgl_kernel::topk_softmax",
        kernels=(),
        dims=((4, 10), (4, 10), (4, 512), (), (), ()),
        types=(FLOAT, INT, FLOAT, BOOL, SCALAR, ""),
        concrete=("", "", "", "True", cap, ""),
    )


def test_reads_the_logits_of_sglang_unless_they_are_capped():
    assert matched(sglang("0.")) == (4, 512, 10, 1, "fp32")
    assert matched(sglang("30.")) is None


def test_a_softmax_of_the_chosen_logits_renormalises():
    call = Call(
        name="TopK",
        kernels=("_topk_forward",),
        dims=((32, 128), (), (), ()),
        types=(BF16, SCALAR, SCALAR, SCALAR),
        concrete=("", "4", "True", "1"),
    )
    assert matched(call) == (32, 128, 4, 1, "bf16")
