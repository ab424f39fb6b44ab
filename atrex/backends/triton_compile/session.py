"""Compile a candidate for targets: the judge's side of the workers that do it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from atrex.backends.triton_compile.notes import JOBS, MESSAGES, Job, launches_of, pending_of
from atrex.backends.triton_compile.targets import Target
from atrex.closing import Closing
from atrex.judge.builder import build
from atrex.judge.channel import Arguments, Fault
from atrex.judge.channel import Target as Load
from atrex.judge.launcher import Forkserver
from atrex.judge.task import Task
from atrex.judge.worker import Limits, Worker
from atrex.model import Candidate, CompiledLaunch, Workload
from atrex.operator import Operator

# A product of 256 x 256 that spills took 140 MiB and 2 s of CPU time, in three configurations; an
# autotuner may have hundreds of them, which Triton keeps all.
LIMITS = Limits(call_s=600.0, memory_bytes=4 << 30, virtual=False)

_LOADER = '''"""Compile {name} instead of running it."""

from pathlib import Path

from atrex.backends.triton_compile.launches import compiling

here = Path(__file__)
run, prepare = compiling(here.with_name({name!r}), here.parent, {target!r})
'''


class Compilation(Closing):
    """Compiles candidates in workers of its own; a context manager.

    A crash or a time limit costs the workload that ran into it, and a new worker for the others.
    """

    def __init__(self, scratch: Path, *, limits: Limits = LIMITS) -> None:
        self._scratch = scratch
        self._limits = limits
        self._server = Forkserver("compile")
        self._count = 0

    def launches(
        self,
        candidate: Candidate,
        operator: Operator,
        workloads: Sequence[Workload],
        targets: Sequence[Target],
        *,
        progress: Callable[[str], None] = lambda text: None,
    ) -> Iterator[CompiledLaunch]:
        """Yield what becomes of each launch, by target and workload.

        Args:
            candidate: A Triton kernel.
            operator: What it computes.
            workloads: Left out for targets that lack their dtype.
            targets: What to compile for.
            progress: Told before each workload of each target.
        """
        for target in targets:
            tasks = [Task(operator, each, b"") for each in workloads if target.supports(each.dtype)]
            if not tasks:
                continue
            self._count += 1
            folder = self._scratch / f"compile-{self._count}"
            try:
                loader = _prepared(candidate, tasks, folder, target)
            except Fault as refused:
                yield from (_failed(task.workload, target, refused.reason) for task in tasks)
                continue
            label = f"{candidate.name} for {target.name}"
            for number, fault in self._worked(loader, tasks, label, progress):
                yield from _outcome(folder, number, tasks[number].workload, target, fault)
            shutil.rmtree(folder)

    def _worked(
        self, loader: Path, tasks: Sequence[Task], label: str, progress: Callable[[str], None]
    ) -> Iterator[tuple[int, Fault | None]]:
        """Have each task worked on, and yield its number with what ended the worker, if it did."""
        worker: Worker | None = None
        load = Load(kind="candidate", path=str(loader))
        try:
            for number, task in enumerate(tasks):
                progress(f"{label}: {task.workload}")
                try:
                    worker = worker or self._server.start(load, [], self._limits)
                    worker.bind(Arguments(inputs={"number": number}, outputs={}))
                    worker.call()
                except Fault as fault:
                    if worker is not None:
                        worker.close()
                    worker = None
                    yield number, fault
                else:
                    yield number, None
        finally:
            if worker is not None:
                worker.close()

    def close(self) -> None:
        """End the workers' server."""
        self._server.close()


def _prepared(candidate: Candidate, tasks: Sequence[Task], folder: Path, target: Target) -> Path:
    """Write what a worker needs; return the module that it loads.

    Raises:
        Fault: The candidate does not parse, or the static policy refuses it.
    """
    artefact = build(candidate, tasks[0].interface, folder)
    (folder / JOBS).write_bytes(msgspec.msgpack.encode([_job(task) for task in tasks]))
    loader = folder / "compile_for_target.py"
    loader.write_text(_LOADER.format(name=artefact.path.name, target=target.name))
    return loader


def _job(task: Task) -> Job:
    given: dict[str, Any] = {**task.layout, **task.inputs}  # tensors by their specification
    return Job(
        workload=task.workload, inputs=given, outputs=task.outputs, static=task.operator.static
    )


def _outcome(
    folder: Path, number: int, workload: Workload, target: Target, fault: Fault | None
) -> Iterator[CompiledLaunch]:
    """Yield what a worker noted, and what ended it."""
    try:
        noted = _read(launches_of(folder, number), list[CompiledLaunch]) or []
        pending = _read(pending_of(folder, number), CompiledLaunch)
    except msgspec.DecodeError as error:
        yield _failed(workload, target, f"the worker's notes are damaged: {error}")
        return
    for launch in noted:
        yield msgspec.structs.replace(launch, workload=workload, target=target.name)
    if fault is not None:
        said = _last_line(folder / MESSAGES) if pending else ""
        yield _failed(workload, target, f"{fault.reason}; {said}".rstrip("; "), pending)
    elif not noted:
        yield _failed(workload, target, "the host code launches no kernel")


def _failed(
    workload: Workload, target: Target, error: str, pending: CompiledLaunch | None = None
) -> CompiledLaunch:
    launch = pending or CompiledLaunch(workload=workload, target=target.name)
    return msgspec.structs.replace(launch, workload=workload, target=target.name, error=error)


def _read(path: Path, kind: Any) -> Any:
    """Decode what a worker wrote; None if it did not get to it."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return None


def _last_line(path: Path) -> str:
    text = path.read_text(errors="replace") if path.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
