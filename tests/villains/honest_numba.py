"""Honest twin: rms_norm in numba, with scratch of its own and a parallel loop. Expected: ok."""

import numpy as np
from numba import njit, prange

from atrex.backends.numba_types import bf16_to_float32, float32_to_bf16

OPERATOR = "rms_norm"
BACKEND = "numba"
DTYPES = ("bf16",)


@njit(parallel=True)
def scales(x, scale, eps):
    for row in prange(x.shape[0]):
        total = 0.0
        for i in range(x.shape[1]):
            value = bf16_to_float32(x[row, i])
            total += value * value
        scale[row] = 1 / np.sqrt(total / x.shape[1] + eps)


@njit
def apply(x, weight, scale, out, weight_offset):
    for row in range(x.shape[0]):
        for i in range(x.shape[1]):
            gain = bf16_to_float32(weight[i]) + weight_offset
            out[row, i] = float32_to_bf16(bf16_to_float32(x[row, i]) * scale[row] * gain)


def run(x, weight, out, eps, weight_offset, prepared=None):
    scale = np.zeros(x.shape[0], np.float32)
    scales(x, scale, eps)
    apply(x, weight, scale, out, weight_offset)
