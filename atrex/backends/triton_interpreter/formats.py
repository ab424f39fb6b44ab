"""Codes of the narrow float formats, rounded as compiled kernels round them.

NumPy knows none of these formats, and torch differs from compiled code, so the conversions are
integer arithmetic of their own. Codes decode to float32, which holds all of their values.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

FLOAT32_BIAS = 127
FLOAT32_MANTISSA_BITS = 23
BF16_NAN = 0x7FC0
TF32_DROPPED_BITS = 13  # a tf32 operand is a float32 without them


@dataclass(frozen=True, slots=True, kw_only=True)
class ByteFormat:
    """A float format of eight bits.

    Attributes:
        bias: What the exponent field holds for the exponent 0.
        largest: Greatest finite value, and what greater ones become.
        nan: Code that a NaN becomes.
        infinity: Code of positive infinity, where the format has one.
        signed_zero: Whether zero has a sign. Where it has none, the code of a negative zero is the
            only NaN, and infinities become NaN.
    """

    mantissa_bits: int
    bias: int
    largest: float
    nan: int
    infinity: int | None = None
    signed_zero: bool = True


# By Triton's names. `cvt.rn.satfinite`, in code compiled for sm_90, takes infinities to the
# largest value, too (PTX ISA 8.1, cvt); torch makes NaN of them in e4m3 and keeps them in e5m2.
# Code compiled for gfx942 sets FP16_OVFL, which clamps overflow and leaves infinities infinite: the
# formats fp8e4b8 and fp8e5b16 have none, hence NaN.
BYTE_FORMATS = {
    "fp8e4nv": ByteFormat(mantissa_bits=3, bias=7, largest=448.0, nan=0x7F),
    "fp8e5": ByteFormat(mantissa_bits=2, bias=15, largest=57344.0, nan=0x7F, infinity=0x7C),
    "fp8e4b8": ByteFormat(mantissa_bits=3, bias=8, largest=240.0, nan=0x80, signed_zero=False),
    "fp8e5b16": ByteFormat(mantissa_bits=2, bias=16, largest=57344.0, nan=0x80, signed_zero=False),
}
NARROW = frozenset(("bf16", *BYTE_FORMATS))  # formats that NumPy holds as unsigned integers


def decode(codes: Array, name: str) -> Array:
    """Return what `codes` of the format stand for, as float32."""
    if name == "bf16":
        return (codes.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return _table(name)[codes]


def encode(values: Array, name: str) -> Array:
    """Round float32 or float64 values to the nearest code of the format, ties to even."""
    if values.dtype == np.float64:
        values = _single(values)
    return _encode_bf16(values) if name == "bf16" else _encode_byte(values, BYTE_FORMATS[name])


def bf16_toward_zero(values: Array) -> Array:
    """Round float32 or float64 values to bf16 codes that are not beyond them."""
    codes = encode(values, "bf16")
    return codes - (np.abs(decode(codes, "bf16")) > np.abs(values)).astype(np.uint16)


def fp16_toward_zero(values: Array) -> Array:
    """Round float32 or float64 values to float16 that is not beyond them."""
    nearest = values.astype(np.float16)
    beyond = np.abs(nearest.astype(np.float64)) > np.abs(values)
    return (nearest.view(np.uint16) - beyond.astype(np.uint16)).view(np.float16)


def tf32(values: Array) -> Array:
    """Return float32 values as the tensor core reads them for tf32.

    Compiled code hands the operands over unconverted, and the hardware ignores the low bits.
    """
    return (values.view(np.uint32) & np.uint32(2**32 - 2**TF32_DROPPED_BITS)).view(np.float32)


def fused_multiply_add(x: Array, y: Array, z: Array) -> Array:
    """Return x * y + z as float64 rounded to odd; rounding that to 32 bits or fewer is exact.

    Products of float32 are exact in float64; the sum's error is that of Knuth's two-sum.
    """
    product = x.astype(np.float64) * y.astype(np.float64)
    addend = z.astype(np.float64)
    total = product + addend
    rest = total - product
    return _to_odd(total, (product - (total - rest)) + (addend - rest))


def _single(values: Array) -> Array:
    """Narrow float64 to float32, rounded to odd, so that the next rounding is the only one."""
    single = values.astype(np.float32)
    return _to_odd(single, values - single)


def _to_odd(rounded: Array, error: Array) -> Array:
    """Turn rounding to nearest into rounding to odd, given what it left over.

    An inexact result gets the neighbour whose last bit is set, a sticky bit for the next rounding.
    Source: Boldo & Melquiond, "Emulation of a FMA and correctly rounded sums", IEEE TC 57(4), 2008.
    """
    bits = rounded.view(f"i{rounded.itemsize}")
    step = np.where((error > 0) != np.signbit(rounded), 1, -1).astype(bits.dtype)
    inexact = (error != 0) & ~np.isnan(error)
    odd: Array = np.where(inexact & (bits & 1 == 0), bits + step, bits).view(rounded.dtype)
    return odd


def _encode_bf16(values: Array) -> Array:
    bits = values.view(np.uint32)
    tie = (bits >> np.uint32(16)) & np.uint32(1)
    nearest = (bits + np.uint32(0x7FFF) + tie) >> np.uint32(16)
    return np.where(np.isnan(values), np.uint32(BF16_NAN), nearest).astype(np.uint16)


def _encode_byte(values: Array, form: ByteFormat) -> Array:
    """Round in units of the last place: units = |value| * 2^(mantissa_bits - exponent)."""
    nan = np.isnan(values) if form.signed_zero else ~np.isfinite(values)
    magnitude = np.minimum(np.where(nan, np.float32(0), np.abs(values)), np.float32(form.largest))
    exponent = (magnitude.view(np.int32) >> FLOAT32_MANTISSA_BITS) - FLOAT32_BIAS
    exponent = np.maximum(exponent, 1 - form.bias)
    scale = (FLOAT32_BIAS + form.mantissa_bits - exponent) << FLOAT32_MANTISSA_BITS
    units = np.rint(magnitude * scale.view(np.float32)).astype(np.int32)
    # A carry out of the mantissa lands in the exponent, and subnormal codes are the units alone.
    codes = ((exponent + form.bias - 1) << form.mantissa_bits) + units
    negative = np.signbit(values) & (form.signed_zero | (codes != 0))
    return np.where(nan, form.nan, codes + 0x80 * negative).astype(np.uint8)


@cache
def _table(name: str) -> Array:
    """Return the values of all codes of a byte."""
    form = BYTE_FORMATS[name]
    codes = np.arange(256)
    exponent = (codes & 0x7F) >> form.mantissa_bits
    mantissa = (codes & 0x7F) - (exponent << form.mantissa_bits)
    units = mantissa + (np.minimum(exponent, 1) << form.mantissa_bits)
    values = np.ldexp(units, np.maximum(exponent, 1) - form.bias - form.mantissa_bits)
    values[values > form.largest] = np.nan
    if form.infinity is not None:
        values[form.infinity] = values[form.infinity | 0x80] = np.inf
    values = np.copysign(values, np.where(codes & 0x80, -1, 1))
    if not form.signed_zero:
        values[form.nan] = np.nan
    table: Array = values.astype(np.float32)
    return table
