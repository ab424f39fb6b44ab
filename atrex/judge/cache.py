"""Make the caches cold between two calls."""

from __future__ import annotations

import numpy


class Flush:
    """Evicts every line of the last-level cache by reading through twice its size.

    The judge does this after it has written the next inputs, which would otherwise reach the
    worker through the shared cache and beat the memory roof. It reads and does not write: lines
    that are left dirty would be written back while the kernel runs, at its expense. What a worker
    holds in its private caches is made stale by the judge's writes to inputs and outputs.

    Args:
        cache_bytes: Size of the last-level cache.
    """

    def __init__(self, cache_bytes: int) -> None:
        # ones, not zeros: untouched zero pages would all be the same page
        self._memory = numpy.ones(2 * cache_bytes // 8, dtype=numpy.int64)

    def __call__(self) -> None:
        """Read the whole buffer; what was dirty is written back on the way."""
        self._memory.sum()
