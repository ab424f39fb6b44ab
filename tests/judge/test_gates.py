import pytest

torch = pytest.importorskip("torch")

from atrex.judge.gates import check  # noqa: E402  torch must be there first


def norm_case(rows=64, width=256, dtype=torch.bfloat16):
    generator = torch.Generator().manual_seed(1)
    reference = torch.randn(rows, width, generator=generator, dtype=torch.float64)
    return reference, reference.to(dtype)


def found(actual, reference, kind="NORM", **more):
    options = {"precise": True, **more}
    return check({"out": actual}, {"out": reference}, {"out": kind}, **options)


def test_one_rounding_passes_every_class_but_a_wrong_value_none():
    reference, actual = norm_case()
    for kind in ("NORM", "EW", "EXACT"):
        assert found(actual, reference, kind).kind == ""
        broken = actual.clone()
        broken[63, 255] += 0.5
        finding = found(broken, reference, kind)
        assert (finding.kind, finding.index) == ("value", (63, 255))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_non_finite_element_fails_as_nan(value):
    reference, actual = norm_case()
    actual[3, 7] = value
    finding = found(actual, reference)
    assert (finding.kind, finding.index) == ("nan", (3, 7))


def test_the_same_infinity_in_reference_and_output_is_right():
    reference, actual = norm_case()
    reference[0, 0] = actual[0, 0] = float("inf")
    assert found(actual, reference, "EXACT").kind == ""


def test_untouched_poison_is_a_coverage_failure():
    reference, actual = norm_case()
    poison = torch.full_like(actual, 7.0)
    actual[-1] = poison[-1]
    finding = found(actual, reference, poison={"out": poison})
    assert (finding.kind, finding.index) == ("coverage", (63, 0))


def test_two_roundings_pass_norm_but_fp8_accuracy_is_a_precision_failure():
    reference, _ = norm_case()
    gain = 1 + 0.2 * torch.randn(256, dtype=torch.float64)
    twice = (reference.to(torch.bfloat16).double() * gain).to(torch.bfloat16)
    assert found(twice, reference * gain).kind == ""
    reference = reference.clamp(-2.5, 2.5)
    noise = torch.rand(reference.shape, generator=torch.Generator().manual_seed(2)) * 2 - 1
    coarse = (reference * (1 + 0.0065 * noise)).to(torch.bfloat16)
    assert found(coarse, reference).kind == "precision"
    # without zero-mean data only the element gate holds
    assert found(coarse, reference, precise=False).kind == ""


def test_elementwise_allows_one_and_a_half_ulp_on_three_percent():
    reference = torch.full((1, 1000), 1.0, dtype=torch.float64)
    unit = 2.0**-7
    few = reference.clone()
    few[0, :29] += 1.4 * unit
    actual = torch.ones(1, 1000, dtype=torch.bfloat16)
    assert found(actual, few, "EW").kind == ""
    few[0, 29:31] += 1.4 * unit
    assert found(actual, few, "EW").kind == "precision"
    few[0, 0] = 1 + 1.6 * unit
    assert found(actual, few, "EW").kind == "value"


def test_zeros_never_pass_however_small_the_reference():
    reference = torch.full((2, 64), 1e-30, dtype=torch.float64)
    zeros = torch.zeros(2, 64, dtype=torch.bfloat16)
    for kind in ("NORM", "EW", "EXACT"):
        assert found(zeros, reference, kind).kind == "value"


def test_an_exact_sum_is_compared_after_one_fp32_addition():
    x = torch.tensor([[1.0, 256.0]], dtype=torch.bfloat16)
    y = torch.tensor([[2.0**-9, 1.0]], dtype=torch.bfloat16)
    assert found(x + y, x.double() + y.double(), "EXACT").kind == ""


def test_every_single_corrupted_element_is_found():
    reference, actual = norm_case(4, 64)
    for flat in range(actual.numel()):
        broken = actual.clone()
        broken.view(-1)[flat] += 0.25
        assert found(broken, reference).kind == "value"


def test_a_large_element_may_err_in_proportion_to_itself():
    """Two roundings of one spike in a row of ones pass: the row's RMS alone would refuse them."""
    reference = torch.ones(1, 4096, dtype=torch.float64)
    reference[0, 7] = 1000.0
    actual = reference.to(torch.bfloat16)
    actual[0, 7] = 1004.0
    assert found(actual, reference, precise=False).kind == ""
    actual[0, 7] = 1032.0
    assert found(actual, reference, precise=False).kind == "value"


def test_a_contraction_is_held_to_its_condition_magnitude():
    reference, actual = norm_case()
    scale = torch.full_like(reference, 1.0)
    assert found(actual, reference, "GEMM", scale={"out": scale}).kind == ""
    broken = actual.clone()
    broken[5, 6] += 0.05
    finding = found(broken, reference, "GEMM", scale={"out": scale})
    assert (finding.kind, finding.index) == ("value", (5, 6))
    assert found(broken, reference, "GEMM", scale={"out": 10 * scale}, precise=False).kind == ""


@pytest.mark.parametrize(("kind", "passes", "fails"), [("ATTN", 4e-3, 8e-3), ("MOE", 5e-3, 1e-2)])
def test_row_classes_admit_their_roundings_and_no_more(kind, passes, fails):
    reference, _ = norm_case(512)
    noise = torch.randn(reference.shape, generator=torch.Generator().manual_seed(3))
    for rms, expected in ((passes, ""), (fails, "precision")):
        actual = (reference + rms * noise.clamp(-2, 2)).float().to(torch.bfloat16)
        assert found(actual, reference, kind).kind == expected


def test_integers_are_exact():
    reference = torch.arange(12).reshape(3, 4)
    actual = reference.to(torch.int32)
    assert found(actual, reference, "EXACT").kind == ""
    actual[2, 3] = 10
    assert found(actual, reference, "EXACT").index == (2, 3)


def test_fp8_codes_may_be_one_step_off_in_a_thousandth_of_cases():
    reference = torch.linspace(-200, 200, 8192, dtype=torch.float64).reshape(64, 128)
    codes = reference.float().to(torch.float8_e4m3fn)
    assert found(codes, reference, "CODES").kind == ""

    def shifted(step, count):
        bits = codes.clone().view(torch.uint8)
        bits.view(-1)[100 : 100 + count] += step
        return bits.view(torch.float8_e4m3fn)

    assert found(shifted(1, 8), reference, "CODES").kind == ""
    assert found(shifted(1, 9), reference, "CODES").kind == "precision"
    assert found(shifted(2, 1), reference, "CODES").kind == "value"


def test_quantised_values_beyond_the_range_saturate():
    reference = torch.tensor([[1000.0, -1000.0, 3.0]], dtype=torch.float64)
    codes = reference.float().clamp(-448, 448).to(torch.float8_e4m3fn)
    assert found(codes, reference, "CODES").kind == ""


@pytest.mark.parametrize(("kind", "allowed"), [("PROB", 1e-5), ("CHOICE", 5e-7)])
def test_probabilities_are_held_to_a_relative_error(kind, allowed):
    reference = torch.rand(8, 4, generator=torch.Generator().manual_seed(1)).double() * 1e-3 + 1e-9
    assert found(reference * (1 + allowed), reference, kind).kind == ""
    assert found(reference * (1 + 4 * allowed), reference, kind).kind == "value"
