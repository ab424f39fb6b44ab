"""Bring kernel names of all compilers and profilers to one form.

Left are the qualified name and its template arguments: no return type, no argument list, no
anonymous namespace, one spelling per dtype. Matching then needs one pattern per kernel.
"""

from __future__ import annotations

import re
from functools import cache

from atrex.trace.demangle import demangle

BF16 = re.compile(r"\b(?:__nv_bfloat16|__hip_bfloat16|hip_bfloat16|c10::BFloat16|__bf16|"
                  r"std::bfloat16_t|cutlass::bfloat16_t)\b")  # fmt: skip
HALF = re.compile(r"\b(?:__half|c10::Half|cutlass::half_t|_Float16)\b")
TAIL = re.compile(r"(?:\s*\[clone [^\]]*\])+$|\.kd$")
TRITON_SIGNATURE = re.compile(r"_0d(?:\d+[dce]*)*$")  # kernel_0d1d2de
PROFILER_NUMBER = re.compile(r"^(sglang_profiler::.+?)_\d+$")


def normalise_op(name: str) -> str:
    """Strip the suffix that changes from run to run off an operator's name."""
    found = PROFILER_NUMBER.match(name)
    return found[1] if found else name


@cache
def normalise_kernel(name: str) -> str:
    """Return a kernel's qualified name with its template arguments and nothing else."""
    name = TAIL.sub("", name.strip())
    if name.startswith("_Z"):
        name = demangle(name)
    name = name.replace("(anonymous namespace)::", "")
    name = _without_signature(name)
    name = HALF.sub("fp16", BF16.sub("bf16", name))
    return TRITON_SIGNATURE.sub("", name)


def _without_signature(name: str) -> str:
    """Cut the argument list, and before it the return type, at nesting depth zero.

    Angle brackets count only outside parentheses, where `>` may be a comparison or an arrow.
    """
    angle = paren = 0
    begin = 0
    for index, char in enumerate(name):
        if char == "(":
            if (
                angle == 0
                and paren == 0
                and index > begin
                and not name.endswith("operator", 0, index)
            ):
                return name[begin:index].rstrip()
            paren += 1
        elif char == ")":
            paren -= 1
        elif paren == 0:
            if char == "<":
                angle += 1
            elif char == ">" and name[index - 1] != "-":
                angle -= 1
            elif char == " " and angle == 0:
                begin = index + 1
    return name[begin:].strip()
