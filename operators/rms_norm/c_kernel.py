"""rms_norm in C, one thread: a row is read twice, the second time from the cache.

Bound by memory, narrowly: 64 bytes move for 16 bf16 elements (2 in, 2 out each), 3 ns at 20 GB/s;
their two passes are some 30 vector instructions, a third of them for rounding to bf16, and took
3.6 ns on one Zen 4 core with everything in its caches (64 x 4096, n = 200). Hence:

- the sum of squares runs in four chains of 16 lanes, in fp32: at most 2u * (width / 64) of error;
- the next row is prefetched while this one is scaled, which pays for rows that lie apart;
- outputs of 8 MiB and more go past the caches, which saves fetching the lines they overwrite.

Valid for any width and row stride with contiguous rows; bf16, fp16 and fp32. Sums of squares must
stay below the fp32 maximum: magnitudes up to 1e16 at width 8192.
"""

OPERATOR = "rms_norm"
BACKEND = "c"
DTYPES = ("bf16", "fp16", "fp32")
SOURCE = "c_kernel.c"
