"""Bring kernel names of all compilers and profilers to one form.

Left are the qualified name and its template arguments: no return type, no argument list, no
anonymous namespace, one spelling per dtype and literal, no suffix that changes from run to run.
Matching then needs one pattern per kernel, and equal kernels of two traces have equal names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache

from atrex.trace.demangle import demangle

DTYPES = {
    "bf16": r"__nv_bfloat16|__hip_bfloat16|hip_bfloat16|c10::BFloat16|at::BFloat16|__bf16|"
            r"(?:std|nv)::bfloat16_t|cutlass::bfloat16_t|ck_tile::bf16_t|ck_tile::bfloat16_t",
    "fp16": r"__half|half|c10::Half|at::Half|cutlass::half_t|ck_tile::fp16_t|ck_tile::half_t|"
            r"_Float16",
    "fp8_e4m3": r"__nv_fp8_e4m3|__hip_fp8_e4m3|c10::Float8_e4m3fn|at::Float8_e4m3fn|"
                r"cutlass::float_e4m3_t",
    "fp8_e4m3fnuz": r"__hip_fp8_e4m3_fnuz|c10::Float8_e4m3fnuz|at::Float8_e4m3fnuz",
    "fp8_e5m2": r"__nv_fp8_e5m2|__hip_fp8_e5m2|c10::Float8_e5m2|at::Float8_e5m2|"
                r"cutlass::float_e5m2_t",
}  # fmt: skip
DTYPE = re.compile(
    r"(?<![\w:])(?:"
    + "|".join(f"(?P<{name}>{spellings})" for name, spellings in DTYPES.items())
    + r")\b(?!::)"
)
# .kd of ROCm objects, what compilers append to a clone, hashes of a build
TAIL = re.compile(
    r"(?:\s*\[clone [^\]]*\]|\.kd|\.(?:llvm|constprop|isra|part|lto_priv)\.\d+|"
    r"[._](?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{16,64})+$"
)
TRITON_SIGNATURE = re.compile(r"_0d(?:\d+[dce]*)*$")  # kernel_0d1d2de
INDUCTOR = re.compile(r"^(triton_(?:poi|red|per|tem|for|spl)_fused\w*?)_\d+$")  # numbered per graph
PROFILER_NUMBER = re.compile(r"^(sglang_profiler::.+?)_\d+$")

# how Nsight Systems spells literals and lambdas
LITERAL = re.compile(r"\((bool|int|unsigned int|long|unsigned long|long long|unsigned long long)\)"
                     r"(-?\d+)")  # fmt: skip
SUFFIX = {
    "int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul", "long long": "ll",
    "unsigned long long": "ull",
}  # fmt: skip
LAMBDA = re.compile(r"\[lambda(\((?:[^()]|\([^()]*\))*\)) \(instance (\d+)\)\]")
SPACED = re.compile(r"(?<=[\w>]) +(?=[*&])")  # char *
INNER_RETURN = re.compile(r"(?<=[<,( ])void (?=[A-Za-z_]\w*(?:::|<))")


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
    if "(" in name or "<" in name:
        name = name.replace("(anonymous namespace)::", "").replace("<unnamed>::", "")
        name = _without_signature(_respelt(name))
        name = DTYPE.sub(_dtype, name)
    if name.startswith("triton_"):
        return INDUCTOR.sub(r"\1", name)
    return TRITON_SIGNATURE.sub("", name)


def _dtype(found: re.Match[str]) -> str:
    return found.lastgroup or found[0]


def _literal(found: re.Match[str]) -> str:
    kind, value = found.groups()
    if kind == "bool":
        return "false" if value == "0" else "true"
    return value + SUFFIX[kind]


# rewrites of one spelling, each with the text that it needs to be worth trying
RESPELT: tuple[tuple[str, re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    ("(", LITERAL, _literal),
    ("[lambda", LAMBDA, r"{lambda\1#\2}"),
    (" ", SPACED, ""),
    ("void ", INNER_RETURN, ""),
    ("operator ()", re.compile(r"operator \(\)"), "operator()"),
    ("> >", re.compile(r"> (?=>)"), ">"),
)


def _respelt(name: str) -> str:
    """Spell literals, lambdas and pointers as the demanglers of GCC and LLVM do."""
    for needed, pattern, replacement in RESPELT:
        if needed in name:
            name = pattern.sub(replacement, name)
    return name


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
