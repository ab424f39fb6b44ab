"""reshape_and_cache: what it writes, what it needs to read, and how traces name it."""

import pytest

torch = pytest.importorskip("torch")

from atrex import registry  # noqa: E402  torch must be there first
from atrex.judge.generator import CASES, Generator  # noqa: E402
from atrex.model import UNKNOWN  # noqa: E402
from atrex.operator import Call, Step  # noqa: E402

DEFINITION = registry.operators()["reshape_and_cache"]
BF16, BYTES, LONG = "c10::BFloat16", "unsigned char", "long int"


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


def test_writes_rows_to_their_slots_skips_negative_ones_and_keeps_the_rest():
    cache = torch.zeros(2, 2, 1, 1, dtype=torch.float64)
    out = DEFINITION.reference(
        key=tensor([[[1.0]], [[2.0]], [[3.0]]]),
        value=tensor([[[4.0]], [[5.0]], [[6.0]]]),
        key_cache=cache + 7,
        value_cache=cache + 8,
        slots=torch.tensor([3, -1, 0]),
    )
    assert out["key_cache"].flatten().tolist() == [3, 7, 7, 1]
    assert out["value_cache"].flatten().tolist() == [6, 8, 8, 4]
    assert cache.flatten().tolist() == [0, 0, 0, 0]


def test_an_fp8_cache_divides_by_its_scale_and_clamps():
    cache = torch.zeros(1, 2, 1, 1, dtype=torch.float64)
    out = DEFINITION.reference(
        key=tensor([[[1.0]], [[-99.0]]]),
        value=tensor([[[2.0]], [[99.0]]]),
        key_cache=cache,
        value_cache=cache,
        slots=torch.tensor([0, 1]),
        k_scale=tensor([0.125]),
        v_scale=tensor([0.25]),
    )
    assert out["key_cache"].flatten().tolist() == [8, -448]
    assert out["value_cache"].flatten().tolist() == [8, 396]


@pytest.mark.parametrize("workload", DEFINITION.small, ids=str)
def test_slots_are_distinct_within_the_cache_and_some_are_skipped(workload):
    slots = DEFINITION.inputs(workload, Generator(b"key", CASES[1]))["slots"]
    kept = slots[slots >= 0]
    assert len(kept.unique()) == len(kept)
    assert int(slots.max()) < workload.axes["pages"] * workload.axes["page"]
    assert set(slots[slots < 0].tolist()) <= {-1}
    if workload.axes["tokens"] >= 5:
        assert len(kept) < len(slots)


def test_slots_run_through_a_page_and_jump_to_another_than_the_next():
    slots = DEFINITION.inputs(DEFINITION.small[0], Generator(b"key", CASES[1]))["slots"]
    steps = slots[1:] - slots[:-1]
    within = steps[(slots[1:] >= 0) & (slots[:-1] >= 0)]
    assert (within == 1).sum() > 20
    assert (within < 0).any()


@pytest.mark.parametrize(("dtype", "written"), [("bf16", 2), ("bf16/fp8_e4m3fn", 1)])
def test_costs_the_rows_that_are_written_and_never_the_whole_cache(dtype, written):
    workload = next(each for each in DEFINITION.small if each.dtype == dtype)
    elements = 2 * 2 * workload.axes["kv_heads"] * workload.axes["head_dim"]
    cost = DEFINITION.cost(workload, {"slots": torch.tensor([5, -1, 0])})
    assert cost.flop == {}
    assert cost.read_bytes == 2 * elements + 8 * workload.axes["tokens"]
    assert cost.write_bytes == written * elements


def flash(cache=BF16):
    return Call(
        name="_C_cache_ops::reshape_and_cache_flash",
        kernels=("reshape_and_cache_flash_kernel",),
        dims=((37, 8, 128), (37, 8, 128), (512, 16, 8, 128), (512, 16, 8, 128), (37,)),
        types=(BF16, BF16, cache, cache, LONG),
    )


STORE = Call(
    name="sglang::store_cache",
    kernels=("store_kvcache<2048l, 4, false, long>",),
    dims=((37, 1024), (37, 1024), (9999, 1024), (9999, 1024), (37,)),
    types=(BF16, BF16, BF16, BF16, LONG),
)
ATTENTION = Call(name="aiter::mha_batch_prefill", kernels=(), dims=((37, 32, 128), (9999, 8, 128)))


def matched(call, *siblings):
    found = DEFINITION.match(call, Step(siblings=siblings))
    return None if found is None else (*found.axes.values(), found.dtype)


def test_reads_every_size_off_the_call():
    assert matched(flash()) == (37, 8, 128, 16, 512, "paged", "bf16")


def test_a_cache_of_bytes_holds_fp8():
    assert matched(flash(BYTES))[-1] == "bf16/fp8_e4m3fn"


def test_reads_the_head_size_of_flattened_rows_off_the_attention_beside_them():
    assert matched(STORE, STORE, ATTENTION) == (37, 8, 128, 1, 9999, "paged", "bf16")


def test_flattened_rows_alone_do_not_tell_their_heads():
    assert matched(STORE) == (37, UNKNOWN, UNKNOWN, 1, 9999, "paged", "bf16")


def test_leaves_other_operators_alone():
    assert matched(ATTENTION) is None
