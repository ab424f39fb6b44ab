"""Never return, without using the CPU. Expected: timed_out."""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include <unistd.h>

#include "rms_norm.h"

int run(const struct rms_norm_args *args)
{
    for (;;)
        pause();
    return (int)args->x_shape[0];
}
"""
