"""In-place tensors and open orders, judged by real workers on an operator of the tests' own."""

from pathlib import Path

import pytest

pytest.importorskip("torch")

from atrex import registry
from atrex.backends import compiler
from atrex.judge.plan import Plan
from atrex.judge.session import Session
from atrex.judge.timing import Rule
from atrex.model import Peak, Shape, Workload

if compiler.find() is None:
    pytest.skip("no C compiler", allow_module_level=True)

FOLDER = Path(__file__).parent / "operators"
KERNEL = (FOLDER / "kernel.py").read_text()
WORKLOAD = Workload(
    operator="scatter_rows", axes={"rows": 33, "slots": 64, "width": 40}, dtype="bf16"
)
LENIENT = Rule(seconds=1.0, min_quartets=6, max_quartets=8, stop=9.0, inconclusive=9.0,
               fitness=9.0, fewest=1)  # fmt: skip


def judged(source, tmp_path):
    path = tmp_path / "kernel.py"
    path.write_text(source)
    shape = Shape(workload=WORKLOAD, phase="decode", source="test", calls=1, gpu_ns=1,
                  time_source="modelled")  # fmt: skip
    peak = Peak(device="test", pipe="memory", kind="measured", value=1e13, low=1e13, high=1e13,
                n=1, source="literal", date="2026-01-01")  # fmt: skip
    plan = Plan(
        candidates=(registry.candidate(path),), shapes=(shape,), selected=(WORKLOAD.id,),
        rule=LENIENT, operators=(FOLDER,), compiled=False,
    )  # fmt: skip
    session = Session(plan, [peak], "environment", tmp_path)
    try:
        session.open()
        return session.judge(plan.candidates[0], WORKLOAD, run="test", attempt=1)
    finally:
        session.close()


def test_a_kernel_that_writes_in_place_in_its_own_order_is_ok(tmp_path):
    measurement = judged(KERNEL, tmp_path)
    assert measurement.outcome == "ok", measurement.reason
    assert measurement.baselines_failed == {}


@pytest.mark.parametrize(
    ("old", "new", "kind"),
    [
        ("slot * width", "r * width", "coverage"),  # rows in their own order
        ("r < rows; r++", "r < rows - 1; r++", "coverage"),  # the last row stays away
        # a value that no poison has: what looks untouched would be coverage
        ("args->order[rows - 1 - r] = (int32_t)r", "args->order[r] = -7", "value"),
        ("args->x[r * width + i]", "args->pool[slot * width + i]", "coverage"),  # does nothing
    ],
)
def test_a_wrong_kernel_is_incorrect(old, new, kind, tmp_path):
    assert KERNEL.count(old) == 1
    measurement = judged(KERNEL.replace(old, new), tmp_path)
    assert (measurement.outcome, measurement.kind) == ("incorrect", kind), measurement.reason
