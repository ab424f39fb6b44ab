"""Load a library at run time and let it work. Expected: forbidden."""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include <dlfcn.h>

#include "rms_norm.h"

int run(const struct rms_norm_args *args)
{
    void *library = dlopen("libtorch_cpu.so", RTLD_NOW);
    return library == 0 && args->x_shape[0] > 0;
}
"""
