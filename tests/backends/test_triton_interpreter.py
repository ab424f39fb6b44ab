"""The corrected interpreter against torch, and against exact arithmetic where torch differs."""

import importlib.util
import os
import shutil
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from atrex.backends import triton_interpreter
from atrex.errors import SetupError

torch = pytest.importorskip("torch")

ROOT = Path(__file__).parents[2]
CHILD = Path(__file__).with_name("interpreter_child.py")
BYTES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
SHORT = ("bfloat16", "float16")
# Greatest finite value, code of a NaN's magnitude, and whether infinity turns into that value.
LARGEST = {"float8_e4m3fn": 448.0, "float8_e4m3fnuz": 240.0, "float8_e5m2": 57344.0,
           "float8_e5m2fnuz": 57344.0}  # fmt: skip
FINITE_INFINITY = ("float8_e4m3fn", "float8_e5m2")
# Bits after the leading one, and the exponent of the least normal number.
PRECISION = {"bfloat16": (7, -126), "float16": (10, -14), "float32": (23, -126)}
HALVES, OCTETS = np.arange(2**16, dtype=np.uint16), np.arange(2**8, dtype=np.uint8)


def view(codes, kind):
    """Return the torch tensor that the bits of an array are."""
    return torch.from_numpy(np.ascontiguousarray(codes)).view(getattr(torch, kind))


def codes(tensor):
    """Return the bits of a tensor."""
    return tensor.view(
        {1: torch.uint8, 2: torch.int16, 4: torch.int32}[tensor.element_size()]
    ).numpy()


def same(got, expected):
    """Assert equal bits, whatever the bits of a NaN."""
    nan = expected.isnan()
    assert got.shape == expected.shape
    assert torch.equal(got.isnan(), nan)
    wrong = ((codes(got) != codes(expected)) & ~nan.numpy()).nonzero()
    assert wrong[0].size == 0, f"{wrong[0].size} differ, first at {[i[0] for i in wrong]}"


def midpoints(kind):
    """Return the values halfway between neighbours of an 8-bit format, as float32."""
    values = view(OCTETS, kind).float().numpy()
    values = np.unique(values[np.isfinite(values)])
    return ((values[1:].astype(np.float64) + values[:-1]) / 2).astype(np.float32)


def single_sample(random):
    """Return float32: every upper half with telling lower halves, ties of all formats, noise."""
    halves = np.arange(2**16, dtype=np.uint32) << 16
    bits = [halves | low for low in (0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF)]
    ties = np.concatenate([midpoints(kind) for kind in BYTES]).view(np.uint32)
    bits += [np.concatenate((ties - 1, ties, ties + 1))]
    bits += [random.integers(2**32, size=2**20, dtype=np.uint32)]
    near = random.standard_normal(2**19) * 2.0 ** random.integers(-20, 17, 2**19)
    bits += [near.astype(np.float32).view(np.uint32)]
    bits = np.concatenate(bits)
    return np.resize(bits, -(-bits.size // 2**16) * 2**16).view(np.float32)


def double_sample(random):
    """Return float64 that a first rounding to float32 would lead astray, and noise."""
    halves = view(HALVES, "bfloat16").double().numpy()
    ties = halves[:-1] + (halves[1:] - halves[:-1]) / 2
    noise = random.standard_normal(2**16) * 2.0 ** random.integers(-140, 128, 2**16)
    values = np.concatenate((ties, ties * (1 + 2.0**-40), ties * (1 - 2.0**-40), noise))
    return np.resize(values[~np.isnan(values)], 2**18)


def triples(random, kind):
    """Return three rows of codes for x * y + z, among them products that are ties."""
    unsigned = np.uint32 if kind == "float32" else np.uint16
    digits, _ = PRECISION[kind]
    noise = random.standard_normal((3, 2**13)) * 2.0 ** random.integers(-12, 5, (3, 2**13))
    noise = torch.from_numpy(noise).to(getattr(torch, kind))
    odd = 1 + 2.0 ** -(digits // 2 + 1)  # its square ends in a one beyond the last digit
    crafted = torch.zeros((3, 2**13), dtype=getattr(torch, kind))
    crafted[:2] = odd
    crafted[2, ::2], crafted[2, 1::4] = 2.0 ** -(digits + 12), -(2.0 ** -(digits + 12))
    return codes(torch.cat((noise, crafted), 1)).view(unsigned)


def operands(random, kind):
    """Yield the matrices of the dots: whole numbers, whose sums are exact, and random ones."""
    for side in "ab":
        whole = torch.from_numpy(random.integers(-3, 4, (64, 64)))
        if kind == "int8":
            yield f"whole {kind} {side}", whole.to(torch.int8).numpy()
            continue
        noise = torch.from_numpy(random.standard_normal((64, 64)).astype(np.float32))
        for name, content in (("whole", whole.float()), ("random", noise)):
            matrix = content.to(getattr(torch, kind))
            yield f"{name} {kind} {side}", matrix.numpy() if kind == "float32" else codes(matrix)


def inputs():
    """Return everything that the child computes with."""
    random = np.random.default_rng(20260801)
    special = np.array(
        [0, 1, 2, 0x7F, 0x80, 0x3F80, 0x3F81, 0x4000, 0x7F7F, 0x7F80, 0x7F81, 0x7FC0], np.uint16
    )
    special = np.concatenate((special, special | 0x8000))
    noise = random.integers(2**16, size=(2, 2**20), dtype=np.uint16)
    noise[:, : special.size**2] = np.stack(np.meshgrid(special, special)).reshape(2, -1)
    whole = torch.from_numpy(random.integers(-1, 2, (16, 128))).bfloat16()
    rows = torch.from_numpy(random.standard_normal((16, 128))).bfloat16()
    moderate = torch.from_numpy(random.standard_normal(2**12) * 1000).bfloat16()
    given = {
        "fp32": single_sample(random), "fp64": double_sample(random), "x": noise[0], "y": noise[1],
        "int32": random.integers(-(2**31), 2**31, 2**16).astype(np.int32),
        "moderate": codes(moderate).view(np.uint16), "rows": codes(rows), "whole": codes(whole),
        "added": codes(torch.ones(128).bfloat16()),
        "places": random.integers(0, 16, 128).astype(np.int32),
    }  # fmt: skip
    given |= {f"fma {kind}": triples(random, kind) for kind in PRECISION}
    for kind in ("bfloat16", "float16", *BYTES, "float32", "int8"):
        given |= dict(operands(random, kind))
    return given


@pytest.fixture(scope="module")
def given():
    return inputs()


@pytest.fixture(scope="module")
def newest(tmp_path_factory):
    """A folder with the newest Triton that the registry has; a gigabyte, so it does not stay."""
    folder = tmp_path_factory.mktemp("newest")
    command = (sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target",
               str(folder), "triton")  # fmt: skip
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        pytest.skip(f"the registry gives no Triton: {answer.stderr.strip().splitlines()[-1]}")
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(
    scope="module",
    params=[
        "installed",
        pytest.param("newest", marks=(pytest.mark.slow, pytest.mark.timeout(600))),
    ],
)
def done(request, given, tmp_path_factory):
    """What the kernels computed, in the installed Triton and in the newest."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("triton is not installed")
    paths = [ROOT]
    if request.param == "newest":
        paths.insert(0, request.getfixturevalue("newest"))
    folder = tmp_path_factory.mktemp(request.param)
    np.savez(folder / "inputs.npz", **given)
    environment = os.environ | {
        "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }  # fmt: skip
    command = (sys.executable, str(CHILD), str(folder / "inputs.npz"), str(folder / "done.npz"))
    answer = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return dict(np.load(folder / "done.npz"))


def nearest_byte(values, kind):
    """Return the nearest code of an 8-bit format, ties to even, out of the list of all codes.

    Beyond the largest value torch gives NaN or infinity; compiled code saturates.
    """
    every = view(OCTETS, kind).double().numpy()
    order = [code for code in range(128) if np.isfinite(every[code])]
    finite = every[order]
    magnitude = torch.from_numpy(values).double().abs().numpy()
    upper = np.searchsorted(finite, magnitude).clip(1, len(order) - 1)
    below, above = magnitude - finite[upper - 1], finite[upper] - magnitude
    up = (above < below) | ((above == below) & (upper % 2 == 0))
    code = np.where(up, upper, upper - 1)
    negative = np.signbit(values) & ((code != 0) | (not kind.endswith("fnuz")))
    nan = np.isnan(values) | (np.isinf(values) & (kind not in FINITE_INFINITY))
    return np.where(nan, 0x80 if kind.endswith("fnuz") else 0x7F, code + 0x80 * negative)


def rounded(value, kind):
    """Round an exact fraction to a float of `kind`, ties to even, and return it as a float."""
    digits, least = PRECISION[kind]
    if value == 0:
        return 0.0
    exponent = abs(value.numerator).bit_length() - value.denominator.bit_length()
    exponent -= abs(value) < Fraction(2) ** exponent
    place = Fraction(2) ** (max(exponent, least) - digits)
    return float(round(value / place) * place)


@pytest.mark.parametrize("kind", SHORT)
def test_rounds_fp32_to_16_bits_as_torch_does(given, done, kind):
    expected = torch.from_numpy(given["fp32"]).to(getattr(torch, kind))
    print(f"{expected.numel()} codes of {kind}, Triton {done['version']}")
    same(view(done[f"fp32>{kind}"], kind), expected)


@pytest.mark.parametrize("kind", BYTES)
def test_rounds_fp32_to_8_bits_and_saturates(given, done, kind):
    values, got = given["fp32"], view(done[f"fp32>{kind}"], kind)
    print(f"{values.size} codes of {kind}, Triton {done['version']}")
    same(got, view(nearest_byte(values, kind).astype(np.uint8), kind))
    inside = ~(np.abs(values) > LARGEST[kind])  # torch agrees up to there, and on NaN
    assert inside.sum() > 2**20
    same(got[inside], torch.from_numpy(values[inside]).to(getattr(torch, kind)))


@pytest.mark.parametrize("source", SHORT)
@pytest.mark.parametrize("kind", BYTES)
def test_rounds_every_16_bit_code_to_8_bits(done, source, kind):
    expected = nearest_byte(view(HALVES, source).float().numpy(), kind).astype(np.uint8)
    same(view(done[f"{source}>{kind}"], kind), view(expected, kind))


@pytest.mark.parametrize("kind", SHORT)
def test_widens_every_16_bit_code(done, kind):
    same(torch.from_numpy(done[f"{kind}>float32"]), view(HALVES, kind).float())


@pytest.mark.parametrize("wide", ["float32", *SHORT])
@pytest.mark.parametrize("kind", BYTES)
def test_widens_every_8_bit_code(done, kind, wide):
    got = torch.from_numpy(done[f"{kind}>{wide}"]).view(getattr(torch, wide))
    same(got, view(OCTETS, kind).float().to(getattr(torch, wide)))


@pytest.mark.parametrize("kind", SHORT)
def test_rounds_fp64_once(given, done, kind):
    got = view(done[f"fp64>{kind}"], kind).double().numpy()
    values = given["fp64"]
    largest = float(torch.finfo(getattr(torch, kind)).max)
    chosen = np.flatnonzero(np.abs(values) <= largest)[::8]
    assert chosen.size > 2**12
    for i in chosen:
        assert got[i] == rounded(Fraction(values[i]), kind), values[i].hex()


@pytest.mark.parametrize("kind", SHORT)
def test_rounds_toward_zero_when_asked_to(given, done, kind):
    values = given["fp32"][:: 2**5]
    got = view(done[f"fp32>{kind} toward zero"][:: 2**5], kind)
    nearest = torch.from_numpy(values).to(getattr(torch, kind))
    beyond = nearest.double().abs() > torch.from_numpy(values).double().abs()
    expected = torch.where(beyond, nearest.nextafter(torch.zeros_like(nearest)), nearest)
    same(got, expected)


def test_converts_between_integers_and_bf16(given, done):
    got = view(done["int32>bfloat16"], "bfloat16").double()
    assert got.tolist() == [rounded(Fraction(int(n)), "bfloat16") for n in given["int32"]]
    assert view(done["bool>bfloat16"], "bfloat16").tolist() == [0.0, 1.0]
    expected = view(given["moderate"], "bfloat16").to(torch.int32)
    assert done["bfloat16>int32"].tolist() == expected.tolist()


def test_computes_with_bf16_as_torch_does(given, done):
    a, b = view(given["x"], "bfloat16"), view(given["y"], "bfloat16")
    print(f"{a.numel()} pairs, Triton {done['version']}")
    add, sub, mul, div, low, high, neg, absolute, chosen, clamped, greater = view(
        done["binary"], "bfloat16"
    )
    same(add, a + b)
    same(sub, a - b)
    same(mul, a * b)
    same(div, a / b)
    same(absolute, a.abs())
    same(chosen, torch.where(a < b, a, b))
    same(greater, (a > b).bfloat16())
    zero = torch.zeros_like(a)  # the sign of a zero is open in these, so zeros are made equal
    number = torch.where(b.isnan(), a, b)
    same(low + zero, torch.where(a.isnan() | (b < a), number, a) + zero)
    same(high + zero, torch.where(a.isnan() | (b > a), number, a) + zero)
    same(neg + zero, -a + zero)
    same(clamped, torch.where(a.isnan(), -1.0, a.clamp(-1, 1)))


def test_compares_bf16_by_value(given, done):
    a, b = view(given["x"], "bfloat16"), view(given["y"], "bfloat16")
    expected = torch.stack((a < b, a <= b, a > b, a >= b, a == b, a != b))
    assert torch.equal(torch.from_numpy(done["flags"]), expected)


@pytest.mark.parametrize("kind", PRECISION)
def test_rounds_a_fused_multiply_add_once(given, done, kind):
    x, y, z = (row.double().tolist() for row in view(given[f"fma {kind}"], kind))
    got = torch.from_numpy(done[f"fma {kind}"]).view(getattr(torch, kind)).double().tolist()
    exact = [
        rounded(Fraction(a) * Fraction(b) + Fraction(c), kind)
        for a, b, c in zip(x, y, z, strict=True)
    ]
    assert got == exact
    twice = (view(given[f"fma {kind}"], kind)[0] * view(given[f"fma {kind}"], kind)[1]).double()
    assert (twice + torch.tensor(z)).to(getattr(torch, kind)).double().tolist() != exact


def test_gives_a_constant_the_type_of_its_tensor_and_an_argument_its_own(given, done):
    x = view(given["x"][:65536], "bfloat16")
    constant, argument, full = torch.from_numpy(done["scaled"])
    same(constant, (x * torch.tensor(1.1).bfloat16()).float())
    same(argument, x.float() * torch.tensor(1.1, dtype=torch.float32))
    same(full, (x + torch.tensor(0.3).bfloat16()).float())


@pytest.mark.parametrize("name", ["reduced", "reduced half"])
def test_reduces_16_bit_floats(given, done, name):
    rows, whole = view(given["rows"], "bfloat16"), view(given["whole"], "bfloat16")
    kind = torch.bfloat16 if name == "reduced" else torch.float16
    got = done[name][: 8 * 16].reshape(8, 16)
    total = rows.to(kind)
    while total.shape[1] > 1:  # compiled code rounds after every addition
        total = total[:, : total.shape[1] // 2] + total[:, total.shape[1] // 2 :]
    assert got[0].tolist() == total[:, 0].tolist()
    assert got[1].tolist() == rows.amax(1).tolist()
    assert got[2].tolist() == rows.amin(1).tolist()
    assert got[3].tolist() == rows.argmax(1).tolist()
    assert got[4].tolist() == rows.argmin(1).tolist()
    assert got[5].tolist() == whole.sum(1).tolist()
    assert got[6].tolist() == (2.0 ** (whole[:, :12] > 0).sum(1)).tolist()
    assert got[7, 0] == whole.sum().item()
    assert done[name][8 * 16 :].tolist() == whole.sum(0).tolist()


def test_scans_and_sorts_bf16(given, done):
    whole = view(given["whole"], "bfloat16")
    sums, ordered = (view(done[name], "bfloat16") for name in ("sums", "ordered"))
    assert torch.equal(sums[0], whole.cumsum(1))
    assert torch.equal(sums[1], whole.flip(1).cumsum(1).flip(1))
    assert torch.equal(sums[2], whole.cumsum(0))
    assert torch.equal(ordered[0], whole.sort(1).values)
    assert torch.equal(ordered[1], whole.sort(1, descending=True).values)
    assert torch.equal(ordered[2], whole.flip(1))


def matrices(given, content, kind):
    """Return both operands of a dot in float64."""
    sides = (given[f"{content} {kind} {side}"] for side in "ab")
    if kind == "int8":
        return tuple(torch.from_numpy(side).double() for side in sides)
    return tuple(view(side, kind).double() for side in sides)


def bound(a, b):
    """Return how far a sum of 64 products in float32 may be from the exact one."""
    return 64 * 2.0**-24 * (a.abs() @ b.abs())


@pytest.mark.parametrize("kind", ["bfloat16", "float16", *BYTES, "float32", "int8"])
def test_multiplies_whole_matrices_exactly(given, done, kind):
    a, b = matrices(given, "whole", kind)
    assert torch.equal(torch.from_numpy(done[f"dot whole {kind} None"]).double(), a @ b)


@pytest.mark.parametrize("kind", ["bfloat16", "float16", *BYTES])
def test_accumulates_dots_in_fp32(given, done, kind):
    a, b = matrices(given, "random", kind)
    off = (torch.from_numpy(done[f"dot random {kind} None"]).double() - a @ b).abs()
    assert (off <= bound(a, b)).all()
    assert off.max() > 0 or kind in BYTES[:2]  # 64 products of e4m3 are exact in float32


def test_rounds_a_dot_into_fp16(given, done):
    a, b = matrices(given, "whole", "float16")
    assert torch.equal(view(done["dot into half"], "float16"), (a @ b).half())


def test_drops_the_bits_that_tf32_lacks_unless_told_not_to(given, done):
    a, b = matrices(given, "random", "float32")
    cut = [
        (given[f"random float32 {side}"].view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)
        for side in "ab"
    ]
    short_a, short_b = (torch.from_numpy(side).double() for side in cut)
    tf32, ieee = (torch.from_numpy(done[f"dot random float32 {p}"]) for p in ("tf32", "ieee"))
    assert ((tf32.double() - short_a @ short_b).abs() <= bound(short_a, short_b)).all()
    assert ((ieee.double() - a @ b).abs() <= bound(a, b)).all()
    assert ((tf32.double() - a @ b).abs() > bound(a, b)).float().mean() > 0.9
    assert np.array_equal(done["dot random float32 None"], done["dot random float32 tf32"])


def test_adds_atomically_in_bf16(given, done):
    places = given["places"]
    counts, held = [0] * 16, []
    for lane, place in enumerate(places):
        active = lane % 8 != 7
        held.append(counts[place] if active else 0)
        counts[place] += active
    total = view(done["total"], "bfloat16").tolist()
    assert total[:16] == counts
    assert total[16:] == [0.0] * 15 + [1.0]
    assert view(done["held"], "bfloat16").tolist() == held


def test_runs_the_first_configuration_of_a_tuned_kernel_and_says_which(done):
    first, pruned = done["tuned"]
    assert set(first) == {128}
    assert set(pruned) == {300 + 1 + 64}
    chosen = dict(done["chosen"])
    assert chosen["tuned_kernel"].startswith("BLOCK: 128,")
    assert chosen["pruned_kernel"].startswith("BLOCK: 64,")


def test_hands_launches_to_the_observer_which_may_leave_them_out(done):
    assert done["seen"].tolist() == [["pruned_kernel", str(CHILD), "5", "2", "1"]]
    assert not done["skipped"].any()


def test_passes_a_bool_as_a_bool(done):
    assert done["flags of arguments"].tolist() == [[1, 1], [0, 2]]


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        ("byte_add_kernel", "there is no arithmetic on fp8e4nv"),
        ("exp_kernel", "Expected dtype ['fp32', 'fp64'] but got bf16"),
        ("assembly_kernel", "inline_asm not supported in interpreter mode"),
    ],
)
def test_refuses_what_does_not_compile_or_run_here(done, kernel, message):
    assert message in str(done[kernel])


def test_wants_the_flag_before_triton_is_imported(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(SetupError, match="TRITON_INTERPRET=1"):
        triton_interpreter.install()
    pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    with pytest.raises(SetupError, match="before TRITON_INTERPRET was set"):
        triton_interpreter.install()
