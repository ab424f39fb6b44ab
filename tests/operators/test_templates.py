"""Every operator's templates: each builds and runs, and only its mathematics is left to write."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("numba")

import atrex
from atrex import registry
from atrex.backends import compiler
from atrex.backends.templates import TEMPLATES
from atrex.cli.ops import Language
from atrex.judge.plan import Plan
from atrex.judge.session import Session
from atrex.model import Peak, Shape

if compiler.find() is None:
    pytest.skip("no C compiler", allow_module_level=True)

PIPES = ("vector", "memory", "bf16", "fp16", "fp8_e4m3fn", "fp8_e4m3fnuz")


def test_the_command_offers_every_template():
    assert set(Language) == set(TEMPLATES)


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    """One sitting over all templates of all operators on their first small workload."""
    folder = tmp_path_factory.mktemp("templates")
    candidates, shapes = [], []
    for name in registry.operators():
        for backend in TEMPLATES:
            shown = atrex.show_operator(name, backend=backend)
            path = folder / f"{name}_{backend}.py"
            path.write_text(shown.template)
            candidates.append(registry.candidate(path))
        shapes.append(
            Shape(workload=shown.example, phase="decode", source="test", calls=1, gpu_ns=1,
                  time_source="modelled")
        )  # fmt: skip
    peaks = [
        Peak(device="test", pipe=pipe, kind="measured", value=1e13, low=1e13, high=1e13, n=1,
             source="literal", date="2026-01-01")
        for pipe in PIPES
    ]  # fmt: skip
    plan = Plan(
        candidates=tuple(candidates), shapes=tuple(shapes),
        selected=tuple(shape.workload.id for shape in shapes),
    )  # fmt: skip
    session = Session(plan, peaks, "environment", folder)
    session.open()
    yield lambda name: {
        candidate.backend: session.judge(candidate, workload, run="test", attempt=1)
        for candidate, workload in plan.pairs()
        if candidate.operator == name
    }
    session.close()


@pytest.mark.parametrize("name", registry.operators())
def test_templates_build_run_and_are_incorrect(name, judge):
    for backend, measurement in judge(name).items():
        assert measurement.outcome == "incorrect", f"{backend}: {measurement.reason}"
