"""rms_norm in Triton: a program holds its rows in registers between the sum and the product.

Bound by memory: x is read once and out written once, 4 bytes for 4 operations on a bf16 element.
Rows narrower than `tile`, such as heads, share a program, so that its loads stay 16 bytes wide and
its warps full. The sum of squares is a tree in fp32; one rounding, at the store.

Valid while a row fits one block (width <= 65,536), for any row stride with contiguous rows; bf16,
fp16 and fp32. Sums of squares must stay below the fp32 maximum.
"""

import triton
import triton.language as tl

OPERATOR = "rms_norm"
BACKEND = "triton"
DTYPES = ("bf16", "fp16", "fp32")
TUNABLES = {
    "tile": (1024, (512, 1024, 2048, 4096)),  # elements that narrow rows are packed up to
    "elements_per_thread": (16, (4, 8, 16, 32)),
}
MAX_WARPS = 16


@triton.jit
def rms_norm_kernel(
    x,
    weight,
    out,
    rows,
    width,
    x_stride,
    out_stride,
    eps,
    weight_offset,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)
    inside = (row < rows) & (column < width)  # BLOCK is a power of two, width need not be
    value = tl.load(x + row * x_stride + column, inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, axis=1, keep_dims=True) / width + eps)
    gain = tl.load(weight + column, column < width, other=0.0).to(tl.float32) + weight_offset
    result = value * scale * gain
    tl.store(out + row * out_stride + column, result.to(out.dtype.element_ty), inside)


def run(x, weight, out, eps, weight_offset, prepared=None):
    """x, out [rows, width], weight [width]."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    rows_each = max(1, TUNABLES["tile"][0] // block)
    warps = block * rows_each // (32 * TUNABLES["elements_per_thread"][0])
    rms_norm_kernel[(triton.cdiv(rows, rows_each),)](
        x,
        weight,
        out,
        rows,
        width,
        x.stride(0),
        out.stride(0),
        eps,
        weight_offset,
        ROWS=rows_each,
        BLOCK=block,
        num_warps=min(MAX_WARPS, max(1, warps)),
    )
