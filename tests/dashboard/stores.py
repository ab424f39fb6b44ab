"""Stores of literal records for the dashboard's tests; no judge runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from atrex.model import (
    Attribution,
    Candidate,
    Environment,
    Measurement,
    Outcome,
    Peak,
    Phase,
    Run,
    Shape,
    TimeSource,
    TraceSummary,
    Workload,
)
from atrex.store import Store

ENVIRONMENT = Environment(
    device="AMD EPYC 9B45, 2 cores",
    kind="cpu",
    cpu="AMD EPYC 9B45",
    cores=2,
    kernel="6.18.0",
    python="3.11.2",
    atrex="0.1.0",
    torch="2.13.0",
    compiler="gcc 12.2.0",
)
OLDER_ENVIRONMENT = Environment(
    device="AMD EPYC 9B45, 2 cores",
    kind="cpu",
    cpu="AMD EPYC 9B45",
    cores=2,
    kernel="6.18.0",
    python="3.11.2",
    atrex="0.1.0",
    torch="2.12.0",
    compiler="gcc 12.2.0",
)
OLD_RUN = "20260301T080000Z-0000aa"
RUN = "20260302T090000Z-1111bb"
TORN_RUN = "20260303T100000Z-2222cc"
LARGE_RUN = "20260304T110000Z-3333dd"
C_SHA = "c1" * 32
TORCH_SHA = "d2" * 32
SILU_SHA = "e3" * 32
TRITON_SHA = "f4" * 32
TRACE = "00112233aabbccdd"
SYNTHETIC = "5566778899aabbcc"
HOSTILE_KERNEL = "<img src=x onerror=alert(1)> [click](http://example.invalid) $x$ :red[y]"


def rms_norm(rows: int, width: int = 4096) -> Workload:
    axes: dict[str, int | str] = {
        "rows": rows,
        "width": width,
        "eps": "1e-6",
        "weight_offset": 0,
        "row_stride": width,
    }
    return Workload(operator="rms_norm", axes=axes, dtype="bf16")


def silu(rows: int, width: int = 12288) -> Workload:
    return Workload(operator="silu_and_mul", axes={"rows": rows, "width": width}, dtype="bf16")


def shape(workload: Workload, phase: Phase, calls: int, gpu_ns: int) -> Shape:
    return Shape(
        workload=workload,
        phase=phase,
        source="synthetic_serving.json.gz",
        calls=calls,
        gpu_ns=gpu_ns,
        time_source="modelled",
    )


SHAPES = (
    shape(rms_norm(2048), "prefill", 74, 4_000_000),
    shape(silu(2048), "prefill", 36, 3_000_000),
    shape(rms_norm(64), "decode", 740, 1_500_000),
    shape(silu(64), "decode", 360, 1_000_000),
    shape(rms_norm(8), "decode", 740, 500_000),
)


def elements(workload: Workload) -> int:
    return int(workload.axes["rows"]) * int(workload.axes["width"])


def samples(median_ns: int, n: int) -> tuple[int, ...]:
    """Spread n samples over about 3 % around a median, in an order that repeats."""
    return tuple(median_ns * (1000 + (37 * i % 29) - 14) // 1000 for i in range(n))


def timed(
    workload: Workload,
    time_ns: int,
    *,
    run: str = RUN,
    candidate: str = "c_kernel",
    sha: str = C_SHA,
    outcome: Outcome = Outcome.OK,
    baseline_ns: int,
    sol_ns: int,
    n: int = 60,
    reason: str = "",
    attribution: Attribution | None = None,
) -> Measurement:
    return Measurement(
        run=run,
        workload=workload,
        candidate=candidate,
        candidate_sha=sha,
        attempt=1,
        environment=ENVIRONMENT.id,
        outcome=outcome,
        reason=reason,
        method="paired",
        cases=("plain", "heavy"),
        time_ns=time_ns,
        low_ns=time_ns * 99 // 100,
        high_ns=time_ns * 101 // 100,
        noise=0.01,
        samples_ns=samples(time_ns, n),
        baseline_samples_ns=samples(baseline_ns, n),
        first_ns=3 * time_ns,
        baseline="eager",
        baseline_ns=baseline_ns,
        baselines_ns={"eager": baseline_ns, "compiled": baseline_ns * 2},
        sol_ns=sol_ns,
        flop={"vector": 4 * elements(workload)},
        moved_bytes=4 * elements(workload),
        s=min(1.0, sol_ns / time_ns) if outcome is Outcome.OK else 0.0,
        overhead_bound=sol_ns < 20_000,
        attribution=attribution
        or Attribution(
            route="import_rule", own=True, counts={"own": 1}, evidence=("links libc and libm only",)
        ),
        peak_bytes=1 << 20,
        baseline_peak_bytes=1 << 21,
        stop_reason="width",
        stage_ns={"build": 900_000_000, "timing": 1_200_000_000},
    )


def untimed(
    workload: Workload, outcome: Outcome, reason: str, *, kind: str = "", run: str = RUN
) -> Measurement:
    return Measurement(
        run=run,
        workload=workload,
        candidate="c_kernel",
        candidate_sha=C_SHA,
        attempt=1,
        environment=ENVIRONMENT.id,
        outcome=outcome,
        kind=kind,
        reason=reason,
        s=0.0,
        max_abs_error=3.5,
        max_rel_error=0.25,
        first_mismatch=(0, 17),
    )


def candidate(name: str, sha: str, operator: str, backend: str) -> Candidate:
    path = f"operators/{operator}/{name}.py"
    return Candidate(name=name, path=path, operator=operator, backend=backend, source_sha=sha)


def run(
    name: str,
    candidates: tuple[Candidate, ...],
    *,
    shapes: tuple[Shape, ...] = SHAPES,
    environment: Environment = ENVIRONMENT,
) -> Run:
    return Run(
        run=name,
        kind="score",
        command=("score", *(c.path for c in candidates), "--quick"),
        started=f"{name[:4]}-{name[4:6]}-{name[6:8]}T{name[9:11]}:00:00Z",
        atrex_version="0.1.0",
        environment=environment,
        candidates=candidates,
        shapes=shapes,
        selected=tuple(s.workload.id for s in shapes),
        catalogue="bundled",
        device="cpu",
        options={"quick": True},
        seed_sha=("ab" * 32,),
    )


RMS_C = candidate("c_kernel", C_SHA, "rms_norm", "c")
RMS_TORCH = candidate("torch_rms_norm", TORCH_SHA, "rms_norm", "torch")
SILU_C = candidate("c_kernel", SILU_SHA, "silu_and_mul", "c")

LIBRARY = Attribution(
    route="declared", own=False, counts={"aten": 3}, evidence=("declares BACKEND torch",)
)
MEASUREMENTS = (
    timed(rms_norm(2048), 1_000_000, baseline_ns=1_900_000, sol_ns=700_000),
    timed(rms_norm(64), 40_000, baseline_ns=90_000, sol_ns=30_000),
    untimed(rms_norm(8), Outcome.INCORRECT, f"value: out[0, 17] {HOSTILE_KERNEL}", kind="value"),
    timed(
        rms_norm(2048),
        1_900_000,
        candidate="torch_rms_norm",
        sha=TORCH_SHA,
        outcome=Outcome.FALLBACK,
        baseline_ns=1_900_000,
        sol_ns=700_000,
        reason="does its work in PyTorch",
        attribution=LIBRARY,
    ),
    timed(silu(2048), 6_000_000, sha=SILU_SHA, baseline_ns=6_300_000, sol_ns=2_400_000),
    timed(silu(64), 190_000, sha=SILU_SHA, baseline_ns=185_000, sol_ns=150_000),
)


def empty(path: Path) -> Path:
    return Store(path).path


def full(path: Path) -> Path:
    """Two traces, peaks, and two finished runs on environments that differ in one field."""
    store = Store(path)
    add_traces(store)
    store.add_peaks([peak("memory", 2.1e10), peak("vector", 6.0e10)], ENVIRONMENT)
    old = run(OLD_RUN, (RMS_C,), environment=OLDER_ENVIRONMENT)
    fill(store, old, [timed(rms_norm(64), 60_000, run=OLD_RUN, baseline_ns=90_000, sol_ns=30_000)])
    fill(store, run(RUN, (RMS_C, RMS_TORCH, SILU_C)), MEASUREMENTS)
    return path


def interpreted(path: Path) -> Path:
    """A run of a Triton kernel on a machine without a GPU: correct and untimed."""
    store = Store(path)
    header = run(RUN, (candidate("triton_kernel", TRITON_SHA, "rms_norm", "triton"),))
    fill(store, header, [
        Measurement(
            run=RUN, workload=rms_norm(rows), candidate="triton_kernel", candidate_sha=TRITON_SHA,
            attempt=1, environment=ENVIRONMENT.id, outcome=Outcome.OK, method="interpreter",
            reason="on 2 reduced shapes in the interpreter", attribution=LIBRARY,
        )
        for rows in (2048, 64, 8)
    ])  # fmt: skip
    return path


def torn(path: Path) -> Path:
    """A run whose writer was killed in the middle of its second record."""
    store = Store(path)
    writer = store.start_run(run(TORN_RUN, (RMS_C,)))
    for workload in (rms_norm(2048), rms_norm(64)):
        writer.append(
            timed(workload, 1_000_000, run=TORN_RUN, baseline_ns=1_900_000, sol_ns=700_000)
        )
    writer.close()
    journal = path / "runs" / TORN_RUN / "measurements.jsonl"
    first, second = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(first + second[:100])
    return path


def large(path: Path) -> Path:
    """120 workloads with 240 samples each, and one of them with 100,000."""
    store = Store(path)
    workloads = [rms_norm(rows) for rows in range(1, 121)]
    shapes = tuple(
        shape(workload, "decode", 10, 1_000_000 // rank)
        for rank, workload in enumerate(workloads, start=1)
    )
    measurements = [
        timed(
            workload,
            1_000_000 + 1000 * i,
            run=LARGE_RUN,
            baseline_ns=1_900_000,
            sol_ns=700_000,
            n=50_000 if i == 0 else 120,
        )
        for i, workload in enumerate(workloads)
    ]
    fill(store, run(LARGE_RUN, (RMS_C,), shapes=shapes), measurements)
    return path


def fill(store: Store, header: Run, measurements: Sequence[Measurement]) -> None:
    with store.start_run(header) as writer:
        for measurement in measurements:
            writer.append(measurement)
        writer.finish(seeds=("12" * 32,), status="complete")


def peak(pipe: str, value: float) -> Peak:
    return Peak(
        device=ENVIRONMENT.device,
        pipe=pipe,
        kind="measured",
        value=value,
        low=0.98 * value,
        high=1.01 * value,
        n=15,
        source="peaks.c",
        date="2026-03-02",
    )


def add_traces(store: Store) -> None:
    store.add_trace(
        summary(TRACE, "serving.json.gz", gpu_ns=100_000_000, shaped_ns=62_000_000),
        facts(TRACE, "measured", scale=1),
        unattributed(TRACE, 8_000_000),
    )
    store.add_trace(
        summary(SYNTHETIC, "synthetic_serving.json.gz", gpu_ns=50_000_000, shaped_ns=31_000_000),
        facts(SYNTHETIC, "modelled", scale=2),
        unattributed(SYNTHETIC, 4_000_000),
    )


def summary(trace: str, path: str, *, gpu_ns: int, shaped_ns: int) -> TraceSummary:
    return TraceSummary(
        trace=trace,
        path=path,
        format="kineto",
        gpu="H200",
        events=1200,
        kernels=527,
        gpu_ns=gpu_ns,
        busy_ns=gpu_ns,
        span_ns=gpu_ns * 2,
        launched_ns=gpu_ns * 99 // 100,
        attributed_ns=gpu_ns * 92 // 100,
        shaped_ns=shaped_ns,
        rung_ns={"op_exact": shaped_ns, "none": gpu_ns - shaped_ns},
        trace_coverage=0.12,
        dropped={},
        repaired={},
        truncated=False,
    )


def facts(trace: str, time_source: TimeSource, *, scale: int) -> pl.DataFrame:
    """GPU time by operator; with scale 1 it adds up to 100 ms, with scale 2 to half of that."""
    gemm = Workload(
        operator="gemm_dense", axes={"rows": 2048, "n_out": 6144, "k_in": 4096}, dtype="bf16"
    )
    rows = [
        fact(rms_norm(2048), "prefill", 74, 4_000_000),
        fact(rms_norm(64), "decode", 740, 1_500_000),
        fact(rms_norm(8), "decode", 740, 500_000),
        fact(silu(2048), "prefill", 36, 5_000_000),
        fact(silu(64), "decode", 360, 1_000_000),
        {**fact(gemm, "prefill", 145, 50_000_000), "kind": "class"},
        {**named("unified_attention", "class", 36, 30_000_000), "phase": "decode"},
        {**named("unknown", "unknown", 12, 8_000_000), "phase": "other"},
    ]
    return pl.DataFrame(rows).with_columns(
        pl.col("gpu_ns") // scale,
        trace=pl.lit(trace),
        kernels=pl.col("calls"),
        time_source=pl.lit(time_source),
    )


def fact(workload: Workload, phase: Phase, calls: int, gpu_ns: int) -> dict[str, object]:
    axes = ",".join(
        f'"{name}":{value if isinstance(value, int) else chr(34) + value + chr(34)}'
        for name, value in workload.axes.items()
    )
    return {
        "operator": workload.operator,
        "kind": "operator",
        "workload": workload.id,
        "axes": "{" + axes + "}",
        "dtype": workload.dtype,
        "phase": phase,
        "calls": calls,
        "gpu_ns": gpu_ns,
        "rung": "op_exact",
    }


def named(operator: str, kind: str, calls: int, gpu_ns: int) -> dict[str, object]:
    return {
        "operator": operator,
        "kind": kind,
        "workload": "",
        "axes": "{}",
        "dtype": "unknown",
        "phase": "other",
        "calls": calls,
        "gpu_ns": gpu_ns,
        "rung": "none",
    }


def unattributed(trace: str, gpu_ns: int) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "trace": [trace],
            "kernel": [HOSTILE_KERNEL],
            "class": ["unknown"],
            "calls": [12],
            "gpu_ns": [gpu_ns],
        }
    )
