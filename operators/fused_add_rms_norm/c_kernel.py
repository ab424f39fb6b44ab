"""fused_add_rms_norm in C, one thread: the sum is formed twice rather than stored and read back.

Bound by memory: 8 bytes move for each bf16 element (two tensors in, two out). The first pass writes
residual_out, which is the sum rounded once, and adds up squares of the unrounded sum; the second
pass adds x and residual again, now from the cache, because an addition is cheaper than a fetch of
residual_out after it went past the caches. That also leaves one rounding between input and out.

- squares run in four chains of 16 lanes, in fp32: at most 2u * (width / 64) of error;
- outputs of 8 MiB and more go past the caches, which saves fetching the lines they overwrite.

Valid for any width with contiguous rows; bf16, fp16 and fp32; outputs may not alias the inputs.
"""

OPERATOR = "fused_add_rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp16", "fp32")
SOURCE = "c_kernel.c"
