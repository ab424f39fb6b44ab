"""Store to address 8. Expected: crashed."""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include "rms_norm.h"

int run(const struct rms_norm_args *args)
{
    *(volatile int64_t *)8 = args->x_shape[0];
    return 0;
}
"""
