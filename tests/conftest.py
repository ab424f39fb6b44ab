"""Records and a store to put them into, for every test that needs results."""

from types import SimpleNamespace

import pytest

from atrex.model import (
    Attribution,
    Candidate,
    Environment,
    Measurement,
    Outcome,
    Run,
    Shape,
    Workload,
)
from atrex.store import Store

ENVIRONMENT = Environment(
    device="Testor 9000, 2 cores", kind="cpu", cpu="Testor 9000", cores=2, kernel="6.1",
    python="3.11.2", atrex="0.1.0", torch="2.13.0",
)  # fmt: skip


def workload(rows):
    return Workload(operator="norm", axes={"rows": rows, "eps": "1e-6"}, dtype="bf16")


def make_run(name="20260101T000000000-000001", rows=(1, 2, 3, 4)):
    shapes = tuple(
        Shape(workload=workload(n), phase="decode", source="t", calls=n, gpu_ns=100 * n,
              time_source="measured")
        for n in rows
    )  # fmt: skip
    return Run(
        run=name, kind="score", command=("score", "fast.py"), started="2026-01-01T00:00:00+00:00",
        atrex_version="0.1.0", environment=ENVIRONMENT,
        candidates=(Candidate(name="fast", path="fast.py", operator="norm", backend="c",
                              source_sha="c0ffee"),),
        shapes=shapes, selected=tuple(shape.workload.id for shape in shapes), catalogue="bundled",
        device="cpu", options={"quick": True}, seed_sha=("5eed",),
    )  # fmt: skip


def measured(run, rows, *, attempt=1, time_ns=1000, samples=8, outcome=Outcome.OK):
    return Measurement(
        run=run.run, workload=workload(rows), candidate="fast", candidate_sha="c0ffee",
        attempt=attempt, environment=ENVIRONMENT.id, outcome=outcome, method="paired",
        cases=("x1", "x3"), time_ns=time_ns, low_ns=time_ns - 10, high_ns=time_ns + 10,
        noise=0.01, samples_ns=tuple(range(time_ns, time_ns + samples)),
        baseline_samples_ns=tuple(range(2 * time_ns, 2 * time_ns + samples)), first_ns=9999,
        baseline="eager", baseline_ns=2 * time_ns, baselines_ns={"eager": 2 * time_ns},
        sol_ns=800, s=0.8, overhead_bound=False,
        attribution=Attribution(route="object_map", own=True, counts={"own": 3}, evidence=("e",)),
        max_abs_error=1e-3, max_rel_error=2e-3, peak_bytes=4096, stop_reason="width",
        stage_ns={"build": 5, "timing": 6},
    )  # fmt: skip


def failed(run, rows, outcome=Outcome.INCORRECT):
    return Measurement(
        run=run.run, workload=workload(rows), candidate="fast", candidate_sha="c0ffee", attempt=1,
        environment=ENVIRONMENT.id, outcome=outcome, kind="value", reason="out[0, 3] is off",
        first_mismatch=(0, 3), s=0.0,
    )  # fmt: skip


@pytest.fixture
def records():
    """Makers of small records that fit each other."""
    return SimpleNamespace(
        environment=ENVIRONMENT, run=make_run, workload=workload, measured=measured, failed=failed
    )


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")
