# expected: ok or inconclusive
# needs device
# needs cupy
"""rms_norm as a CuPy RawKernel in bf16: one block for each row."""

import cupy
import torch

OPERATOR = "rms_norm"
BACKEND = "cupy"
DTYPES = ("bf16",)
SOURCE = r"""
#include <cuda_bf16.h>
extern "C" __global__ void rms_norm(const __nv_bfloat16 *x, const __nv_bfloat16 *weight,
                                    __nv_bfloat16 *out, long long stride, int width, float eps,
                                    float offset)
{
    __shared__ float partial[32];
    const long long row = blockIdx.x;
    float total = 0;
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float value = __bfloat162float(x[row * stride + i]);
        total += value * value;
    }
    for (int step = 16; step; step /= 2) total += __shfl_xor_sync(~0u, total, step);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = total;
    __syncthreads();
    total = 0;
    for (int i = 0; i < blockDim.x / 32; i++) total += partial[i];
    const float scale = rsqrtf(total / width + eps);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
        const float gain = __bfloat162float(weight[i]) + offset;
        const float value = __bfloat162float(x[row * stride + i]);
        out[row * width + i] = __float2bfloat16(value * scale * gain);
    }
}
"""
kernel = cupy.RawKernel(SOURCE, "rms_norm")


def run(x, weight, out, eps, weight_offset, prepared=None):
    rows, width = x.shape
    stream = cupy.cuda.ExternalStream(torch.cuda.current_stream().cuda_stream)
    with stream:
        kernel(
            (rows,),
            (256,),
            (
                x.data_ptr(),
                weight.data_ptr(),
                out.data_ptr(),
                x.stride(0),
                cupy.int32(width),
                cupy.float32(eps),
                cupy.float32(weight_offset),
            ),
        )
