"""Declare numba and let torch do it. Expected: fallback."""

import numpy as np
import torch

OPERATOR = "rms_norm"
BACKEND = "numba"
DTYPES = ("bf16", "fp32")


def tensor(array):
    shown = torch.from_numpy(np.array(array))
    return (shown.view(torch.bfloat16) if array.dtype == np.uint16 else shown).float()


def run(x, weight, out, eps, weight_offset, prepared=None):
    gain = tensor(weight) + weight_offset
    result = torch.nn.functional.rms_norm(tensor(x), gain.shape, gain, eps)
    if out.dtype == np.uint16:
        result = result.bfloat16().view(torch.uint16)
    out[...] = result.numpy()
