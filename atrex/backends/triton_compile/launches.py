"""What runs in the worker that compiles: a candidate's host code, and Triton behind its launches.

Candidate code shares this process, so that what it reports is worth no more than the candidate is;
it decides nothing but what its author reads. The figures are read here and not by the judge,
because they come from machine code that the judge should not have to parse.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from atrex.backends.triton_compile.binaries import resources
from atrex.backends.triton_compile.driver import StandIn, install
from atrex.backends.triton_compile.findings import diagnosis, line_of, place, reason
from atrex.backends.triton_compile.notes import JOBS, MESSAGES, Job, Notes
from atrex.backends.triton_compile.targets import TARGETS, TENSOR_MEMORY_COLUMNS, Target
from atrex.judge.tensors import torch_dtype
from atrex.model import CompiledLaunch
from atrex.operator import TensorSpec
from atrex.registry import load_module


def preload() -> None:
    """Take the costs of a first compilation where workers are forked from: Triton hashes itself."""
    import triton.compiler  # noqa: F401
    from triton.runtime.cache import triton_key

    triton_key()


def compiling(path: Path, folder: Path, target: str) -> tuple[Callable[[int], None], None]:
    """Have a candidate's launches compiled for a target.

    Args:
        path: The candidate.
        folder: Has the jobs, and takes what became of them.
        target: Name of the target.

    Returns:
        A function of a job's number, in the place of the candidate's `run` and `prepare`.
    """
    import triton.compiler
    from triton import knobs

    driver = StandIn(TARGETS[target])
    install(driver, TARGETS[target])
    knobs.nvidia.dump_ptxas_log = True
    notes = Notes(folder)
    triton.compiler.compile = Recorder(TARGETS[target], driver, notes, path).compile
    jobs = msgspec.msgpack.decode((folder / JOBS).read_bytes(), type=list[Job])

    @cache
    def load() -> Any:
        return load_module(path)

    def run(number: int) -> None:
        driver.device = number
        job = jobs[number]
        with notes.of(number, job.workload, target):
            try:
                call(load(), job)
            except Exception as error:  # whatever it raises is a finding, with its line
                notes.add(notes.blank(error=reason(error), place=place(error, path)))

    return run, None


def call(module: Any, job: Job) -> None:
    """Run a candidate's host code once, on tensors without memory."""
    values = {name: _value(each) for name, each in job.inputs.items()}
    values |= {name: _value(each) for name, each in job.outputs.items()}
    prepared = {}
    if hasattr(module, "prepare"):
        static = {name: values[name] for name in job.static}
        prepared = {"prepared": module.prepare(**static)}
    module.run(**values, **prepared)


def _value(given: TensorSpec | float | str) -> Any:
    if not isinstance(given, TensorSpec):
        return given
    import torch

    dtype = torch_dtype(given.dtype)
    if given.strides is None:
        return torch.empty(given.shape, dtype=dtype, device="meta")
    return torch.empty_strided(given.shape, given.strides, dtype=dtype, device="meta")


class Recorder:
    """Stands between Triton's launches and its compiler.

    A specialisation is compiled once, whatever the workload, and read. One that fails gives no
    kernel, which Triton takes for a launch that a hook has called off, so that the host code goes
    on to the next.
    """

    def __init__(self, target: Target, driver: StandIn, notes: Notes, source: Path) -> None:
        import triton.compiler

        self._target = target
        self._driver = driver
        self._notes = notes
        self._messages = notes.folder / MESSAGES
        self._source = source
        self._compile = triton.compiler.compile
        self._known: dict[tuple[str, str], tuple[Any, CompiledLaunch]] = {}

    def compile(self, src: Any, target: Any = None, options: Any = None, **rest: Any) -> Any:
        """Compile what is launched, unless it was before; has the signature of Triton's own."""
        identity = src.hash(), repr(sorted(options.items()))
        seen = _described(self._notes, src, options, self._source)
        if identity not in self._known:
            self._notes.begin(seen)
            self._known[identity] = self._attempt(seen, src, target, options)
        kernel, known = self._known[identity]
        found = msgspec.structs.replace(
            known, workload=seen.workload, autotuned=self._driver.tuning
        )
        self._notes.add(found)
        self._driver.failed = not found.ok
        return kernel if found.ok else None

    def _attempt(
        self, seen: CompiledLaunch, src: Any, target: Any, options: Any
    ) -> tuple[Any, CompiledLaunch]:
        start = time.monotonic_ns()
        error = None
        try:
            with _printing_to(self._messages):
                kernel = self._compile(src, target=target, options=options)
        except Exception as raised:  # whatever a compiler raises is a finding, with its line
            error = raised
        elapsed = time.monotonic_ns() - start
        printed = self._messages.read_text(errors="replace")
        if error is not None:
            where, why = diagnosis(error, printed, self._source)
            return None, msgspec.structs.replace(seen, error=why, place=where or seen.place)
        used = resources(self._target, kernel.asm, printed)
        self._driver.used[kernel.kernel] = used
        columns = getattr(kernel.metadata, "tmem_size", None) or 0
        return kernel, msgspec.structs.replace(
            seen,
            compile_ns=elapsed,
            binary_bytes=len(kernel.kernel),
            shared_bytes=kernel.metadata.shared,
            shared_limit_bytes=self._target.shared_bytes,
            tensor_memory_columns=columns,
            error=_excess(kernel.metadata.shared, columns, self._target),
            **msgspec.structs.asdict(used),
        )


def _described(notes: Notes, src: Any, options: Any, source: Path) -> CompiledLaunch:
    """Return what a launch was specialised to."""
    names = src.fn.arg_names
    constants = {
        names[path[0]] + "".join(f".{part}" for part in path[1:]): _plain(value)
        for path, value in src.constants.items()
    }
    divisible = {
        path for path, attributes in src.attrs.items() if ["tt.divisibility", 16] in attributes
    }
    arguments = {
        name: f"{kind}{' %16' if (number,) in divisible else ''}"
        for number, (name, kind) in enumerate(src.signature.items())
        if kind != "constexpr"
        for kind in (str(kind),)
    }
    return notes.blank(
        kernel=src.fn.__name__,
        place=f"{source.name}:{line_of(source, src.fn.src, 1) or src.fn.starting_line_number}",
        arguments=arguments,
        constants=constants,
        num_warps=options["num_warps"],
        num_stages=options["num_stages"],
    )


def _plain(value: Any) -> str | int | float | bool | None:
    """Return a compile-time value as a record can hold it."""
    if isinstance(value, int | float | str | None):
        return value
    return str(getattr(value, "__name__", value))


def _excess(shared: int, columns: int, target: Target) -> str:
    """Say what a kernel needs and the target has not, "" if it fits."""
    if shared > target.shared_bytes:
        return f"needs {shared:,} bytes of shared memory, {target.name} has {target.shared_bytes:,}"
    if columns > TENSOR_MEMORY_COLUMNS:
        return f"needs {columns} columns of tensor memory, an SM has {TENSOR_MEMORY_COLUMNS}"
    return ""


@contextlib.contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """Send what this process and its children print to a file."""
    sys.stdout.flush()
    kept = [os.dup(number) for number in (1, 2)]
    with path.open("wb") as file:
        for number in (1, 2):
            os.dup2(file.fileno(), number)
        try:
            yield
        finally:
            sys.stdout.flush()
            for number, before in enumerate(kept, start=1):
                os.dup2(before, number)
                os.close(before)
