# expected: fallback
"""rms_norm by torch: correct, and none of its own work."""

import torch

OPERATOR = "rms_norm"
BACKEND = "triton"


def run(x, weight, out, eps, weight_offset, prepared=None):
    value = x.float()
    value = value * torch.rsqrt(value.square().mean(-1, keepdim=True) + eps)
    out.copy_((value * (weight.float() + weight_offset)).to(out.dtype))
