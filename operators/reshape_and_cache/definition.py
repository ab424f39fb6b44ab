"""Keys and values of new tokens written into the pages of a cache, in place.

    key_cache[slots[t] // page, slots[t] % page] = key[t];  value_cache likewise

A negative slot skips its token; slots are distinct. An fp8 cache takes key / k_scale and
value / v_scale, clamped to the largest finite code. All other rows stay as they are.

Source: Kwon et al., arXiv:2309.06180, section 4.3; call signature of vLLM's
`_C_cache_ops::reshape_and_cache_flash`.
"""

from __future__ import annotations

from atrex.model import UNKNOWN, Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("tokens", "kv_heads", "head_dim", "page", "pages", "slots")
PROFILES = ("paged",)  # of slots
SEQUENCES = 4  # that the tokens of a step belong to, at most
SKIPPED = 0.03  # of the tokens have slot -1: padding of captured graphs
LARGEST = 448.0  # e4m3fn
SCALES = ("k_scale", "v_scale")


def inputs(w, draw):
    """key, value [tokens, kv_heads, head_dim]; caches [pages, page, ...], in place; slots int64.

    An fp8 cache comes with k_scale, v_scale fp32 [1].
    """
    tokens, kv_heads, head_dim, page, pages, slots = w.axes.values()
    if slots not in PROFILES:
        raise ValueError(f"no slot profile {slots!r}; known: {', '.join(PROFILES)}")
    rows, cache = (tokens, kv_heads, head_dim), (pages, page, kv_heads, head_dim)
    dtype, _, cache_dtype = w.dtype.partition("/")
    scales = {}
    if cache_dtype:
        scales = {n: draw.scale(n, (1,), typical=1 / 16, decades=0.3) for n in SCALES}
    std = 16.0 if cache_dtype else 1.0
    return {
        "key": draw.activation("key", rows, dtype),
        "value": draw.activation("value", rows, dtype),
        "key_cache": draw.normal("key_cache", cache, cache_dtype or dtype, std=std),
        "value_cache": draw.normal("value_cache", cache, cache_dtype or dtype, std=std),
        "slots": _slots(draw, tokens, page, pages),
        **scales,
    }


def _slots(draw, tokens, page, pages):
    """Lay sequences one after the other, each from the middle of a page, over shuffled pages."""
    import torch

    sequences = max(1, min(SEQUENCES, tokens, pages - -(-tokens // page)))
    order = draw.permutation("pages", pages)
    position = torch.arange(tokens, device=order.device)
    spare = pages * page - tokens
    start = draw.permutation("starts", max(1, min(page, spare // sequences)))[0]
    position = position + start + (position * sequences // tokens) * (spare // sequences // 2)
    slots = order[position // page] * page + position % page
    skipped = draw.permutation("skipped", tokens)[: round(SKIPPED * tokens + 0.4)]
    slots[skipped] = -1
    return slots


def outputs(w):
    """key_cache, value_cache [pages, page, kv_heads, head_dim]."""
    _, kv_heads, head_dim, page, pages, _ = w.axes.values()
    dtype, _, cache_dtype = w.dtype.partition("/")
    spec = TensorSpec(shape=(pages, page, kv_heads, head_dim), dtype=cache_dtype or dtype)
    return {"key_cache": spec, "value_cache": spec}


def reference(key, value, key_cache, value_cache, slots, k_scale=None, v_scale=None):
    return {
        "key_cache": _written(key_cache, key, slots, k_scale),
        "value_cache": _written(value_cache, value, slots, v_scale),
    }


def _written(cache, rows, slots, scale):
    kept = slots >= 0
    if scale is not None:
        rows = (rows / scale).clamp(-LARGEST, LARGEST)
    cache = cache.clone()
    cache.view(-1, *cache.shape[2:])[slots[kept]] = rows[kept]
    return cache


def cost(w, inputs):
    tokens, kv_heads, head_dim = (w.axes[name] for name in AXES[:3])
    valid = int((inputs["slots"] >= 0).sum())
    elements = 2 * valid * kv_heads * head_dim  # of keys and values
    return Cost(
        flop={},
        read_bytes=2 * elements + 8 * tokens,
        write_bytes=(1 if "/" in w.dtype else 2) * elements,
    )


def match(call, step):
    # _C_cache_ops::reshape_and_cache_flash(Tensor key, Tensor value, Tensor! key_cache,
    #     Tensor! value_cache, Tensor slots, str cache_dtype, Tensor k_scale, Tensor v_scale)
    if call.name == "_C_cache_ops::reshape_and_cache_flash":
        tokens, kv_heads, head_dim = call.dims[0]
        pages, page, *_ = call.dims[2]
        return _write(tokens, kv_heads, head_dim, page, pages, _dtype(call))
    # sglang::store_cache(Tensor key, Tensor value, Tensor! key_cache, Tensor! value_cache,
    #     Tensor slots, int row_bytes, int): heads are flattened, pages hold one token
    if call.name == "sglang::store_cache":
        tokens, width = call.dims[0]
        head_dim = _head_dim(width, step)
        kv_heads = width // head_dim if head_dim != UNKNOWN else UNKNOWN
        return _write(tokens, kv_heads, head_dim, 1, call.dims[2][0], _dtype(call))
    return None


def _dtype(call):
    """Name the dtype of keys and cache; an 8-bit cache is recorded as bytes."""
    cache = call.dtype(2)
    if cache == call.dtype(0):
        return cache
    return f"{call.dtype(0)}/{'fp8_e4m3fn' if cache == 'uint8' else cache}"


def _head_dim(width, step):
    """Find the head size in the attention beside the write: its keys are as wide together."""
    for sibling in step.siblings:
        for dims in sibling.dims:
            if len(dims) >= 3 and dims[-1] * dims[-2] == width:
                return dims[-1]
    return UNKNOWN


def _write(tokens, kv_heads, head_dim, page, pages, dtype):
    values = (tokens, kv_heads, head_dim, page, pages, PROFILES[0])
    axes = dict(zip(AXES, values, strict=True))
    return Workload(operator="reshape_and_cache", axes=axes, dtype=dtype)


def eager(key, value, key_cache, value_cache, slots, k_scale=None, v_scale=None, prepared=None):
    kept = slots >= 0
    for cache, rows, scale in ((key_cache, key, k_scale), (value_cache, value, v_scale)):
        if scale is not None:
            rows = (rows.float() / scale).clamp(-LARGEST, LARGEST).to(cache.dtype)
        # bytes: indexed stores of fp8 are not built for every device
        bits = cache.view(-1, *cache.shape[2:]).view(_same_width(cache))
        bits[slots[kept]] = rows[kept].contiguous().view(bits.dtype)
    return {"key_cache": key_cache, "value_cache": value_cache}


def _same_width(tensor):
    import torch

    return torch.uint8 if tensor.element_size() == 1 else torch.int16


DEFINITION = Operator(
    name="reshape_and_cache",
    axes=AXES,
    inputs=inputs,
    outputs=outputs,
    reference=reference,
    cost=cost,
    match=match,
    tolerance={"key_cache": "CODES", "value_cache": "CODES"},
    baselines=(Implementation(name="eager", run=eager),),
    small=(
        _write(37, 2, 64, 16, 8, "bf16"),
        _write(1, 1, 128, 16, 3, "bf16"),
        _write(9, 4, 80, 1, 12, "bf16"),  # pages of one token, heads of no power of two
        _write(50, 2, 128, 16, 6, "bf16/fp8_e4m3fn"),
        _write(5, 8, 64, 64, 2, "bf16/fp8_e4m3fn"),
    ),
)
