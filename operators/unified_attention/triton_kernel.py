"""Paged attention in Triton, flash style: one pass over the keys with a running softmax.

Prefill is bound by the tensor cores, decode by the bytes of the cache. A program takes a block of
queries of one sequence with all heads that share a KV head as rows of one matrix, so that keys and
values are read once for the group and decode still fills a tile. Keys come in blocks of tokens
whose pages are looked up one by one, so that any page size works. Logits are kept in base 2.

Valid for any lengths, sequences without queries, windows, head sizes (padded to a power of two) and
group sizes; q, caches and out contiguous. An fp8 cache is widened to q's type, which is exact; its
scales belong to the logits and to the sum. Long contexts of few sequences would gain from splitting
the keys over programs, which this kernel does not do.
"""

import triton
import triton.language as tl

OPERATOR = "unified_attention"
BACKEND = "triton"
DTYPES = ("bf16", "fp16", "bf16/fp8_e4m3fn")
TUNABLES = {
    "rows": (64, (16, 32, 64, 128)),  # queries times heads of a group, where queries are many
    "keys": (64, (32, 64, 128)),
    "num_warps": (4, (2, 4, 8)),
    "num_stages": (2, (1, 2, 3, 4)),
}
LEAST = 16  # of a tensor core's tile
WIDE = 128  # head sizes above take fewer keys and more warps: registers would spill on sm_90a, and
# keys and values of one block would not fit gfx942's 64 KiB
LOG2E = 1.4426950408889634


@triton.jit
def attention_kernel(
    q,
    k_cache,
    v_cache,
    out,
    cu_q,
    kv_lens,
    table,
    k_scale,
    v_scale,
    table_stride,
    heads,
    kv_heads,
    group,
    head_dim,
    page,
    window,
    logit_scale,
    queries_each,
    QUANTISED: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
):
    sequence, kv_head = tl.program_id(1), tl.program_id(2)
    first_token = tl.load(cu_q + sequence).to(tl.int64)
    queries = (tl.load(cu_q + sequence + 1) - first_token).to(tl.int32)
    first_query = tl.program_id(0) * queries_each
    if first_query >= queries:
        return
    kv_len = tl.load(kv_lens + sequence)
    row, dim = tl.arange(0, ROWS), tl.arange(0, DIM)
    query = first_query + row // group
    head = kv_head * group + row % group
    in_row = (row < queries_each * group) & (query < queries)
    in_dim = dim < head_dim
    place = ((first_token + query) * heads + head)[:, None] * head_dim + dim[None, :]
    inside = in_row[:, None] & in_dim[None, :]
    asked = tl.load(q + place, inside, other=0.0)
    newest = kv_len - queries + query  # last key that a query sees

    if QUANTISED:
        logit_scale *= tl.load(k_scale)
    largest = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    summed = tl.zeros((ROWS, DIM), tl.float32)
    last_query = min(first_query + queries_each, queries) - 1
    end = kv_len - queries + last_query + 1
    start = 0
    if window > 0:
        start = max(kv_len - queries + first_query - window + 1, 0) // KEYS * KEYS
    for block in range(start, end, KEYS):
        token = block + tl.arange(0, KEYS)
        in_token = token < kv_len
        pages = tl.load(table + sequence * table_stride + token // page, in_token, other=0)
        slot = pages.to(tl.int64) * page + token % page
        cached = (slot * kv_heads + kv_head)[:, None] * head_dim + dim[None, :]
        held = in_token[:, None] & in_dim[None, :]
        keys = tl.load(k_cache + cached, held, other=0.0).to(asked.dtype)
        logits = tl.dot(asked, tl.trans(keys)) * logit_scale
        seen = token[None, :] <= newest[:, None]
        if window > 0:
            seen = seen & (token[None, :] > newest[:, None] - window)
        logits = tl.where(seen, logits, float("-inf"))
        higher = tl.maximum(largest, tl.max(logits, axis=1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no key of this block is seen
        weights = tl.exp2(logits - base[:, None])
        fade = tl.exp2(largest - base)
        total = total * fade + tl.sum(weights, axis=1)
        values = tl.load(v_cache + cached, held, other=0.0).to(asked.dtype)
        summed = tl.dot(weights.to(asked.dtype), values, summed * fade[:, None])
        largest = higher

    result = summed / tl.where(total == 0.0, 1.0, total)[:, None]
    if QUANTISED:
        result *= tl.load(v_scale)
    tl.store(out + place, result.to(out.dtype.element_ty), inside)


def run(
    q, k_cache, v_cache, cu_q, kv_lens, table, out, window, max_q_len, max_kv_len,
    k_scale=None, v_scale=None, prepared=None,
):  # fmt: skip
    """q, out [tokens, heads, head_dim]; caches [pages, page, kv_heads, head_dim]."""
    _, heads, head_dim = q.shape
    _, page, kv_heads, _ = k_cache.shape
    group = heads // kv_heads
    wanted = min(TUNABLES["rows"][0], triton.next_power_of_2(max_q_len * group))
    rows = max(LEAST, triton.next_power_of_2(group), wanted)
    queries_each = rows // group
    dim = triton.next_power_of_2(head_dim)
    parts = max(1, dim // WIDE)
    grid = (triton.cdiv(max_q_len, queries_each), kv_lens.shape[0], kv_heads)
    attention_kernel[grid](
        q,
        k_cache,
        v_cache,
        out,
        cu_q,
        kv_lens,
        table,
        k_scale,
        v_scale,
        table.stride(0),
        heads,
        kv_heads,
        group,
        head_dim,
        page,
        window,
        head_dim**-0.5 * LOG2E,
        queries_each,
        QUANTISED=k_scale is not None,
        ROWS=rows,
        KEYS=max(LEAST, TUNABLES["keys"][0] // parts),
        DIM=dim,
        num_warps=min(8, TUNABLES["num_warps"][0] * parts),
        num_stages=TUNABLES["num_stages"][0],
    )
