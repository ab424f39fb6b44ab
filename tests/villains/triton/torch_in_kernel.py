"""Call torch inside a kernel, which the interpreter runs as Python. Expected: forbidden."""

import torch
import triton
import triton.language as tl

OPERATOR = "rms_norm"
BACKEND = "triton"


@triton.jit
def norm_kernel(x, weight, out, width, x_stride, eps, weight_offset, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * x_stride + column, inside, other=0.0).to(tl.float32)
    gain = tl.load(weight + column, inside, other=0.0).to(tl.float32) + weight_offset
    scale = tl.rsqrt(tl.sum(value * value) / width + eps)
    result = torch.mul(value * scale, gain)
    tl.store(out + row * width + column, result.to(out.dtype.element_ty), inside)


def run(x, weight, out, eps, weight_offset, prepared=None):
    rows, width = x.shape
    norm_kernel[(rows,)](
        x, weight, out, width, x.stride(0), eps, weight_offset,
        BLOCK=triton.next_power_of_2(width),
    )  # fmt: skip
