"""The commands as functions: typed records in and out, nothing printed, nothing exited.

This is the interface for programs that write kernels. Long functions take a `progress` callback.
"""

from __future__ import annotations

import ast
import importlib.util
import itertools
import tempfile
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from atrex import __version__, registry
from atrex.errors import SetupError, UsageError
from atrex.model import (
    Candidate,
    CompileReport,
    DeviceKind,
    Environment,
    Fleet,
    Measurement,
    Outcome,
    Peak,
    Run,
    Score,
    Shape,
    TraceSummary,
    Workload,
)

if TYPE_CHECKING:
    from atrex.backends.templates import Argument
    from atrex.catalogue import WeightIntervals
    from atrex.diagnosis import Finding
    from atrex.judge.plan import Plan
    from atrex.judge.session import Session
    from atrex.judge.timing import Rule
    from atrex.scaffold import Scaffold
    from atrex.store import RunWriter, Store
    from atrex.store.database import Table
    from atrex.trace import IngestReport
    from atrex.trace.sanitize import Sanitized

__all__ = [
    "build_shapes", "compile", "demo", "doctor", "ingest", "list_operators", "list_shapes",
    "new_operator", "peaks", "report", "sanitize", "score", "show_operator", "sql",
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Peaks:
    """Measured peaks, and the reasons why the device's clocks were held down meanwhile."""

    peaks: list[Peak]
    throttled: tuple[str, ...] = ()


def peaks(
    store: Path,
    *,
    device: DeviceKind = "cpu",
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Peaks:
    """Measure a device's attainable peaks and keep them in the store.

    Args:
        store: Folder of the store, created if there is none.
        device: This CPU, or the current CUDA device.
        progress: Told what is done of how much.

    Raises:
        SetupError: There is no C compiler, or no CUDA device.
    """
    from atrex.store import Store

    opened = Store(store)
    throttled: tuple[str, ...] = ()
    if device == "cuda":
        from atrex.judge.devices.accelerator import load
        from atrex.judge.devices.peaks import measure_gpu_peaks

        gpu = measure_gpu_peaks(load(_cuda()), progress=progress)
        measured, throttled = gpu.peaks, gpu.throttled
    else:
        from atrex.backends import compiler
        from atrex.judge.peaks import measure_cpu_peaks

        measured = measure_cpu_peaks(compiler.require(), progress=progress)
    opened.add_peaks(measured, _environment(device))
    return Peaks(peaks=measured, throttled=throttled)


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
        device: ``auto`` takes a CUDA device if there is one and every candidate runs on it,
            else the CPU.
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
    _need_torch()  # the judge's modules need what comes with it
    from atrex.backends import interprets
    from atrex.judge.plan import select
    from atrex.store import Store, new_run_id
    from atrex.store.files import utc_now

    opened = Store(store)
    if resume is not None:
        run = opened.run(resume)
        _refuse_changed(run.candidates)
    else:
        described = _described(candidates, operator, operators)
        catalogue = _catalogue(weights, store, operators)
        chosen = _device(device, described)
        run = Run(
            run=new_run_id(),
            kind=kind,
            command=tuple(command),
            started=utc_now(),
            atrex_version=__version__,
            environment=_environment(chosen),
            candidates=described,
            shapes=tuple(catalogue),
            selected=select(catalogue, shapes, {each.operator for each in described}),
            catalogue=weights,
            device=chosen,
            options={"mode": mode, "seconds": seconds},
        )
    measured = opened.peaks(run.environment.device)
    if not measured and not all(interprets(each.backend, run.device) for each in run.candidates):
        measured = peaks(
            store,
            device=run.device,
            progress=lambda done, total: progress(
                Step(run="", done=0, total=0, text=f"measuring peaks, {done} of {total}")
            ),
        ).peaks
    _sit(run, _plan(run, operators), measured, opened, progress)
    return report(run.run, store=store)


def compile(
    candidates: Sequence[Path],
    *,
    store: Path,
    operator: str | None = None,
    shapes: Sequence[str] = (),
    targets: Sequence[str] = (),
    operators: tuple[Path, ...] = (),
    progress: Callable[[Step], None] = lambda step: None,
) -> list[CompileReport]:
    """Compile Triton kernels for GPUs that need not be here, and keep what was found.

    Args:
        candidates: Kernel files.
        store: Folder of the store, created if there is none.
        operator: Operator of candidates that do not name one.
        shapes: ``all``, ``top:N`` or workload ids; by default the three heaviest of each dtype,
            and a reduced one.
        targets: Names such as ``sm_90a``; by default Hopper, Blackwell and MI300.
        operators: Further operator folders.
        progress: Told before each workload.

    Raises:
        UsageError: A file, operator, shape or target does not exist, or a kernel is not in Triton.
        SetupError: torch or Triton is missing.
    """
    _need_torch()
    from atrex.backends.triton_compile.plan import left_out, workloads
    from atrex.backends.triton_compile.session import Compilation
    from atrex.backends.triton_compile.targets import DEFAULT_TARGETS, target
    from atrex.store import Store
    from atrex.store.files import stamp

    known = registry.operators(operators)
    chosen = [target(name) for name in dict.fromkeys(targets or DEFAULT_TARGETS)]
    described = _described(candidates, operator, operators)
    planned = workloads(described, known, registry.bundled_shapes(known.values()), shapes)
    opened, environment, reports = Store(store), _environment(), []
    pairs = [each.supports(one.dtype) for _, mine in planned for one in mine for each in chosen]
    count = itertools.count()

    def told(text: str) -> None:
        progress(Step(run="", done=next(count), total=sum(pairs), text=text))

    with (
        tempfile.TemporaryDirectory(prefix="atrex-") as scratch,
        Compilation(Path(scratch)) as compilation,
    ):
        for candidate, mine in planned:
            of = known[candidate.operator]
            launches = tuple(compilation.launches(candidate, of, mine, chosen, progress=told))
            found = CompileReport(
                stamp=stamp(),
                environment=environment,
                candidate=candidate,
                targets=tuple(each.name for each in chosen),
                left_out=left_out(mine, chosen),
                launches=launches,
            )
            opened.add_compiled(found)
            reports.append(found)
    return reports


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What an author needs to know of an operator.

    Attributes:
        definition: Its mathematics.
        tolerance: Output name to tolerance class (METHOD.md section 2).
        example: The small workload that the arguments are shown for.
        dtypes: Storage types that there are examples of.
        arguments: Of `run`, in order.
        notes: What the language's interface adds to the arguments.
        template: A candidate that builds, runs and is incorrect.
    """

    name: str
    definition: str
    axes: tuple[str, ...]
    tolerance: dict[str, str]
    example: Workload
    dtypes: tuple[str, ...]
    arguments: tuple[Argument, ...]
    notes: str
    template: str


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
    name: str,
    *,
    dtype: str | None = None,
    backend: str = "c",
    operators: tuple[Path, ...] = (),
) -> Shown:
    """Describe one operator: its mathematics, axes, tolerance, arguments and a template.

    Args:
        name: Operator.
        dtype: Storage type of the example; by default that of its first example.
        backend: Language of the template.
        operators: Further operator folders.

    Raises:
        UsageError: There is no such operator or template, or no example of that dtype.
        SetupError: torch is not installed, which the interface is drawn with.
    """
    from atrex.backends import c, templates

    operator = registry.operator(name, operators)
    known = list(dict.fromkeys(workload.dtype for workload in operator.small))
    dtype = dtype or known[0]
    if dtype not in known:
        raise UsageError(f"no example of {name} in {dtype}", remedy=f"Use {' or '.join(known)}.")
    if backend not in templates.TEMPLATES:
        languages = " or ".join(templates.TEMPLATES)
        raise UsageError(f"no template in {backend!r}", remedy=f"Use {languages}.")
    _need_torch()  # the interface is drawn with it
    from atrex.judge.task import Task

    example = next(workload for workload in operator.small if workload.dtype == dtype)
    interface = Task(operator, example, b"", operators).interface
    source = (registry.folder(name, operators) / "definition.py").read_text()
    return Shown(
        name=name,
        definition=ast.get_docstring(ast.parse(source)) or "",
        axes=operator.axes,
        tolerance=dict(operator.tolerance),
        example=example,
        dtypes=tuple(known),
        arguments=tuple(templates.arguments(interface, operator.static)),
        notes=c.describe(interface) if backend == "c" else "",
        template=templates.template(interface, backend),
    )


def new_operator(
    name: str,
    *,
    out: Path,
    kernel: str | None = None,
    store: Path | None = None,
    operators: tuple[Path, ...] = (),
) -> Scaffold:
    """Write the start of an operator folder, a template or that of a kernel seen in traces.

    Args:
        name: Name of the operator and of its folder.
        out: Folder of operators to put it in; it is made if there is none.
        kernel: Kernel outside the operators, as `ingest` shows it; see `scaffold.from_trace`.
        store: Store that holds the traces; needed with `kernel`.
        operators: Further operator folders.

    Raises:
        UsageError: The name or the folder is taken, no or several kernels are meant, or an operator
            knows the kernel.
        DataError: The store has no traces.
    """
    from atrex import scaffold
    from atrex.store import Store

    known = registry.operators(tuple(dict.fromkeys((*operators, out))))
    if kernel is None:
        written = scaffold.plain(name, out, known)
    elif store is None:
        raise UsageError("a kernel is looked up in a store, and none is given")
    else:
        opened = Store.existing(store)
        rows = opened.unattributed().to_dicts()
        written = scaffold.from_trace(name, kernel, out, known, rows, opened.traces())
    registry.operators.cache_clear()  # whoever looked before must see it
    return written


def doctor() -> list[Finding]:
    """Look at versions, compilers, sandbox and devices of this machine."""
    from atrex.diagnosis import examine

    return examine()


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


def _sit(
    run: Run,
    plan: Plan,
    measured: list[Peak],
    opened: Store,
    progress: Callable[[Step], None],
) -> None:
    """Hold one session of the judge; a run that has had one before is continued."""
    from atrex.judge.devices import cuda_device
    from atrex.judge.session import Session

    with tempfile.TemporaryDirectory(prefix="atrex-") as scratch:
        session = Session(
            plan,
            measured,
            _environment(run.device).id,
            Path(scratch),
            progress=lambda text: progress(Step(run="", done=0, total=0, text=text)),
            device=cuda_device() if run.device == "cuda" else None,
        )
        try:
            session.open()
            if run.seed_sha:
                writer = opened.resume_run(run.run, session.seed_sha)
            else:
                writer = opened.start_run(
                    msgspec.structs.replace(run, seed_sha=(session.seed_sha,))
                )
            with writer:
                _judge(session, writer, progress)
        finally:
            session.close()


def _judge(session: Session, writer: RunWriter, progress: Callable[[Step], None]) -> None:
    """Judge every pair that has no record yet, each on disk before the next starts."""
    pairs = session.plan.pairs()
    done = writer.done()
    run, total = writer.run.run, len(pairs)
    try:
        for count, (candidate, workload) in enumerate(pairs):
            measurement = None
            if (candidate.source_sha, workload.id) not in done:
                text = f"{candidate.name} on {workload}"
                progress(Step(run=run, done=count, total=total, text=text))
                measurement = session.judge(candidate, workload, run=run, attempt=1)
                writer.append(measurement)
            progress(
                Step(
                    run=run,
                    done=count + 1,
                    total=total,
                    text=candidate.name,
                    measurement=measurement,
                )
            )
    except KeyboardInterrupt:
        writer.finish([session.seed.hex()], "interrupted", session.calibration)
        raise
    writer.finish([session.seed.hex()], "complete", session.calibration)


def _plan(run: Run, operators: tuple[Path, ...]) -> Plan:
    """Return what a new or resumed run is to judge: its header says it all."""
    from atrex.judge.plan import Plan
    from atrex.judge.timing import on_gpu

    return Plan(
        candidates=run.candidates,
        shapes=run.shapes,
        selected=run.selected,
        device=run.device,
        rule=on_gpu(_rule(run.options)) if run.device == "cuda" else _rule(run.options),
        compiled=run.options["mode"] != "quick",
        operators=operators,
    )


def _catalogue(weights: Weights, store: Path, operators: tuple[Path, ...]) -> list[Shape]:
    from atrex import catalogue
    from atrex.store import Store

    known = registry.operators(operators)
    if weights == "store":
        opened = Store.existing(store)
        kept = opened.fleet()
        return catalogue.from_store(
            opened, known, deployments=kept.deployments if kept is not None else ()
        )
    return registry.bundled_shapes(known.values())


def _refuse_changed(candidates: Iterable[Candidate]) -> None:
    for candidate in candidates:
        now = registry.candidate(Path(candidate.path), operator=candidate.operator)
        if now.source_sha != candidate.source_sha:
            raise UsageError(
                "the candidate has changed since the run began",
                where=candidate.path,
                remedy="Start a new run.",
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


def _device(asked: Literal["cpu", "cuda", "auto"], candidates: Iterable[Candidate]) -> DeviceKind:
    """Choose the device of a run."""
    from atrex.backends import BACKENDS
    from atrex.judge.devices import nvidia

    if asked == "cuda":
        _cuda()
        return "cuda"
    runs_there = all(
        each.backend in BACKENDS and BACKENDS[each.backend].supports("cuda") for each in candidates
    )
    return "cuda" if asked == "auto" and runs_there and nvidia.available() else "cpu"


def _cuda() -> Path:
    """Return the module of the CUDA device, or say that there is none."""
    from atrex.judge.devices import NVIDIA, nvidia

    if not nvidia.available():
        raise SetupError(
            "no CUDA device can be used here",
            remedy="Judge with --device cpu; `atrex doctor` says what is missing.",
        )
    return NVIDIA


def _environment(device: DeviceKind = "cpu") -> Environment:
    from atrex.backends import compiler
    from atrex.hardware import environment
    from atrex.judge.mapping import huge_pages

    if device == "cuda":
        from atrex.judge.devices.accelerator import load
        from atrex.judge.devices.cuda import describe

        return describe(environment(), load(_cuda()).facts())
    found = compiler.find()
    return environment(compiler=found.version if found else None, huge_pages=huge_pages())


def ingest(
    traces: Sequence[Path],
    *,
    store: Path,
    operators: tuple[Path, ...] = (),
    captures: tuple[Path, ...] = (),
    model: str | None = None,
    tensor_parallel: int = 1,
    fleet: Path | None = None,
    progress: Callable[[int], None] | None = None,
) -> IngestReport:
    """Read profiler traces and add their facts to a store.

    Args:
        traces: Files of any format that `atrex.trace.formats` knows, folders or patterns.
        store: Folder of the store.
        operators: Folders with operators of the user's own.
        captures: Traces of graph captures; by default those that lie beside each trace.
        model: Name of a bundled model configuration, or a config.json; fills axes that no trace
            carries.
        tensor_parallel: Ranks that share a layer of the model.
        fleet: Fleet file; its traces are read too, and the store weighs traces by it.
        progress: Called with the bytes read since the last call.

    Raises:
        UsageError: A path is missing, or no model has this name.
        SetupError: The only trace needs a package that is not installed.
        DataError: The only trace is refused; of several, refusals are in the report. The fleet file
            or the model's configuration is wrong.
    """
    from atrex import fleet as fleets
    from atrex import modelconfig, trace
    from atrex.store import Store

    kept = fleets.read(fleet) if fleet else None
    sizes = modelconfig.load(model, tensor_parallel) if model else {}
    paths = [*traces, *(fleets.trace_files(fleet) if fleet else [])]
    opened = Store(store)
    reading = trace.Reading(operators=operators, captures=captures, model=sizes)
    report = trace.ingest(paths, opened, reading, progress=progress)
    if kept is not None:
        opened.set_fleet(kept)
        report.notes += fleets.notes(opened.traces(), kept.deployments)
    return report


def sanitize(
    traces: Sequence[Path], out: Path, *, progress: Callable[[int], None] | None = None
) -> list[Sanitized]:
    """Write kineto traces that a team can share: what ran and for how long, and nothing of where.

    Args:
        traces: Kineto traces.
        out: The file to write; of several traces a folder, which is made.
        progress: Called with the bytes read since the last call.

    Raises:
        UsageError: A trace is missing, or `out` cannot be written or would overwrite one.
        DataError: A trace is no kineto trace.
    """
    from atrex.trace import sanitize as sanitizer

    if len(traces) == 1 and not out.is_dir():
        return [sanitizer.sanitize(traces[0], out, progress)]
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot be made: {error.strerror}", where=str(out)) from error
    if len({path.name for path in traces}) < len(traces):
        raise UsageError("two traces have one name", remedy="Sanitise them into two folders.")
    return [sanitizer.sanitize(path, out / path.name, progress) for path in traces]


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """A catalogue and its weights.

    Attributes:
        shapes: With their weights, heaviest first.
        operators: Their shares of the catalogue, heaviest first.
        intervals: How far weights move with the traces; none for the bundled catalogue.
        fleet: What weighed the traces; None where they stand for their own time.
        traces: All of the store, those that the fleet leaves out included.
    """

    shapes: list[tuple[Shape, float]]
    operators: dict[str, float]
    intervals: WeightIntervals
    fleet: Fleet | None = None
    traces: tuple[TraceSummary, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """A catalogue that was written.

    Attributes:
        paths: CSV files by operator.
        fleet: What weighed the traces; None where they stand for their own time.
        traces: All of the store, those that the fleet leaves out included.
    """

    shapes: list[Shape]
    paths: dict[str, Path]
    fleet: Fleet | None
    traces: tuple[TraceSummary, ...]


def list_shapes(
    *,
    weights: Weights = "bundled",
    store: Path,
    operators: tuple[Path, ...] = (),
    use_fleet: bool = True,
) -> Weighed:
    """Return the shapes of a catalogue with their weights.

    Args:
        weights: Catalogue to weigh by: the bundled one, or the store's own.
        store: Folder of the store.
        operators: Further operator folders.
        use_fleet: Whether the store's fleet weighs its traces, if it keeps one.

    Raises:
        DataError: The catalogue is broken, or the store's has no shape.
    """
    from atrex import catalogue
    from atrex.fleet import pools
    from atrex.store import Store

    known = registry.operators(operators)
    if weights == "bundled":
        shapes = registry.bundled_shapes(known.values())
        nothing = catalogue.WeightIntervals(workloads={}, operators={})
        return Weighed(
            shapes=_heaviest_first(shapes),
            operators=catalogue.operator_weights(shapes),
            intervals=nothing,
        )
    opened = Store.existing(store)
    facts, traces = opened.facts(), opened.traces()
    fleet = opened.fleet() if use_fleet else None
    deployments = fleet.deployments if fleet is not None else ()
    shapes = catalogue.from_facts(facts, traces, known, deployments=deployments)
    return Weighed(
        shapes=_heaviest_first(shapes),
        operators=catalogue.operator_weights(shapes),
        intervals=catalogue.weight_intervals(facts, shapes, pools(traces, deployments)),
        fleet=fleet,
        traces=tuple(traces),
    )


def _heaviest_first(shapes: Sequence[Shape]) -> list[tuple[Shape, float]]:
    from atrex import catalogue

    share = catalogue.weights(shapes)
    pairs = [(shape, share[shape.workload.id]) for shape in shapes]
    return sorted(pairs, key=lambda pair: (-pair[1], pair[0].workload.operator, str(pair[0])))


def build_shapes(
    *,
    store: Path,
    out: Path,
    operators: tuple[Path, ...] = (),
    limit: int | None = None,
    use_fleet: bool = True,
) -> Built:
    """Write the catalogue of a store's traces as CSV files.

    Args:
        store: Folder of the store.
        out: Folder to write to.
        operators: Further operator folders.
        limit: Most shapes per operator; None keeps all.
        use_fleet: Whether the store's fleet weighs its traces, if it keeps one.

    Raises:
        UsageError: The folder cannot be written.
        DataError: The store has no shape with every axis known.
    """
    from atrex import catalogue
    from atrex.store import Store

    known = registry.operators(operators)
    opened = Store.existing(store)
    fleet = opened.fleet() if use_fleet else None
    shapes = catalogue.from_store(
        opened, known, limit=limit, deployments=fleet.deployments if fleet is not None else ()
    )
    return Built(
        shapes=shapes,
        paths=catalogue.write(shapes, known, out),
        fleet=fleet,
        traces=tuple(opened.traces()),
    )
