"""KV write in Triton: a program copies the keys and values of some tokens to their slots.

Bound by memory: each row is read once and written once. All heads of a token are one contiguous row
in both tensors, so a program takes a part of a few rows and stays vectorised.

Valid for any page size and head count; keys and values may be slices of a wider tensor, caches are
contiguous. fp8 caches divide by their scale, clamp and round to nearest even.
"""

import triton
import triton.language as tl

OPERATOR = "reshape_and_cache"
BACKEND = "triton"
DTYPES = ("bf16", "bf16/fp8_e4m3fn")
TUNABLES = {
    "rows": (4, (1, 2, 4, 8)),  # tokens of a program
    "columns": (1024, (256, 512, 1024, 2048)),  # elements of each row
    "num_warps": (4, (1, 2, 4, 8)),
}
LARGEST = tl.constexpr(448.0)  # e4m3fn


@triton.jit
def store_kernel(
    key,
    value,
    key_cache,
    value_cache,
    slots,
    k_scale,
    v_scale,
    tokens,
    width,
    key_stride,
    value_stride,
    QUANTISED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    slot = tl.load(slots + row, row < tokens, other=-1)[:, None]
    inside = (slot >= 0) & (column < width)
    keys = tl.load(key + row[:, None] * key_stride + column, inside, other=0.0)
    values = tl.load(value + row[:, None] * value_stride + column, inside, other=0.0)
    if QUANTISED:
        keys = tl.clamp(keys.to(tl.float32) / tl.load(k_scale), -LARGEST, LARGEST)
        values = tl.clamp(values.to(tl.float32) / tl.load(v_scale), -LARGEST, LARGEST)
    place = slot * width + column
    tl.store(key_cache + place, keys.to(key_cache.dtype.element_ty), inside)
    tl.store(value_cache + place, values.to(value_cache.dtype.element_ty), inside)


def run(key, value, key_cache, value_cache, slots, k_scale=None, v_scale=None, prepared=None):
    """key, value [tokens, kv_heads, head_dim]; caches [pages, page, kv_heads, head_dim]."""
    tokens, kv_heads, head_dim = key.shape
    width = kv_heads * head_dim
    rows = TUNABLES["rows"][0]
    columns = min(TUNABLES["columns"][0], triton.next_power_of_2(width))
    store_kernel[(triton.cdiv(tokens, rows), triton.cdiv(width, columns))](
        key,
        value,
        key_cache,
        value_cache,
        slots,
        k_scale,
        v_scale,
        tokens,
        width,
        key.stride(0),
        value.stride(0),
        QUANTISED=k_scale is not None,
        ROWS=rows,
        COLUMNS=columns,
        num_warps=TUNABLES["num_warps"][0],
    )
