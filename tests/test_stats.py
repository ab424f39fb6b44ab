import math
from random import Random
from statistics import median

import pytest

from atrex.stats import (
    Interval,
    bca_median,
    half_width_of_median,
    percentile,
    resampled_medians,
)


def test_percentile_interpolates_between_the_neighbours():
    assert percentile([40, 10, 20, 30], 0.5) == 25
    assert percentile([40, 10, 20, 30], 0.9) == pytest.approx(37)
    assert percentile([7], 0.9) == 7


def test_percentile_of_nothing_is_refused():
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_half_width_of_six_values_spans_them_all():
    assert half_width_of_median([6, 1, 4, 2, 5, 3]) == 2.5


def test_half_width_of_a_hundred_values_is_that_of_ranks_40_and_61():
    # 100 / 2 -+ 1.96 * 10 / 2: the tabulated ranks of the 95 % interval for n = 100
    assert half_width_of_median(list(range(1, 101))) == (61 - 40) / 2


def test_half_width_of_five_values_is_unbounded():
    assert half_width_of_median([1.0] * 5) == math.inf


def test_half_width_sees_the_spread_and_not_the_place():
    values = [0.01, -0.02, 0.03, 0.0, 0.015, -0.01, 0.005]
    shifted = [value + 8 for value in values]
    assert half_width_of_median(shifted) == pytest.approx(half_width_of_median(values))


@pytest.mark.parametrize("count", [7, 8, 31])
def test_resampled_medians_follow_the_law_of_resampling(count):
    random = Random(3)
    values = [random.gauss(0, 1) for _ in range(count)]
    quick = sorted(resampled_medians(values, random, 20_000))
    plain = sorted(median(random.choices(values, k=count)) for _ in range(20_000))
    gap = max(
        abs(sum(v <= x for v in quick) - sum(v <= x for v in plain)) / 20_000 for x in plain[::500]
    )
    assert gap < 0.025  # two-sample Kolmogorov-Smirnov bound at 1e-4 is 0.0223, plus ties


def test_interval_of_equal_values_has_no_width():
    assert bca_median([0.5] * 8, Random(1)) == Interval(center=0.5, low=0.5, high=0.5)


def test_interval_is_reproducible_from_its_seed():
    values = [0.1, 0.4, 0.2, 0.9, 0.3, 0.5, 0.35]
    assert bca_median(values, Random(5)) == bca_median(values, Random(5))


def test_interval_of_a_skewed_sample_lies_inside_it_and_holds_the_median():
    values = [1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0, 9.0]
    interval = bca_median(values, Random(2))
    assert interval.center == 1.4
    assert 1.0 <= interval.low < 1.4 < interval.high <= 9.0


def test_interval_covers_the_true_median_about_nineteen_times_in_twenty():
    random = Random(11)
    covered = 0
    for _ in range(400):
        values = [random.gauss(0, 1) for _ in range(31)]
        interval = bca_median(values, random, resamples=400)
        covered += interval.low <= 0 <= interval.high
    assert 0.91 <= covered / 400 <= 0.985


def test_interval_matches_plain_resampling_for_a_large_sample():
    # asymptotic standard error of a normal median is 1.2533 / sqrt(n): 1.96 of it is 0.1737
    random = Random(4)
    values = [random.gauss(0, 1) for _ in range(200)]
    assert bca_median(values, random).half_width == pytest.approx(0.1737, rel=0.35)
