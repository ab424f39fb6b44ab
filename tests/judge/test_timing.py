import math
from itertools import cycle
from random import Random

import pytest

from atrex.judge.timing import (
    QUICK,
    STANDARD,
    THOROUGH,
    WARM_UP_CALLS,
    Rule,
    aa_fitness,
    pair,
    screen,
    summarise,
)


class FakeClock:
    """A clock that only moves when an arm works."""

    def __init__(self):
        self.now_ns = 0

    def __call__(self):
        return self.now_ns


class FakeArm:
    """Replays scripted times; every call also costs `overhead_ns` of flush and fresh inputs."""

    def __init__(self, clock, times_ns, *, overhead_ns=0, name="", log=None):
        self.clock, self.times, self.overhead_ns = clock, cycle(times_ns), overhead_ns
        self.name, self.log, self.calls = name, log if log is not None else [], 0

    def sample(self):
        self.calls += 1
        self.log.append(self.name)
        time_ns = next(self.times)
        self.clock.now_ns += time_ns + self.overhead_ns
        return time_ns


class WatchedFakeArm(FakeArm):
    """Says that the calls with these numbers, from 1, were disturbed."""

    def __init__(self, *args, disturbed, **kwargs):
        super().__init__(*args, **kwargs)
        self.disturbed = disturbed

    def contaminated(self):
        return self.calls in self.disturbed


def paired(candidate_ns, baseline_ns, rule=STANDARD, seed=1, overhead_ns=0):
    clock = FakeClock()
    return pair(
        FakeArm(clock, candidate_ns, overhead_ns=overhead_ns),
        FakeArm(clock, baseline_ns, overhead_ns=overhead_ns),
        rule,
        clock,
        Random(seed),
    )


def test_budgets_are_those_of_the_design():
    assert (QUICK.budget_ns(1), STANDARD.budget_ns(1), THOROUGH.budget_ns(1)) == (
        1_000_000_000,
        5_000_000_000,
        20_000_000_000,
    )


def test_budget_doubles_for_a_baseline_above_20_ms():
    assert STANDARD.budget_ns(20_000_000) == 5_000_000_000
    assert STANDARD.budget_ns(20_000_001) == 10_000_000_000


def test_steady_arms_stop_on_width_at_the_least_number_of_quartets():
    result = paired([2000], [1000])
    assert result.stop_reason == "width"
    assert result.log_ratios == pytest.approx([math.log(2)] * 30)
    assert result.candidate_ns == (2000,) * 60
    assert result.baseline_ns == (1000,) * 60


def test_noisy_arms_stop_on_the_number_of_quartets():
    random = Random(7)
    result = paired([1000 + random.randrange(900) for _ in range(997)], [1000])
    assert result.stop_reason == "quartets"
    assert len(result.log_ratios) == 200


def test_time_between_the_calls_counts_as_spent():
    # a quartet takes 4 x 10 ms, nearly all of it flush
    result = paired([1000], [1000], Rule(seconds=1.0), overhead_ns=10_000_000)
    assert result.stop_reason == "budget"
    assert 0 < len(result.log_ratios) < 25
    assert result.spent_ns <= 1_000_000_000


def test_a_quartet_that_would_end_late_is_not_begun():
    result = paired([30_000_000], [15_000_000], Rule(seconds=1.0))
    assert result.stop_reason == "budget"
    assert 900_000_000 < result.spent_ns <= 1_000_000_000


def test_a_device_that_is_always_contaminated_ends_on_the_budget():
    clock = FakeClock()
    arm = WatchedFakeArm(clock, [1_000_000], disturbed=range(10**9))
    result = pair(FakeArm(clock, [1_000_000]), arm, QUICK, clock, Random(1))
    assert result.stop_reason == "budget"
    assert result.log_ratios == ()
    assert result.discarded == (1_000_000_000 - 2 * WARM_UP_CALLS * 1_000_000) // 4_000_000


def test_contaminated_quartets_are_counted_and_repeated():
    clock = FakeClock()
    slow_third = [1000] * WARM_UP_CALLS + [1000] * 4 + [9000, 1000] + [1000] * 200
    arm = WatchedFakeArm(clock, slow_third, disturbed={WARM_UP_CALLS + 5})
    result = pair(arm, FakeArm(clock, [1000]), STANDARD, clock, Random(1))
    assert result.discarded == 1
    assert result.candidate_ns == (1000,) * 60


def test_quartets_are_mirrored_and_start_with_either_arm():
    clock, log = FakeClock(), []
    pair(
        FakeArm(clock, [1000], name="C", log=log),
        FakeArm(clock, [1000], name="B", log=log),
        STANDARD,
        clock,
        Random(1),
    )
    calls = "".join(log[2 + 2 * WARM_UP_CALLS :])  # a first call of each arm comes before
    quartets = {calls[i : i + 4] for i in range(0, len(calls), 4)}
    assert quartets == {"CBBC", "BCCB"}


def test_an_even_drift_cancels_within_a_quartet():
    clock = FakeClock()

    class Drifting(FakeArm):
        def sample(self):
            clock.now_ns += 1_000_000
            return round(1_000_000 * math.exp(clock.now_ns * 1e-9))

    result = pair(Drifting(clock, []), Drifting(clock, []), STANDARD, clock, Random(1))
    assert max(abs(ratio) for ratio in result.log_ratios) < 2e-6


def test_swapping_the_arms_negates_every_log_ratio():
    random = Random(3)
    one = [random.randrange(900, 1100) for _ in range(400)]
    two = [random.randrange(1900, 2100) for _ in range(400)]

    class Fixed(Random):
        def random(self):
            return 0.0

    clock = FakeClock()
    forth = pair(FakeArm(clock, one), FakeArm(clock, two), STANDARD, clock, Fixed())
    back = pair(FakeArm(clock, two), FakeArm(clock, one), STANDARD, clock, Fixed())
    assert [-ratio for ratio in back.log_ratios] == pytest.approx(list(forth.log_ratios))


def test_a_slow_arm_is_warmed_less_without_costing_its_rival():
    clock = FakeClock()
    slow, fast = FakeArm(clock, [200_000_000]), FakeArm(clock, [1000])
    pair(slow, fast, Rule(seconds=1.0), clock, Random(1))
    # a first call, which is free, one to warm up, and one quartet with two more
    assert slow.calls == 1 + 1 + 2
    assert fast.calls == 1 + WARM_UP_CALLS + 2


def test_a_first_call_that_compiles_takes_nothing_from_the_budget():
    clock = FakeClock()
    compiling = FakeArm(clock, [30_000_000_000, *[1_000_000] * 5000])
    measured = pair(compiling, FakeArm(clock, [1_000_000]), Rule(seconds=1.0), clock, Random(1))
    assert measured.candidate_first_ns == 30_000_000_000
    assert measured.stop_reason == "width"


def test_first_calls_are_reported_apart():
    result = paired([70_000] + [1000] * 500, [80_000] + [1000] * 500)
    assert (result.candidate_first_ns, result.baseline_first_ns) == (70_000, 80_000)
    assert max(result.candidate_ns + result.baseline_ns) == 1000


def test_many_spikes_force_one_rerun():
    spiky = [1000] * WARM_UP_CALLS + [1000, 1000, 1000, 5000] * 15 + [1000] * 1000
    result = paired(spiky, [1000])
    assert result.reruns == 1
    assert max(result.candidate_ns) == 1000


def test_what_an_arm_raises_passes_through():
    class Crashed(Exception):
        pass

    class Broken:
        def sample(self):
            raise Crashed

    clock = FakeClock()
    with pytest.raises(Crashed):
        pair(Broken(), FakeArm(clock, [1000]), STANDARD, clock, Random(1))


def test_a_noisy_baseline_leaves_the_interval_of_a_steady_candidate_alone():
    noisy = [1000, 1400, 1000, 1300, 1200, 1100, 1450, 1250, 1050] * 9
    clock = FakeClock()
    rule = Rule(min_quartets=6, max_quartets=12)
    result = pair(FakeArm(clock, [500]), FakeArm(clock, noisy), rule, clock, Random(1))
    timing = summarise(result, STANDARD, Random(1))
    assert (timing.low_ns, timing.time_ns, timing.high_ns) == (500, 500, 500)
    assert timing.noise > 0.03  # a speed-up is uncertain by that, the time is not
    assert timing.conclusive


def test_summary_is_the_median_with_its_interval_in_ns():
    timing = summarise(paired([1500], [1000]), STANDARD, Random(1))
    assert (timing.time_ns, timing.low_ns, timing.high_ns) == (1500, 1500, 1500)
    assert timing.baseline_ns == 1000
    assert timing.log_ratio.center == pytest.approx(math.log(1.5))
    assert timing.noise == 0
    assert timing.conclusive


def test_fewer_than_six_quartets_are_inconclusive():
    timing = summarise(paired([150_000_000], [1000], Rule(seconds=1.7)), STANDARD, Random(1))
    assert timing.log_ratio is None
    assert not timing.conclusive
    assert timing.reason == "5 quartets within the budget, 6 are needed"
    assert timing.time_ns == 150_000_000


def test_no_quartet_leaves_no_time():
    timing = summarise(paired([2_000_000_000], [1000], QUICK), QUICK, Random(1))
    assert (timing.time_ns, timing.baseline_ns, timing.conclusive) == (None, None, False)


def test_a_wide_interval_is_inconclusive():
    times = [1000, 1400, 1000, 1300, 1200, 1100, 1450, 1250, 1050] * 9
    result = paired(times, [1000], Rule(min_quartets=6, max_quartets=6))
    timing = summarise(result, STANDARD, Random(1))
    assert timing.noise > 0.05
    assert not timing.conclusive
    assert timing.low_ns <= timing.time_ns <= timing.high_ns


def test_screening_puts_the_fastest_baseline_first():
    clock = FakeClock()
    arms = {
        "eager": FakeArm(clock, [300, 100, 320]),
        "compiled": FakeArm(clock, [9000, 200, 210]),
    }
    assert screen(arms) == {"compiled": 210, "eager": 300}
    assert next(iter(screen(arms))) == "compiled"
    assert arms["eager"].calls == 6


def test_screening_nothing_is_refused():
    with pytest.raises(ValueError, match="no correct baseline"):
        screen({})


def test_two_equal_arms_on_a_quiet_host_are_fit():
    clock = FakeClock()
    times = [1000, 1004, 998, 1001, 1003, 999, 1002]
    fitness = aa_fitness(FakeArm(clock, times), FakeArm(clock, times), STANDARD, clock, Random(1))
    assert fitness.fit
    assert fitness.reason == ""
    assert fitness.quartets == 30


def test_a_host_too_noisy_to_agree_with_itself_is_unfit():
    clock, random = FakeClock(), Random(2)
    loud = [1_000_000 + random.randrange(1_400_000) for _ in range(991)]
    fitness = aa_fitness(
        FakeArm(clock, loud), FakeArm(clock, loud[300:]), STANDARD, clock, Random(1)
    )
    assert not fitness.fit
    assert fitness.reason.startswith("two equal runs agree only within")


def test_two_equal_arms_that_differ_steadily_are_unfit():
    clock = FakeClock()
    fitness = aa_fitness(FakeArm(clock, [1030]), FakeArm(clock, [1000]), STANDARD, clock, Random(1))
    assert not fitness.fit
    assert fitness.reason == "two equal runs differ by +3.0%"
