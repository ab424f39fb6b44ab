"""Enter the kernel by an instruction, past every symbol. Expected: forbidden."""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp32")
SOURCE = r"""
#include "rms_norm.h"

int run(const struct rms_norm_args *args)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(57L) : "rcx", "r11", "memory"); /* fork */
    return args->x_shape[0] < 0 ? (int)result : 0;
}
"""
