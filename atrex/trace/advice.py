"""Say what a trace lacks and which paragraph of CAPTURE.md tells how to record it."""

from __future__ import annotations

from collections.abc import Iterator

from atrex.model import TraceSummary
from atrex.trace.recording import Recording

ENOUGH = 0.95  # of kernel time; below it the reader wants to know why
NOTICEABLE = 0.01  # of kernel time
# how an engine is known by the names of its operators and annotations: text, paragraph
ENGINES = (
    ("vllm::", "vLLM"),
    ("_C::", "vLLM"),
    ("execute_context", "vLLM"),
    ("sgl_kernel::", "SGLang"),
    ("sglang", "SGLang"),
    ("step[", "SGLang"),
    ("trtllm::", "TensorRT-LLM"),
    ("tensorrt_llm", "TensorRT-LLM"),
)
PARAGRAPHS = {"nsys": "Nsight Systems", "rocprofv3": "rocprofv3"}


def hints(recording: Recording, summary: TraceSummary, bare_ns: int) -> tuple[str, ...]:
    """Return what to record better, in sentences; nothing where nearly all axes are known.

    Args:
        recording: The trace.
        summary: How far it was understood.
        bare_ns: Kernel time replayed from graphs of which no capture is known.
    """
    if summary.shaped_ns >= ENOUGH * summary.gpu_ns:
        return ()
    return tuple(
        f"{recording.name}: {text} (CAPTURE.md, {paragraph!r})"
        for text, paragraph in _lacking(recording, summary, bare_ns)
    )


def _lacking(
    recording: Recording, summary: TraceSummary, bare_ns: int
) -> Iterator[tuple[str, str]]:
    total = summary.gpu_ns
    if recording.format in PARAGRAPHS:
        paragraph = PARAGRAPHS[recording.format]
        yield "this profiler records names but no shapes; torch.profiler records both", paragraph
    if recording.format != "kineto":
        return  # JAX has no profiler that records shapes
    engine = _engine(recording)
    if bare_ns > NOTICEABLE * total:
        yield (
            f"{bare_ns / total:.1%} of kernel time was replayed from graphs, which carry no "
            "shapes: record their capture as well",
            "Graph captures",
        )
    signatures = recording.timeline.signatures.values
    if not signatures:
        yield "no CPU operators were recorded, so kernels have names but no shapes", engine
    elif not any(dims.strip(b"[] ,\n") for _, dims, *_ in signatures):
        yield "operators were recorded without shapes: set record_shapes", engine
    if total - summary.launched_ns > NOTICEABLE * total:
        share = 1 - summary.launched_ns / total
        yield f"{share:.1%} of kernel time was launched before the recording: warm up", engine


def _engine(recording: Recording) -> str:
    """Name the paragraph of the engine that made a trace, as its names tell."""
    timeline = recording.timeline
    ops = [name for name, *_ in timeline.signatures.values]
    steps = [timeline.names.values[what] for what in set(timeline.annotations.what)]
    for text, paragraph in ENGINES:
        if any(text in name for name in (*ops, *steps)):
            return paragraph
    return "Plain PyTorch"
