"""Honest twin of works_in_prepare: the weight is widened once, when it changes. Expected: ok."""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include <math.h>
#include <stdlib.h>

#include "rms_norm.h"

static float *gain;

int prepare(const struct rms_norm_args *args)
{
    free(gain);
    gain = malloc((size_t)args->weight_shape[0] * sizeof *gain);
    if (!gain)
        return 1;
    for (int64_t i = 0; i < args->weight_shape[0]; i++)
        gain[i] = ATREX_LOAD_WEIGHT(args->weight[i]) + (float)args->weight_offset;
    return 0;
}

int run(const struct rms_norm_args *args)
{
    const int64_t rows = args->x_shape[0], width = args->x_shape[1];
    for (int64_t row = 0; row < rows; row++) {
        const __typeof__(*args->x) *x = args->x + row * args->x_stride[0];
        __typeof__(*args->out) *out = args->out + row * args->out_stride[0];
        double total = 0;
        for (int64_t i = 0; i < width; i++)
            total += (double)ATREX_LOAD_X(x[i]) * ATREX_LOAD_X(x[i]);
        const double scale = 1.0 / sqrt(total / width + args->eps);
        for (int64_t i = 0; i < width; i++)
            out[i] = ATREX_STORE_OUT((float)(ATREX_LOAD_X(x[i]) * scale * gain[i]));
    }
    return 0;
}
"""
