"""Fill the output with zeros. Expected: incorrect."""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include "rms_norm.h"

int run(const struct rms_norm_args *args)
{
    for (int64_t i = 0; i < args->out_shape[0] * args->out_shape[1]; i++)
        args->out[i] = ATREX_STORE_OUT(0.0f);
    return 0;
}
"""
