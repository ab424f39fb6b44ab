"""silu_and_mul in numba, one thread: one pass, sigmoid by an exponential of our own.

Bound by memory once the exponential is made of vector instructions: 6 bytes move for each bf16
output element. 2^f on |f| <= 1/2 is a polynomial of degree 5 (relative error 8e-8), the integer
part goes into the exponent bits; numba's own exp would be a libm call for each element.

    silu(g) = g * sigmoid(g);  r = exp(-|g| / 2);  sigmoid(g) = (g >= 0 ? 1 : r^2) / (1 + r^2)

r is applied twice, so that large negative gates fade out through the subnormals as they should.
Valid for any width; bf16, which arrives as uint16 bits, and fp32.
"""

import numpy as np
from numba import njit

from atrex.backends.numba_types import (
    bf16_to_float32,
    bits_to_float32,
    float32_to_bf16,
    float32_to_bits,
)

OPERATOR = "silu_and_mul"
BACKEND = "numba"
DTYPES = ("bf16", "fp32")

LOG2_E = np.float32(1.44269502)
LN2_HIGH = np.float32(0.693359375)  # its products with integers up to 2^9 are exact
LN2_LOW = np.float32(-2.12194440e-4)
ROUNDING = np.float32(12582912)  # 1.5 * 2^23: adding it rounds to an integer
LARGEST = np.float32(87)
ZERO, HALF, ONE = np.float32(0), np.float32(0.5), np.float32(1)


@njit(inline="always")
def exponential(x):
    shifted = x * LOG2_E + ROUNDING
    n = shifted - ROUNDING
    f = ((x - n * LN2_HIGH) - n * LN2_LOW) * LOG2_E
    p = np.float32(1.327640980e-3) * f + np.float32(9.675540837e-3)
    p = p * f + np.float32(5.550713466e-2)
    p = p * f + np.float32(2.402211974e-1)
    p = p * f + np.float32(6.931469669e-1)
    p = p * f + ONE
    power = np.uint32(float32_to_bits(shifted) << np.uint32(23))
    return bits_to_float32(np.uint32(float32_to_bits(p) + power))


@njit(inline="always")
def activate(gate, up):
    root = exponential(max(-abs(gate) * HALF, -LARGEST))
    part = root if gate < ZERO else ONE
    return gate * part / (ONE + root * root) * up * part


@njit(fastmath={"contract"}, error_model="numpy")
def activate_bf16(x, out):
    rows, width = out.shape
    for row in range(rows):
        for i in range(width):
            gate, up = bf16_to_float32(x[row, i]), bf16_to_float32(x[row, width + i])
            out[row, i] = float32_to_bf16(activate(gate, up))


@njit(fastmath={"contract"}, error_model="numpy")
def activate_fp32(x, out):
    rows, width = out.shape
    for row in range(rows):
        for i in range(width):
            gate, up = x[row, i], x[row, width + i]
            out[row, i] = activate(gate, up)


def run(x, out, prepared=None):
    """x [rows, 2 * width], out [rows, width]: uint16 bits of bf16, or float32."""
    (activate_bf16 if x.dtype == np.uint16 else activate_fp32)(x, out)
