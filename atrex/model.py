"""Records that cross a file or process boundary.

One of something is a record here; thousands of something are a Polars frame with a declared
schema. Records are frozen, strict on decoding, and hold no tensor, handle or connection. Times
are integer nanoseconds, ratios are fractions, missing is None.
"""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Literal

import msgspec

SCHEMA_VERSION = 1  # of runs and facts; a reader migrates older ones, never rewrites them
SCORE_VERSION = 1  # of the method that scores are computed by; a change of it needs a decision
UNKNOWN = "unknown"  # an axis or dtype that a trace does not tell; never guessed


class Record(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A value that may leave the process.

    Subclasses repeat `frozen` and `kw_only`: type checkers and msgspec do not inherit them.
    """


def canonical(value: object) -> bytes:
    """Encode as JSON with sorted keys and no spaces, the form that identities are hashed from."""
    return msgspec.json.encode(value, order="sorted")


def short_hash(value: object) -> str:
    """Return the first 12 hex digits of the SHA-256 of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()[:12]


class Outcome(StrEnum):
    """How judging one candidate on one workload ended; a closed set."""

    OK = "ok"
    INCONCLUSIVE = "inconclusive"  # correct, but the interval is too wide
    INCORRECT = "incorrect"
    FALLBACK = "fallback"  # correct, but the work is a library's
    VIOLATION = "violation"
    COMPILE_FAILED = "compile_failed"  # build, load or import failed
    FORBIDDEN = "forbidden"  # refused by static policy
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    OUT_OF_MEMORY = "out_of_memory"
    UNSUPPORTED = "unsupported"  # device or backend cannot run it; decided before it starts
    SKIPPED = "skipped"  # filtered, too large; decided before it starts
    TASK_ERROR = "task_error"  # the reference or the contract is at fault
    INFRA_ERROR = "infra_error"  # the judge's side is at fault

    @property
    def correct(self) -> bool:
        """Whether the outputs passed every gate."""
        return self in (Outcome.OK, Outcome.INCONCLUSIVE, Outcome.FALLBACK)


Phase = Literal["prefill", "decode", "mixed", "capture", "other"]
TimeSource = Literal["measured", "modelled"]
Method = Literal["paired", "interpreter", "none"]
DeviceKind = Literal["cpu", "cuda"]


class Workload(Record, frozen=True, kw_only=True):
    """One concrete call of an operator: everything that fixes its inputs but the seed.

    Attributes:
        operator: Name of the operator, e.g. ``"rms_norm"``.
        axes: Axis name to an integer or a name, in the operator's order.
        dtype: ``"bf16"``, ``"bf16/fp8_e4m3fn"`` (activation/weight or cache) or
            ``"bf16>fp8_e4m3fn"`` (quantisers).
    """

    operator: str
    axes: dict[str, int | str]
    dtype: str

    @property
    def id(self) -> str:
        """Identity by content, 12 hex digits; the order of axes and the phase are no part of it."""
        return short_hash({"operator": self.operator, "axes": self.axes, "dtype": self.dtype})

    @property
    def complete(self) -> bool:
        """Whether every axis and the dtype are known, so that it can be run."""
        return self.dtype != UNKNOWN and UNKNOWN not in self.axes.values()

    def __str__(self) -> str:
        axes = " ".join(f"{name}={value}" for name, value in self.axes.items())
        return f"{self.operator}[{axes} {self.dtype}]"


class Cost(Record, frozen=True, kw_only=True):
    """Work that no implementation of a workload can avoid.

    Attributes:
        flop: Floating-point operations by pipe: ``"vector"`` (fp32 units), or the operand dtype
            of matrix units, e.g. ``"bf16"``. A multiply-add counts as two.
        read_bytes: Device-memory bytes that must be read, each needed byte once.
        write_bytes: Device-memory bytes that must be written.
    """

    flop: dict[str, int]
    read_bytes: int
    write_bytes: int

    @property
    def bytes(self) -> int:
        """Bytes read and written together."""
        return self.read_bytes + self.write_bytes


class Shape(Record, frozen=True, kw_only=True):
    """A catalogue row: a workload and the production time behind it.

    Attributes:
        phase: The phase with most time.
        source: Trace, model or catalogue the row comes from.
        calls: Calls seen.
        gpu_ns: GPU time of those calls; weights are derived from it.
        time_source: Whether `gpu_ns` was measured or modelled.
    """

    workload: Workload
    phase: Phase
    source: str
    calls: int
    gpu_ns: int
    time_source: TimeSource


class Peak(Record, frozen=True, kw_only=True):
    """One attainable or datasheet rate of a device.

    Attributes:
        device: `Environment.device` it belongs to.
        pipe: ``"vector"``, a dtype, ``"memory"`` (byte/s) or ``"launch_floor"`` (ns).
        kind: Whether measured here or taken from a datasheet.
        value: FLOP/s, byte/s or ns.
        low: 10th percentile of the samples; equal to `value` for a datasheet figure.
        high: 90th percentile of the samples.
        n: Number of samples; 0 for a datasheet figure.
        source: Micro-benchmark or document.
        date: UTC date, ISO 8601.
    """

    device: str
    pipe: str
    kind: Literal["measured", "datasheet"]
    value: float
    low: float
    high: float
    n: int
    source: str
    date: str


class Environment(Record, frozen=True, kw_only=True):
    """What a number was measured on. Host and user names are never part of it.

    Attributes:
        device: Name of the device, e.g. the CPU model with its core count.
        kind: ``"cpu"`` or ``"cuda"``.
        sandbox_tier: How far workers are confined (0: own process, no privileges gained).
        huge_pages: Whether tensors lie in huge pages; cold times differ by half without.
    """

    device: str
    kind: DeviceKind
    cpu: str
    cores: int
    kernel: str
    python: str
    atrex: str
    torch: str | None = None
    triton: str | None = None
    numba: str | None = None
    compiler: str | None = None
    driver: str | None = None
    cuda: str | None = None
    sm_clock_mhz: int | None = None
    mem_clock_mhz: int | None = None
    power_limit_w: int | None = None
    sandbox_tier: int = 0
    huge_pages: bool | None = None

    @property
    def id(self) -> str:
        """Identity by content; numbers of different environments are not compared unasked."""
        return short_hash(self)


class Attribution(Record, frozen=True, kw_only=True):
    """Evidence on whose code did the work.

    Attributes:
        route: How it was found: ``"import_rule"``, ``"ablation"``, ``"declared"`` or
            ``"object_map"``.
        own: Whether the candidate's own code did all of the work.
        counts: Calls or imports seen by class (own, aten, vendor, package, cpu, copy).
        evidence: Short sentences, most telling first.
    """

    route: str
    own: bool
    counts: dict[str, int] = {}
    evidence: tuple[str, ...] = ()


class Candidate(Record, frozen=True, kw_only=True):
    """A kernel to be judged, as its file declares it.

    Attributes:
        name: Shown name, by default the file's stem.
        path: Where it was read from.
        operator: Value of ``OPERATOR``.
        backend: Value of ``BACKEND``.
        dtypes: Value of ``DTYPES``; empty means any.
        source_sha: SHA-256 over the module and the source file beside it.
    """

    name: str
    path: str
    operator: str
    backend: str
    dtypes: tuple[str, ...] = ()
    source_sha: str


class Measurement(Record, frozen=True, kw_only=True):
    """The judge's record of one candidate on one workload.

    Attributes:
        kind: The kind within incorrect and violation, e.g. ``"value"``, ``"alias"``.
        method: ``"paired"`` (ABBA quartets), ``"interpreter"`` (correct, untimed), ``"none"``.
        time_ns: Median time of a call, transport included.
        low_ns, high_ns: 95 % interval of `time_ns`, from the candidate's own calls.
        noise: Half-width of the 95 % interval of the log-ratio to the baseline (fraction): what a
            speed-up is uncertain by.
        samples_ns: Raw candidate times, two for each quartet, in order; always kept.
        baseline_samples_ns: Raw baseline times, two for each quartet, in order.
        first_ns: The first call, reported apart.
        verified: Timed outputs that were compared with the reference after their call.
        baseline: Name of the fastest correct baseline, the denominator.
        baselines_ns: Screening median of every baseline that was correct.
        baselines_failed: Why the others are no denominator.
        sol_ns: T_sol, the attainable time.
        flop: FLOPs by pipe that the workload cannot avoid.
        moved_bytes: Bytes that must be read or written.
        s: min(1, T_sol / T) if ok; 0 for a negative outcome; None if untimed or not run.
        overhead_bound: Whether the roof lies below ten launch floors.
        compile_ns: What building the candidate took.
        prepare_ns: What `prepare` took over the static inputs; not part of any time.
        stop_reason: Why sampling stopped: ``"width"``, ``"budget"`` or ``"quartets"``.
        stage_ns: Harness time by stage (build, inputs, correctness, audit, timing, ...).
    """

    run: str
    workload: Workload
    candidate: str
    candidate_sha: str
    attempt: int
    environment: str
    outcome: Outcome
    kind: str = ""
    reason: str = ""
    method: Method = "none"
    cases: tuple[str, ...] = ()
    time_ns: int | None = None
    low_ns: int | None = None
    high_ns: int | None = None
    noise: float | None = None
    samples_ns: tuple[int, ...] = ()
    baseline_samples_ns: tuple[int, ...] = ()
    first_ns: int | None = None
    verified: int | None = None
    baseline: str | None = None
    baseline_ns: int | None = None
    baselines_ns: dict[str, int] = {}
    baselines_failed: dict[str, str] = {}
    sol_ns: int | None = None
    flop: dict[str, int] = {}
    moved_bytes: int | None = None
    s: float | None = None
    overhead_bound: bool | None = None
    kernel_share: float | None = None
    attribution: Attribution | None = None
    max_abs_error: float | None = None
    max_rel_error: float | None = None
    first_mismatch: tuple[int, ...] | None = None
    peak_bytes: int | None = None
    baseline_peak_bytes: int | None = None
    compile_ns: int | None = None
    prepare_ns: int | None = None
    stop_reason: str | None = None
    stage_ns: dict[str, int] = {}

    def __post_init__(self) -> None:
        if (self.time_ns is None) != (not self.samples_ns):
            raise ValueError(
                f"{self.outcome}: time_ns={self.time_ns} with {len(self.samples_ns)} samples"
            )
        if self.outcome is Outcome.OK and self.method == "paired" and self.time_ns is None:
            raise ValueError("ok by pairs without a time")

    @property
    def key(self) -> tuple[str, str]:
        """What a resumed run must not repeat: (candidate hash, workload id)."""
        return self.candidate_sha, self.workload.id


class Run(Record, frozen=True, kw_only=True):
    """A run's header, written before the first measurement.

    Attributes:
        run: Identity, sortable by start time.
        kind: ``"score"``, ``"peaks"``, ``"demo"``.
        command: The arguments, as typed.
        started, finished: UTC, ISO 8601.
        seed_sha: SHA-256 of each session's secret seed, known at once.
        seed: The seeds themselves, hex, only after the run.
        status: ``"complete"``, ``"interrupted"``, or ``"running"``, which a killed run stays.
        shapes: The whole catalogue; weights are derived from it.
        selected: Ids of the workloads to judge.
        catalogue: Weight source: ``"bundled"`` or ``"store"``.
        options: Settings of the run, and what calibration found out about the host.
    """

    run: str
    kind: str
    command: tuple[str, ...]
    started: str
    schema_version: int = SCHEMA_VERSION
    atrex_version: str
    environment: Environment
    candidates: tuple[Candidate, ...]
    shapes: tuple[Shape, ...]
    selected: tuple[str, ...]
    catalogue: str
    device: DeviceKind
    options: dict[str, str | int | float | bool | None]
    seed_sha: tuple[str, ...] = ()
    seed: tuple[str, ...] = ()
    finished: str | None = None
    status: Literal["running", "complete", "interrupted"] = "running"


class Score(Record, frozen=True, kw_only=True):
    """The weighted share of roofline of one candidate in one run (METHOD.md section 4).

    Attributes:
        candidate_sha: `Candidate.source_sha`; names repeat within a run.
        score: Sum of weight x S over the whole catalogue, missing counted as 0; None without
            a timed device.
        low, high: 95 % interval by resampling quartets on the fixed catalogue.
        coverage: Weight of the workloads that have a verdict.
        score_selected: The same, rescaled to the weight of the selected workloads.
        with_fallbacks: The score that credits fallbacks too.
        weight_correct: Weight judged correct, timed or not.
        outcomes: Number of workloads by outcome.
    """

    run: str
    candidate: str
    score: float | None
    low: float | None
    high: float | None
    coverage: float
    score_selected: float | None
    with_fallbacks: float | None
    weight_correct: float
    outcomes: dict[str, int]
    score_version: int = SCORE_VERSION
    candidate_sha: str = ""


class TraceSummary(Record, frozen=True, kw_only=True):
    """What one trace held and how far it could be understood (the coverage funnel).

    Every level counts kernel time in ns: gpu_ns >= launched_ns, attributed_ns >= shaped_ns.

    Attributes:
        trace: SHA-256 of the file, first 16 hex digits.
        path: File name without its folder; host and user paths are never stored.
        events: Events read.
        kernels: Valid device kernels.
        gpu_ns: Sum of their durations.
        busy_ns: Union per (device, stream).
        launched_ns: Time with a launch.
        attributed_ns: Time whose operator or class is known.
        shaped_ns: Time whose axes are known too.
        rung_ns: Time by rung of the shape ladder.
        trace_coverage: Share of `gpu_ns` in operators with complete axes.
        dropped: Events or kernels left out, by reason.
        repaired: Events mended, by kind.
        noted: What lost nothing but is worth knowing, by kind.
        truncated: Whether the input ended early.
        rank: Rank in its job, None if not told; world_size: processes of the job.
        job: Name of the job if other ranks of it were read beside this one, else "".
    """

    trace: str
    path: str
    format: str
    gpu: str
    events: int
    kernels: int
    gpu_ns: int
    busy_ns: int
    span_ns: int
    launched_ns: int
    attributed_ns: int
    shaped_ns: int
    rung_ns: dict[str, int]
    trace_coverage: float
    dropped: dict[str, int]
    repaired: dict[str, int]
    truncated: bool
    noted: dict[str, int] = {}
    rank: int | None = None
    world_size: int | None = None
    job: str = ""
    schema_version: int = SCHEMA_VERSION


class Deployment(Record, frozen=True, kw_only=True):
    """GPUs that serve one model, and the traces that stand for them.

    Attributes:
        gpus: How many; hours_per_day: for how long they work.
        traces: `TraceSummary.trace` to the file's name without its folder.
    """

    name: str
    model: str
    gpu: str
    gpus: int
    hours_per_day: float
    traces: dict[str, str]

    @property
    def gpu_hours(self) -> float:
        """GPU hours of a day, wall time."""
        return self.gpus * self.hours_per_day


class Fleet(Record, frozen=True, kw_only=True):
    """What a fleet file says (METHOD.md section 8); no trace stands in two deployments."""

    schema_version: int = SCHEMA_VERSION
    deployments: tuple[Deployment, ...]


class CompiledLaunch(Record, frozen=True, kw_only=True):
    """One kernel that a workload's host code launches, compiled for a target and not run.

    Attributes:
        kernel: Its name; "" for what went wrong on the host.
        place: ``"file.py:34"``: its definition, or the line that is wrong.
        arguments: Types of the arguments by name; ``%16`` marks pointers and integers that the
            launch shows to be multiples of 16.
        constants: Values that it was specialised to, 1 among them wherever an integer is 1.
        error: Why it does not compile, or what it needs and the target has not; "" if it fits.
        autotuned: Whether an autotuner tried it, as one configuration of several.
        passed_over: Whether it fails and the autotuner has another that does not.
        registers: Of a thread; vector registers on AMD.
        spill_store_bytes, spill_load_bytes: Moved by a thread's instructions that spill.
        shared_bytes: Shared memory of a block.
        tensor_memory_columns: Of an SM's tensor memory; 0 where there is none.
        tensor_core: Tensor core instructions in the code by family.
        async_copies: Asynchronous copies to shared memory in the code by kind.
        compile_ns: From source to machine code.
        binary_bytes: Size of the binary.
    """

    workload: Workload
    target: str
    kernel: str = ""
    place: str = ""
    arguments: dict[str, str] = {}
    constants: dict[str, str | int | float | bool | None] = {}
    num_warps: int | None = None
    num_stages: int | None = None
    error: str = ""
    autotuned: bool = False
    passed_over: bool = False
    registers: int | None = None
    spill_store_bytes: int | None = None
    spill_load_bytes: int | None = None
    shared_bytes: int | None = None
    shared_limit_bytes: int | None = None
    tensor_memory_columns: int | None = None
    tensor_core: dict[str, int] = {}
    async_copies: dict[str, int] = {}
    compile_ns: int | None = None
    binary_bytes: int | None = None

    @property
    def ok(self) -> bool:
        """Whether it compiles and fits."""
        return not self.error


class CompileReport(Record, frozen=True, kw_only=True):
    """What compiling one candidate found.

    Attributes:
        stamp: When, sortable.
        environment: Where; the versions of Triton and torch decide the figures.
        targets: Names of the targets.
        left_out: Dtypes that a target lacks, whose workloads it was not asked for, in words.
        launches: By target, workload and order of launch.
    """

    schema_version: int = SCHEMA_VERSION
    stamp: str
    environment: Environment
    candidate: Candidate
    targets: tuple[str, ...]
    left_out: tuple[str, ...] = ()
    launches: tuple[CompiledLaunch, ...]

    @property
    def failures(self) -> tuple[CompiledLaunch, ...]:
        """Launches that do not compile or fit, and that nothing makes up for."""
        return tuple(each for each in self.launches if not (each.ok or each.passed_over))
