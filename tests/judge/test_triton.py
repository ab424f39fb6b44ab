"""Triton candidates on a machine without a GPU: judged in the interpreter, attributed, untimed."""

import random
import tomllib
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from atrex import registry
from atrex.judge.ablation import ablate
from atrex.judge.builder import build
from atrex.judge.channel import Target
from atrex.judge.plan import Plan
from atrex.judge.session import Session
from atrex.judge.task import Contender
from atrex.judge.worker import Limits
from atrex.model import Outcome, Shape, Workload

VILLAINS = Path(__file__).parent.parent / "villains" / "triton"
EXPECTED = tomllib.loads((VILLAINS / "expected.toml").read_text())
LIMITS = Limits(call_s=3.0, memory_bytes=512 << 20)


def workload(rows=2048, width=4096, dtype="bf16"):
    axes = {"rows": rows, "width": width, "eps": "1e-6", "weight_offset": 0, "row_stride": width}
    return Workload(operator="rms_norm", axes=axes, dtype=dtype)


def open_session(paths, folder, *, of=None, operators=()):
    shape = Shape(workload=of or workload(), phase="decode", source="test", calls=1, gpu_ns=1,
                  time_source="modelled")  # fmt: skip
    plan = Plan(
        candidates=tuple(registry.candidate(path) for path in paths), shapes=(shape,),
        selected=(shape.workload.id,), limits=LIMITS, operators=operators,
    )  # fmt: skip
    session = Session(plan, [], "environment", folder)
    session.open()
    return session


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """One sitting over all villains: a failing candidate must not harm the next."""
    paths = [VILLAINS / f"{name}.py" for name in EXPECTED]
    opened = open_session(paths, tmp_path_factory.mktemp("judge"))
    yield opened
    opened.close()


def judged(session, path, of=None):
    return session.judge(registry.candidate(path), of or workload(), run="test", attempt=1)


@pytest.mark.parametrize("name", EXPECTED)
def test_a_villain_ends_as_expected_and_its_honest_twin_is_ok(session, name):
    measurement = judged(session, VILLAINS / f"{name}.py")
    outcome, _, kind = EXPECTED[name].partition(":")
    assert (measurement.outcome, kind and measurement.kind) == (outcome, kind), measurement.reason
    assert measurement.s == (None if outcome == "ok" else 0.0)
    assert measurement.method == "interpreter"
    assert measurement.time_ns is None


def test_each_villain_has_an_expected_outcome():
    assert sorted(EXPECTED) == sorted(path.stem for path in VILLAINS.glob("*.py"))


def test_a_file_that_is_no_python_fails_to_compile(session, tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text('OPERATOR = "rms_norm"\nBACKEND = "triton"\ndef run(x:\n')
    assert judged(session, path).outcome is Outcome.COMPILE_FAILED


def test_an_honest_kernel_is_correct_on_the_reduced_shapes_of_its_dtype(session):
    measurement = judged(session, VILLAINS / "honest.py")
    assert measurement.reason == "on 2 reduced shapes in the interpreter"
    assert len(measurement.cases) == 18  # every hidden case on both
    assert measurement.samples_ns == ()
    assert (measurement.sol_ns, measurement.baseline) == (None, None)
    assert measurement.attribution.counts == {"own": 12}  # two launches, three cases, two shapes
    assert measurement.attribution.evidence == (
        "in 6 calls on 2 reduced shapes right without torch's operators and wrong without its own "
        "kernels",
    )


def test_a_verdict_holds_for_every_workload_of_the_dtype_and_is_found_once(session):
    judged(session, VILLAINS / "honest.py")
    other = judged(session, VILLAINS / "honest.py", workload(rows=7))
    assert other.outcome is Outcome.OK
    assert other.workload == workload(rows=7)
    assert "correctness" not in other.stage_ns
    fp32 = judged(session, VILLAINS / "honest.py", workload(dtype="fp32"))
    assert fp32.reason == "on 1 reduced shapes in the interpreter"


def test_a_dtype_without_reduced_shapes_is_unsupported(session):
    measurement = judged(session, VILLAINS / "torch_in_run.py", workload(dtype="fp64"))
    assert (measurement.outcome, measurement.s) == (Outcome.UNSUPPORTED, None)
    assert measurement.reason == "no reduced shape in fp64 for the interpreter"


def test_nothing_is_calibrated_for_a_run_that_times_nothing(session):
    judged(session, VILLAINS / "honest.py")
    assert session.calibration == {}
    assert list(session.device._servers) == ["triton"]


def test_the_evidence_names_what_torch_did(session):
    found = judged(session, VILLAINS / "converts_on_host.py")
    assert found.attribution.counts == {"own": 1, "aten": 1}
    assert found.reason.startswith("calls aten::copy_ outside its own kernels (rms_norm[")
    rare = judged(session, VILLAINS / "rare_fallback.py")
    assert "width=97" in rare.reason


NORM = (VILLAINS / "rare_fallback.py").read_text().replace("width == 97", "False")
WORK = """
def work(x, weight, out, eps, weight_offset):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out.copy_(wide * scale * (weight.float() + weight_offset))


def run(x, weight, out, eps, weight_offset, prepared=None):
    """


def ablated(session, folder, text):
    """Audit a candidate whatever the static policy says of it."""
    kernel = folder / "kernel.py"
    kernel.write_text(NORM)
    task = session._task(registry.operator("rms_norm").small[0])
    artefact = build(registry.candidate(kernel), task.interface, folder / "build")
    artefact.path.chmod(0o600)
    artefact.path.write_text(text)
    target = Target(kind="candidate", path=str(artefact.path))
    contender = Contender(name="kernel", target=target, flavour="triton")
    return ablate(contender, artefact, [task], session._start, random.Random(1))


def test_a_plain_kernel_is_its_own(session, tmp_path):
    assert ablated(session, tmp_path, NORM).own


@pytest.mark.parametrize(
    "body",
    [
        "thread = threading.Thread(target=work, args=(x, weight, out, eps, weight_offset))\n"
        "    thread.start()\n    thread.join()",
        "with torch._C._DisableTorchDispatch():\n"
        "        work(x, weight, out, eps, weight_offset)",
        "with torch.inference_mode():\n        out.copy_(x.float())",
        "try:\n        work(x, weight, out, eps, weight_offset)\n"
        "    except Exception:\n        pass",
    ],
    ids=["thread", "without_modes", "inference", "caught"],
)  # fmt: skip
def test_torch_is_seen_from_threads_and_without_modes(session, tmp_path, body):
    found = ablated(session, tmp_path, f"import threading\nimport torch\n{WORK}{body}\n")
    assert (found.route, found.own) == ("ablation", False)
    assert found.evidence[0].startswith("calls aten::")


COPY = '''
"""Copy the first rows, zeros for the rest."""

from atrex.model import Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("rows", "kept")


def inputs(w, draw):
    return {"x": draw.normal("x", (w.axes["rows"], 16), w.dtype), "kept": w.axes["kept"]}


def outputs(w):
    return {"out": TensorSpec(shape=(w.axes["rows"], 16), dtype=w.dtype)}


def reference(x, kept):
    out = x.clone()
    out[kept:] = 0
    return {"out": out}


def eager(x, kept, prepared=None):
    return reference(x, kept)


def small(rows, kept):
    return Workload(operator="copy_rows", axes={"rows": rows, "kept": kept}, dtype="fp32")


DEFINITION = Operator(
    name="copy_rows", axes=AXES, inputs=inputs, outputs=outputs, reference=reference,
    cost=lambda w, inputs: Cost(flop={}, read_bytes=1, write_bytes=1),
    match=lambda call, step: None, tolerance={"out": "EXACT"},
    baselines=(Implementation(name="eager", run=eager),), small=(small(5, 3), small(4, 0)),
)
'''
COPY_KERNEL = """
import triton
import triton.language as tl

OPERATOR = "copy_rows"
BACKEND = "triton"


@triton.jit
def copy_kernel(x, out):
    index = tl.program_id(0) * 16 + tl.arange(0, 16)
    tl.store(out + index, tl.load(x + index))


def run(x, out, kept, prepared=None):
    out.zero_()
"""


@pytest.fixture(scope="module")
def copy_rows(tmp_path_factory):
    folder = tmp_path_factory.mktemp("operators")
    (folder / "copy_rows").mkdir()
    (folder / "copy_rows" / "definition.py").write_text(COPY)
    small = registry.operator("copy_rows", (folder,)).small[0]
    opened = open_session([], tmp_path_factory.mktemp("judge"), of=small, operators=(folder,))
    yield lambda path: judged(opened, path, small)
    opened.close()


def test_an_output_that_needs_no_kernel_is_a_fallback(copy_rows, tmp_path):
    path = tmp_path / "decoy.py"
    path.write_text(COPY_KERNEL + "    copy_kernel[(kept,)](x, x.new_empty(x.shape))\n"
                    "    out[:kept].copy_(x[:kept])\n")  # fmt: skip
    found = copy_rows(path)
    assert found.outcome is Outcome.FALLBACK
    assert found.reason.startswith("without its own kernels out is right (copy_rows[")
    assert found.attribution.counts == {"own": 3, "copy": 3}


def test_the_host_may_clear_what_stays_zero(copy_rows, tmp_path):
    path = tmp_path / "honest.py"
    path.write_text(COPY_KERNEL + "    copy_kernel[(kept,)](x, out)\n")
    found = copy_rows(path)
    assert found.outcome is Outcome.OK, found.reason
