# numba's decorators are partly typed, differently in each version, and kernels are not typed at all
# mypy: disallow-untyped-decorators=False, disallow-untyped-calls=False
# mypy: disallow-untyped-defs=False, check-untyped-defs=False
"""Conversions for numba kernels, whose 16-bit floats arrive as unsigned bits.

numba inlines the functions, so loops over them become the same vector code as the C header's.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types
from numba.extending import intrinsic


def _reinterpret(given, wanted):
    """Build an intrinsic that keeps the bits and changes the type."""

    def describe(typing_context, value):
        def generate(context, builder, signature, arguments):
            return builder.bitcast(arguments[0], context.get_value_type(wanted))

        return wanted(given), generate

    return intrinsic(describe)


bits_to_float32 = _reinterpret(types.uint32, types.float32)
float32_to_bits = _reinterpret(types.float32, types.uint32)


@njit(inline="always")
def bf16_to_float32(bits):
    """Return the float that bf16 `bits` (uint16) stand for."""
    return bits_to_float32(np.uint32(np.uint32(bits) << np.uint32(16)))


@njit(inline="always")
def float32_to_bf16(value):
    """Round a float to bf16 bits (uint16): to nearest, ties to even; a NaN stays one."""
    bits = float32_to_bits(np.float32(value))
    odd = np.uint32(np.uint32(bits >> np.uint32(16)) & np.uint32(1))
    rounded = np.uint32(np.uint32(bits + np.uint32(0x7FFF)) + odd) >> np.uint32(16)
    quiet = np.uint32(bits >> np.uint32(16)) | np.uint32(0x40)
    is_nan = np.uint32(bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    return np.uint16(quiet if is_nan else rounded)
