# expected: incorrect
"""rms_norm without the weight."""

import triton
import triton.language as tl

OPERATOR = "rms_norm"
BACKEND = "triton"


@triton.jit
def rms_norm_kernel(x, weight, out, x_stride, width, eps, offset, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    inside = column < width
    value = tl.load(x + row * x_stride + column, inside, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value) / width + eps)
    tl.store(out + row * width + column, value * scale, inside)


def run(x, weight, out, eps, weight_offset, prepared=None):
    rows, width = x.shape
    rms_norm_kernel[(rows,)](
        x, weight, out, x.stride(0), width, eps, weight_offset, BLOCK=triton.next_power_of_2(width)
    )
