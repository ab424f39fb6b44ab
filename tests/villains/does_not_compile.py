"""Use a name that nothing declares. Expected: compile_failed."""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include "rms_norm.h"

int run(const struct rms_norm_args *args)
{
    return normalise(args->x, undeclared);
}
"""
