#include <math.h>

#include "fused_add_rms_norm.h"

enum { LANES = ATREX_LANES };
static const int64_t STREAM_BYTES = 8 << 20;

typedef __typeof__(*((struct fused_add_rms_norm_args *)0)->x) x_t;
typedef __typeof__(*((struct fused_add_rms_norm_args *)0)->residual) residual_t;
typedef __typeof__(*((struct fused_add_rms_norm_args *)0)->weight) weight_t;
typedef __typeof__(*((struct fused_add_rms_norm_args *)0)->out) out_t;
typedef __typeof__(*((struct fused_add_rms_norm_args *)0)->residual_out) residual_out_t;

/* Write the rounded sum; return the mean square of the unrounded one. Four chains of partial sums,
   so that no addition waits for the one before it. */
static float add_row(residual_out_t *residual_out, const x_t *x, const residual_t *residual,
                     int64_t width, int streaming)
{
    atrex_lanes chains[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        for (int chain = 0; chain < 4; chain++) {
            int64_t at = i + chain * LANES;
            atrex_lanes value = ATREX_LOAD_LANES_X(x + at) + ATREX_LOAD_LANES_RESIDUAL(residual + at);
            if (streaming)
                ATREX_STREAM_LANES_RESIDUAL_OUT(residual_out + at, value);
            else
                ATREX_STORE_LANES_RESIDUAL_OUT(residual_out + at, value);
            chains[chain] += value * value;
        }
    float total = atrex_sum_lanes((chains[0] + chains[1]) + (chains[2] + chains[3]));
    for (; i < width; i++) {
        float value = ATREX_LOAD_X(x[i]) + ATREX_LOAD_RESIDUAL(residual[i]);
        residual_out[i] = ATREX_STORE_RESIDUAL_OUT(value);
        total += value * value;
    }
    return total / (float)width;
}

static void scale_row(out_t *out, const x_t *x, const residual_t *residual, const weight_t *weight,
                      float scale, float offset, int64_t width, int streaming)
{
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        atrex_lanes value = ATREX_LOAD_LANES_X(x + i) + ATREX_LOAD_LANES_RESIDUAL(residual + i);
        value *= scale * (ATREX_LOAD_LANES_WEIGHT(weight + i) + offset);
        if (streaming)
            ATREX_STREAM_LANES_OUT(out + i, value);
        else
            ATREX_STORE_LANES_OUT(out + i, value);
    }
    for (; i < width; i++) {
        float value = ATREX_LOAD_X(x[i]) + ATREX_LOAD_RESIDUAL(residual[i]);
        out[i] = ATREX_STORE_OUT(value * (scale * (ATREX_LOAD_WEIGHT(weight[i]) + offset)));
    }
}

int run(const struct fused_add_rms_norm_args *args)
{
    const int64_t rows = args->x_shape[0], width = args->x_shape[1];
    const float offset = (float)args->weight_offset, eps = (float)args->eps;
    const int streaming = rows * width * (int64_t)sizeof(out_t) >= STREAM_BYTES;
    if (args->x_stride[1] != 1 || args->residual_stride[1] != 1 || args->weight_stride[0] != 1
        || args->out_stride[1] != 1 || args->residual_out_stride[1] != 1)
        return 1; /* a row is contiguous, whatever lies between rows */
    for (int64_t row = 0; row < rows; row++) {
        const x_t *x = args->x + row * args->x_stride[0];
        const residual_t *residual = args->residual + row * args->residual_stride[0];
        residual_out_t *residual_out = args->residual_out + row * args->residual_out_stride[0];
        out_t *out = args->out + row * args->out_stride[0];
        float mean_square = add_row(residual_out, x, residual, width, streaming);
        float scale = 1.0f / sqrtf(mean_square + eps);
        scale_row(out, x, residual, args->weight, scale, offset, width, streaming);
    }
    atrex_stream_end();
    return 0;
}
