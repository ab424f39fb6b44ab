"""The commands as functions: typed records in and out, nothing printed, nothing exited.

This is the interface for programs that write kernels. Long functions take a `progress` callback.
"""

from __future__ import annotations

import ast
import importlib.util
import tempfile
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from atrex import __version__, registry
from atrex.errors import SetupError, UsageError
from atrex.model import (
    Candidate,
    Environment,
    Measurement,
    Outcome,
    Peak,
    Run,
    Score,
    Shape,
    TraceSummary,
)

if TYPE_CHECKING:
    from atrex.backends.compiler import Compiler
    from atrex.judge.plan import Plan
    from atrex.judge.session import Session
    from atrex.judge.timing import Rule
    from atrex.store import RunWriter, Store
    from atrex.store.database import Table
    from atrex.trace import IngestReport

__all__ = [
    "build_shapes", "demo", "ingest", "list_operators", "list_shapes", "peaks", "report", "score",
    "show_operator", "sql",
]  # fmt: skip

Mode = Literal["quick", "standard", "thorough"]
Weights = Literal["bundled", "store"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What `score` found.

    Attributes:
        run: Header of the run as it stands in the store.
        measurements: The last attempt of every pair, earlier sessions included.
        scores: One for each candidate.
    """

    run: Run
    measurements: tuple[Measurement, ...]
    scores: tuple[Score, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a run is doing: shown as progress.

    Attributes:
        run: Id of the run, "" before it has one.
        done, total: Pairs judged and planned.
        text: What is in hand.
        measurement: The record just written, if one was.
    """

    run: str
    done: int
    total: int
    text: str
    measurement: Measurement | None = None


def peaks(
    store: Path, *, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[Peak]:
    """Measure this CPU's attainable peaks and keep them in the store.

    Raises:
        SetupError: There is no C compiler.
    """
    from atrex.judge.peaks import measure_cpu_peaks
    from atrex.store import Store

    found = _compiler()
    opened = Store(store)
    measured = measure_cpu_peaks(found, progress=progress)
    opened.add_peaks(measured, _environment(found))
    return measured


def score(
    candidates: Sequence[Path],
    *,
    store: Path,
    operator: str | None = None,
    shapes: Sequence[str] = ("all",),
    device: Literal["cpu", "cuda", "auto"] = "auto",
    mode: Mode = "standard",
    seconds: float | None = None,
    weights: Weights = "bundled",
    resume: str | None = None,
    operators: tuple[Path, ...] = (),
    command: Sequence[str] = (),
    kind: str = "score",
    progress: Callable[[Step], None] = lambda step: None,
) -> Scored:
    """Judge candidates on weighted workloads and keep every measurement in the store.

    Args:
        candidates: Kernel files; none with `resume`.
        store: Folder of the store, created if there is none.
        operator: Operator of candidates that do not name one.
        shapes: ``all``, ``top:N`` or workload ids.
        device: ``auto`` takes the device that this version can time, the CPU.
        mode: Timing effort for each workload: 1 s, 5 s or 20 s.
        seconds: Timing budget of a workload that replaces the mode's, in s.
        weights: Catalogue to weigh by: the bundled one, or the store's own.
        resume: Run to continue; pairs with a record are not judged again.
        operators: Further operator folders.
        command: Arguments to record.
        kind: Kind of run to record.
        progress: Told before and after each pair.

    Raises:
        UsageError: A file, operator or shape does not exist, or a resumed candidate has changed.
        SetupError: Nothing can run here.
        KeyboardInterrupt: After the run was closed as interrupted; it can be resumed.
    """
    from atrex.store import Store

    if device == "cuda":
        raise SetupError(
            "the CUDA device is not part of this version",
            remedy="Judge on the CPU with --device cpu.",
        )
    opened = Store(store)
    options: dict[str, str | int | float | bool | None] = {"mode": mode, "seconds": seconds}
    previous = None
    _need_torch()
    if resume is not None:
        previous = opened.run(resume)
        options = previous.options
        plan = _resumed(previous, operators)
    else:
        plan = _plan(candidates, opened, operator, shapes, weights, options, operators)
    measured = opened.peaks(_device_name()) or peaks(
        store,
        progress=lambda done, total: progress(
            Step(run="", done=0, total=0, text=f"measuring this CPU's peaks, {done} of {total}")
        ),
    )
    with tempfile.TemporaryDirectory(prefix="atrex-") as scratch:
        return _judge(
            plan,
            measured,
            opened,
            Path(scratch),
            previous,
            options,
            weights,
            tuple(command),
            kind,
            progress,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstration:
    """What the demo saw.

    Attributes:
        traces: Summaries of the ingested traces.
        scored: The judged kernels.
        expected: Outcomes that each candidate may have, by name.
        surprises: What came out otherwise.
        exit_code: 0; 7 if this host could time no shape; 1 if a kernel surprised.
    """

    traces: tuple[TraceSummary, ...]
    scored: Scored
    expected: dict[str, tuple[str, ...]]
    surprises: tuple[str, ...]
    exit_code: int


def demo(*, store: Path, progress: Callable[[Step], None] = lambda step: None) -> Demonstration:
    """Ingest the bundled trace and judge the bundled kernels: one honest, one cheating."""
    root = registry.content("data").parent
    plan = tomllib.loads((root / "data/demo/demo.toml").read_text())
    progress(Step(run="", done=0, total=0, text="ingesting the sample trace"))
    traces = ingest([root / plan["trace"]], store=store)
    paths = [root / each["path"] for each in plan["candidate"]]
    scored = score(
        paths,
        store=store,
        shapes=plan["shapes"],
        mode="quick",
        seconds=plan["seconds"],
        kind="demo",
        command=("demo",),
        progress=progress,
    )
    expected = {Path(each["path"]).stem: tuple(each["expected"]) for each in plan["candidate"]}
    unresolved = [m for m in scored.measurements if m.outcome is Outcome.INCONCLUSIVE]
    surprises = tuple(
        f"{m.candidate} on {m.workload} is {m.outcome}: {m.reason}"
        for m in scored.measurements
        if m.outcome not in expected[m.candidate] and m not in unresolved
    )
    timed = any(m.outcome is Outcome.OK for m in scored.measurements)
    return Demonstration(
        traces=tuple(ingested.summary for ingested in traces.read),
        scored=scored,
        expected=expected,
        surprises=surprises,
        exit_code=1 if surprises else 0 if timed else 7,
    )


def list_operators(*, operators: tuple[Path, ...] = ()) -> list[dict[str, Any]]:
    """Describe every operator: name, shapes, weight in the bundled catalogue, baselines."""
    known = registry.operators(operators)
    shapes = registry.bundled_shapes(known.values())
    total = sum(shape.gpu_ns for shape in shapes)
    listed = []
    for name, operator in known.items():
        mine = [shape for shape in shapes if shape.workload.operator == name]
        kernels = [f"{path.stem}" for path in registry.kernels(name, operators)]
        listed.append(
            {
                "name": name,
                "shapes": len(mine),
                "weight": sum(s.gpu_ns for s in mine) / total if mine else None,
                "published_weight": None,
                "baselines": [baseline.name for baseline in operator.baselines] + kernels,
            }
        )
    return listed


def show_operator(
    name: str, *, dtype: str = "bf16", operators: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """Describe one operator: its mathematics, axes, tolerance and interface with a template.

    Raises:
        UsageError: There is no such operator, or it has no example of that dtype.
        SetupError: torch is not installed, which the interface is drawn with.
    """
    from atrex.backends.c import describe
    from atrex.judge.task import Task

    operator = registry.operator(name, operators)
    examples = [workload for workload in operator.small if workload.dtype == dtype]
    if not examples:
        known = sorted({workload.dtype for workload in operator.small})
        raise UsageError(f"no example of {name} in {dtype}", remedy=f"Use {' or '.join(known)}.")
    definition = (
        ast.get_docstring(
            ast.parse((registry.folder(name, operators) / "definition.py").read_text())
        )
        or ""
    )
    _need_torch()
    task = Task(operator, examples[0], b"", operators)
    return {
        "name": name,
        "definition": definition,
        "axes": f"Axes: {', '.join(operator.axes)}",
        "tolerance": "Tolerance: "
        + ", ".join(f"{output} {kind}" for output, kind in operator.tolerance.items()),
        "interface": describe(task.interface),
    }


def sql(query: str, *, store: Path, limit: int = 1000, seconds: float = 30.0) -> Table:
    """Run one query that reads; see `atrex.store.Store.query`."""
    from atrex.store import Store

    return Store.existing(store).query(query, limit=limit, seconds=seconds)


def report(run: str, *, store: Path) -> Scored:
    """Return a run with its measurements and scores.

    Args:
        run: Id, the beginning of one, or ``"last"``.
        store: Folder of the store.
    """
    from atrex.store import Store

    opened = Store.existing(store)
    header, measurements = opened.run(run), opened.journal(run).latest
    return Scored(
        run=header, measurements=tuple(measurements), scores=tuple(opened.scores(header.run))
    )


def _judge(
    plan: Plan,
    measured: list[Peak],
    opened: Store,
    scratch: Path,
    previous: Run | None,
    options: dict[str, str | int | float | bool | None],
    weights: Weights,
    command: tuple[str, ...],
    kind: str,
    progress: Callable[[Step], None],
) -> Scored:
    from atrex.judge.session import Session
    from atrex.store import new_run_id

    found = _compiler()
    here = _environment(found)
    session = Session(
        plan,
        measured,
        here.id,
        scratch,
        progress=lambda text: progress(Step(run="", done=0, total=0, text=text)),
    )
    try:
        session.open()
        if previous is None:
            header = _header(
                plan,
                here,
                session,
                new_run_id(),
                options,
                weights,
                command,
                kind,
            )
            writer = opened.start_run(header)
        else:
            writer = opened.resume_run(previous.run, session.seed_sha)
        with writer:
            _run(session, plan, writer, progress)
            writer.finish([session.seed.hex()], "complete", session.calibration)
    finally:
        session.close()
    run = opened.run(writer.run.run)
    latest = opened.journal(run.run).latest
    return Scored(run=run, measurements=tuple(latest), scores=tuple(opened.scores(run.run)))


def _run(session: Session, plan: Plan, writer: RunWriter, progress: Callable[[Step], None]) -> None:
    pairs = plan.pairs()
    done = writer.done()
    run = writer.run.run
    count = 0
    try:
        for candidate, workload in pairs:
            if (candidate.source_sha, workload.id) not in done:
                progress(
                    Step(
                        run=run,
                        done=count,
                        total=len(pairs),
                        text=f"{candidate.name} on {workload}",
                    )
                )
                measurement = session.judge(candidate, workload, run=run, attempt=1)
                writer.append(measurement)
            else:
                measurement = None
            count += 1
            progress(
                Step(
                    run=run,
                    done=count,
                    total=len(pairs),
                    text=candidate.name,
                    measurement=measurement,
                )
            )
    except KeyboardInterrupt:
        writer.finish([session.seed.hex()], "interrupted", session.calibration)
        raise


def _header(
    plan: Plan,
    here: Environment,
    session: Session,
    run: str,
    options: dict[str, str | int | float | bool | None],
    weights: Weights,
    command: tuple[str, ...],
    kind: str,
) -> Run:
    from atrex.store.files import utc_now

    return Run(
        run=run,
        kind=kind,
        command=command,
        started=utc_now(),
        atrex_version=__version__,
        environment=here,
        candidates=plan.candidates,
        shapes=plan.shapes,
        selected=plan.selected,
        catalogue=weights,
        device=plan.device,
        options=options,
        seed_sha=(session.seed_sha,),
    )


def _plan(
    candidates: Sequence[Path],
    opened: Store,
    operator: str | None,
    shapes: Sequence[str],
    weights: Weights,
    options: dict[str, str | int | float | bool | None],
    operators: tuple[Path, ...],
) -> Plan:
    from atrex import catalogue
    from atrex.judge.plan import Plan, select

    known = registry.operators(operators)
    described = _described(candidates, operator, operators)
    if weights == "store":
        shapes_of = catalogue.from_store(opened, known)
    else:
        shapes_of = registry.bundled_shapes(known.values())
    names = {candidate.operator for candidate in described}
    return Plan(
        candidates=described,
        shapes=tuple(shapes_of),
        selected=select(shapes_of, shapes, names),
        rule=_rule(options),
        compiled=options["mode"] != "quick",
        operators=operators,
    )


def _resumed(previous: Run, operators: tuple[Path, ...]) -> Plan:
    from atrex.judge.plan import Plan

    for candidate in previous.candidates:
        now = registry.candidate(Path(candidate.path), operator=candidate.operator)
        if now.source_sha != candidate.source_sha:
            raise UsageError(
                "the candidate has changed since the run began",
                where=candidate.path,
                remedy="Start a new run.",
            )
    return Plan(
        candidates=previous.candidates,
        shapes=previous.shapes,
        selected=previous.selected,
        device=previous.device,
        rule=_rule(previous.options),
        compiled=previous.options["mode"] != "quick",
        operators=operators,
    )


def _described(
    candidates: Sequence[Path], operator: str | None, operators: tuple[Path, ...]
) -> tuple[Candidate, ...]:
    described = []
    for path in candidates:
        candidate = registry.candidate(path, operator=operator)
        if not candidate.operator:
            raise UsageError(
                "the file names no operator",
                where=str(path),
                remedy='Set OPERATOR = "..." in it, or use --operator.',
            )
        registry.operator(candidate.operator, operators)
        described.append(candidate)
    if not described:
        raise UsageError("no candidate given")
    return tuple(described)


def _rule(options: dict[str, str | int | float | bool | None]) -> Rule:
    import msgspec

    from atrex.judge import timing

    modes = {"quick": timing.QUICK, "standard": timing.STANDARD, "thorough": timing.THOROUGH}
    rule = modes[str(options["mode"])]
    seconds = options.get("seconds")
    return rule if seconds is None else msgspec.structs.replace(rule, seconds=float(seconds))


def _need_torch() -> None:
    if importlib.util.find_spec("torch") is None:
        raise SetupError(
            "torch is not installed", remedy="Install it with `pip install 'atrex[kernels]'`."
        )


def _compiler() -> Compiler:
    from atrex.backends import compiler

    found = compiler.find()
    if found is None:
        raise SetupError("no C compiler", remedy="Install gcc or `pip install ziglang`.")
    return found


def _environment(found: Compiler) -> Environment:
    from atrex.hardware import environment
    from atrex.judge.mapping import huge_pages

    return environment(compiler=found.version, huge_pages=huge_pages())


def _device_name() -> str:
    from atrex.hardware import device_name

    return device_name()


def ingest(
    traces: Sequence[Path],
    *,
    store: Path,
    operators: tuple[Path, ...] = (),
    progress: Callable[[int], None] | None = None,
) -> IngestReport:
    """Read profiler traces, files or folders, and add their facts to a store.

    Args:
        traces: Kineto traces, .json or .json.gz.
        store: Folder of the store.
        operators: Folders with operators of the user's own.
        progress: Called with the bytes read since the last call.

    Raises:
        UsageError: A path is missing.
        DataError: The only trace is refused; of several, refusals are in the report.
    """
    from atrex import trace
    from atrex.store import Store

    return trace.ingest(traces, Store(store), registry.operators(operators), progress=progress)


def list_shapes(
    *, weights: Weights = "bundled", store: Path, operators: tuple[Path, ...] = ()
) -> list[tuple[Shape, float]]:
    """Return the shapes of a catalogue with their weights, heaviest first.

    Raises:
        DataError: The catalogue is broken, or the store's has no shape.
    """
    from atrex import catalogue
    from atrex.store import Store

    known = registry.operators(operators)
    if weights == "bundled":
        shapes = registry.bundled_shapes(known.values())
    else:
        shapes = catalogue.from_store(Store.existing(store), known)
    share = catalogue.weights(shapes)
    pairs = [(shape, share[shape.workload.id]) for shape in shapes]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0].workload.operator, str(pair[0])))


def build_shapes(
    *, store: Path, out: Path, operators: tuple[Path, ...] = (), limit: int | None = None
) -> tuple[list[Shape], dict[str, Path]]:
    """Write the catalogue of a store's traces as CSV files; return it and the paths by operator.

    Raises:
        UsageError: The folder cannot be written.
        DataError: The store has no shape with every axis known.
    """
    from atrex import catalogue
    from atrex.store import Store

    known = registry.operators(operators)
    shapes = catalogue.from_store(Store.existing(store), known, limit=limit)
    return shapes, catalogue.write(shapes, known, out)
