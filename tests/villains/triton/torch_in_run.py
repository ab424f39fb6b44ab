"""Declare Triton and let torch do all of it. Expected: fallback."""

import torch

OPERATOR = "rms_norm"
BACKEND = "triton"


def run(x, weight, out, eps, weight_offset, prepared=None):
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    out.copy_(wide * scale * (weight.float() + weight_offset))
