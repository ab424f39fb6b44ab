"""What annotations say about a step."""

import pytest

from atrex.operator import Step
from atrex.trace.steps import merge_steps, parse_step


@pytest.mark.parametrize(
    ("text", "phase", "tokens", "query_tokens", "kv_tokens", "sequences"),
    [
        ("execute_context_1(888_788544)_generation_0(0)", "prefill", 888, 888, None, 1),
        (
            "execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)"
            "_generation_37(sq37sk34489sqsq37sqsk34489)",
            "mixed", 8192, 8192, 42919, 46,
        ),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
            "decode", 32, 32, 32785, 32,
        ),
        ("execute_context_2(300)_generation_3(3)", "mixed", 303, 303, None, 5),
        ("step[EXTEND bs=15 toks=15360]", "prefill", 15360, 15360, None, 15),
        ("step[DECODE bs=32]", "decode", 32, 32, None, 32),
        ("step[MIXED bs=2]", "mixed", None, None, None, 2),
        ("prefill[bs=2 tok=14721 ctx=[7803, 6918]]", "prefill", 14721, 14721, None, 2),
        ("decode[bs=117/128 tok=117 d=117]", "decode", 128, 117, None, 117),
        ("capture_8192_PIECEWISE", "capture", 8192, None, None, None),
        ("execute_diffusion_1_256x256", "other", None, None, None, 1),
    ],
)  # fmt: skip
def test_every_engine_form_is_read(text, phase, tokens, query_tokens, kv_tokens, sequences):
    assert parse_step(text) == Step(
        annotation=text, phase=phase, tokens=tokens, query_tokens=query_tokens,
        kv_tokens=kv_tokens, sequences=sequences,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["ProfilerStep#6", "## Call CompiledFxGraph f3 ##", ""])
def test_other_ranges_mark_no_step(text):
    assert parse_step(text) is None


def test_the_inner_step_wins_and_the_outer_fills_the_gaps():
    outer = Step(annotation="outer", phase="prefill", tokens=96, kv_tokens=700, sequences=3)
    inner = Step(annotation="inner", phase="other", sequences=3)
    assert merge_steps([outer, inner]) == Step(
        annotation="inner", phase="prefill", tokens=96, kv_tokens=700, sequences=3
    )
