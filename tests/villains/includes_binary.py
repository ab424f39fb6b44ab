"""Paste a compiled library into the kernel through the assembler.

The directive is assembled from pieces by macros, so that no search of the text finds it.
Expected: forbidden.
"""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include "rms_norm.h"

#define TEXT(x) #x
#define PASTE(a, b) TEXT(.a##b)
__asm__(".pushsection .rodata\n" PASTE(inc, bin) " \"/proc/self/exe\"\n.popsection");

int run(const struct rms_norm_args *args)
{
    return args->x_shape[0] < 0;
}
"""
