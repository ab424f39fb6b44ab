# expected: ok or inconclusive
# needs device
# needs nvcc
"""rms_norm in CUDA C++, bf16: one block for each row."""

OPERATOR = "rms_norm"
BACKEND = "cuda"
DTYPES = ("bf16",)
SOURCE = r"""
#include "rms_norm.h"
#include <cuda_bf16.h>

__global__ void rms_norm(const __nv_bfloat16 *x, const __nv_bfloat16 *weight, __nv_bfloat16 *out,
                         int64_t stride, int width, float eps, float offset)
{
    __shared__ float partial[32];
    const int64_t row = blockIdx.x;
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
    for (int i = threadIdx.x; i < width; i += blockDim.x)
        out[row * width + i] = __float2bfloat16(__bfloat162float(x[row * stride + i]) * scale *
                                                (__bfloat162float(weight[i]) + offset));
}

extern "C" int run(const struct rms_norm_args *args, cudaStream_t stream)
{
    rms_norm<<<args->x_shape[0], 256, 0, stream>>>(
        (const __nv_bfloat16 *)args->x, (const __nv_bfloat16 *)args->weight,
        (__nv_bfloat16 *)args->out, args->x_stride[0], (int)args->x_shape[1], (float)args->eps,
        (float)args->weight_offset);
    return (int)cudaGetLastError();
}
"""
