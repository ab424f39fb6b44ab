"""Every bundled Triton kernel, judged in the interpreter, and what one mistake makes of it.

A folder with a triton_kernel.py is picked up by itself, its mistakes from twins/<operator>.toml.
"""

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from atrex import registry
from atrex.judge.plan import Plan
from atrex.judge.session import Session
from atrex.judge.worker import Limits
from atrex.model import Outcome

KERNELS = {
    path.parent.name: path
    for path in sorted(registry.content("operators").glob("*/triton_kernel.py"))
}
TWINS = Path(__file__).parent / "twins"
SLOW = pytest.mark.slow  # all twins but the first of each operator


def twins_of(name):
    path = TWINS / f"{name}.toml"
    return tomllib.loads(path.read_text())["twin"] if path.exists() else []


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One sitting, and so one forkserver, for all kernels."""
    plan = Plan(candidates=(), shapes=(), selected=(), limits=Limits(call_s=60.0))
    opened = Session(plan, [], "environment", tmp_path_factory.mktemp("judge"))
    opened.open()
    yield opened
    opened.close()


def judged(session, path, dtype):
    candidate = registry.candidate(path)
    small = registry.operator(candidate.operator).small
    workload = next(workload for workload in small if workload.dtype == dtype)
    return session.judge(candidate, workload, run="test", attempt=1)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, path in KERNELS.items() for dtype in registry.candidate(path).dtypes],
)
def test_a_kernel_is_correct_and_does_its_own_work(session, name, dtype):
    measurement = judged(session, KERNELS[name], dtype)
    assert measurement.outcome is Outcome.OK, measurement.reason
    assert (measurement.method, measurement.time_ns, measurement.s) == ("interpreter", None, None)
    assert measurement.attribution.own
    assert measurement.attribution.counts["own"] > 0


@pytest.mark.parametrize(
    ("name", "twin"),
    [
        pytest.param(name, twin, id=f"{name}-{twin['why']}", marks=SLOW if place else ())
        for name in KERNELS
        for place, twin in enumerate(twins_of(name))
    ],
)
def test_a_kernel_with_one_mistake_is_incorrect(session, name, twin, tmp_path):
    text = KERNELS[name].read_text()
    assert text.count(twin["old"]) == 1
    path = tmp_path / "twin_kernel.py"
    path.write_text(text.replace(twin["old"], twin["new"]))
    dtypes = registry.candidate(path).dtypes
    for dtype in dtypes:  # a mistake may concern one dtype only
        measurement = judged(session, path, dtype)
        if measurement.outcome is Outcome.INCORRECT:
            return
    pytest.fail(f"{measurement.outcome}: {measurement.reason}")


@pytest.mark.parametrize("name", KERNELS)
def test_a_kernel_has_twins_and_reduced_shapes_in_each_dtype(name):
    candidate = registry.candidate(KERNELS[name])
    assert (candidate.operator, candidate.backend) == (name, "triton")
    assert candidate.dtypes
    assert {small.dtype for small in registry.operator(name).small} >= set(candidate.dtypes)
    assert len(twins_of(name)) >= 3
