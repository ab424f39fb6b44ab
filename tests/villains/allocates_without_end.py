"""Take memory until there is none. Expected: out_of_memory."""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include <stdlib.h>
#include <string.h>

#include "rms_norm.h"

static char *volatile block; /* seen from outside, so that the compiler keeps the allocations */

int run(const struct rms_norm_args *args)
{
    const size_t bytes = 1 << 20;
    for (;;) {
        block = malloc(bytes);
        memset(block, (int)args->x_shape[0], bytes);
    }
}
"""
