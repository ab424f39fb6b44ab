#include <math.h>

#include "rms_norm.h"

enum { LANES = ATREX_LANES, LINE_BYTES = 64 };
static const int64_t STREAM_BYTES = 8 << 20;

typedef __typeof__(*((struct rms_norm_args *)0)->x) x_t;
typedef __typeof__(*((struct rms_norm_args *)0)->weight) weight_t;
typedef __typeof__(*((struct rms_norm_args *)0)->out) out_t;

/* Four chains of partial sums, so that no addition waits for the one before it. */
static float mean_square(const x_t *x, int64_t width)
{
    atrex_lanes chains[4] = {{0}};
    int64_t i = 0;
    for (; i + 4 * LANES <= width; i += 4 * LANES)
        for (int chain = 0; chain < 4; chain++) {
            atrex_lanes value = ATREX_LOAD_LANES_X(x + i + chain * LANES);
            chains[chain] += value * value;
        }
    float total = atrex_sum_lanes((chains[0] + chains[1]) + (chains[2] + chains[3]));
    for (; i < width; i++)
        total += ATREX_LOAD_X(x[i]) * ATREX_LOAD_X(x[i]);
    return total / (float)width;
}

static void scale_row(out_t *out, const x_t *x, const weight_t *weight, float scale, float offset,
                      int64_t width, int streaming)
{
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        atrex_lanes gain = ATREX_LOAD_LANES_WEIGHT(weight + i) + offset;
        atrex_lanes value = ATREX_LOAD_LANES_X(x + i) * scale * gain;
        if (streaming)
            ATREX_STREAM_LANES_OUT(out + i, value);
        else
            ATREX_STORE_LANES_OUT(out + i, value);
    }
    for (; i < width; i++) {
        float gain = ATREX_LOAD_WEIGHT(weight[i]) + offset;
        out[i] = ATREX_STORE_OUT(ATREX_LOAD_X(x[i]) * scale * gain);
    }
}

/* Ask for the next row while this one is worked on: strided rows defeat the hardware's guess. */
static void prefetch_row(const x_t *x, int64_t width)
{
    const char *line = (const char *)x, *end = (const char *)(x + width);
    for (; line < end; line += LINE_BYTES)
        __builtin_prefetch(line);
}

int run(const struct rms_norm_args *args)
{
    const int64_t rows = args->x_shape[0], width = args->x_shape[1];
    const float offset = (float)args->weight_offset, eps = (float)args->eps;
    const int streaming = rows * width * (int64_t)sizeof(out_t) >= STREAM_BYTES;
    if (args->x_stride[1] != 1 || args->out_stride[1] != 1 || args->weight_stride[0] != 1)
        return 1; /* a row is contiguous, whatever lies between rows */
    for (int64_t row = 0; row < rows; row++) {
        const x_t *x = args->x + row * args->x_stride[0];
        out_t *out = args->out + row * args->out_stride[0];
        float scale = 1.0f / sqrtf(mean_square(x, width) + eps);
        if (row + 1 < rows)
            prefetch_row(x + args->x_stride[0], width);
        scale_row(out, x, args->weight, scale, offset, width, streaming);
    }
    atrex_stream_end();
    return 0;
}
