"""Run a candidate under the device's profiler, inside its worker, and tell what ran.

Launches of the candidate's own kernels are ranges of one name, so that the profiler's correlation
tells them from those of operators. The report travels like an output: rows of fixed size that the
judge reads with bounds, worth no more than the worker that wrote them.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from atrex.judge.devices import side
from atrex.judge.devices.accelerator import Accelerator, Activity, ActivityKind, Recording
from atrex.judge.tensors import write_bytes
from atrex.registry import load_module

REPORT = "activity_report"  # the output that the rows go to, beside the candidate's
OWN = "atrex::own"  # the range around launches of the candidate's kernels
HEAD = struct.Struct("<QQ")  # activities, lost records
ROW = struct.Struct("<qqiB43s96s")  # start, duration, stream, kind, launcher, name
ROWS = 2048  # more in one call is no kernel but a program
REPORT_BYTES = HEAD.size + ROWS * ROW.size
KINDS: tuple[ActivityKind, ...] = ("kernel", "memcpy", "memset")

Run = Callable[..., None]


def encode(recording: Recording) -> bytes:
    """Pack a recording; what does not fit counts as lost."""
    kept = recording.activities[:ROWS]
    lost = recording.lost + len(recording.activities) - len(kept)
    rows = b"".join(
        ROW.pack(
            each.start_ns,
            each.duration_ns,
            each.stream & 0x7FFFFFFF,
            KINDS.index(each.kind),
            each.launcher.encode()[:43],
            each.name.encode()[:96],
        )
        for each in kept
    )
    return (HEAD.pack(len(kept), lost) + rows).ljust(REPORT_BYTES, b"\0")


def decode(content: bytes) -> Recording:
    """Read what `encode` wrote; impossible rows count as lost."""
    count, lost = HEAD.unpack_from(content)
    found = []
    for number in range(min(count, ROWS)):
        start, duration, stream, kind, launcher, name = ROW.unpack_from(
            content, HEAD.size + number * ROW.size
        )
        if kind >= len(KINDS) or duration < 0 or start < 0:
            lost += 1
            continue
        found.append(
            Activity(
                kind=KINDS[kind],
                name=_text(name),
                start_ns=start,
                duration_ns=duration,
                stream=stream,
                launcher=_text(launcher),
            )
        )
    return Recording(activities=tuple(found), lost=lost)


def profiled(path: Path) -> tuple[Run, Callable[..., Any] | None]:
    """Load a candidate whose every call is recorded; `REPORT` tells of it."""
    accelerator = side.opened()
    mark_launches(path, accelerator)
    module = load_module(path)

    def run(**arguments: Any) -> None:
        report = arguments.pop(REPORT)
        accelerator.synchronise()
        with accelerator.recorder() as recorder:
            module.run(**arguments)
            accelerator.synchronise()
        write_bytes(report, encode(recorder.recording()))

    return run, getattr(module, "prepare", None)


def mark_launches(path: Path, accelerator: Accelerator) -> None:
    """Open the range `OWN` around every launch of a kernel that the file at `path` defines."""
    _mark_triton(path, accelerator)
    _mark_cupy(accelerator)
    _mark_native(accelerator)


def _mark_triton(path: Path, accelerator: Accelerator) -> None:
    try:
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError:
        return
    for kind in (JITFunction, InterpretedFunction):
        kind.run = _marked(kind.run, path, accelerator)


def _marked(launch: Callable[..., Any], path: Path, accelerator: Accelerator) -> Callable[..., Any]:
    def run(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if self.fn.__code__.co_filename != str(path):
            return launch(self, *arguments, **keywords)
        with accelerator.own(OWN):
            return launch(self, *arguments, **keywords)

    return run


def _mark_cupy(accelerator: Accelerator) -> None:
    """Replace CuPy's raw kernels, whose source is the candidate's, by marking ones."""
    try:
        import cupy  # type: ignore[import-not-found]
    except ImportError:
        return

    class RawKernel(cupy.RawKernel):  # type: ignore[misc]
        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            with accelerator.own(OWN):
                return super().__call__(*arguments, **keywords)

    class Function:
        def __init__(self, function: Any) -> None:
            self._function = function

        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            with accelerator.own(OWN):
                return self._function(*arguments, **keywords)

    class RawModule(cupy.RawModule):  # type: ignore[misc]
        def get_function(self, name: str) -> Function:
            return Function(super().get_function(name))

    cupy.RawKernel, cupy.RawModule = RawKernel, RawModule


def _mark_native(accelerator: Accelerator) -> None:
    """Mark calls into a library that the builder compiled from the candidate's CUDA C++."""
    from atrex.backends import cuda

    @contextmanager
    def around() -> Iterator[None]:
        with accelerator.own(OWN):
            yield

    cuda.around_call = around


def _text(raw: bytes) -> str:
    return raw.rstrip(b"\0").decode(errors="replace")
