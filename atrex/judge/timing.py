"""Time a candidate against its baseline in quartets (METHOD.md section 3).

The unit is a quartet in ABBA order: a clock that drifts evenly favours neither arm, and the ratio
within a quartet cancels whatever slows both. The loop stops on time *spent*, with everything that
an arm does between two calls (flush, fresh inputs, discarded quartets), so a device that never
settles still ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Literal, Protocol, runtime_checkable

import msgspec

from atrex.model import Record
from atrex.stats import FEWEST, Interval, bca_median, half_width_of_median, median

Clock = Callable[[], int]  # monotonic, ns
StopReason = Literal["width", "budget", "quartets"]

SLOW_NS = 20_000_000  # a baseline above this takes twice the budget (design section 6)
WARM_UP_CALLS = 15  # caches, predictors and clocks settle within this many calls
WARM_UP_SHARE = 0.05  # of the budget for each arm: a slow arm gets fewer calls, at least 1
SPIKE = 1.5  # a call this many times its arm's median was disturbed (integrity section 3.1)
SPIKE_SHARE = 0.05  # more disturbed calls than this force one rerun


class Arm(Protocol):
    """One side of a comparison, bound to its worker, inputs and cache state."""

    def sample(self) -> int:
        """Make one cold call with fresh inputs and return its time in ns."""


@runtime_checkable
class WatchedArm(Protocol):
    """An arm that can tell whether its last call was disturbed."""

    def contaminated(self) -> bool:
        """Whether something else ran, or a clock changed, during the last call."""


class Rule(Record, frozen=True, kw_only=True):
    """When to stop, and what counts as resolved.

    The defaults are the CPU's, where a shared host rarely resolves a percent.

    Attributes:
        seconds: Budget of one workload in s; doubled for a baseline above `SLOW_NS`.
        min_quartets: Width is not looked at before: an early narrow stretch is luck.
        max_quartets: More only narrows what is already resolved.
        fewest: Below it a median has no 95 % interval.
        stop: Half-width of the log-ratio (fraction) at which to stop.
        inconclusive: Half-width of the candidate's time (fraction) above which nothing is claimed.
        fitness: Half-width that two equal arms must reach on a fit host.
    """

    seconds: float = 5.0
    min_quartets: int = 30
    max_quartets: int = 200
    fewest: int = FEWEST
    stop: float = 0.01
    inconclusive: float = 0.05
    fitness: float = 0.02

    def budget_ns(self, baseline_ns: int) -> int:
        """Return the budget for a baseline of this speed."""
        return round(self.seconds * (2 if baseline_ns > SLOW_NS else 1) * 1e9)


STANDARD = Rule()
QUICK = Rule(seconds=1.0)
THOROUGH = Rule(seconds=20.0)


def on_gpu(rule: Rule) -> Rule:
    """Return a rule with the widths that a GPU's steadier clock resolves (integrity.md 3.1)."""
    return msgspec.structs.replace(rule, stop=0.005, inconclusive=0.02, fitness=0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """What a pairing measured, in order; every list holds kept quartets only.

    Attributes:
        candidate_ns, baseline_ns: Two calls for each quartet.
        log_ratios: One for each quartet, log(candidate / baseline).
        candidate_first_ns, baseline_first_ns: The first call of each arm.
        stop_reason: ``"width"``, ``"budget"`` or ``"quartets"``.
        discarded: Contaminated quartets.
        reruns: 1 if the first attempt was too disturbed to keep.
        spent_ns: Time after the first calls, everything included.
    """

    candidate_ns: tuple[int, ...]
    baseline_ns: tuple[int, ...]
    log_ratios: tuple[float, ...]
    candidate_first_ns: int
    baseline_first_ns: int
    stop_reason: StopReason
    discarded: int
    reruns: int
    spent_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a pairing means.

    Attributes:
        time_ns, baseline_ns: Medians; None without a complete quartet.
        log_ratio: Median and 95 % interval of log(candidate / baseline); None below
            `Rule.fewest` quartets.
        low_ns, high_ns: 95 % interval of `time_ns`, from the candidate's own calls by quartet.
        noise: Half-width of `log_ratio`.
        conclusive: Whether there is an interval, narrow enough to claim something.
        reason: Why it is not conclusive.
    """

    time_ns: int | None
    baseline_ns: int | None
    log_ratio: Interval | None
    low_ns: int | None
    high_ns: int | None
    noise: float | None
    conclusive: bool
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fitness:
    """Whether the host can time: two equal arms against each other."""

    fit: bool
    log_ratio: Interval | None
    quartets: int
    discarded: int
    reason: str = ""


def pair(candidate: Arm, baseline: Arm, rule: Rule, clock: Clock, random: Random) -> Paired:
    """Time two arms in quartets until the ratio is resolved or the budget is spent.

    A measurement with too many disturbed calls is repeated once, in what is left of the budget.
    The first call of each arm may compile; it is reported apart and not part of the budget.
    Whatever an arm raises passes through.
    """
    first_ns = candidate.sample(), baseline.sample()
    started = clock()
    _warm_up(candidate, rule, clock)
    deadline = started + rule.budget_ns(min(_warm_up(baseline, rule, clock)))
    arms = candidate, baseline
    attempt = _quartets(arms, rule, clock, random, deadline)
    reruns = 0
    if _disturbed(attempt):
        again = _quartets(arms, rule, clock, random, deadline)
        if len(again.log_ratios) >= rule.fewest:
            again.discarded += attempt.discarded
            attempt, reruns = again, 1
    return Paired(
        candidate_ns=tuple(attempt.candidate_ns),
        baseline_ns=tuple(attempt.baseline_ns),
        log_ratios=tuple(attempt.log_ratios),
        candidate_first_ns=first_ns[0],
        baseline_first_ns=first_ns[1],
        stop_reason=attempt.stop_reason,
        discarded=attempt.discarded,
        reruns=reruns,
        spent_ns=clock() - started,
    )


def summarise(paired: Paired, rule: Rule, random: Random) -> Timing:
    """Reduce a pairing to its medians, the interval of the ratio, and that of the time.

    A noisy baseline widens the interval of the ratio, which a speed-up is claimed from, but says
    nothing against the time that a share of the roofline is computed from.
    """
    time_ns = round(median(paired.candidate_ns)) if paired.candidate_ns else None
    baseline_ns = round(median(paired.baseline_ns)) if paired.baseline_ns else None
    quartets = len(paired.log_ratios)
    if time_ns is None or baseline_ns is None or quartets < rule.fewest:
        return Timing(
            time_ns=time_ns,
            baseline_ns=baseline_ns,
            log_ratio=None,
            low_ns=None,
            high_ns=None,
            noise=None,
            conclusive=False,
            reason=f"{quartets} quartets within the budget, {rule.fewest} are needed",
        )
    interval = bca_median(paired.log_ratios, random)
    calls = paired.candidate_ns
    own = bca_median(
        [math.log(a * b) / 2 for a, b in zip(calls[::2], calls[1::2], strict=True)], random
    )
    narrow = own.half_width <= rule.inconclusive
    return Timing(
        time_ns=time_ns,
        baseline_ns=baseline_ns,
        log_ratio=interval,
        # the median of quartets is not that of calls: the shown interval must hold the time
        low_ns=min(round(math.exp(own.low)), time_ns),
        high_ns=max(round(math.exp(own.high)), time_ns),
        noise=interval.half_width,
        conclusive=narrow,
        reason=""
        if narrow
        else f"half-width {own.half_width:.1%} of the time, at most {rule.inconclusive:.0%}",
    )


def screen(arms: Mapping[str, Arm], calls: int = 3) -> dict[str, int]:
    """Time each arm a few times and return the medians, the fastest first.

    Raises:
        ValueError: There is nothing to choose from.
    """
    if not arms:
        raise ValueError("no correct baseline to screen")
    medians = {
        name: round(median([arm.sample() for _ in range(calls)])) for name, arm in arms.items()
    }
    return dict(sorted(medians.items(), key=lambda item: item[1]))


def aa_fitness(arm_a: Arm, arm_b: Arm, rule: Rule, clock: Clock, random: Random) -> Fitness:
    """Measure two equal arms against each other: a fit host finds no difference between them.

    The interval must be narrower than `rule.fitness` and come within `rule.stop` of zero. Zero
    itself is not asked for: a 95 % interval misses it on one fit host in twenty.
    """
    paired = pair(arm_a, arm_b, rule, clock, random)
    timing = summarise(paired, rule, random)
    interval, reason = timing.log_ratio, timing.reason
    if interval is not None:
        reason = ""
        if interval.half_width >= rule.fitness:
            reason = f"two equal runs agree only within {interval.half_width:.1%}"
        elif interval.low > rule.stop or interval.high < -rule.stop:
            reason = f"two equal runs differ by {interval.center:+.1%}"
    return Fitness(
        fit=interval is not None and not reason,
        log_ratio=interval,
        quartets=len(paired.log_ratios),
        discarded=paired.discarded,
        reason=reason,
    )


@dataclass(slots=True, kw_only=True)
class _Attempt:
    candidate_ns: list[int]
    baseline_ns: list[int]
    log_ratios: list[float]
    stop_reason: StopReason = "budget"
    discarded: int = 0


def _quartets(
    arms: tuple[Arm, Arm], rule: Rule, clock: Clock, random: Random, deadline: int
) -> _Attempt:
    """Repeat quartets until one of the three reasons to stop holds."""
    attempt = _Attempt(candidate_ns=[], baseline_ns=[], log_ratios=[])
    span = 0
    begun = clock()
    while begun + span < deadline:  # a quartet as long as the last would end in time
        quartet = _quartet(*arms, random.random() < 0.5)
        now = clock()
        begun, span = now, now - begun
        if quartet.contaminated:
            attempt.discarded += 1
            continue
        attempt.candidate_ns += quartet.candidate_ns
        attempt.baseline_ns += quartet.baseline_ns
        attempt.log_ratios.append(quartet.log_ratio)
        count = len(attempt.log_ratios)
        if count >= rule.max_quartets:
            attempt.stop_reason = "quartets"
            break
        if count >= rule.min_quartets and half_width_of_median(attempt.log_ratios) <= rule.stop:
            attempt.stop_reason = "width"
            break
    return attempt


@dataclass(frozen=True, slots=True, kw_only=True)
class _Quartet:
    candidate_ns: tuple[int, int]
    baseline_ns: tuple[int, int]
    contaminated: bool

    @property
    def log_ratio(self) -> float:
        """Return the log of the ratio of geometric means; swapping the arms negates it."""
        return (
            math.log(self.candidate_ns[0])
            + math.log(self.candidate_ns[1])
            - math.log(self.baseline_ns[0])
            - math.log(self.baseline_ns[1])
        ) / 2


def _quartet(candidate: Arm, baseline: Arm, candidate_first: bool) -> _Quartet:
    """Call outer, inner, inner, outer."""
    outer, inner = (candidate, baseline) if candidate_first else (baseline, candidate)
    times: list[int] = []
    contaminated = False
    for arm in (outer, inner, inner, outer):
        times.append(max(1, arm.sample()))  # a clock too coarse for the call still has a log
        contaminated |= isinstance(arm, WatchedArm) and arm.contaminated()
    outer_ns, inner_ns = (times[0], times[3]), (times[1], times[2])
    return _Quartet(
        candidate_ns=outer_ns if candidate_first else inner_ns,
        baseline_ns=inner_ns if candidate_first else outer_ns,
        contaminated=contaminated,
    )


def _warm_up(arm: Arm, rule: Rule, clock: Clock) -> list[int]:
    """Call an arm until it is warm and return the times.

    Each arm is warmed by its own speed: a slow candidate cannot cut its rival's warm-up short.
    """
    times: list[int] = []
    begun = clock()
    while len(times) < WARM_UP_CALLS:
        times.append(arm.sample())
        if clock() - begun >= WARM_UP_SHARE * rule.seconds * 1e9:
            break
    return times


def _disturbed(attempt: _Attempt) -> bool:
    """Tell whether either arm has too many calls far above its median."""
    for samples in (attempt.candidate_ns, attempt.baseline_ns):
        if samples:
            limit = SPIKE * median(samples)
            if sum(value > limit for value in samples) > SPIKE_SHARE * len(samples):
                return True
    return False
