"""Every villain and its honest twins, judged by real workers; timing is short and lenient.

Whether a time is resolved depends on the host, so the rule here accepts any width: what is tested
is the verdict. The statistics have exact tests of their own.
"""

import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("numba")

from atrex import registry
from atrex.backends import compiler
from atrex.judge import procfs
from atrex.judge.plan import Plan
from atrex.judge.session import Session
from atrex.judge.timing import Rule
from atrex.judge.worker import Limits
from atrex.model import Outcome, Peak, Shape, Workload

if compiler.find() is None:
    pytest.skip("no C compiler", allow_module_level=True)

VILLAINS = Path(__file__).parent.parent / "villains"
EXPECTED = tomllib.loads((VILLAINS / "expected.toml").read_text())

# At least one quartet, whatever the load; any width resolves, any host is fit.
LENIENT = Rule(seconds=1.0, min_quartets=6, max_quartets=8, stop=9.0, inconclusive=9.0,
               fitness=9.0, fewest=1)  # fmt: skip
LIMITS = Limits(call_s=3.0, memory_bytes=512 << 20)


def workload(rows=16, width=512, dtype="bf16", row_stride=None):
    axes = {"rows": rows, "width": width, "eps": "1e-6", "weight_offset": 0,
            "row_stride": row_stride or width}  # fmt: skip
    return Workload(operator="rms_norm", axes=axes, dtype=dtype)


def shape(of):
    return Shape(workload=of, phase="decode", source="test", calls=1, gpu_ns=1,
                 time_source="modelled")  # fmt: skip


def peak(pipe, value):
    return Peak(device="test", pipe=pipe, kind="measured", value=value, low=value, high=value, n=1,
                source="literal", date="2026-01-01")  # fmt: skip


# Above what any CPU core attains, so that no honest time lies below the roof.
PEAKS = [peak("vector", 1e13), peak("memory", 1e13)]


def make_session(paths, tmp_path, *, workloads=None, limits=LIMITS, peaks=PEAKS):
    shapes = tuple(shape(of) for of in workloads or [workload()])
    plan = Plan(
        candidates=tuple(registry.candidate(path) for path in paths), shapes=shapes,
        selected=tuple(each.workload.id for each in shapes), rule=LENIENT, limits=limits,
        compiled=False,
    )  # fmt: skip
    session = Session(plan, peaks, "environment", tmp_path)
    session.open()
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One sitting over all villains: a failing candidate must not harm the next."""
    paths = [VILLAINS / f"{name}.py" for name in EXPECTED]
    opened = make_session(paths, tmp_path_factory.mktemp("judge"))
    yield opened
    opened.close()


@pytest.mark.parametrize("name", EXPECTED)
def test_a_villain_ends_as_expected_and_its_honest_twin_is_ok(session, name):
    candidate = next(c for c in session.plan.candidates if c.name == name)
    measurement = session.judge(candidate, workload(), run="test", attempt=1)
    outcome, _, kind = EXPECTED[name].partition(":")
    assert (measurement.outcome, kind and measurement.kind) == (outcome, kind), measurement.reason
    if outcome == "ok":
        assert 0 < measurement.s <= 1
        assert measurement.low_ns <= measurement.time_ns <= measurement.high_ns
        assert len(measurement.samples_ns) == len(measurement.baseline_samples_ns) >= 2
        assert measurement.verified >= len(measurement.samples_ns)
        assert measurement.attribution.own
    elif outcome == "fallback":
        assert measurement.s == 0
        assert measurement.time_ns > 0
        assert not measurement.attribution.own
    else:
        assert measurement.s == 0
        assert measurement.samples_ns == ()


def test_the_seed_is_hashed_at_once_and_inputs_depend_on_it(session):
    import torch

    task = session._task(workload())
    other = type(task)(task.operator, task.workload, b"other")
    case = pytest.importorskip("atrex.judge.generator").CASES[0]
    assert len(session.seed) == 32
    assert not torch.equal(task.draw(case, 0)["x"], other.draw(case, 0)["x"])


def test_fp16_fp32_and_strided_rows_are_judged_alike(tmp_path):
    workloads = (workload(dtype="fp16"), workload(dtype="fp32"), workload(rows=9, row_stride=700))
    kernel = registry.folder("rms_norm") / "c_kernel.py"
    session = make_session([kernel], tmp_path, workloads=workloads)
    try:
        for candidate, of in session.plan.pairs():
            measurement = session.judge(candidate, of, run="test", attempt=1)
            assert measurement.outcome is Outcome.OK, measurement.reason
    finally:
        session.close()


def test_a_time_under_the_measured_roof_is_a_violation(tmp_path):
    # a roof of 34 ms, which any real kernel beats, on a loaded host too
    slow = [peak("vector", 1e3), peak("memory", 1e6)]
    session = make_session([VILLAINS / "honest_c.py"], tmp_path, peaks=slow)
    try:
        candidate, of = session.plan.pairs()[0]
        measurement = session.judge(candidate, of, run="test", attempt=1)
        # the vector pipe makes it longer than a CPU workload may take, so memory alone decides
        assert measurement.outcome is Outcome.SKIPPED
        session.peaks[:] = [peak("vector", 1e13), peak("memory", 1e6)]
        measurement = session.judge(candidate, of, run="test", attempt=1)
        assert (measurement.outcome, measurement.kind) == (Outcome.VIOLATION, "below_floor")
        assert measurement.s == 0
    finally:
        session.close()


def test_a_declared_dtype_that_does_not_fit_is_unsupported(tmp_path):
    kernel = tmp_path / "only_fp32.py"
    kernel.write_text('OPERATOR = "rms_norm"\nBACKEND = "torch"\nDTYPES = ("fp32",)\n')
    session = make_session([kernel], tmp_path / "scratch")
    try:
        candidate, of = session.plan.pairs()[0]
        measurement = session.judge(candidate, of, run="test", attempt=1)
        assert (measurement.outcome, measurement.s) == (Outcome.UNSUPPORTED, None)
    finally:
        session.close()


def test_a_shape_that_does_not_fit_into_memory_is_skipped_before_anything_is_drawn(tmp_path):
    giant = workload(rows=1 << 30, width=4096)
    session = make_session([VILLAINS / "honest_c.py"], tmp_path, workloads=[giant])
    try:
        candidate, of = session.plan.pairs()[0]
        session.peaks[:] = [peak("vector", 1e16), peak("memory", 1e16)]
        measurement = session.judge(candidate, of, run="test", attempt=1)
        assert measurement.outcome is Outcome.SKIPPED
        assert "GiB of memory" in measurement.reason
    finally:
        session.close()


def test_the_judge_computes_on_one_thread_while_it_sits(tmp_path):
    """Else its pool spins on the worker's core during the calls that are timed."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        session = make_session([VILLAINS / "honest_c.py"], tmp_path)
        assert torch.get_num_threads() == 1
        session.close()
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_closing_leaves_no_process_behind(tmp_path):
    import os

    before = set(procfs.descendants(os.getpid()))
    session = make_session([VILLAINS / "honest_c.py"], tmp_path)
    candidate, of = session.plan.pairs()[0]
    session.judge(candidate, of, run="test", attempt=1)
    session.close()
    assert set(procfs.descendants(os.getpid())) <= before
