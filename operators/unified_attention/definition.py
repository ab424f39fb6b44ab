"""Attention of ragged queries over a paged KV cache: prefill, decode, or both in one batch.

    out[t, a] = sum_n softmax_n(q[t, a] . k[n, g] / sqrt(head_dim)) v[n, g],  g = a G // H

H and G are heads and kv_heads. Sequence i has S = cu_q[i + 1] - cu_q[i] queries and L = kv_lens[i]
keys, new ones included; token n lies in page table[i, n // page], row n % page. Causality is
aligned to the end: query j (from 0) sees keys 0 to L - S + j; a window keeps the last `window` of
them (0: no window). S = 0 emits nothing. An fp8 cache holds k / k_scale and v / v_scale. Sinks,
soft caps and ALiBi are not part.

Source: Dao, arXiv:2307.08691, section 2; Kwon et al., arXiv:2309.06180; call signature of vLLM's
`unified_attention`.
"""

from __future__ import annotations

from atrex.model import UNKNOWN, Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = (
    "tokens", "seqs", "heads", "kv_heads", "head_dim", "page", "window", "q_lens", "kv_lens",
)  # fmt: skip
LOGIT_DEVIATION = 3.0  # of plain noise; softmax of flatter logits hides a dropped key
PLANTED = 0.125  # of a query, as a key: a logit of some 13 at head_dim 128
SCORES = 1 << 24  # held at a time by the reference
TENSORS = (
    "q", "k_cache", "v_cache", "cu_q", "kv_lens", "table", "window", "k_scale", "v_scale",
)  # fmt: skip
MIXED_PROMPTS, PURE_CONTEXTS = "mooncake-prompt", "mooncake"


def inputs(w, draw):
    """q [tokens, heads, head_dim]; k_cache, v_cache [pages, page, kv_heads, head_dim].

    cu_q int32 [seqs + 1], kv_lens int32 [seqs], table int32 [seqs, max_pages]; window, max_q_len
    and max_kv_len are numbers. An fp8 cache comes with k_scale, v_scale fp32 [1].
    """
    import torch

    tokens, seqs, heads, kv_heads, head_dim, page, window, q_spec, kv_spec = w.axes.values()
    order = draw.permutation("sequences", seqs)
    q_lens = draw.lengths(q_spec, seqs)
    kv_lens = draw.lengths(kv_spec, seqs).maximum(q_lens)[order]
    q_lens = q_lens[order]
    if int(q_lens.sum()) != tokens:
        raise ValueError(f"q_lens {q_spec!r} sum to {int(q_lens.sum())}, not to tokens={tokens}")
    cu_q = torch.cat([q_lens.new_zeros(1), q_lens.cumsum(0)])
    table, pages = draw.page_table("table", kv_lens, page)
    dtype, _, cache_dtype = w.dtype.partition("/")
    std, scales = 1.0, {}
    if cache_dtype:
        std = 16.0
        scales = {
            name: draw.scale(name, (1,), typical=1 / std, decades=0.1)
            for name in ("k_scale", "v_scale")
        }
    q = draw.normal("q", (tokens, heads, head_dim), dtype, std=LOGIT_DEVIATION)
    cache = (pages, page, kv_heads, head_dim)
    k_cache = draw.paged("k_cache", cache, cache_dtype or dtype, table, kv_lens, std=std)
    return {
        "q": q,
        "k_cache": _plant(draw, k_cache, q, cu_q, kv_lens, table, page, std),
        "v_cache": draw.paged("v_cache", cache, cache_dtype or dtype, table, kv_lens, std=std),
        "cu_q": cu_q.to(torch.int32),
        "kv_lens": kv_lens.to(torch.int32),
        "table": table,
        "window": window,
        "max_q_len": int(q_lens.max()),
        "max_kv_len": int(kv_lens.max()),
        **scales,
    }


def _plant(draw, k_cache, q, cu_q, kv_lens, table, page, std):
    """Put keys that match the last query into the first page, the middle and the newest token."""
    asks = (cu_q[1:] > cu_q[:-1]).nonzero()[:, 0]
    if q.is_meta or not len(asks):
        return k_cache
    group = q.shape[1] // k_cache.shape[2]
    key = q[cu_q[1:][asks] - 1][:, ::group].float() * (PLANTED * std)
    lens = kv_lens[asks]
    for position in (lens - 1, lens // 2, (lens - 1).clamp(max=page // 2)):
        pages = table[asks, position // page]
        k_cache = draw.replace(k_cache, (pages, position % page), _fits(key, k_cache))
    return k_cache


def _fits(key, cache):
    return key.clamp(-448.0, 448.0) if cache.element_size() == 1 else key


def outputs(w):
    """out [tokens, heads, head_dim]."""
    shape = (w.axes["tokens"], w.axes["heads"], w.axes["head_dim"])
    return {"out": TensorSpec(shape=shape, dtype=w.dtype.partition("/")[0])}


def reference(
    q, k_cache, v_cache, cu_q, kv_lens, table, window, max_q_len, max_kv_len,
    k_scale=None, v_scale=None,
):  # fmt: skip
    out = q.new_zeros(q.shape)
    for rows, weights, _, values in _weighted(
        q, k_cache, v_cache, cu_q, kv_lens, table, window, k_scale, v_scale
    ):
        out[rows] = _sums(weights, values)
    return {"out": out}


def scale(w, inputs):
    """Root of the sum of squared terms, which errors of probabilities grow like.

    A logit of magnitude M is known to 2^-24 M in fp32, and so is its probability.
    """
    arguments = [inputs.get(name) for name in TENSORS]
    q = inputs["q"]
    unit = 32 * 2.0**-24 * w.axes["head_dim"] ** -0.5
    out = q.new_zeros(q.shape)
    for rows, weights, keys, values in _weighted(*arguments):
        logits = q[rows].norm(dim=-1, keepdim=True) * keys.norm(dim=-1).max()
        terms = _sums(weights.square(), values.square()).sqrt()
        out[rows] = terms.maximum(unit * logits * values.abs().max())
    return {"out": out}


def _weighted(q, k_cache, v_cache, cu_q, kv_lens, table, window, k_scale, v_scale):
    """Yield slices of queries with their weights [kv_heads, group, queries, L], keys and values.

    All weights of a batch would not fit.
    """
    for first, end, keys, values in _sequences(
        k_cache, v_cache, cu_q, kv_lens, table, k_scale, v_scale
    ):
        step = max(1, SCORES // (q.shape[1] * len(keys)))
        for start in range(first, end, step):
            stop = min(start + step, end)
            seen = _seen(start - first, stop - first, end - first, len(keys), window, q.device)
            yield slice(start, stop), _weights(q[start:stop], keys, seen), keys, values


def _sequences(k_cache, v_cache, cu_q, kv_lens, table, k_scale, v_scale):
    """Yield first and last query, keys and values [L, kv_heads, head_dim] of each sequence."""
    import torch

    page = k_cache.shape[1]
    bounds = cu_q.tolist()
    for index, length in enumerate(kv_lens.tolist()):
        if bounds[index] == bounds[index + 1]:
            continue
        position = torch.arange(length, device=table.device)
        rows = table[index, position // page].long(), position % page
        keys, values = k_cache[rows], v_cache[rows]
        if k_scale is not None:
            keys, values = keys * k_scale, values * v_scale
        yield bounds[index], bounds[index + 1], keys, values


def _seen(start, stop, queries, keys, window, device):
    """Return which keys [keys] each query from start to stop sees."""
    import torch

    newest = keys - queries + torch.arange(start, stop, device=device)[:, None]
    key = torch.arange(keys, device=device)
    return (key <= newest) & (key > newest - window) if window else key <= newest


def _weights(q, keys, seen):
    """Softmax of q [S, heads, d] with keys [L, kv_heads, d] where seen [S, L] allows."""
    queries, heads, head_dim = q.shape
    kv_heads = keys.shape[1]
    grouped = q.reshape(queries, kv_heads, heads // kv_heads, head_dim).permute(1, 2, 0, 3)
    scores = grouped @ keys.permute(1, 2, 0)[:, None] * head_dim**-0.5
    return scores.masked_fill(~seen, float("-inf")).softmax(-1)


def _sums(weights, values):
    """Sum values [L, kv_heads, d] by weights; return [S, heads, d]."""
    summed = (weights @ values.permute(1, 0, 2)[:, None]).permute(2, 0, 1, 3)
    return summed.reshape(len(summed), -1, values.shape[-1])


def cost(w, inputs):
    tokens, seqs, heads, kv_heads, head_dim, page, window, *_ = w.axes.values()
    cu_q, kv_lens = inputs["cu_q"].long(), inputs["kv_lens"].long()
    queries = cu_q[1:] - cu_q[:-1]
    visible = kv_lens * (queries > 0)  # a sequence without queries reads nothing
    if window:
        pairs = _windowed_pairs(queries, visible, window)
        visible = visible.minimum(queries + window - 1) * (queries > 0)
    else:
        pairs = queries * (visible - queries) + queries * (queries + 1) // 2
    dtype, _, cache_dtype = w.dtype.partition("/")
    pages = int(((visible + page - 1) // page).sum())
    cached = (1 if cache_dtype else 2) * 2 * kv_heads * head_dim * int(visible.sum())
    return Cost(
        flop={dtype: 4 * heads * head_dim * int(pairs.sum())},
        read_bytes=2 * tokens * heads * head_dim + cached + 4 * pages + 4 * (seqs + 1) + 4 * seqs,
        write_bytes=2 * tokens * heads * head_dim,
    )


def _windowed_pairs(queries, keys, window):
    """Sum min(visible, window) over the queries of each sequence: query j sees keys - S + j + 1."""
    first = keys - queries + 1  # seen by the first query
    short = (window - first).clamp(min=0).minimum(queries)  # queries that see less than the window
    return short * first + short * (short - 1) // 2 + (queries - short) * window


def match(call, step):
    # aiter::mha_batch_prefill(Tensor q, Tensor k, Tensor v, Tensor cu_q, Tensor kv_indptr,
    #     Tensor kv_indices, int max_q, int max_k, float dropout, float scale, float soft_cap,
    #     bool zero_tensors, bool causal, int window_left, int window_right, ...)
    if call.name == "aiter::mha_batch_prefill":
        tokens, heads, head_dim = call.dims[0]
        _, *page, kv_heads, _ = call.dims[1]
        left = int(call.concrete[13])
        sizes = (heads, kv_heads, head_dim, page[0] if page else 1, left + 1 if left >= 0 else 0)
        return _call(
            tokens, call.dims[3][0] - 1, sizes, _cached(call.dtype(0), call.dtype(1)), step
        )
    # vllm::unified_attention_with_output(Tensor q, Tensor key, Tensor value, Tensor! out, ...)
    if call.name == "vllm::unified_attention_with_output" and call.kernels:
        if not call.kernels[0].startswith(("kernel_unified_attention", "fmhaSm100aKernel_")):
            return None
        (tokens, heads, head_dim), (_, kv_heads, _) = call.dims[:2]
        page, cache = _beside(kv_heads, head_dim, step)
        window = 0 if "PagedKvCausal" in call.kernels[0] else UNKNOWN
        seqs = step.sequences or UNKNOWN  # a dummy batch counts none
        dtype = _cached(call.dtype(3), cache)
        return _call(tokens, seqs, (heads, kv_heads, head_dim, page, window), dtype, step)
    return None


def _beside(kv_heads, head_dim, step):
    """Find page size and storage type of the cache in the KV write of the same step."""
    for sibling in step.siblings:
        for index, dims in enumerate(sibling.dims):
            if len(dims) == 4 and dims[2:] == (kv_heads, head_dim):
                return dims[1], sibling.dtype(index)
    return UNKNOWN, UNKNOWN


def _cached(dtype, cache):
    if cache in (dtype, UNKNOWN):
        return dtype if cache == dtype else UNKNOWN
    return f"{dtype}/{'fp8_e4m3fn' if cache == 'uint8' else cache}"


def _call(tokens, seqs, sizes, dtype, step):
    """Add what the step tells of lengths: its sums are drawn from named profiles."""
    q_lens = kv_lens = UNKNOWN
    tokens = step.query_tokens or tokens  # what the dims have beyond is padding
    if seqs == 1:
        q_lens = tokens
    elif seqs == tokens:
        q_lens = 1
    elif seqs != UNKNOWN:
        q_lens = f"total:{tokens}@{MIXED_PROMPTS}"
    if step.kv_tokens:
        same = step.kv_tokens == tokens  # nothing was cached before
        profile = MIXED_PROMPTS if same else PURE_CONTEXTS
        kv_lens = f"total:{step.kv_tokens}@{profile}"
    values = (tokens, seqs, *sizes, q_lens, kv_lens)
    axes = dict(zip(AXES, values, strict=True))
    return Workload(operator="unified_attention", axes=axes, dtype=dtype)


def eager(
    q, k_cache, v_cache, cu_q, kv_lens, table, window, max_q_len, max_kv_len,
    k_scale=None, v_scale=None, prepared=None,
):  # fmt: skip
    """Gather each sequence's pages and call scaled_dot_product_attention."""
    return _by_sequence(
        q, k_cache, v_cache, cu_q, kv_lens, table, window, k_scale, v_scale, q.dtype
    )


def eager_fp32(
    q, k_cache, v_cache, cu_q, kv_lens, table, window, max_q_len, max_kv_len,
    k_scale=None, v_scale=None, prepared=None,
):  # fmt: skip
    import torch

    return _by_sequence(
        q, k_cache, v_cache, cu_q, kv_lens, table, window, k_scale, v_scale, torch.float32
    )


def _by_sequence(q, k_cache, v_cache, cu_q, kv_lens, table, window, k_scale, v_scale, dtype):
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    out = torch.empty_like(q)
    bits = torch.uint8 if k_cache.element_size() == 1 else torch.int16
    caches = k_cache.view(bits), v_cache.view(bits)  # gathers of fp8 are not built everywhere
    for first, end, keys, values in _sequences(*caches, cu_q, kv_lens, table, None, None):
        # codes are exact in bf16; their scales belong to the logits and to the sum
        keys, values = (each.view(k_cache.dtype).to(dtype) for each in (keys, values))
        seen = _seen(0, end - first, end - first, len(keys), window, q.device)
        attended = scaled_dot_product_attention(
            q[first:end].to(dtype).transpose(0, 1)[None],
            keys.transpose(0, 1)[None],
            values.transpose(0, 1)[None],
            attn_mask=seen,
            enable_gqa=True,
            scale=q.shape[-1] ** -0.5 * (1.0 if k_scale is None else float(k_scale)),
        )
        if v_scale is not None:
            attended = attended.float() * v_scale
        out[first:end] = attended[0].transpose(0, 1).to(q.dtype)
    return {"out": out}


def _small(seqs, heads, kv_heads, head_dim, page, window, q_lens, kv_lens, dtype):
    tokens = sum(map(int, q_lens.split("-"))) if isinstance(q_lens, str) else q_lens * seqs
    values = (tokens, seqs, heads, kv_heads, head_dim, page, window, q_lens, kv_lens)
    axes = dict(zip(AXES, values, strict=True))
    return Workload(operator="unified_attention", axes=axes, dtype=dtype)


DEFINITION = Operator(
    name="unified_attention",
    axes=AXES,
    inputs=inputs,
    outputs=outputs,
    reference=reference,
    scale=scale,
    cost=cost,
    match=match,
    tolerance={"out": "ATTN"},
    baselines=(
        Implementation(name="eager", run=eager),
        Implementation(name="eager_fp32", run=eager_fp32),
    ),
    small=(
        # a chunk beside decodes, a sequence without queries, lengths at the edges of pages
        _small(5, 4, 2, 64, 16, 0, "7-1-0-1-1", "39-16-20-17-31", "bf16"),
        _small(2, 8, 1, 128, 16, 0, "19-33", "19-64", "bf16"),  # one prompt whole, one chunked
        # three heads a group; windows begin far behind the first key, and in unlike blocks of keys
        _small(3, 6, 2, 72, 16, 9, "1-5-17", "140-9-270", "bf16"),
        _small(1, 2, 2, 64, 1, 0, 1, 70, "bf16"),  # pages of one token
        _small(2, 4, 2, 256, 64, 0, "35-1", "35-90", "bf16"),  # wide heads
        _small(3, 4, 2, 64, 16, 0, "1-9-3", "45-25-3", "bf16/fp8_e4m3fn"),
        _small(2, 8, 2, 128, 64, 0, 1, "65-3", "bf16/fp8_e4m3fn"),
        _small(2, 4, 4, 64, 16, 0, "12-1", "28-33", "fp16"),
        _small(1, 4, 1, 128, 16, 0, 1, 47, "fp16"),
    ),
)
