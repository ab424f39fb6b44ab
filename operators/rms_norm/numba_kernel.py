"""rms_norm in numba, one thread: a row is read twice, the second time from the cache.

Bound by memory: 4 bytes move for each bf16 element, against 4 operations on floats that vector
lanes share. `fastmath` is limited to reassociation, so that the sum of squares becomes vector
additions, and contraction; NaN and infinity keep their meaning.

Valid for any width and row stride; bf16, which arrives as uint16 bits, and fp32.
"""

import numpy as np
from numba import njit

from atrex.backends.numba_types import bf16_to_float32, float32_to_bf16

OPERATOR = "rms_norm"
BACKEND = "numba"
DTYPES = ("bf16", "fp32")


@njit(fastmath={"reassoc", "contract"}, error_model="numpy")
def norm_bf16(x, weight, out, eps, weight_offset):
    rows, width = x.shape
    for row in range(rows):
        total = np.float32(0)
        for i in range(width):
            value = bf16_to_float32(x[row, i])
            total += value * value
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + eps)
        for i in range(width):
            gain = bf16_to_float32(weight[i]) + weight_offset
            out[row, i] = float32_to_bf16(bf16_to_float32(x[row, i]) * scale * gain)


@njit(fastmath={"reassoc", "contract"}, error_model="numpy")
def norm_fp32(x, weight, out, eps, weight_offset):
    rows, width = x.shape
    for row in range(rows):
        total = np.float32(0)
        for i in range(width):
            total += x[row, i] * x[row, i]
        scale = np.float32(1) / np.sqrt(total / np.float32(width) + eps)
        for i in range(width):
            out[row, i] = x[row, i] * scale * (weight[i] + weight_offset)


def run(x, weight, out, eps, weight_offset, prepared=None):
    """x, out [rows, width], weight [width]: uint16 bits of bf16, or float32."""
    kernel = norm_bf16 if x.dtype == np.uint16 else norm_fp32
    kernel(x, weight, out, np.float32(eps), np.float32(weight_offset))
