"""The static policy of Triton candidates: what passes to the audit, and what is refused at once."""

import ast

import pytest

from atrex import registry
from atrex.judge.triton_policy import check_triton

HEAD = """import functools
import math

import torch
import triton
import triton.language as tl

SIZE: tl.constexpr = 4
LIMIT = tl.constexpr(8)


@triton.jit
def helper(a, b):
    return a + b


"""
KERNEL = """@triton.jit
def kernel(x, out, n, N: tl.constexpr, FN: tl.constexpr = None):
    column = tl.arange(0, N)
    value = tl.load(x + column, column < n, other=0.0)
    {body}
    tl.store(out + column, value, column < n)


def run(x, out, prepared=None):
    kernel[(1,)](x, out, x.shape[0], N=triton.next_power_of_2(x.shape[0]))
"""


def refused(text):
    breach = check_triton(ast.parse(HEAD + text))
    return breach and breach.what


def in_kernel(body):
    return refused(KERNEL.format(body=body))


def on_host(body):
    return refused(KERNEL.format(body="pass") + f"    {body}\n")


@pytest.mark.parametrize(
    "body",
    [
        "value = helper(value, SIZE) * LIMIT",
        "value = tl.reduce(value, 0, helper)",
        "value = value.to(tl.float32).to(out.dtype.element_ty)",
        "for i in range(0, n, N): value += tl.sqrt(i * 1.0)",
        "value = FN(value)",
        "value = max(value, min(n, 3)) if len(value.shape) == 1 else value",
    ],
)
def test_a_kernel_may_use_triton_and_the_kernels_of_its_file(body):
    assert in_kernel(body) is None


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("value = torch.mul(value, value)", "the kernel kernel uses torch, which is not Triton's"),
        ("value = math.sqrt(2.0) * value", "the kernel kernel uses math, which is not Triton's"),
        ("value = run(value, value)", "the kernel kernel uses run, which is not Triton's"),
        ("value = np.abs(value)", "the kernel kernel uses np, which is not Triton's"),
        ("value = sum(value)", "the kernel kernel uses sum, which is not Triton's"),
        ("value = value.handle.data", "the kernel kernel uses .data"),
        ("value = tl.core._builder", "the kernel kernel uses ._builder"),
        ("import torch", "the kernel kernel has an import statement"),
    ],
)
def test_a_kernel_may_use_nothing_else(body, what):
    assert in_kernel(body) == what


def test_a_kernel_takes_no_function_as_a_default():
    text = KERNEL.format(body="pass").replace("= None):", "= torch.mul):", 1)
    assert refused(text) == "the kernel kernel has a default that is no literal"


@pytest.mark.parametrize(
    "body",
    [
        "scratch = torch.empty((4, 4), dtype=torch.float32, device=x.device)",
        "scratch = x.new_zeros(4).view(2, 2).stride(0) + x.data_ptr() % 16",
        "grid = lambda meta: (triton.cdiv(4, meta['N']),)",
        "y = torch.ops.aten.mul(x, x)",  # torch's work is the audit's to find
        "y = torch.nn.functional.relu(x).sum().item()",
        "launch = functools.partial(kernel.run, grid=(1,), warmup=False)",
    ],
)
def test_host_code_may_do_what_the_audit_sees(body):
    assert on_host(body) is None


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("import numpy", "imports numpy"),
        ("from torch.utils import cpp_extension", "imports torch.utils.cpp_extension"),
        ("from triton.runtime.interpreter import interpreter_builder",
         "imports triton.runtime.interpreter.interpreter_builder"),
        ("from torch import *", "imports torch.*"),
        ("import threading", "imports threading"),
        ("import atrex", "imports atrex"),
        ("y = np.asarray(x)", "uses np, which it does not define"),
        ("y = x.numpy()", "uses .numpy"),
        ("y = x.tolist()", "uses .tolist"),
        ("x.apply_(abs)", "uses .apply_"),
        ("y = x.untyped_storage()", "uses .untyped_storage"),
        ("torch._C._set_mkldnn_enabled(False)", "uses torch._C._set_mkldnn_enabled"),
        ("torch.compile(run)", "uses torch.compile"),
        ("torch.jit.script(run)", "uses torch.jit.script"),
        ("torch.library.define('a::b', '()')", "uses torch.library.define"),
        ("torch.os.system('id')", "uses torch.os.system"),
        ("t = torch", "hands the module torch round"),
        ("kernel[(1,)](tl, out, 1, N=1)", "hands the module triton.language round"),
        ("late = triton.jit(run)", "uses triton.jit other than as a decorator"),
        ("y = getattr(x, 'num' + 'py')()", "uses getattr"),
        ("y = x.__class__", "uses .__class__"),
    ],
)  # fmt: skip
def test_host_code_may_not_go_round_the_audit(body, what):
    assert on_host(body) == what


def test_the_bundled_kernels_pass():
    for path in registry.content("operators").glob("*/triton_kernel.py"):
        assert check_triton(ast.parse(path.read_bytes())) is None, path
