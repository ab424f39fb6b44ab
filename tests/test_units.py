import pytest

from atrex import units


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (999.7, "1.00 µs"),
        (1000, "1.00 µs"),
        (12_345, "12.3 µs"),
        (999_950, "1.00 ms"),
        (123_456_789, "123 ms"),
        (5e9, "5.00 s"),
        (7.2e12, "7200 s"),
        (0.5, "0.50 ns"),
        (-12_345, "-12.3 µs"),
        (None, "–"),
    ],
)
def test_a_time_has_three_digits_and_the_unit_that_fits(ns, text):
    assert units.time(ns) == text


def test_bytes_are_binary_and_rates_decimal():
    assert units.size(1023) == "1023 B"
    assert units.size(1536) == "1.50 KiB"
    assert units.size(3 * 2**30) == "3.00 GiB"
    assert units.rate(3.35e12, "B/s") == "3.35 TB/s"
    assert units.rate(989.4e12, "FLOP/s") == "989 TFLOP/s"
    assert units.rate(500, "B/s") == "500 B/s"


def test_fractions_become_percent_only_when_shown():
    assert units.percent(0.1234) == "12.3 %"
    assert units.share(0.8734) == "0.873"
    assert units.factor(1.2749) == "1.27×"
    assert units.factor(0.0123) == "0.012×"


def test_missing_is_a_dash_and_never_zero():
    assert {
        units.size(None), units.rate(None, "B/s"), units.percent(None), units.share(None),
        units.factor(None), units.interval(None, 1), units.interval(1, None),
    } == {"–"}  # fmt: skip


def test_an_interval_is_written_in_the_unit_asked_for():
    assert units.interval(1200, 1300) == "[1.20 µs, 1.30 µs]"
    assert units.interval(0.1, 0.2, units.percent) == "[10.0 %, 20.0 %]"
