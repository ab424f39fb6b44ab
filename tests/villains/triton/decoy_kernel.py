"""Launch an idle kernel of one's own, then overwrite its work by torch's. Expected: fallback."""

import torch
import triton
import triton.language as tl

OPERATOR = "rms_norm"
BACKEND = "triton"


@triton.jit
def idle(x, out):
    tl.store(out, tl.load(x))


def run(x, weight, out, eps, weight_offset, prepared=None):
    idle[(1,)](x, out)
    wide = x.float()
    torch.mul(
        wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps),
        weight.float() + weight_offset,
        out=out,
    )
