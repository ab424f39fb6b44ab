"""Runs kernels in the corrected interpreter: `interpreter_child.py INPUTS.npz OUTPUTS.npz`.

Triton reads its interpreter's flag when it is imported, so that the kernels need a process of their
own. Arrays come and go as NumPy's; floats that NumPy lacks as unsigned codes, told apart here by
the names of torch's types. What the numbers should be, the test knows.
"""

import sys

import numpy as np
import torch
import triton
import triton.language as tl

from atrex.backends import triton_interpreter

SHORT = {"bfloat16": np.uint16, "float16": np.uint16}
BYTES = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
BLOCK = 65536


@triton.jit
def cast_kernel(x, o, BLOCK: tl.constexpr, ROUNDING: tl.constexpr):
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + i)
    tl.store(o + i, value.to(o.dtype.element_ty, fp_downcast_rounding=ROUNDING))


@triton.jit
def binary_kernel(x, y, o, flags, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    size = tl.num_programs(0) * BLOCK
    a, b = tl.load(x + i), tl.load(y + i)
    tl.store(o + i, a + b)
    tl.store(o + size + i, a - b)
    tl.store(o + 2 * size + i, a * b)
    tl.store(o + 3 * size + i, a / b)
    tl.store(o + 4 * size + i, tl.minimum(a, b))
    tl.store(o + 5 * size + i, tl.maximum(a, b))
    tl.store(o + 6 * size + i, -a)
    tl.store(o + 7 * size + i, tl.abs(a))
    tl.store(o + 8 * size + i, tl.where(a < b, a, b))
    tl.store(o + 9 * size + i, tl.clamp(a, -1.0, 1.0))
    tl.store(o + 10 * size + i, (a > b).to(x.dtype.element_ty))
    tl.store(flags + i, a < b)
    tl.store(flags + size + i, a <= b)
    tl.store(flags + 2 * size + i, a > b)
    tl.store(flags + 3 * size + i, a >= b)
    tl.store(flags + 4 * size + i, a == b)
    tl.store(flags + 5 * size + i, a != b)


@triton.jit
def fma_kernel(x, y, z, o, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(o + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@triton.jit
def scalar_kernel(x, o, argument, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    value = tl.load(x + i)
    tl.store(o + i, value * 1.1)
    tl.store(o + BLOCK + i, value * argument)
    tl.store(o + 2 * BLOCK + i, value + tl.full((BLOCK,), 0.3, tl.bfloat16))


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def reduce_kernel(x, whole, o, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    value = tl.load(x + row[:, None] * COLUMNS + column)
    small = tl.load(whole + row[:, None] * COLUMNS + column)
    tl.store(o + row, tl.sum(value, 1))
    tl.store(o + ROWS + row, tl.max(value, 1))
    tl.store(o + 2 * ROWS + row, tl.min(value, 1))
    tl.store(o + 3 * ROWS + row, tl.argmax(value, 1))
    tl.store(o + 4 * ROWS + row, tl.argmin(value, 1))
    tl.store(o + 5 * ROWS + row, tl.sum(small, 1).to(tl.float32))
    factor = tl.where((small > 0) & (column < 12), small + small, 1.0)
    tl.store(o + 6 * ROWS + row, tl.reduce(factor, 1, product))
    tl.store(o + 7 * ROWS, tl.sum(small))
    tl.store(o + 8 * ROWS + column, tl.sum(small, 0))


@triton.jit
def scan_kernel(x, sums, ordered, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    i = tl.arange(0, ROWS)[:, None] * COLUMNS + tl.arange(0, COLUMNS)
    value = tl.load(x + i)
    size = ROWS * COLUMNS
    tl.store(sums + i, tl.cumsum(value, 1))
    tl.store(sums + size + i, tl.cumsum(value, 1, reverse=True))
    tl.store(sums + 2 * size + i, tl.cumsum(value, 0))
    tl.store(ordered + i, tl.sort(value))
    tl.store(ordered + size + i, tl.sort(value, descending=True))
    tl.store(ordered + 2 * size + i, tl.flip(value, 1))


@triton.jit
def dot_kernel(a, b, o, N: tl.constexpr, PRECISION: tl.constexpr, OUT: tl.constexpr):
    i = tl.arange(0, N)[:, None] * N + tl.arange(0, N)
    product = tl.dot(tl.load(a + i), tl.load(b + i), input_precision=PRECISION, out_dtype=OUT)
    tl.store(o + i, product)


@triton.jit
def atomic_kernel(total, held, x, where, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    old = tl.atomic_add(total + tl.load(where + i), tl.load(x + i), mask=i % 8 != 7)
    tl.store(held + i, old)
    tl.atomic_add(total + 31, tl.load(x))


@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 64})], key=["size"])
@triton.jit
def tuned_kernel(o, size, BLOCK: tl.constexpr, PARTS: tl.constexpr = 1):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, BLOCK, i < size)


def _last(configurations, named, **_):
    return configurations[-1:]


@triton.autotune(
    [triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 64})],
    key=["size"],
    prune_configs_by={"early_config_prune": _last},
)
@triton.heuristics({"VALUE": lambda arguments: arguments["size"] + 1})
@triton.jit
def pruned_kernel(o, size, VALUE: tl.constexpr, BLOCK: tl.constexpr, PARTS: tl.constexpr = 2):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + i, VALUE + BLOCK, i < size)


@triton.jit
def flag_kernel(o, flag):
    tl.store(o, flag.to(tl.int32))
    tl.store(o + 1, 1 if flag else 2)


@triton.jit
def byte_add_kernel(x):
    tl.store(x, tl.load(x) + tl.load(x))


@triton.jit
def exp_kernel(x):
    tl.store(x, tl.exp(tl.load(x)))


@triton.jit
def assembly_kernel(x):
    value = tl.inline_asm_elementwise(
        "mov.b32 $0, $1;", "=r,r", [tl.load(x)], dtype=tl.int32, is_pure=True, pack=1
    )
    tl.store(x, value)


def tensor(array, name=""):
    """Return a torch tensor of the type that `name` says; NumPy's own type if it says nothing."""
    given = torch.from_numpy(np.ascontiguousarray(array))
    return given.view(getattr(torch, name)) if name else given


def array(given):
    """Return a tensor as NumPy's array, of codes where NumPy lacks the type."""
    codes = {1: torch.uint8, 2: torch.int16}
    known = given.dtype in (torch.float32, torch.float64, torch.int32, torch.int64, torch.bool)
    return (given if known else given.view(codes[given.element_size()])).numpy()


def cast(values, kind, rounding=None):
    out = torch.empty(values.numel(), dtype=getattr(torch, kind))
    block = min(BLOCK, values.numel())
    cast_kernel[(values.numel() // block,)](values, out, BLOCK=block, ROUNDING=rounding)
    return array(out)


def casts(given):
    halves, octets = np.arange(2**16, dtype=np.uint16), np.arange(2**8, dtype=np.uint8)
    single = tensor(given["fp32"])
    done = {f"fp32>{kind}": cast(single, kind) for kind in (*SHORT, *BYTES)}
    for kind in SHORT:
        done[f"{kind}>float32"] = cast(tensor(halves, kind), "float32")
        done |= {f"{kind}>{byte}": cast(tensor(halves, kind), byte) for byte in BYTES}
        done[f"fp32>{kind} toward zero"] = cast(single, kind, "rtz")
        done[f"fp64>{kind}"] = cast(tensor(given["fp64"]), kind)
    for kind in BYTES:
        for wide in ("float32", *SHORT):
            done[f"{kind}>{wide}"] = cast(tensor(octets, kind), wide)
    done["int32>bfloat16"] = cast(tensor(given["int32"]), "bfloat16")
    done["bool>bfloat16"] = cast(torch.tensor([False, True]), "bfloat16")
    done["bfloat16>int32"] = cast(tensor(given["moderate"], "bfloat16"), "int32")
    return done


def arithmetic(given):
    x, y = tensor(given["x"], "bfloat16"), tensor(given["y"], "bfloat16")
    out = torch.empty((11, x.numel()), dtype=torch.bfloat16)
    flags = torch.empty((6, x.numel()), dtype=torch.bool)
    binary_kernel[(x.numel() // BLOCK,)](x, y, out, flags, BLOCK=BLOCK)
    scaled = torch.empty((3, BLOCK))
    scalar_kernel[(1,)](x, scaled, 1.1, BLOCK=BLOCK)
    return {"binary": array(out), "flags": array(flags), "scaled": array(scaled)} | {
        f"fma {kind}": fma(given, kind) for kind in ("bfloat16", "float16", "float32")
    }


def fma(given, kind):
    x, y, z = (tensor(given[f"fma {kind}"][i], kind) for i in range(3))
    out = torch.empty_like(x)
    fma_kernel[(1,)](x, y, z, out, BLOCK=x.numel())
    return array(out)


def reductions(given):
    x, whole = tensor(given["rows"], "bfloat16"), tensor(given["whole"], "bfloat16")
    rows, columns = x.shape
    reduced = torch.zeros(8 * rows + columns)
    reduce_kernel[(1,)](x, whole, reduced, ROWS=rows, COLUMNS=columns)
    half = torch.zeros(8 * rows + columns)
    reduce_kernel[(1,)](x.half(), whole.half(), half, ROWS=rows, COLUMNS=columns)
    sums, ordered = (torch.empty((3, rows, columns), dtype=torch.bfloat16) for _ in range(2))
    scan_kernel[(1,)](whole, sums, ordered, ROWS=rows, COLUMNS=columns)
    return {"reduced": array(reduced), "reduced half": array(half), "sums": array(sums),
            "ordered": array(ordered)}  # fmt: skip


def dots(given):
    done = {}
    for name in ("bfloat16", "float16", *BYTES, "float32", "int8"):
        for content in ("whole", "random"):
            if name == "int8" and content == "random":
                continue
            a, b = (tensor(given[f"{content} {name} {side}"]) for side in "ab")
            a, b = (side if name == "int8" else side.view(getattr(torch, name)) for side in (a, b))
            for precision in (None, "tf32", "ieee") if name == "float32" else (None,):
                out = torch.empty(a.shape, dtype=torch.int32 if name == "int8" else torch.float32)
                kind = tl.int32 if name == "int8" else tl.float32
                dot_kernel[(1,)](a, b, out, N=len(a), PRECISION=precision, OUT=kind)
                done[f"dot {content} {name} {precision}"] = array(out)
    out = torch.empty(64, 64, dtype=torch.float16)
    a, b = (tensor(given[f"whole float16 {side}"], "float16") for side in "ab")
    dot_kernel[(1,)](a, b, out, N=64, PRECISION=None, OUT=tl.float16)
    return done | {"dot into half": array(out)}


def atomics(given):
    total, held = (torch.zeros(n, dtype=torch.bfloat16) for n in (32, 128))
    atomic_kernel[(1,)](
        total, held, tensor(given["added"], "bfloat16"), tensor(given["places"]), BLOCK=128
    )
    return {"total": array(total), "held": array(held)}


def launches(given):
    seen = []

    def skip(kernel, grid, run):
        seen.append((kernel.fn.__name__, kernel.fn.__code__.co_filename, *grid))

    def grid(arguments):
        return triton.cdiv(arguments["size"], arguments["BLOCK"]), arguments["PARTS"]

    tuned, skipped = torch.zeros(2, 300, dtype=torch.int32), torch.zeros(300, dtype=torch.int32)
    tuned_kernel[grid](tuned[0], 300)
    pruned_kernel[grid](tuned[1], 300)
    triton_interpreter.on_launch(skip)
    pruned_kernel[grid](skipped, 300)
    tuned_kernel.warmup(skipped, 300, grid=grid)
    triton_interpreter.on_launch(lambda kernel, grid, run: run())
    flags = torch.zeros(2, 2, dtype=torch.int32)
    flag_kernel[(1,)](flags[0], True)
    triton_interpreter.on_launch(None)
    flag_kernel[(1, 1, 1)](flags[1], False)
    chosen = triton_interpreter.chosen_configurations()
    return {"tuned": array(tuned), "skipped": array(skipped), "flags of arguments": array(flags),
            "seen": np.array(seen), "chosen": np.array(sorted(chosen.items()))}  # fmt: skip


def failures(given):
    done = {}
    for kernel, value in (
        (byte_add_kernel, torch.zeros(1, dtype=torch.float8_e4m3fn)),
        (exp_kernel, torch.zeros(1, dtype=torch.bfloat16)),
        (assembly_kernel, torch.zeros(1, dtype=torch.int32)),
    ):
        try:
            kernel[(1,)](value)
            message = "it ran"
        except Exception as error:
            message = str(error)
        done[kernel.fn.__name__] = np.array(message)
    return done


def main(source, target):
    triton_interpreter.install()
    builder = triton.runtime.interpreter.interpreter_builder
    triton_interpreter.install()
    assert triton.runtime.interpreter.interpreter_builder is builder
    given = dict(np.load(source))
    done = {"version": np.array(triton.__version__)}
    for case in (casts, arithmetic, reductions, dots, atomics, launches, failures):
        done |= case(given)
    np.savez(target, **done)


if __name__ == "__main__":
    main(*sys.argv[1:])
