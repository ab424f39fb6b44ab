"""Declare numba and work in NumPy. Expected: fallback."""

import numpy as np

OPERATOR = "rms_norm"
BACKEND = "numba"
DTYPES = ("bf16", "fp32")


def widen(bits):
    return bits if bits.dtype == np.float32 else (bits.astype(np.uint32) << 16).view(np.float32)


def narrow(values, like):
    if like.dtype == np.float32:
        return values
    bits = values.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def run(x, weight, out, eps, weight_offset, prepared=None):
    values = widen(x)
    scale = 1 / np.sqrt((values * values).mean(axis=1, keepdims=True) + np.float32(eps))
    out[...] = narrow(values * scale * (widen(weight) + np.float32(weight_offset)), out)
