import pytest

from atrex.lengths import profiles, quantile, resolve


def test_an_integer_is_every_length_and_a_list_keeps_its_order():
    assert resolve(5, 3) == [5, 5, 5]
    assert resolve("3-0-1-7", 4) == [3, 0, 1, 7]


def test_a_profile_gives_its_quantiles_longest_first():
    assert resolve("mooncake", 1) == [7695]
    assert resolve("mooncake", 5) == [29959, 13420, 7695, 3776, 1351]
    assert quantile(profiles()["mooncake"], 0.99) == pytest.approx(90195)


@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_a_total_is_met_exactly_and_nobody_is_left_without_a_token(count):
    lengths = resolve("total:32785@mooncake", count)
    assert (sum(lengths), len(lengths), min(lengths) >= 1) == (32785, count, True)
    assert resolve(f"total:{count}@mooncake", count) == [1] * count


@pytest.mark.parametrize(
    ("spec", "count"), [("nobody", 2), ("1-2-3", 2), ("total:3@mooncake", 4), ("total:9@nobody", 2)]
)
def test_a_value_that_fits_nothing_is_refused(spec, count):
    with pytest.raises(ValueError, match=r"length|tokens"):
        resolve(spec, count)


def test_quantiles_ascend_in_every_profile():
    for points in profiles().values():
        assert list(points) == sorted(points)
        assert [length for _, length in points] == sorted(length for _, length in points)
