import pytest

from atrex.model import (
    Candidate,
    Environment,
    Measurement,
    Outcome,
    Run,
    Shape,
    Workload,
)
from atrex.scoring import credit, score

CPU = Environment(
    device="a cpu", kind="cpu", cpu="a cpu", cores=2, kernel="Linux", python="3.11", atrex="0.1"
)


def candidate(name="a", operator="scale"):
    return Candidate(
        name=name, path=f"{name}.py", operator=operator, backend="c", source_sha=f"sha-{name}"
    )


def workload(rows, operator="scale"):
    return Workload(operator=operator, axes={"rows": rows}, dtype="bf16")


def shape(rows, gpu_ns, operator="scale"):
    return Shape(
        workload=workload(rows, operator),
        phase="decode",
        source="test",
        calls=1,
        gpu_ns=gpu_ns,
        time_source="measured",
    )


def make_run(shapes, candidates=None, selected=None):
    return Run(
        run="r1",
        kind="score",
        command=("score",),
        started="2026-01-01T00:00:00Z",
        atrex_version="0.1",
        environment=CPU,
        candidates=tuple(candidates or [candidate()]),
        shapes=tuple(shapes),
        selected=tuple(selected or [s.workload.id for s in shapes]),
        catalogue="test",
        device="cpu",
        options={},
    )


def measured(rows, outcome=Outcome.OK, *, samples=(), s=None, sol_ns=None, **changes):
    timed = bool(samples)
    return Measurement(
        **{
            "run": "r1",
            "workload": workload(rows),
            "candidate": "a",
            "candidate_sha": "sha-a",
            "attempt": 1,
            "environment": CPU.id,
            "outcome": outcome,
            "method": "paired" if timed else "none",
            "samples_ns": tuple(samples),
            "time_ns": sorted(samples)[len(samples) // 2] if timed else None,
            "s": s,
            "sol_ns": sol_ns,
            **changes,
        }
    )


HALF = {"samples": [1000] * 12, "s": 0.5, "sol_ns": 500}
SHAPES = [shape(1, 600), shape(2, 300), shape(3, 100)]


def test_the_score_is_the_weighted_sum_over_the_whole_catalogue():
    [found] = score(
        make_run(SHAPES), [measured(1, **HALF), measured(2, **{**HALF, "s": 1.0, "sol_ns": 1000})]
    )
    assert found.score == pytest.approx(0.6 * 0.5 + 0.3 * 1.0)
    assert found.coverage == pytest.approx(0.9)
    assert found.weight_correct == pytest.approx(0.9)
    assert found.outcomes == {"ok": 2}


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.OK])
def test_only_ok_is_credited(outcome):
    timed = outcome in (Outcome.INCONCLUSIVE, Outcome.FALLBACK)
    one = measured(1, outcome, **HALF) if timed else measured(1, outcome)
    assert credit(one) == 0
    [found] = score(make_run(SHAPES), [one, measured(2, **HALF)])
    assert found.score == pytest.approx(0.15)


@pytest.mark.parametrize(
    ("outcome", "coverage"),
    [
        (Outcome.INCORRECT, 0.6),
        (Outcome.INCONCLUSIVE, 0.6),
        (Outcome.TIMED_OUT, 0.6),
        (Outcome.SKIPPED, 0.0),
        (Outcome.UNSUPPORTED, 0.0),
        (Outcome.INFRA_ERROR, 0.0),
        (Outcome.TASK_ERROR, 0.0),
    ],
)
def test_coverage_is_the_weight_with_a_verdict(outcome, coverage):
    [found] = score(make_run(SHAPES), [measured(1, outcome)])
    assert found.coverage == pytest.approx(coverage)


def test_a_fallback_is_credited_on_the_library_track_only():
    fallback = measured(1, Outcome.FALLBACK, samples=[1000] * 12, s=0.0, sol_ns=800)
    [found] = score(make_run(SHAPES), [fallback, measured(2, **HALF)])
    assert found.score == pytest.approx(0.15)
    assert found.with_fallbacks == pytest.approx(0.6 * 0.8 + 0.15)
    assert found.weight_correct == pytest.approx(0.9)


def test_under_a_filter_the_score_is_rescaled_to_the_selected_weight():
    run = make_run(SHAPES, selected=[workload(2).id])
    [found] = score(run, [measured(2, **HALF)])
    assert found.score == pytest.approx(0.15)
    assert found.score_selected == pytest.approx(0.5)


def test_another_candidates_workloads_are_no_part_of_the_selection():
    run = make_run(
        [shape(1, 500), shape(1, 500, "other")],
        candidates=[candidate("a"), candidate("b", operator="other")],
    )
    ours, theirs = score(run, [measured(1, **HALF)])
    assert (ours.score, ours.score_selected) == (0.25, 0.5)
    assert (theirs.candidate, theirs.score, theirs.coverage) == ("b", None, 0)


def test_the_last_attempt_counts():
    first = measured(1, Outcome.INFRA_ERROR, attempt=1)
    [found] = score(make_run(SHAPES), [measured(1, **HALF, attempt=2), first])
    assert found.outcomes == {"ok": 1}
    assert found.score == pytest.approx(0.3)


def test_an_interpreter_gives_the_weight_judged_correct_and_no_score():
    interpreted = measured(1, method="interpreter")
    wrong = measured(2, Outcome.INCORRECT)
    [found] = score(make_run(SHAPES), [interpreted, wrong])
    assert (found.score, found.low, found.high) == (None, None, None)
    assert (found.score_selected, found.with_fallbacks) == (None, None)
    assert found.weight_correct == pytest.approx(0.6)
    assert found.coverage == pytest.approx(0.9)


def test_a_candidate_that_always_fails_on_a_timed_device_scores_zero():
    [found] = score(make_run(SHAPES), [measured(1, Outcome.INCORRECT)])
    assert (found.score, found.low, found.high) == (0, 0, 0)


def test_steady_samples_give_an_interval_without_width():
    [found] = score(make_run(SHAPES), [measured(1, **HALF)])
    assert (found.low, found.high) == (pytest.approx(0.3), pytest.approx(0.3))


def test_the_interval_is_that_of_the_weighted_time():
    # quartets of 900, 1000 and 1100 ns in equal parts: the median of 30 lies within 900 to 1100
    samples = [t for t in (900, 1000, 1100) * 10 for _ in range(2)]
    [found] = score(make_run(SHAPES), [measured(1, samples=samples, s=0.5, sol_ns=500)])
    assert 0.6 * 500 / 1100 <= found.low < 0.3 < found.high <= 0.6 * 500 / 900
    assert found.low == pytest.approx(0.6 * 500 / 1050, rel=0.05)


def test_the_interval_never_credits_more_than_the_roof():
    samples = [t for t in (900, 1000, 1100) * 10 for _ in range(2)]
    [found] = score(make_run(SHAPES), [measured(1, samples=samples, s=1.0, sol_ns=1000)])
    assert found.high == pytest.approx(0.6)
    assert found.low < 0.6


def test_a_score_is_the_same_whenever_it_is_computed():
    samples = [t for t in (900, 1000, 1100, 1030) * 8 for _ in range(2)]
    one = measured(1, samples=samples, s=0.5, sol_ns=500)
    assert score(make_run(SHAPES), [one]) == score(make_run(SHAPES), [one])
