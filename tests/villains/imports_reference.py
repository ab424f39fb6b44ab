"""Load the operator's definition and run its reference. Expected: compile_failed."""

from atrex.registry import operator

OPERATOR = "rms_norm"
BACKEND = "torch"


def run(x, weight, out, eps, weight_offset, prepared=None):
    reference = operator("rms_norm").reference
    wide = reference(x.double(), weight.double(), eps, weight_offset)
    out.copy_(wide["out"])
