"""Medians and their intervals, in the standard library only (METHOD.md section 6).

Everything here is a pure function of its samples and a generator that the caller seeds, so that
a score read back from a store is the same on every machine, with or without NumPy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import NormalDist, median

RESAMPLES = 10_000  # Monte-Carlo error of a 95 % bound below 0.03 of its half-width
CONFIDENCE = 0.95  # of every interval that is shown
FEWEST = 6  # a median of 5 has no 95 % interval: 1 - 2 / 2^5 = 0.94, with 6 it is 0.97
_NORMAL = NormalDist()

__all__ = [
    "CONFIDENCE",
    "FEWEST",
    "RESAMPLES",
    "Interval",
    "bca_median",
    "half_width_of_median",
    "median",
    "percentile",
    "resampled_medians",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A value with the bounds that a confidence level puts around it."""

    center: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        """Half the distance between the bounds."""
        return (self.high - self.low) / 2


def percentile(values: Sequence[float], fraction: float) -> float:
    """Return the value below which `fraction` of the values lie, interpolated linearly.

    Source: Hyndman & Fan, The American Statistician 50 (1996) 361, definition 7.
    """
    return _percentile_of_sorted(sorted(values), fraction)


def half_width_of_median(values: Sequence[float]) -> float:
    """Return the half-width of the 95 % interval of a median from two order statistics.

    It is the distance between two of the sorted values, so it sees their spread and never where
    they lie: a stopping rule that asks it cannot favour a winner. Infinite below `FEWEST` values.

    Source: David & Nagaraja, Order Statistics (3rd ed., 2003), section 7.1.
    """
    count = len(values)
    if count < FEWEST:
        return math.inf
    reach = _NORMAL.inv_cdf((1 + CONFIDENCE) / 2) * math.sqrt(count)
    low = max(0, math.floor((count - reach) / 2) - 1)
    high = min(count - 1, math.ceil((count + reach) / 2))
    ordered = sorted(values)
    return (ordered[high] - ordered[low]) / 2


def resampled_medians(values: Sequence[float], random: Random, resamples: int) -> list[float]:
    """Draw medians of resamples with replacement, each in constant time.

    A resample picks index floor(n u) for n independent uniform u, so its k-th smallest value is
    the one at floor(n u_k) with u_k the k-th smallest uniform, which is Beta(k, n + 1 - k). With
    n even the next uniform is the least of n - k on (u_k, 1). The law is that of resampling
    itself; the work no longer grows with n.

    Source: David & Nagaraja, Order Statistics (3rd ed., 2003), sections 2.1 and 2.5.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank = (count + 1) // 2
    drawn: list[float] = []
    for _ in range(resamples):
        lower = random.betavariate(rank, count + 1 - rank)
        value = ordered[min(int(count * lower), count - 1)]
        if count % 2 == 0:
            upper = 1 - (1 - lower) * random.random() ** (1 / (count - rank))
            value = (value + ordered[min(int(count * upper), count - 1)]) / 2
        drawn.append(value)
    return drawn


def bca_median(values: Sequence[float], random: Random, resamples: int = RESAMPLES) -> Interval:
    """Return the median with its bias-corrected and accelerated bootstrap interval.

    Source: Efron, Journal of the American Statistical Association 82 (1987) 171, sections 2-6;
    ties count half in the bias correction, since a resampled median repeats few values.

    Raises:
        ValueError: There are no values.
    """
    center = median(values)
    drawn = sorted(resampled_medians(values, random, resamples))
    below = sum(value < center for value in drawn) + sum(value == center for value in drawn) / 2
    share = min(max(below / resamples, 1 / resamples), 1 - 1 / resamples)
    bias = _NORMAL.inv_cdf(share)
    acceleration = _jackknife_acceleration(values)

    def bound(level: float) -> float:
        shifted = bias + _NORMAL.inv_cdf(level)
        corrected = _NORMAL.cdf(bias + shifted / (1 - acceleration * shifted))
        return _percentile_of_sorted(drawn, corrected)

    tail = (1 - CONFIDENCE) / 2
    return Interval(center=center, low=min(bound(tail), center), high=max(bound(1 - tail), center))


def _jackknife_acceleration(values: Sequence[float]) -> float:
    """Return the acceleration of a median; always small, and 0 for an even count of values."""
    ordered = sorted(values)
    if len(ordered) < 2:
        return 0.0
    left_out = [median(ordered[:i] + ordered[i + 1 :]) for i in range(len(ordered))]
    mean = math.fsum(left_out) / len(left_out)
    squares = math.fsum((mean - value) ** 2 for value in left_out)
    cubes = math.fsum((mean - value) ** 3 for value in left_out)
    return cubes / (6 * squares**1.5) if squares else 0.0


def _percentile_of_sorted(ordered: Sequence[float], fraction: float) -> float:
    if not ordered:
        raise ValueError("a percentile of no values")
    place = fraction * (len(ordered) - 1)
    below = min(math.floor(place), len(ordered) - 2) if len(ordered) > 1 else 0
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
