"""Rules that are data: each must recognise its own examples."""

import pytest

from atrex.model import UNKNOWN
from atrex.operator import Call, Step
from atrex.trace.names import normalise_kernel
from atrex.trace.rules import load_rules

RULES = load_rules()
EXAMPLES = [(rule.name, example) for rule in RULES.rules for example in rule.examples]


@pytest.mark.parametrize(("name", "example"), EXAMPLES)
def test_a_rule_recognises_its_examples(name, example):
    found = RULES.of_kernel(normalise_kernel(example))
    assert found is not None
    assert found.name == name


def test_every_rule_has_an_example_and_a_unique_name():
    names = [rule.name for rule in RULES.rules]
    assert [rule.name for rule in RULES.rules if not rule.examples] == []
    assert len(names) == len(set(names))


def test_all_thirty_operators_have_a_name_to_be_seen_by():
    assert sum(rule.kind == "operator" for rule in RULES.rules) == 30


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
    recipe = next(rule for rule in RULES.rules if rule.name == "gemm_dense").recipes[op]
    types = ("c10::BFloat16",) * 3
    found, dtype, rung = recipe.read(Call(name=op, kernels=(), dims=dims, types=types), Step())
    assert found == dict(zip(("rows", "n_out", "k_in", "batch"), axes, strict=True))
    assert (dtype, rung) == ("bf16", "")


def test_heads_of_a_rotary_embedding_are_its_width_over_the_head_size():
    recipe = next(rule for rule in RULES.rules if rule.name == "rope").recipes[
        "_C::rotary_embedding"
    ]
    call = Call(
        name="_C::rotary_embedding", kernels=(), dims=((9,), (9, 512), (9, 64), (), (100, 64), ()),
        types=("long int", "c10::Half"), concrete=("", "", "", "64", "", "True"),
    )  # fmt: skip
    assert recipe.read(call, Step()) == (
        {"tokens": 9, "heads": 8, "kv_heads": 1, "head_dim": 64, "rope_dim": 64}, "fp16", ""
    )  # fmt: skip


def test_an_axis_that_the_trace_does_not_tell_is_unknown_and_never_a_guess():
    recipe = next(rule for rule in RULES.rules if rule.name == "rope").recipes[
        "_C::rotary_embedding"
    ]
    call = Call(name="_C::rotary_embedding", kernels=(), dims=((9,),))
    found, dtype, _ = recipe.read(call, Step())
    assert found == {
        "tokens": 9, "heads": UNKNOWN, "kv_heads": UNKNOWN, "head_dim": UNKNOWN,
        "rope_dim": UNKNOWN,
    }  # fmt: skip
    assert dtype == UNKNOWN


def test_kernels_that_only_continue_a_call_are_told_apart():
    rule = RULES.of_kernel("paged_attention_ll4mi_reduce_kernel<bf16>")
    assert rule.name == "paged_attention_decode"
    assert RULES.continues(rule, "paged_attention_ll4mi_reduce_kernel<bf16>")
    assert not RULES.continues(rule, "paged_attention_ll4mi_QKV_mfma16_kernel<0>")
