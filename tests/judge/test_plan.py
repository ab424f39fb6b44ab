import pytest

from atrex.errors import UsageError
from atrex.judge.plan import Plan, select
from atrex.model import Candidate, Shape, Workload


def shape(operator, rows, gpu_ns):
    workload = Workload(operator=operator, axes={"rows": rows}, dtype="bf16")
    return Shape(
        workload=workload,
        phase="decode",
        source="test",
        calls=1,
        gpu_ns=gpu_ns,
        time_source="measured",
    )


SHAPES = [shape("norm", 1, 10), shape("norm", 2, 30), shape("silu", 1, 60)]
NORM_1, NORM_2, SILU = (each.workload.id for each in SHAPES)


def test_all_means_every_workload_of_the_candidates_operators():
    assert select(SHAPES, ["all"], {"norm"}) == (NORM_1, NORM_2)


def test_top_orders_by_gpu_time():
    assert select(SHAPES, ["top:1"], {"norm"}) == (NORM_2,)
    assert select(SHAPES, ["top:9"], {"norm"}) == (NORM_2, NORM_1)


def test_the_first_digits_of_an_id_are_enough_and_choices_are_united():
    assert select(SHAPES, [NORM_1[:6], "all"], {"norm"}) == (NORM_1, NORM_2)


@pytest.mark.parametrize("word", ["top:0", "top:x", "ffffffffffff", "nothing"])
def test_a_word_that_fits_nothing_is_refused(word):
    with pytest.raises(UsageError):
        select(SHAPES, [word], {"norm"})


def test_a_workload_of_another_operator_is_never_chosen():
    with pytest.raises(UsageError):
        select(SHAPES, [SILU], {"norm"})


def test_pairs_join_each_candidate_with_its_own_operator():
    candidates = tuple(
        Candidate(name=name, path=f"{name}.py", operator=name, backend="c", source_sha=name)
        for name in ("silu", "norm")
    )
    plan = Plan(candidates=candidates, shapes=tuple(SHAPES), selected=(SILU, NORM_2))
    pairs = [(candidate.name, workload.id) for candidate, workload in plan.pairs()]
    assert pairs == [("silu", SILU), ("norm", NORM_2)]
