"""Norm rows in Triton, tuned over the rows of a program. Expected: ok."""

import torch
import triton
import triton.language as tl

OPERATOR = "rms_norm"
BACKEND = "triton"
DTYPES = ("bf16", "fp16", "fp32")


@triton.jit
def mean_of_squares(value, width):
    return tl.sum(value * value, axis=1, keep_dims=True) / width


@triton.autotune(
    configs=[triton.Config({"ROWS": rows}, num_warps=4) for rows in (4, 1)], key=["width"]
)
@triton.jit
def norm_kernel(
    x, gain, out, rows, width, x_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]
    column = tl.arange(0, BLOCK)[None, :]
    inside = (row < rows) & (column < width)
    value = tl.load(x + row * x_stride + column, inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(mean_of_squares(value, width) + eps)
    result = value * scale * tl.load(gain + column, column < width, other=0.0)
    tl.store(out + row * width + column, result.to(out.dtype.element_ty), inside)


@triton.jit
def gain_kernel(weight, gain, width, weight_offset, BLOCK: tl.constexpr):
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(weight + column, inside, other=0.0).to(tl.float32)
    tl.store(gain + column, value + weight_offset, inside)


def run(x, weight, out, eps, weight_offset, prepared=None):
    rows, width = x.shape
    block = triton.next_power_of_2(width)
    gain = torch.empty(width, dtype=torch.float32, device=x.device)
    gain_kernel[(1,)](weight, gain, width, weight_offset, BLOCK=block)
    norm_kernel[lambda meta: (triton.cdiv(rows, meta["ROWS"]),)](
        x, gain, out, rows, width, x.stride(0), eps, BLOCK=block
    )
