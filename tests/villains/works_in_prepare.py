"""Compute the whole output in `prepare`, which is not timed. Expected: crashed.

While static inputs are prepared, no other tensor has an address.
"""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include <math.h>

#include "rms_norm.h"

static void norm_row(const struct rms_norm_args *args, int64_t row, int64_t x_row, int weighted)
{
    const int64_t width = args->x_shape[1];
    double total = 0;
    for (int64_t i = 0; i < width; i++) {
        double value = ATREX_LOAD_X(args->x[x_row * args->x_stride[0] + i]);
        total += value * value;
    }
    double scale = 1.0 / sqrt(total / width + args->eps);
    for (int64_t i = 0; i < width; i++) {
        double gain = weighted ? ATREX_LOAD_WEIGHT(args->weight[i]) + args->weight_offset : 1.0;
        double value = ATREX_LOAD_X(args->x[x_row * args->x_stride[0] + i]);
        args->out[row * args->out_stride[0] + i] = ATREX_STORE_OUT((float)(value * scale * gain));
    }
}

static void norm(const struct rms_norm_args *args)
{
    for (int64_t row = 0; row < args->x_shape[0]; row++)
        norm_row(args, row, row, 1);
}

int prepare(const struct rms_norm_args *args)
{
    norm(args);
    return 0;
}

int run(const struct rms_norm_args *args)
{
    return 0;
}
"""
