"""Product of fp8 activations with fp8 weights that carry a scale for every block.

    out[m, n] = sum_c a_scale[m, c] * w_scale[n // 128, c] * sum_(k in c) a[m, k] * w[n, k]

c counts groups of 128 along k; the last group and the last block of n may be partial (DeepSeek's
n_out is 2112). a is scaled by row and group, w by blocks of 128 x 128. Sums are taken in fp32, in
any order, split along k or not; out is rounded once. Equal bits mean half as much in e4m3fnuz as
in e4m3fn, so the dtype names the format. Baselines return bf16, the out_dtype that serving uses.

Source: DeepSeek-V3, arXiv:2412.19437, section 3.3.2; call signature of vLLM's
`w8a8_triton_block_scaled_mm`.
"""

from __future__ import annotations

from math import prod

from atrex.model import UNKNOWN, Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("rows", "n_out", "k_in", "out_dtype")
GROUP = 128  # elements of k under one scale, and rows of w
SCALAR_TYPES = {"5": "fp16", "6": "fp32", "15": "bf16"}  # how traces print a torch dtype


def inputs(w, draw):
    """a [rows, k_in], a_scale [rows, groups]; w [n_out, k_in], w_scale [blocks, groups], static.

    Codes are N(0, 1): the scales hold the magnitude, and vary by three decades among groups.
    """
    rows, n_out, k_in = w.axes["rows"], w.axes["n_out"], w.axes["k_in"]
    groups, blocks = -(-k_in // GROUP), -(-n_out // GROUP)
    return {
        "a": draw.activation("a", (rows, k_in), w.dtype),
        "a_scale": draw.scale("a_scale", (rows, groups), typical=1.0, decades=1.5),
        "w": draw.weight("w", (n_out, k_in), w.dtype, fan_in=1),
        "w_scale": draw.scale("w_scale", (blocks, groups), typical=k_in**-0.5, decades=1.5),
    }


def outputs(w):
    """out [rows, n_out], contiguous."""
    shape = (w.axes["rows"], w.axes["n_out"])
    return {"out": TensorSpec(shape=shape, dtype=w.axes["out_dtype"])}


def reference(a, a_scale, w, w_scale):
    return {"out": _scaled(a, a_scale, 1) @ _scaled(w, w_scale, GROUP).T}


def scale(w, inputs):
    """Root of the sum of squared products: zero-mean sums and their errors grow like it."""
    a = _scaled(inputs["a"], inputs["a_scale"], 1)
    weight = _scaled(inputs["w"], inputs["w_scale"], GROUP)
    return {"out": (a.square() @ weight.square().T).sqrt()}


def _scaled(codes, scales, height):
    """Multiply codes [rows, k] by the scale of their block of `height` rows and 128 columns."""
    rows, k_in = codes.shape
    return codes * scales.repeat_interleave(GROUP, 1)[:, :k_in].repeat_interleave(height, 0)[:rows]


def cost(w, inputs):
    rows, n_out, k_in = w.axes["rows"], w.axes["n_out"], w.axes["k_in"]
    groups, blocks = -(-k_in // GROUP), -(-n_out // GROUP)
    return Cost(
        # each group's sum is scaled and added up in fp32, while the matrix units go on
        flop={w.dtype: 2 * rows * n_out * k_in, "vector": 2 * rows * n_out * groups},
        read_bytes=rows * k_in + n_out * k_in + 4 * (rows + blocks) * groups,
        write_bytes=(4 if w.axes["out_dtype"] == "fp32" else 2) * rows * n_out,
    )


def match(call, step):
    # vllm::w8a8_triton_block_scaled_mm_func(Tensor a, Tensor w, Tensor a_scale, Tensor w_scale,
    #                                        int[] block_size, ScalarType out_dtype)
    if call.name == "vllm::w8a8_triton_block_scaled_mm_func":
        return _product(call, w=1, out_dtype=_named_dtype(call, 5))
    # vllm::rocm_aiter_gemm_a8w8_blockscale(Tensor a, Tensor w, Tensor a_scale, Tensor w_scale,
    #                                       ScalarType out_dtype)
    if call.name in (
        "vllm::rocm_aiter_gemm_a8w8_blockscale",
        "vllm::rocm_aiter_triton_gemm_a8w8_blockscale",
    ):
        return _product(call, w=1, out_dtype=_named_dtype(call, 4))
    # aiter::gemm_a8w8_blockscale_ck(Tensor a, Tensor w, Tensor a_scale, Tensor w_scale,
    #                                Tensor! out)
    if call.name == "aiter::gemm_a8w8_blockscale_ck":
        return _product(call, w=1, out_dtype=call.dtype(4))
    # sglang::deep_gemm_fp8_fp8_bf16_nt(Tensor a, Tensor a_scale, Tensor w, Tensor w_scale,
    #                                   Tensor! out); vllm::fp8_gemm_nt_op alike
    if call.name in ("sglang::deep_gemm_fp8_fp8_bf16_nt", "vllm::fp8_gemm_nt_op"):
        return _product(call, w=2, out_dtype=call.dtype(4))
    # sgl_kernel::fp8_blockwise_scaled_mm(Tensor a, Tensor w [k_in, n_out], Tensor a_scale,
    #                                     Tensor w_scale, ScalarType out_dtype)
    if call.name == "sgl_kernel::fp8_blockwise_scaled_mm":
        return _product(call, w=1, out_dtype=_named_dtype(call, 4), n_axis=1)
    if call.name == "" and call.kernels and "::sm90_fp8_gemm_1d2d_impl<" in call.kernels[0]:
        return _deep_gemm(call.kernels[0])
    return None


def _product(call, w, out_dtype, n_axis=0):
    """Read the sizes off the dims of a and of input `w`."""
    *rows, k_in = call.dims[0]
    return _workload(prod(rows), call.dims[w][n_axis], k_in, out_dtype, call.dtype(0))


def _named_dtype(call, index):
    text = call.concrete[index] if index < len(call.concrete) else ""
    return SCALAR_TYPES.get(text, UNKNOWN)


def _deep_gemm(kernel):
    """Read the template: m, n, k (0: not fixed) and groups; newer versions put w's order first."""
    arguments = kernel.split("<", 1)[1].split(",")
    sizes = arguments[1:5] if "Major" in arguments[0] else arguments[:4]
    _, n_out, k_in, groups = (int(text.strip().removesuffix("u")) for text in sizes)
    if groups != 1:
        return None  # a product for each expert
    return _workload(UNKNOWN, n_out or UNKNOWN, k_in or UNKNOWN, "bf16", "fp8_e4m3fn")


def _workload(rows, n_out, k_in, out_dtype, dtype):
    axes = dict(zip(AXES, (rows, n_out, k_in, out_dtype), strict=True))
    return Workload(operator="block_scaled_mm", axes=axes, dtype=dtype)


def eager(a, a_scale, w, w_scale, prepared=None):
    """Round the scaled operands to bf16 for the matrix units, as teams without a kernel do."""
    import torch

    weight = _scaled(w.float(), w_scale, GROUP).to(torch.bfloat16)
    return {"out": _scaled(a.float(), a_scale, 1).to(torch.bfloat16) @ weight.T}


def eager_fp32(a, a_scale, w, w_scale, prepared=None):
    import torch

    product = _scaled(a.float(), a_scale, 1) @ _scaled(w.float(), w_scale, GROUP).T
    return {"out": product.to(torch.bfloat16)}


def _small(rows, n_out, k_in, dtype):
    return _workload(rows, n_out, k_in, "bf16", dtype)


DEFINITION = Operator(
    name="block_scaled_mm",
    axes=AXES,
    inputs=inputs,
    static=("w", "w_scale"),
    outputs=outputs,
    reference=reference,
    cost=cost,
    match=match,
    tolerance={"out": "GEMM8"},
    scale=scale,
    baselines=(
        Implementation(name="eager", run=eager),
        Implementation(name="eager_fp32", run=eager_fp32),
        Implementation(name="compiled", run=eager_fp32, compiled=True),
    ),
    small=(
        _small(5, 256, 256, "fp8_e4m3fn"),  # as many blocks as groups: a transposed scale fits
        _small(1, 192, 1536, "fp8_e4m3fn"),  # one token, half a block of n, k long enough to split
        _small(33, 80, 208, "fp8_e4m3fnuz"),  # less than a block of n, a partial group of k
        _small(130, 320, 384, "fp8_e4m3fnuz"),
    ),
)
