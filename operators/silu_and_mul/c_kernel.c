#include "silu_and_mul.h"

enum { LANES = ATREX_LANES };
static const int64_t STREAM_BYTES = 8 << 20;

typedef __typeof__(*((struct silu_and_mul_args *)0)->x) x_t;
typedef __typeof__(*((struct silu_and_mul_args *)0)->out) out_t;
static const float LOG2_E = 1.44269502f, LOG2_E_REST = 1.92596299e-8f;
static const float ROUNDING = 12582912.0f; /* 1.5 * 2^23: adding it rounds to an integer */
static const uint32_t LARGEST = 0x42ae0000; /* bits of 87: exp(-87) is a normal number */
static const uint32_t SIGN = 0x80000000;

/* exp(x) = 2^n * 2^f with |f| <= 1/2: n goes into the exponent, a polynomial gives 2^f. */
static inline float exponential(float x)
{
    float shifted = x * LOG2_E + ROUNDING, n = shifted - ROUNDING;
    float f = (x * LOG2_E - n) + x * LOG2_E_REST;
    float p = 1.327640980e-3f * f + 9.675540837e-3f;
    p = p * f + 5.550713466e-2f;
    p = p * f + 2.402211974e-1f;
    p = p * f + 6.931469669e-1f;
    p = p * f + 1.0f;
    return atrex_bits_to_float(atrex_float_to_bits(p) + (atrex_float_to_bits(shifted) << 23));
}

static inline float activate(float gate, float up)
{
    /* Sizes are limited as integers: float minima make gcc split the loop into branches. */
    uint32_t half_size = atrex_float_to_bits(0.5f * gate) & ~SIGN;
    half_size = half_size < LARGEST ? half_size : LARGEST;
    float root = exponential(atrex_bits_to_float(half_size | SIGN)); /* exp(-|gate| / 2) */
    float part = gate < 0.0f ? root : 1.0f; /* twice, for the square underflows too early */
    return gate * part / (1.0f + root * root) * up * part;
}

/* Sixteen at once: the loop is what the compiler turns into vectors. */
static inline atrex_lanes activate_lanes(atrex_lanes gate, atrex_lanes up)
{
    float values[LANES];
    for (int lane = 0; lane < LANES; lane++)
        values[lane] = activate(gate[lane], up[lane]);
    return atrex_fp32_to_lanes(values);
}

static void activate_row(out_t *out, const x_t *gate, const x_t *up, int64_t width, int streaming)
{
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
        atrex_lanes value = activate_lanes(ATREX_LOAD_LANES_X(gate + i), ATREX_LOAD_LANES_X(up + i));
        if (streaming)
            ATREX_STREAM_LANES_OUT(out + i, value);
        else
            ATREX_STORE_LANES_OUT(out + i, value);
    }
    for (; i < width; i++)
        out[i] = ATREX_STORE_OUT(activate(ATREX_LOAD_X(gate[i]), ATREX_LOAD_X(up[i])));
}

int run(const struct silu_and_mul_args *args)
{
    const int64_t rows = args->out_shape[0], width = args->out_shape[1];
    const int streaming = rows * width * (int64_t)sizeof(out_t) >= STREAM_BYTES;
    if (args->x_stride[1] != 1 || args->out_stride[1] != 1)
        return 1; /* a row is contiguous, whatever lies between rows */
    for (int64_t row = 0; row < rows; row++) {
        const x_t *gate = args->x + row * args->x_stride[0];
        activate_row(args->out + row * args->out_stride[0], gate, gate + width, width, streaming);
    }
    atrex_stream_end();
    return 0;
}
