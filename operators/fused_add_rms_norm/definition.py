"""Residual addition followed by root-mean-square normalisation of each row.

    residual_out[r, i] = round(x[r, i] + residual[r, i])
    out[r, i] = residual_out[r, i] / sqrt(mean_i(residual_out[r, i]^2) + eps)
                * (weight[i] + weight_offset)

The sum is rounded to the storage type and must be exact. Normalising the unrounded sum, as
FlashInfer does, is allowed too. Serving engines write both outputs in place; separate destinations
move the same bytes.

Source: Zhang & Sennrich, arXiv:1910.07467, eq. 4; vLLM's `_C::fused_add_rms_norm`.
"""

from __future__ import annotations

from math import prod

from atrex.model import UNKNOWN, Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("rows", "width", "eps", "weight_offset")


def inputs(w, draw):
    """x, residual [rows, width], of unlike row magnitudes; weight [width], static."""
    shape = (w.axes["rows"], w.axes["width"])
    return {
        "x": draw.activation("x", shape, w.dtype, row_decades=1.0),
        "residual": draw.activation("residual", shape, w.dtype, row_decades=1.0),
        "weight": draw.gain("weight", shape[1:], w.dtype),
        "eps": float(w.axes["eps"]),
        "weight_offset": w.axes["weight_offset"],
    }


def outputs(w):
    """out, residual_out [rows, width], contiguous."""
    spec = TensorSpec(shape=(w.axes["rows"], w.axes["width"]), dtype=w.dtype)
    return {"out": spec, "residual_out": spec}


def reference(x, residual, weight, eps, weight_offset):
    total = x + residual
    scale = (total.square().mean(-1, keepdim=True) + eps).rsqrt()
    return {"out": total * scale * (weight + weight_offset), "residual_out": total}


def cost(w, inputs):
    rows, width = w.axes["rows"], w.axes["width"]
    item = 4 if w.dtype == "fp32" else 2
    return Cost(
        flop={"vector": 5 * rows * width},  # add, square, add, times rsqrt, times weight
        read_bytes=item * (2 * rows * width + width),
        write_bytes=item * 2 * rows * width,
    )


def match(call, step):
    # _C::fused_add_rms_norm(Tensor! x, Tensor! residual, Tensor weight, float epsilon)
    if call.name == "_C::fused_add_rms_norm":
        eps = 3
    # aiter::add_rmsnorm(Tensor! out, Tensor x, Tensor residual_in, Tensor! residual_out,
    #                    Tensor weight, float epsilon)
    elif call.name in ("aiter::add_rmsnorm", "aiter::rmsnorm2d_fwd_with_add_ck"):
        eps = 5
    elif call.name == "" and _adding_kernel(call.kernels):
        axes = dict.fromkeys(AXES, UNKNOWN)
        return Workload(operator="fused_add_rms_norm", axes=axes, dtype=UNKNOWN)
    else:
        return None
    *rows, width = call.dims[0]
    axes = {"rows": prod(rows), "width": width, "eps": call.scalar(eps), "weight_offset": 0}
    return Workload(operator="fused_add_rms_norm", axes=axes, dtype=call.dtype(0))


def _adding_kernel(kernels):
    """Recognise the kernels; the fifth template argument of AITER's says whether it adds."""
    if not kernels:
        return False
    name = kernels[0]
    if "add_rmsnorm_quant_kernel<" in name:
        arguments = name.split("<", 1)[1].split(",")
        return len(arguments) > 4 and arguments[4].strip() == "true"
    return "FusedAddRMSNormKernel" in name or name.startswith(
        ("vllm::fused_add_rms_norm_kernel", "fused_add_rms_norm_kernel", "_fused_add_rmsnorm")
    )


def _normalised(x, weight, eps, weight_offset):
    """Norm in the type of x; a shifted weight stays in fp32, as models that shift it do."""
    from torch.nn.functional import rms_norm

    if not weight_offset:
        return rms_norm(x, weight.shape, weight, eps)
    gain = weight.float() + weight_offset
    return (rms_norm(x, weight.shape, None, eps) * gain).to(x.dtype)


def eager(x, residual, weight, eps, weight_offset, prepared=None):
    total = x + residual
    return {"out": _normalised(total, weight, eps, weight_offset), "residual_out": total}


def eager_fp32(x, residual, weight, eps, weight_offset, prepared=None):
    total = x.float() + residual.float()
    out = _normalised(total, weight.float(), eps, weight_offset)
    return {"out": out.to(x.dtype), "residual_out": total.to(x.dtype)}


def _small(rows, width, eps, weight_offset, dtype):
    axes = dict(zip(AXES, (rows, width, eps, weight_offset), strict=True))
    return Workload(operator="fused_add_rms_norm", axes=axes, dtype=dtype)


DEFINITION = Operator(
    name="fused_add_rms_norm",
    axes=AXES,
    inputs=inputs,
    static=("weight",),
    outputs=outputs,
    reference=reference,
    cost=cost,
    match=match,
    tolerance={"out": "NORM_SUM", "residual_out": "EXACT"},
    baselines=(
        Implementation(name="eager", run=eager),
        Implementation(name="eager_fp32", run=eager_fp32, dtypes=("bf16", "fp16")),
        Implementation(name="compiled", run=eager_fp32, compiled=True),
    ),
    small=(
        _small(5, 128, "1e-6", 0, "bf16"),
        _small(7, 97, "1e-5", 1, "bf16"),
        _small(1, 512, "1e-6", 0, "fp16"),
        _small(3, 65, "1e-6", 1, "fp32"),
    ),
)
