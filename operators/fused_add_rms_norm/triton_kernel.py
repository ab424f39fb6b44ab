"""fused_add_rms_norm in Triton: the sum stays in registers between its two uses.

Bound by memory: two tensors in, two out, 8 bytes for 5 operations on a bf16 element. The norm is
taken of the unrounded fp32 sum, so one rounding lies between the inputs and each output. Rows
narrower than `tile` share a program, so that its loads stay 16 bytes wide and its warps full.

Valid while a row fits one block (width <= 65,536), for any row stride with contiguous rows; bf16,
fp16 and fp32. Squares of the sums must stay below the fp32 maximum when added up.
"""

import triton
import triton.language as tl

OPERATOR = "fused_add_rms_norm"
BACKEND = "triton"
DTYPES = ("bf16", "fp16", "fp32")
TUNABLES = {
    "tile": (1024, (512, 1024, 2048, 4096)),  # elements that narrow rows are packed up to
    "elements_per_thread": (16, (4, 8, 16, 32)),
}
MAX_WARPS = 16


@triton.jit
def fused_add_rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    residual_out,
    rows,
    width,
    x_stride,
    residual_stride,
    out_stride,
    residual_out_stride,
    eps,
    weight_offset,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)
    inside = (row < rows) & (column < width)  # BLOCK is a power of two, width need not be
    total = tl.load(x + row * x_stride + column, inside, other=0.0).to(tl.float32)
    total += tl.load(residual + row * residual_stride + column, inside, other=0.0).to(tl.float32)
    stored = total.to(residual_out.dtype.element_ty)
    tl.store(residual_out + row * residual_out_stride + column, stored, inside)
    scale = tl.rsqrt(tl.sum(total * total, axis=1, keep_dims=True) / width + eps)
    gain = tl.load(weight + column, column < width, other=0.0).to(tl.float32) + weight_offset
    result = total * scale * gain
    tl.store(out + row * out_stride + column, result.to(out.dtype.element_ty), inside)


def run(x, residual, weight, out, residual_out, eps, weight_offset, prepared=None):
    """x, residual, out, residual_out [rows, width], weight [width]."""
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    rows_each = max(1, TUNABLES["tile"][0] // block)
    warps = block * rows_each // (32 * TUNABLES["elements_per_thread"][0])
    fused_add_rms_norm_kernel[(triton.cdiv(rows, rows_each),)](
        x,
        residual,
        weight,
        out,
        residual_out,
        rows,
        width,
        x.stride(0),
        residual.stride(0),
        out.stride(0),
        residual_out.stride(0),
        eps,
        weight_offset,
        ROWS=rows_each,
        BLOCK=block,
        num_warps=min(MAX_WARPS, max(1, warps)),
    )
