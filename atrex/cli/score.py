"""`atrex score CANDIDATE...`: judge kernels for correctness, own work and speed."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from atrex import api, reports
from atrex.cli import output
from atrex.errors import UsageError
from atrex.model import Measurement, Outcome


class Device(StrEnum):
    """Where candidates are judged."""

    AUTO = "auto"
    CPU = "cpu"
    CUDA = "cuda"


class Weights(StrEnum):
    """Catalogue that the score is weighed by."""

    BUNDLED = "bundled"
    STORE = "store"


def command(
    candidates: Annotated[
        list[Path] | None, typer.Argument(help="Kernel files; see `atrex ops show OPERATOR`.")
    ] = None,
    operator: Annotated[
        str | None, typer.Option("--operator", help="Operator of files that do not name one.")
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option("--shapes", help="all, top:N (by GPU time) or a workload id; repeatable."),
    ] = None,
    device: Annotated[Device, typer.Option("--device", help="Where to judge.")] = Device.AUTO,
    quick: Annotated[
        bool, typer.Option("--quick", help="1 s of timing a workload, no compiled baseline.")
    ] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="20 s of timing a workload.")
    ] = False,
    seconds: Annotated[
        float | None, typer.Option("--seconds", min=0.01, help="Timing budget of a workload in s.")
    ] = None,
    weights: Annotated[Weights, typer.Option("--weights", help="Catalogue.")] = Weights.BUNDLED,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Continue a run.")
    ] = None,
    operators: Annotated[
        list[Path] | None, typer.Option("--operators", help="Further operator folder; repeatable.")
    ] = None,
    store: output.Store = output.DEFAULT_STORE,
    json: output.Json = False,
) -> None:
    """Judge candidates on the weighted workloads of their operator.

    Each workload ends in one outcome: ok, inconclusive, incorrect, fallback, violation, ... A
    failing kernel is a result. Every measurement is on disk before the next workload starts.
    """
    run = ""
    with output.answering("score", json), ScoreProgress(json) as show:

        def step(now: api.Step) -> None:
            nonlocal run
            run = now.run or run
            show(now)

        try:
            _check(candidates, resume, quick, thorough)
            scored = api.score(
                candidates or (),
                store=store,
                operator=operator,
                shapes=tuple(shapes or ("all",)),
                device=device.value,
                mode="quick" if quick else "thorough" if thorough else "standard",
                seconds=seconds,
                weights=weights.value,
                resume=resume,
                operators=tuple(operators or ()),
                command=tuple(sys.argv[1:]),
                progress=step,
            )
        except KeyboardInterrupt:
            hint = f"; continue with `atrex score --resume {run}`" if run else ""
            output.progress_console().print(f"interrupted{hint}", style="yellow", markup=False)
            raise typer.Exit(130) from None
    answer("score", scored, store, json)


def answer(name: str, scored: api.Scored, store: Path, json: bool) -> None:
    """Print a judged run and exit with its code."""
    data = {"store": str(store)} | reports.answer(scored.run, scored.measurements, scored.scores)
    composed = reports.report(scored.run, scored.measurements, scored.scores)
    output.answer(
        name,
        data,
        as_json=json,
        text=[Text(reports.text(composed).rstrip())],
        warnings=warnings(scored),
        code=code(scored.measurements),
    )


def code(measurements: tuple[Measurement, ...]) -> int:
    """Return the exit code of a run; 3 if nothing could be judged."""
    idle = (Outcome.UNSUPPORTED, Outcome.SKIPPED)
    if all(measurement.outcome in idle for measurement in measurements):
        return 3
    return output.exit_code(output.EXIT_CODE[m.outcome] for m in measurements)


def warnings(scored: api.Scored) -> list[str]:
    """Say what a reader must know beside the numbers."""
    options = scored.run.options
    found = []
    if options.get("aa_fit") is False:
        found.append(
            f"this host cannot time: {options.get('aa_reason')}; close other programs "
            "and continue with a new run"
        )
    idle = [m for m in scored.measurements if m.outcome in (Outcome.UNSUPPORTED, Outcome.SKIPPED)]
    found += [f"{m.outcome}: {m.workload}: {m.reason}" for m in idle]
    return found


def _check(candidates: list[Path] | None, resume: str | None, quick: bool, thorough: bool) -> None:
    if quick and thorough:
        raise UsageError("--quick and --thorough exclude each other")
    if bool(candidates) == (resume is not None):
        raise UsageError(
            "give candidates, or --resume RUN"
            if resume is None
            else "--resume takes its candidates from the run"
        )


class ScoreProgress:
    """Show a bar on a terminal, a line for each record elsewhere, nothing with --json."""

    def __init__(self, json: bool) -> None:
        self._console = output.progress_console()
        self._bar: Progress | None = None
        self._task: Any = None
        self._quiet = json and not self._console.is_terminal

    def __enter__(self) -> Any:
        if self._console.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                MofNCompleteColumn(),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=None)
            self._bar.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _show(self, step: api.Step) -> None:
        if self._bar is not None:
            self._bar.update(
                self._task, description=step.text, completed=step.done, total=step.total or None
            )
        elif step.measurement is not None and not self._quiet:
            m = step.measurement
            self._console.print(
                f"[{step.done}/{step.total}] {m.candidate} on {m.workload}: {m.outcome}",
                markup=False,
            )
