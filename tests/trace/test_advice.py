"""What a trace lacks, and the paragraph that tells how to record it."""

import pytest

from atrex.trace import understand
from atrex.trace.advice import hints
from atrex.trace.formats import read_recording

DIMS = {"dims": [[4, 8]], "types": ["float"]}


def read(trace):
    recording = read_recording(trace.write())
    return recording, understand(recording, {})


@pytest.mark.parametrize(
    ("op", "paragraph"),
    [
        ("vllm::all_reduce", "vLLM"),
        ("sgl_kernel::rotary_embedding", "SGLang"),
        ("trtllm::attention", "TensorRT-LLM"),
        ("aten::mm", "Plain PyTorch"),
    ],
)
def test_operators_without_shapes_name_the_engines_paragraph(trace, op, paragraph):
    trace.op(op).kernel("mystery").close()
    _, found = read(trace)
    assert found.hints == (
        "trace.json: operators were recorded without shapes: set record_shapes "
        f"(CAPTURE.md, {paragraph!r})",
    )


def test_a_step_of_the_engine_names_its_paragraph_where_no_operator_does(trace):
    trace.step("step[DECODE bs=4]").kernel("mystery")
    _, found = read(trace)
    assert "no CPU operators were recorded" in found.hints[0]
    assert found.hints[0].endswith("(CAPTURE.md, 'SGLang')")


def test_kernels_launched_before_the_recording_are_told(trace):
    trace.op("aten::mm", **DIMS).kernel("mystery", ns=70).close()
    trace.kernel("mystery", ns=30, launch=None)
    _, found = read(trace)
    assert found.hints == (
        "trace.json: 30.0% of kernel time was launched before the recording: warm up "
        "(CAPTURE.md, 'Plain PyTorch')",
    )


def test_where_the_shapes_are_known_there_is_nothing_to_say(trace):
    trace.op("aten::mm", dims=[[4, 8], [8, 2]], types=["float", "float"]).kernel("nvjet_x").close()
    assert read(trace)[1].hints == ()


@pytest.mark.parametrize(
    ("form", "paragraph"), [("nsys", "Nsight Systems"), ("rocprofv3", "rocprofv3"), ("xplane", "")]
)
def test_a_profiler_that_records_no_shapes_names_its_paragraph_if_there_is_one(
    trace, form, paragraph
):
    recording, found = read(trace.kernel("mystery"))
    recording.format = form
    said = hints(recording, found.summary, 0)
    assert [text[text.index("(") :] for text in said] == (
        [f"(CAPTURE.md, {paragraph!r})"] if paragraph else []
    )
