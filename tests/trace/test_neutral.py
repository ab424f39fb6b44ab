"""Which texts of a trace may be shared, and what stands for the others."""

import pytest

from atrex.trace.neutral import clean_annotation, clean_name, is_known
from atrex.trace.steps import parse_step


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/home/ada/run.py(12): forward", "path forward"),
        ("~/work/train.py", "path"),
        (r"C:\Users\ada\train.py:7", "path"),
        ("model.py(12): forward", "file: forward"),
        ("attention.cu:88", "file"),
        ("train.py, line 3", "file"),
        ("ada@example.org", "address"),
        ("send to 10.0.13.7:8080", "send to address"),
        ("fe80:0:0:0:1c2f:0:7a:1", "address"),
        ("node7.cluster.example.com", "host"),
    ],
)
def test_what_tells_of_a_machine_or_person_is_replaced(name, expected):
    assert clean_name(name)[0] == expected


def test_each_replacement_is_told():
    assert clean_name("/a/b and c.py") == ("path and file", ("path", "file"))


@pytest.mark.parametrize(
    "name",
    [
        "aten::mm",
        "Torch-Compiled Region: 0/1",
        "autograd::engine::evaluate_function: torch::autograd::CppNode<a::B<&a::b_gpu> >",
        "void at::native::(anonymous namespace)::f<4, float, {lambda(int)#1}>(float*, long)",
        "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb1ELb0EEEvPT0_S2_",
        "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64_MI16x16x1",
        "moe::dev::finalize::finalizeKernelVecLoad",
        "kernel.kd",
    ],
)
def test_names_that_matching_needs_stay_whole(name):
    assert clean_name(name) == (name, ())


@pytest.mark.parametrize(
    "text",
    [
        "execute_context_1(888_788544)_generation_0(0)",
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
        "step[EXTEND bs=15 toks=15360]",
        "prefill[bs=2 tok=14721 ctx=[7803, 6918]]",
        "decode[bs=117/128 tok=117 d=117]",
        "execute_diffusion_1_256x256",
        "capture_8192_PIECEWISE",
        "atrex_step[7]",
        "ProfilerStep#12",
    ],
)
def test_annotations_of_steps_stay(text):
    assert clean_annotation(text) == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("step[DECODE bs=4] on node7 at /home/ada", "step[DECODE bs=4"),
        ("step[ADA bs=4 toks=9]", "step[other bs=4 toks=9"),
        ("capture_32_acme", "capture_32_other"),
        ("execute_8_context_1(ada@y)_generation_0(0)",
         "execute_8_context_1(other_other)_generation_0(0)"),
    ],
)  # fmt: skip
def test_of_a_step_annotation_with_more_in_it_the_step_is_kept(text, expected):
    assert clean_annotation(text) == expected
    before, after = parse_step(text), parse_step(expected)
    assert (before.phase, before.tokens) == (after.phase, after.tokens)


@pytest.mark.parametrize("text", ["train /home/ada", "nccl:all_reduce", "ProfilerStep#1 of ada"])
def test_other_annotations_mark_no_step(text):
    assert clean_annotation(text) is None


@pytest.mark.parametrize(
    "text",
    ["", "7", "-1.5e-06", "inf", "True", "[True, False]", "None", "c10::BFloat16", "long int",
     "torch.float8_e4m3fn", "cuda:0", "gelu_tanh", "['', 2]"],
)  # fmt: skip
def test_values_of_numbers_and_known_words_are_known(text):
    assert is_known(text)


@pytest.mark.parametrize(
    "text",
    ["ada", "model.layers.0.self_attn", "10.0.13.7", "cuda:0:ada", "2026-01-02", "tcp://x:1",
     "0x7f", "[1, 'ada']"],
)  # fmt: skip
def test_values_with_anything_else_are_not(text):
    assert not is_known(text)
