"""The twin of rms_norm's C kernel that cheats: it computes once, then returns what it has.

Such kernels look many times faster wherever a benchmark checks one call and times others. Here
every call has fresh inputs and a poisoned output, and timed outputs are verified too.
"""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp16", "fp32")
SOURCE = r"""
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "rms_norm.h"

static void *kept;
static int64_t kept_bytes;

static void compute(const struct rms_norm_args *args)
{
    const int64_t rows = args->x_shape[0], width = args->x_shape[1];
    for (int64_t row = 0; row < rows; row++) {
        const __typeof__(*args->x) *x = args->x + row * args->x_stride[0];
        __typeof__(*args->out) *out = args->out + row * args->out_stride[0];
        float total = 0.0f;
        for (int64_t i = 0; i < width; i++)
            total += ATREX_LOAD_X(x[i]) * ATREX_LOAD_X(x[i]);
        const float scale = 1.0f / sqrtf(total / (float)width + (float)args->eps);
        for (int64_t i = 0; i < width; i++)
            out[i] = ATREX_STORE_OUT(ATREX_LOAD_X(x[i]) * scale
                                     * (ATREX_LOAD_WEIGHT(args->weight[i])
                                        + (float)args->weight_offset));
    }
}

int run(const struct rms_norm_args *args)
{
    const int64_t bytes = args->out_shape[0] * args->out_shape[1] * (int64_t)sizeof(*args->out);
    if (kept && kept_bytes == bytes) {
        memcpy(args->out, kept, (size_t)bytes);
        return 0;
    }
    compute(args);
    free(kept);
    kept = malloc((size_t)bytes);
    kept_bytes = bytes;
    if (kept)
        memcpy(kept, args->out, (size_t)bytes);
    return 0;
}
"""
