"""The GPUs that kernels are compiled for, and what one block may use of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from atrex.errors import UsageError

# Columns of tensor memory in an SM of sm_100. Source: PTX ISA 9.0, "Tensor Memory".
TENSOR_MEMORY_COLUMNS = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """An architecture, and the product that stands for it where a kernel asks.

    Attributes:
        name: As compilers call it, with its feature suffix.
        backend: Triton's name of the maker.
        architecture: Triton's name of the architecture.
        warp_size: Threads of a warp.
        shared_bytes: Shared memory of one block, at most.
        capability: Compute capability, as torch tells it.
        product: Product with that architecture.
        processors: Multiprocessors (compute units) of the product.
        lacks: Storage types that the architecture has no instructions for and Triton refuses.
    """

    name: str
    backend: Literal["cuda", "hip"]
    architecture: int | str
    warp_size: int
    shared_bytes: int
    capability: tuple[int, int]
    product: str
    processors: int
    lacks: tuple[str, ...] = ()

    def supports(self, dtype: str) -> bool:
        """Whether a workload's dtype (``"bf16"``, ``"bf16/fp8_e4m3fn"``) has instructions here."""
        return not set(dtype.replace(">", "/").split("/")) & set(self.lacks)


# Shared memory: CUDA C++ Programming Guide 13.0, "Technical Specifications per Compute Capability"
# (163 KB for 8.0, 227 KB for 9.0 and 10.0); AMD CDNA 3 ISA, "Local Data Share" (64 KiB).
# Processors: streaming multiprocessors, or compute units, of the product as sold.
TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        target.name: target
        for target in (
            Target(
                name="sm_80", backend="cuda", architecture=80, warp_size=32, shared_bytes=166_912,
                capability=(8, 0), product="A100", processors=108,
                lacks=("fp8_e4m3fn", "fp8_e4m3fnuz"),
            ),
            Target(
                name="sm_90a", backend="cuda", architecture=90, warp_size=32, shared_bytes=232_448,
                capability=(9, 0), product="H100 SXM", processors=132, lacks=("fp8_e4m3fnuz",),
            ),
            Target(
                name="sm_100a", backend="cuda", architecture=100, warp_size=32,
                shared_bytes=232_448, capability=(10, 0), product="B200", processors=148,
                lacks=("fp8_e4m3fnuz",),
            ),
            Target(
                name="gfx942", backend="hip", architecture="gfx942", warp_size=64,
                shared_bytes=65_536, capability=(9, 4), product="MI300X", processors=304,
            ),
        )
    }
)  # fmt: skip
DEFAULT_TARGETS = ("sm_90a", "sm_100a", "gfx942")


def target(name: str) -> Target:
    """Return a target by its name; ``sm_90`` means ``sm_90a``.

    Raises:
        UsageError: There is none of that name.
    """
    found = TARGETS.get(name) or TARGETS.get(f"{name}a")
    if found is None:
        raise UsageError(f"no target {name!r}", remedy=f"Use {', '.join(TARGETS)}.")
    return found
