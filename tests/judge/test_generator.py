import hashlib

import pytest

torch = pytest.importorskip("torch")

from atrex.judge.generator import CASES, Generator, call_key  # noqa: E402  torch comes first

PLAIN = next(case for case in CASES if case.name == "x1")


def draw(case=PLAIN, key=b"k"):
    return Generator(key, case)


def test_the_stream_is_fixed_bit_for_bit():
    values = draw().normal("x", (1000,), "fp32")
    digest = hashlib.sha256(values.numpy().tobytes()).hexdigest()[:16]
    assert digest == "8daf2abc17b723b6"


def test_any_length_is_a_prefix_of_a_longer_draw():
    long = draw().normal("x", (200_000,), "fp32")
    short = draw().normal("x", (70_001,), "fp32")
    assert torch.equal(long[:70_001], short)


def test_scaled_rows_use_the_same_hash_as_plain_ones():
    rows = draw(next(c for c in CASES if c.name == "scaled_rows")).activation(
        "x", (9, 1000), "fp32"
    )
    plain = draw().activation("x", (9, 1000), "fp32")
    ratio = rows / plain
    assert torch.allclose(ratio, ratio[:, :1].expand_as(ratio), rtol=1e-6)


def test_names_and_keys_give_independent_streams():
    one, two = draw().normal("x", (1 << 16,), "fp32"), draw().normal("y", (1 << 16,), "fp32")
    three = draw(key=b"other").normal("x", (1 << 16,), "fp32")
    for left, right in ((one, two), (one, three), (one[1:], one[:-1])):
        assert abs(float(torch.corrcoef(torch.stack([left, right]))[0, 1])) < 0.02


def test_normals_have_the_right_moments():
    values = draw().normal("x", (1 << 20,), "fp32", mean=1.0, std=2.0)
    assert abs(float(values.mean()) - 1) < 0.01
    assert abs(float(values.std()) - 2) < 0.01


def test_integers_cover_their_range_evenly():
    counts = torch.bincount(draw().integers("i", (70_000,), low=3, high=10), minlength=10)
    assert counts[:3].tolist() == [0, 0, 0]
    assert int((counts[3:] - 10_000).abs().max()) < 500


def test_named_scales_multiply_activations_and_leave_parameters_alone():
    for case in CASES:
        if case.name in ("x3", "x0.01", "x-1"):
            scaled, plain = draw(case), draw()
            wanted = plain.normal("x", (64,), "fp32") * case.factor
            assert torch.allclose(scaled.normal("x", (64,), "fp32"), wanted)
            assert torch.equal(scaled.gain("g", (64,), "bf16"), plain.gain("g", (64,), "bf16"))


def test_a_spike_changes_one_element_and_a_flat_row_holds_one_value():
    spike = draw(next(c for c in CASES if c.name == "spike")).normal("x", (5, 64), "fp32")
    assert int((spike != draw().normal("x", (5, 64), "fp32")).sum()) == 1
    flat = draw(next(c for c in CASES if c.name == "flat_rows")).activation("x", (5, 64), "bf16")
    assert torch.equal(flat, flat[:, :1].expand_as(flat))
    assert not flat[0].any()


def test_a_row_stride_gives_a_view_with_finite_filling():
    view = draw().activation("x", (3, 64), "bf16", row_stride=100)
    assert view.stride() == (100, 1)
    assert torch.equal(view, draw().activation("x", (3, 64), "bf16"))
    assert bool(view.as_strided((264,), (1,)).isfinite().all())


def test_a_call_key_depends_on_every_part():
    keys = {
        call_key(b"s", "w", "x1", 0),
        call_key(b"s", "w", "x1", 1),
        call_key(b"t", "w", "x1", 0),
    }
    assert len(keys) == 3


def test_a_sketch_has_the_shapes_of_a_draw_and_no_values():
    from atrex import registry
    from atrex.judge.generator import Sketch

    for operator in registry.operators().values():
        for workload in operator.small:
            drawn = operator.inputs(workload, draw())
            sketched = operator.inputs(workload, Sketch())
            assert list(drawn) == list(sketched)
            for name, value in drawn.items():
                if torch.is_tensor(value):
                    assert sketched[name].is_meta
                    assert sketched[name].shape == value.shape
                    assert sketched[name].stride() == value.stride()
                    assert sketched[name].dtype == value.dtype
                else:
                    assert sketched[name] == value
