import hashlib

import pytest

torch = pytest.importorskip("torch")

from atrex.judge.generator import CASES, Generator, Sketch, call_key  # noqa: E402

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

    for operator in registry.operators().values():
        for workload in operator.small:
            drawn = operator.inputs(workload, draw())
            sketched = operator.inputs(workload, Sketch())
            assert list(drawn) == list(sketched)
            for name, value in drawn.items():
                if torch.is_tensor(value):
                    # lengths and ids decide shapes and costs, so that they are drawn
                    assert sketched[name].is_meta == value.is_floating_point(), name
                    assert sketched[name].shape == value.shape
                    assert sketched[name].stride() == value.stride()
                    assert sketched[name].dtype == value.dtype
                else:
                    assert sketched[name] == value


@pytest.mark.parametrize("dtype", ["fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2"])
def test_fp8_draws_saturate_and_are_never_nan(dtype):
    values = draw(CASES[5]).normal("x", (64, 64), dtype, std=400.0).float()
    assert bool(values.isfinite().all())
    assert float(values.max()) == {"fp8_e4m3fn": 448, "fp8_e4m3fnuz": 240}.get(dtype, 57344)


def test_scales_span_the_decades_that_are_asked_for():
    scales = draw().scale("s", (4096,), typical=0.01, decades=1.5)
    assert 0.01 * 10**-1.5 <= float(scales.min()) < 0.0004
    assert 0.25 < float(scales.max()) <= 0.01 * 10**1.5 * 1.0001


def test_a_permutation_holds_every_index_and_depends_on_the_key():
    order = draw().permutation("order", 1000)
    assert order.sort().values.tolist() == list(range(1000))
    assert order.tolist() != draw(key=b"other").permutation("order", 1000).tolist()


def test_loads_are_public_while_experts_and_tokens_are_secret():
    one, other = (draw(key=key).routing("ids", 64, 32, 4) for key in (b"1", b"2"))
    assert not torch.equal(one, other)
    loads = [torch.bincount(ids.flatten(), minlength=32).sort().values for ids in (one, other)]
    assert torch.equal(*loads)
    assert all(len(set(row)) == 4 for row in one.tolist())
    assert int(one.min()) >= 0
    assert int(one.max()) < 32


def test_routing_is_as_skewed_as_real_routers():
    loads = torch.bincount(draw().routing("ids", 256, 128, 8).flatten(), minlength=128)
    assert 2.5 < float(loads.max() / loads.float().mean()) < 4.0
    assert 95 < int((torch.bincount(draw().routing("ids", 32, 128, 8).flatten()) > 0).sum()) < 112


def test_remote_experts_are_minus_one_and_a_hot_expert_is_in_every_token():
    local = draw().routing("ids", 32, 64, 4, local=16)
    assert -1 in local
    assert int(local.max()) < 16
    assert int((local >= 0).sum()) == int(
        (draw(key=b"2").routing("ids", 32, 64, 4, local=16) >= 0).sum()
    )
    hot = draw().routing("ids", 32, 64, 4, profile="hot")
    assert int(torch.bincount(hot.flatten()).max()) == 32


@pytest.mark.parametrize("dtype", ["bf16", "fp8_e4m3fn"])
def test_a_paged_cache_is_nan_where_nobody_looks_and_huge_where_padding_points(dtype):
    generator = draw()
    lens = generator.lengths("5-0-16-33-1", 5)
    table, pages = generator.page_table("table", lens, 16)
    assert pages >= 1.25 * 6
    cache = generator.paged("k", (pages, 16, 2, 4), dtype, table, lens).float()
    first = cache[:, :, 0, 0]
    assert int((first.abs() < 100).sum()) == 55  # the tokens of the sequences
    assert int(first.isnan().all(1).sum()) == pages - 6 - 1  # pages that no entry names
    padding = first[table[0, 1].long()]  # the first sequence needs one page of three columns
    assert float(padding.min()) == (29952.0 if dtype == "bf16" else 448.0)


def test_replaced_values_stand_where_they_were_put():
    cache = draw().normal("k", (4, 8, 2), "fp8_e4m3fn")
    values = torch.tensor([[2.0, -4.0]])
    put = draw().replace(cache, (torch.tensor([3]), torch.tensor([5])), values)
    assert put[3, 5].float().tolist() == [2.0, -4.0]


def test_a_sketch_draws_integers_and_leaves_floats_on_the_meta_device():
    sketch = Sketch()
    table, pages = sketch.page_table("table", sketch.lengths("5-16", 2), 16)
    assert table.device.type == "cpu"
    assert sketch.paged("k", (pages, 16, 2, 4), "bf16", table, None).is_meta
    assert sketch.scale("s", (3,), typical=1.0, decades=1.0).is_meta
