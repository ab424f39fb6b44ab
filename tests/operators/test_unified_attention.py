"""unified_attention: what it computes, what it needs to read, and how traces name it."""

import pytest

torch = pytest.importorskip("torch")

from atrex import registry  # noqa: E402  torch must be there first
from atrex.judge.generator import CASES, Generator  # noqa: E402
from atrex.model import UNKNOWN  # noqa: E402
from atrex.operator import Call, Step  # noqa: E402

DEFINITION = registry.operators()["unified_attention"]
BF16, BYTES, INT, LONG = "c10::BFloat16", "unsigned char", "int", "long int"
RAGGED, _, WINDOWED = DEFINITION.small[:3]
PAGED = "kernel_unified_attention_2d"


def drawn(workload):
    values = DEFINITION.inputs(workload, Generator(b"key", CASES[1]))
    for name in ("q", "k_cache", "v_cache", "k_scale", "v_scale"):
        if name in values:
            values[name] = values[name].double()
    return values


def one_query_at_a_time(q, k_cache, v_cache, cu_q, kv_lens, table, window, **scalars):
    """Attend with one dot product for each key that a query sees."""
    page, group = k_cache.shape[1], q.shape[1] // k_cache.shape[2]
    k_scale, v_scale = scalars.get("k_scale", 1.0), scalars.get("v_scale", 1.0)
    out = torch.zeros_like(q)
    for sequence, length in enumerate(kv_lens.tolist()):
        first, end = cu_q[sequence : sequence + 2].tolist()
        for token in range(first, end):
            newest = length - end + token
            oldest = max(0, newest - window + 1) if window else 0
            keys = [(table[sequence, n // page], n % page) for n in range(oldest, newest + 1)]
            for head in range(q.shape[1]):
                key = torch.stack([k_cache[where][head // group] for where in keys]) * k_scale
                value = torch.stack([v_cache[where][head // group] for where in keys]) * v_scale
                weights = (key @ q[token, head] * q.shape[2] ** -0.5).softmax(0)
                out[token, head] = weights @ value
    return out


@pytest.mark.parametrize("workload", DEFINITION.small, ids=str)
def test_agrees_with_one_query_at_a_time(workload):
    inputs = drawn(workload)
    expected = one_query_at_a_time(**inputs)
    out = DEFINITION.reference(**inputs)["out"]
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("workload", [RAGGED, WINDOWED], ids=str)
def test_costs_the_pairs_of_queries_and_keys_that_are_seen(workload):
    heads, head_dim, window = (workload.axes[n] for n in ("heads", "head_dim", "window"))
    queries, keys = (
        [int(each) for each in workload.axes[name].split("-")] for name in ("q_lens", "kv_lens")
    )
    seen = [
        min(length - asked + query + 1, window or length)
        for asked, length in zip(queries, keys, strict=True)
        for query in range(asked)
    ]
    inputs = DEFINITION.inputs(workload, Generator(b"key", CASES[1]))
    assert DEFINITION.cost(workload, inputs).flop == {"bf16": 4 * heads * head_dim * sum(seen)}


def test_a_sequence_without_queries_costs_no_keys():
    axes = RAGGED.axes
    cost = DEFINITION.cost(
        RAGGED,
        {"cu_q": torch.tensor([0, 7, 7]), "kv_lens": torch.tensor([39, 50])},
    )
    cached = 2 * 2 * axes["kv_heads"] * axes["head_dim"] * 39
    rows = 2 * axes["tokens"] * axes["heads"] * axes["head_dim"]
    assert cost.read_bytes == rows + cached + 4 * 3 + 4 * (axes["seqs"] + 1) + 4 * axes["seqs"]


def ragged(left="-1"):
    """Return 15 sequences of SGLang on ROCm, pages of one token."""
    return Call(
        name="aiter::mha_batch_prefill",
        kernels=("FmhaBatchPrefillWithPagedKVCacheKernel",),
        dims=((640, 32, 128), (9999, 8, 128), (9999, 8, 128), (16,), (16,), (9000,)),
        types=(BF16, BF16, BF16, INT, INT, INT),
        concrete=("",) * 6 + ("300", "900", "0.", "0.08", "0.", "False", "True", left, "0"),
    )


def enclosing(kernel=PAGED):
    """Return vLLM's operator, whose dims tell neither page nor sequences."""
    return Call(
        name="vllm::unified_attention_with_output",
        kernels=(kernel,),
        dims=((640, 32, 128), (640, 8, 128), (640, 8, 128), (640, 32, 128)),
        types=(BF16,) * 4,
    )


def write(cache=BF16):
    return Call(
        name="_C_cache_ops::reshape_and_cache_flash",
        kernels=("reshape_and_cache_flash_kernel",),
        dims=((640, 8, 128), (640, 8, 128), (512, 16, 8, 128), (512, 16, 8, 128), (640,)),
        types=(BF16, BF16, cache, cache, LONG),
    )


def matched(call, **step):
    found = DEFINITION.match(call, Step(**step))
    return None if found is None else (*found.axes.values(), found.dtype)


def test_reads_sequences_and_window_off_the_call_and_lengths_off_the_annotation():
    lengths = {"query_tokens": 640, "kv_tokens": 9000}
    assert matched(ragged(), **lengths) == (
        640, 15, 32, 8, 128, 1, 0, "total:640@mooncake-prompt", "total:9000@mooncake", "bf16"
    )  # fmt: skip
    assert matched(ragged(left="127"), **lengths)[6] == 128
    assert matched(ragged())[8] == UNKNOWN


def test_reads_the_page_and_the_type_of_the_cache_off_the_write_beside_it():
    step = {"query_tokens": 640, "kv_tokens": 640, "sequences": 3}
    lengths = ("total:640@mooncake-prompt",) * 2  # nothing was cached before
    found = matched(enclosing(), **step, siblings=(write(),))
    assert found == (640, 3, 32, 8, 128, 16, UNKNOWN, *lengths, "bf16")
    assert matched(enclosing(), **step, siblings=(write(BYTES),))[-1] == "bf16/fp8_e4m3fn"
    alone = matched(enclosing(), **step)
    assert (alone[5], alone[-1]) == (UNKNOWN, UNKNOWN)


@pytest.mark.parametrize(
    ("step", "tokens", "seqs", "q_lens"),
    [
        ({}, 640, UNKNOWN, UNKNOWN),
        ({"sequences": 1}, 640, 1, 640),
        ({"sequences": 640}, 640, 640, 1),
        ({"sequences": 2, "query_tokens": 600}, 600, 2, "total:600@mooncake-prompt"),
        ({"sequences": 0, "query_tokens": 0, "kv_tokens": 0}, 640, UNKNOWN, UNKNOWN),
    ],
    ids=["nothing said", "one prompt", "decode", "padded", "dummy batch"],
)
def test_takes_lengths_from_the_step_and_leaves_open_what_it_does_not_say(
    step, tokens, seqs, q_lens
):
    found = matched(enclosing(), **step)
    assert (found[0], found[1], found[7]) == (tokens, seqs, q_lens)
    assert found[8] == UNKNOWN


def test_a_window_is_known_where_the_kernel_is_causal_by_name():
    causal = "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvCausalP16VarSeqQ128Kv128"
    sliding = "fmhaSm100aKernel_QkvE4m3OBfloat16H64PagedKvSlidingOrChunkedCausalP16VarSeqQ128"
    assert matched(enclosing(causal))[6] == 0
    assert matched(enclosing(sliding))[6] == UNKNOWN


def test_leaves_the_other_kernels_of_the_enclosing_operator_to_their_names():
    assert matched(enclosing("vllm::reshape_and_cache_flash_kernel<bf16>")) is None
    assert matched(write()) is None
