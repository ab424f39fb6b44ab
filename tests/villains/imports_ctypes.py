"""Reach for C libraries from a numba candidate. Expected: forbidden."""

import ctypes

OPERATOR = "rms_norm"
BACKEND = "numba"


def run(x, weight, out, eps, weight_offset, prepared=None):
    ctypes.CDLL(None).memcpy(out.ctypes, x.ctypes, x.nbytes)
