"""Expressions by which axes are read from data."""

import re

import pytest

from atrex.model import UNKNOWN
from atrex.operator import Call, Step
from atrex.trace.recipes import Recipe

CALL = Call(
    name="op", kernels=("store_kvcache<2048, bf16, Traits<64>>",), dims=((3, 5, 32), (), (7,)),
    types=("c10::BFloat16", "c10::Float8_e4m3fn", "c10::BFloat16"), concrete=("", "4", "x"),
    grid=(888, 2, 1), after="gemm_dense", before="rope",
)  # fmt: skip
STEP = Step(
    phase="decode", tokens=32, query_tokens=30, kv_tokens=4096, sequences=30,
    siblings=(Call(name="TopK", kernels=(), dims=((8, 128),), concrete=("", "6")),),
    model={"heads": 16, "kv_heads": 2, "head_dim": 128},
)  # fmt: skip


def read(text, kernel=r"<(?P<bytes>\d+), (?P<dtype>\w+)"):
    recipe = Recipe(values={"axis": text}, kernel=re.compile(kernel))
    axes, _, rung = recipe.read(CALL, STEP)
    return axes["axis"], rung


@pytest.mark.parametrize(
    ("text", "value", "rung"),
    [
        ("0.1", 5, ""),
        ("0.-1", 32, ""),
        ("0.lead", 15, ""),
        ("=1", 4, ""),
        ("7", 7, ""),
        ("e4m3", "e4m3", ""),
        ("TopK:=1", 6, ""),
        ("TopK:0.1", 128, ""),
        ("0.-1 / =1 - 1", 7, ""),
        ("2 + 3 * 4 - 6 / 2", 11, ""),
        ("20 - 5 - 3", 12, ""),
        ("( model.heads + 2 * model.kv_heads ) * model.head_dim", 2560, "period"),
        ("step.tokens", 32, "period"),
        ("total:{step.kv_tokens}@mooncake", "total:4096@mooncake", "period"),
        ("grid.0", 888, "grid"),
        ("grid.0 * model.heads", 14208, "grid"),
        ("$bytes / 2 / model.head_dim", 8, "name"),
    ],
)
def test_an_expression_is_evaluated_and_says_what_it_needed(text, value, rung):
    assert read(text) == (value, rung)


@pytest.mark.parametrize(
    "text",
    ["9.0", "1.0", "=2", "=0", "Sort:0.0", "model.hidden", "block.0", "$other", "0.-1 / 5",
     "total:{model.hidden}@mooncake", "step.tokens / 0"],
)  # fmt: skip
def test_what_the_trace_does_not_tell_is_unknown_and_needed_nothing(text):
    assert read(text) == (UNKNOWN, "")


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (0, "bf16"), ("0/1", "bf16/fp8_e4m3fn"), ("0/2", "bf16"), ("0>1", "bf16>fp8_e4m3fn"),
        ("$dtype", "bf16"), ("fp16", "fp16"), ("$bytes", UNKNOWN), (9, UNKNOWN), ("0/9", UNKNOWN),
    ],
)  # fmt: skip
def test_a_dtype_comes_from_inputs_or_from_letters_of_the_name(dtype, name):
    recipe = Recipe(values={}, dtype=dtype, kernel=re.compile(r"<(?P<bytes>\d+), (?P<dtype>\w+)"))
    assert recipe.read(CALL, STEP)[1] == name


def test_a_recipe_fits_by_kernel_name_and_by_place():
    kernel = re.compile("store_kvcache")
    assert Recipe(values={}, kernel=kernel).fits(CALL)
    assert Recipe(values={}, kernel=kernel, after=frozenset({"gemm_dense"})).fits(CALL)
    assert Recipe(values={}, kernel=kernel, before=frozenset({"rope", "mrope"})).fits(CALL)
    assert not Recipe(values={}, kernel=kernel, before=frozenset({"silu_and_mul"})).fits(CALL)
    assert not Recipe(values={}, kernel=re.compile("other")).fits(CALL)
    assert not Recipe(values={}).fits(CALL)
