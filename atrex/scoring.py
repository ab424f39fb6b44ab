"""Weigh the judged workloads into one score for each candidate (METHOD.md sections 4 and 5).

The catalogue is fixed before anything is measured and a workload without a result counts 0, so
that leaving out what is hard never pays.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from random import Random

from atrex.catalogue import weights
from atrex.model import Candidate, Measurement, Outcome, Run, Score
from atrex.stats import CONFIDENCE, median, percentile, resampled_medians

SCORE_RESAMPLES = 2_000  # of a sum of many workloads: a smooth law, whose bounds settle early
# Outcomes that are no verdict on the candidate: they lower coverage (integrity section 1.6)
NO_VERDICT = (Outcome.UNSUPPORTED, Outcome.SKIPPED, Outcome.INFRA_ERROR, Outcome.TASK_ERROR)


def score(run: Run, measurements: Iterable[Measurement]) -> list[Score]:
    """Score each candidate of a run over the run's whole catalogue.

    Raises:
        DataError: The catalogue holds no GPU time.
    """
    weight = weights(run.shapes)
    known = list(measurements)
    return [_score_one(run, weight, candidate, known) for candidate in run.candidates]


def credit(measurement: Measurement) -> float:
    """Return what a workload contributes to the score: S if ok, else 0."""
    return (measurement.s or 0.0) if measurement.outcome is Outcome.OK else 0.0


def credit_with_fallbacks(measurement: Measurement) -> float:
    """Return the same where a library's work is credited too, on the library track."""
    if measurement.outcome is not Outcome.FALLBACK:
        return credit(measurement)
    if measurement.time_ns is None or measurement.sol_ns is None:
        return 0.0
    return min(1.0, measurement.sol_ns / measurement.time_ns)


def _score_one(
    run: Run, weight: Mapping[str, float], candidate: Candidate, measurements: Sequence[Measurement]
) -> Score:
    judged = _latest(candidate, measurements)
    verdicts = [one for one in judged if one.outcome not in NO_VERDICT]
    timed = _is_timed(verdicts)
    low, high = _interval(run, weight, judged) if timed else (None, None)
    total = _sum(weight, judged, credit)
    selected = _selected_weight(run, weight, candidate)
    counts = Counter(one.outcome for one in judged)
    return Score(
        run=run.run,
        candidate=candidate.name,
        candidate_sha=candidate.source_sha,
        score=total if timed else None,
        low=low,
        high=high,
        coverage=_sum(weight, verdicts, lambda one: 1.0),
        score_selected=total / selected if timed and selected else None,
        with_fallbacks=_sum(weight, judged, credit_with_fallbacks) if timed else None,
        weight_correct=_sum(weight, verdicts, lambda one: float(one.outcome.correct)),
        outcomes={outcome.value: counts[outcome] for outcome in Outcome if counts[outcome]},
    )


def _latest(candidate: Candidate, measurements: Sequence[Measurement]) -> list[Measurement]:
    """Keep a candidate's last attempt at each workload."""
    latest: dict[str, Measurement] = {}
    for one in sorted(measurements, key=lambda one: one.attempt):
        if one.candidate_sha == candidate.source_sha:
            latest[one.workload.id] = one
    return list(latest.values())


def _is_timed(verdicts: Sequence[Measurement]) -> bool:
    """Tell whether the device times this candidate; where it only interprets, there is no score."""
    methods = {one.method for one in verdicts}
    return "paired" in methods or (bool(methods) and "interpreter" not in methods)


def _sum(
    weight: Mapping[str, float],
    measurements: Iterable[Measurement],
    value: Callable[[Measurement], float],
) -> float:
    return math.fsum(weight.get(one.workload.id, 0.0) * value(one) for one in measurements)


def _selected_weight(run: Run, weight: Mapping[str, float], candidate: Candidate) -> float:
    """Return the weight of the workloads that this candidate was to be judged on.

    Those of its own operator: what another candidate of the same run was judged on is no part.
    """
    wanted = set(run.selected)
    mine = {
        shape.workload.id for shape in run.shapes if shape.workload.operator == candidate.operator
    }
    return math.fsum(weight[workload] for workload in sorted(wanted & mine))


def _interval(
    run: Run, weight: Mapping[str, float], measurements: Sequence[Measurement]
) -> tuple[float, float]:
    """Resample the quartets of each workload and sum again: how sure the measurement is.

    The catalogue stays fixed: nothing is said of workloads that are not in it.
    """
    totals = [0.0] * SCORE_RESAMPLES
    for one in measurements:
        share, gain = weight.get(one.workload.id, 0.0), credit(one)
        if not share or not gain:
            continue
        random = Random(f"{run.run} {one.candidate_sha} {one.workload.id}")
        for index, value in enumerate(_resampled_s(one, random)):
            totals[index] += share * value
    tail, center = (1 - CONFIDENCE) / 2, _sum(weight, measurements, credit)
    # rounding of a sum of many must not put the score outside its own interval
    return min(percentile(totals, tail), center), max(percentile(totals, 1 - tail), center)


def _resampled_s(measurement: Measurement, random: Random) -> list[float]:
    """Draw S with the median of the candidate's quartets resampled, two calls for each quartet."""
    samples, s = measurement.samples_ns, credit(measurement)
    quartets = [
        math.log(first * second) / 2
        for first, second in zip(samples[::2], samples[1::2], strict=False)
    ]
    if not quartets or measurement.sol_ns is None or measurement.time_ns is None:
        return [s] * SCORE_RESAMPLES
    uncapped, center = measurement.sol_ns / measurement.time_ns, median(quartets)
    return [
        min(1.0, uncapped * math.exp(center - drawn))
        for drawn in resampled_medians(quartets, random, SCORE_RESAMPLES)
    ]
