"""Gated activation: the sigmoid-weighted left half times the right half of each row.

    out[r, i] = x[r, i] / (1 + exp(-x[r, i])) * x[r, width + i]

Rounding the activation to the storage type before the product is allowed.

Source: Shazeer, arXiv:2002.05202 (SwiGLU); call signature of vLLM's `_C::silu_and_mul`.
"""

from __future__ import annotations

from math import prod

from atrex.model import UNKNOWN, Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("rows", "width")


def inputs(w, draw):
    """x [rows, 2 * width], gates of magnitude up to about 30."""
    shape = (w.axes["rows"], 2 * w.axes["width"])
    return {"x": draw.activation("x", shape, w.dtype, row_decades=1.0)}


def outputs(w):
    """out [rows, width], contiguous."""
    return {"out": TensorSpec(shape=(w.axes["rows"], w.axes["width"]), dtype=w.dtype)}


def reference(x):
    gate, up = x.chunk(2, dim=-1)
    return {"out": gate * gate.sigmoid() * up}


def scale(w, inputs):
    """One ulp of s is what the activation may lose at the end of the range, times the right half.

    fp16: rounding the activation to subnormals, spaced 2^-24. Else: exp(-x) overflows fp32 below
    x = -88.7, where the activation is 2^-121.6; x / (1 + exp(-x)) then gives zero.
    """
    lost, mantissa = {"fp16": (2.0**-24, 10), "bf16": (2.0**-121, 7)}.get(w.dtype, (2.0**-121, 23))
    return {"out": inputs["x"].chunk(2, dim=-1)[1].abs() * (lost * 2.0**mantissa)}


def cost(w, inputs):
    rows, width = w.axes["rows"], w.axes["width"]
    item = 4 if w.dtype == "fp32" else 2
    return Cost(
        flop={"vector": 5 * rows * width},  # negate and exp, add, divide, times, times
        read_bytes=item * 2 * rows * width,
        write_bytes=item * rows * width,
    )


def match(call, step):
    # silu_and_mul(Tensor! out, Tensor input)
    if call.name in ("_C::silu_and_mul", "sgl_kernel::silu_and_mul", "aiter::silu_and_mul"):
        *rows, width = call.dims[0]
        axes = {"rows": prod(rows), "width": width}
        return Workload(operator="silu_and_mul", axes=axes, dtype=call.dtype(0))
    if call.name == "" and call.kernels and _silu_kernel(call.kernels[0]):
        axes = dict.fromkeys(AXES, UNKNOWN)
        return Workload(operator="silu_and_mul", axes=axes, dtype=UNKNOWN)
    return None


def _silu_kernel(name):
    """Recognise the kernels; the activation is a template argument, and others are not this."""
    return ("act_and_mul_kernel<" in name and "silu" in name) or name.startswith(
        ("silu_and_mul_kernel", "_silu_and_mul_kernel")
    )


def eager(x, prepared=None):
    from torch.nn.functional import silu

    gate, up = x.chunk(2, dim=-1)
    return {"out": silu(gate) * up}


def eager_fp32(x, prepared=None):
    from torch.nn.functional import silu

    gate, up = x.float().chunk(2, dim=-1)
    return {"out": (silu(gate) * up).to(x.dtype)}


def _small(rows, width, dtype):
    return Workload(operator="silu_and_mul", axes={"rows": rows, "width": width}, dtype=dtype)


DEFINITION = Operator(
    name="silu_and_mul",
    axes=AXES,
    inputs=inputs,
    outputs=outputs,
    reference=reference,
    cost=cost,
    match=match,
    tolerance={"out": "EW"},
    scale=scale,
    baselines=(
        Implementation(name="eager", run=eager),
        Implementation(name="eager_fp32", run=eager_fp32, dtypes=("bf16", "fp16")),
        Implementation(name="compiled", run=eager_fp32, compiled=True),
    ),
    small=(
        _small(5, 128, "bf16"),
        _small(7, 97, "bf16"),
        _small(1, 512, "fp16"),
        _small(3, 65, "fp32"),
    ),
)
