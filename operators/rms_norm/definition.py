"""Root-mean-square normalisation of each row.

    out[r, i] = x[r, i] / sqrt(mean_i(x[r, i]^2) + eps) * (weight[i] + weight_offset)

weight_offset is 0, or 1 for models that store the weight minus one. Rows may be slices of a wider
tensor (q_a and kv_a of latent attention): row_stride is the distance between rows in elements.
Rounding x / sqrt(...) to the storage type before the weight is allowed.

Source: Zhang & Sennrich, arXiv:1910.07467, eq. 4; call signature of vLLM's `_C::rms_norm`.
"""

from __future__ import annotations

from math import prod

from atrex.model import UNKNOWN, Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("rows", "width", "eps", "weight_offset", "row_stride")


def inputs(w, draw):
    """x [rows, width], rows of magnitude 1e-3 to 1e3; weight [width], static; two attributes."""
    rows, width = w.axes["rows"], w.axes["width"]
    return {
        "x": draw.activation(
            "x", (rows, width), w.dtype, row_stride=w.axes["row_stride"], row_decades=3.0
        ),
        "weight": draw.gain("weight", (width,), w.dtype),
        "eps": float(w.axes["eps"]),
        "weight_offset": w.axes["weight_offset"],
    }


def outputs(w):
    """out [rows, width], contiguous."""
    return {"out": TensorSpec(shape=(w.axes["rows"], w.axes["width"]), dtype=w.dtype)}


def reference(x, weight, eps, weight_offset):
    return {"out": x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * (weight + weight_offset)}


def cost(w, inputs):
    rows, width = w.axes["rows"], w.axes["width"]
    item = 4 if w.dtype == "fp32" else 2
    return Cost(
        flop={"vector": 4 * rows * width},  # square, add, times rsqrt, times weight
        read_bytes=item * (rows * width + width),
        write_bytes=item * rows * width,
    )


def match(call, step):
    # _C::rms_norm(Tensor! out, Tensor input, Tensor weight, float epsilon); aiter::rmsnorm alike
    if call.name in ("_C::rms_norm", "aiter::rmsnorm"):
        x, eps = 1, 3
    # aiter::rms_norm(Tensor input, Tensor weight, float epsilon) -> Tensor
    elif call.name in ("aiter::rms_norm", "vllm::rocm_aiter_rms_norm"):
        x, eps = 0, 2
    elif call.name == "" and _plain_kernel(call.kernels):
        return Workload(operator="rms_norm", axes=dict.fromkeys(AXES, UNKNOWN), dtype=UNKNOWN)
    else:
        return None
    *rows, width = call.dims[x]
    axes = {
        "rows": prod(rows),
        "width": width,
        "eps": call.scalar(eps),
        "weight_offset": 0,
        "row_stride": call.row_stride(x),
    }
    return Workload(operator="rms_norm", axes=axes, dtype=call.dtype(x))


def _plain_kernel(kernels):
    """Recognise the kernels; the fifth template argument of AITER's says whether it adds."""
    if not kernels:
        return False
    name = kernels[0]
    if "add_rmsnorm_quant_kernel<" in name:
        arguments = name.split("<", 1)[1].split(",")
        return len(arguments) > 4 and arguments[4].strip() == "false"
    return name.startswith(("vllm::rms_norm_kernel", "rms_norm_kernel", "_rms_norm_kernel")) or (
        "::RMSNormKernel" in name
    )


def _normalised(x, weight, eps, weight_offset):
    """Norm in the type of x; a shifted weight stays in fp32, as models that shift it do."""
    from torch.nn.functional import rms_norm

    if not weight_offset:
        return rms_norm(x, weight.shape, weight, eps)
    gain = weight.float() + weight_offset
    return (rms_norm(x, weight.shape, None, eps) * gain).to(x.dtype)


def eager(x, weight, eps, weight_offset, prepared=None):
    return {"out": _normalised(x, weight, eps, weight_offset)}


def eager_fp32(x, weight, eps, weight_offset, prepared=None):
    return {"out": _normalised(x.float(), weight.float(), eps, weight_offset).to(x.dtype)}


def _small(rows, width, eps, weight_offset, row_stride, dtype):
    axes = dict(zip(AXES, (rows, width, eps, weight_offset, row_stride), strict=True))
    return Workload(operator="rms_norm", axes=axes, dtype=dtype)


DEFINITION = Operator(
    name="rms_norm",
    axes=AXES,
    inputs=inputs,
    static=("weight",),
    outputs=outputs,
    reference=reference,
    cost=cost,
    match=match,
    tolerance={"out": "NORM"},
    baselines=(
        Implementation(name="eager", run=eager),
        Implementation(name="eager_fp32", run=eager_fp32, dtypes=("bf16", "fp16")),
        Implementation(name="compiled", run=eager_fp32, compiled=True),
    ),
    small=(
        _small(5, 128, "1e-6", 0, 128, "bf16"),
        _small(7, 97, "1e-5", 1, 130, "bf16"),  # prime width, a slice of wider rows, shifted weight
        _small(1, 512, "1e-6", 0, 512, "fp16"),
        _small(3, 65, "1e-6", 1, 65, "fp32"),
    ),
)
