"""Independent chains of fp32 multiply-adds on registers: the rate of a GPU's vector units."""

from typing import Any

import triton
import triton.language as tl

CHAINS = 8  # of each element, so that a scheduler always finds one that is ready
BLOCK = 1024


@triton.jit  # type: ignore[untyped-decorator]
def chains_kernel(x: Any, steps: Any, BLOCK: tl.constexpr) -> None:
    """Run eight chains a = a * b + c on every element, and store it with all of them in it."""
    index = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    b = tl.load(x + index)
    a0, a1, a2, a3 = b, b + 1.0, b + 2.0, b + 3.0
    a4, a5, a6, a7 = b + 4.0, b + 5.0, b + 6.0, b + 7.0
    for _ in range(steps):
        a0, a1, a2, a3 = a0 * b + 0.5, a1 * b + 0.5, a2 * b + 0.5, a3 * b + 0.5
        a4, a5, a6, a7 = a4 * b + 0.5, a5 * b + 0.5, a6 * b + 0.5, a7 * b + 0.5
    tl.store(x + index, (a0 + a1 + a2 + a3 + a4 + a5 + a6 + a7) * 0.0 + b)


def run(x: Any, steps: int) -> None:
    """Run the chains over x [elements], a multiple of the block, and leave it as it is."""
    chains_kernel[(x.numel() // BLOCK,)](x, steps, BLOCK=BLOCK)
