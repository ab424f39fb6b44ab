"""Shared memory between the judge and a worker, and where tensors lie in it.

An arena lies in an anonymous memory file, or in what a device gives. A sealed file is written by
the judge alone: the kernel refuses every other writable mapping, so inputs need no trust in the
worker. All bytes outside the placed tensors are red zone, filled with a keyed pattern that no
worker can predict.
"""

from __future__ import annotations

import fcntl
import hashlib
import math
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy
from numpy.typing import NDArray

from atrex.judge.mapping import HUGE_BYTES, map_arena
from atrex.judge.tensors import ITEM_BYTES, torch_dtype
from atrex.model import Record
from atrex.operator import TensorSpec

Bytes = NDArray[numpy.uint8]

RED_ZONE_BYTES = 64 << 10  # integrity.md 2.1: around every buffer
PAGE_BYTES = 4096
F_SEAL_FUTURE_WRITE = 0x10  # linux/fcntl.h, since 5.1; Python names it from 3.13

# Floats that NumPy lacks, and fp16, which numba lacks on the CPU, are unsigned views.
_UNSIGNED = {"bf16": "uint16", "fp16": "uint16"}
_NUMPY_NAMES = {"fp64": "float64", "fp32": "float32"}


class Placement(Record, frozen=True, kw_only=True):
    """One tensor in an arena.

    Attributes:
        arena: Index of the arena among those of the worker.
        offset: Of the first element, in bytes.
        strides: In elements.
        dtype: Name of the storage type.
    """

    arena: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str

    @property
    def nbytes(self) -> int:
        """Bytes from the first to past the last element, gaps between rows included."""
        return extent(self.shape, self.strides) * ITEM_BYTES[self.dtype]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the row-major strides of a shape, in elements."""
    strides, step = [], 1
    for length in reversed(shape):
        strides.append(step)
        step *= length
    return tuple(reversed(strides))


def extent(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the elements that a strided tensor spans; 0 if it is empty."""
    if 0 in shape:
        return 0
    return 1 + sum((length - 1) * stride for length, stride in zip(shape, strides, strict=True))


def required_bytes(specs: Sequence[TensorSpec]) -> int:
    """Return the size of an arena that holds these tensors, red zones and offsets included."""
    total = RED_ZONE_BYTES
    for spec in specs:
        strides = spec.strides or contiguous(spec.shape)
        total += extent(spec.shape, strides) * ITEM_BYTES[spec.dtype] + RED_ZONE_BYTES + PAGE_BYTES
    return math.ceil(total / PAGE_BYTES) * PAGE_BYTES


class Backing(Protocol):
    """The bytes of an arena, and how a worker gets at them.

    Attributes:
        buffer: All of them, uint8, as a NumPy array or a torch tensor on a device.
        fd: Descriptor to hand to a worker; None where a handle does.
        handle: What a worker opens; empty where a descriptor does.
    """

    buffer: Any
    fd: int | None
    handle: bytes

    def tensor(self, placement: Placement) -> Any:
        """Return a placed tensor as a torch tensor over the bytes."""

    def constant(self, content: bytes) -> Any:
        """Return constant bytes that lie where these do."""

    def fingerprint(self, nbytes: int, key: int) -> int:
        """Hash the first bytes, where nothing else keeps workers from writing them."""

    def close(self) -> None:
        """Free what a worker could still reach; the bytes go with their last view."""


class Memory(Protocol):
    """Where the tensors of a workload lie.

    Attributes:
        device: torch device that the judge computes on, e.g. ``"cpu"``.
    """

    device: str

    def arena(self, size: int, *, sealed: bool, index: int) -> Arena:
        """Return memory to be shared with a worker."""


class MemoryFile:
    """A backing in host memory: an anonymous file, sealed or writable by workers."""

    def __init__(self, size: int, *, sealed: bool) -> None:
        self.fd: int | None = os.memfd_create("atrex", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.handle = b""
        os.ftruncate(self.fd, size)
        self.memory = map_arena(self.fd, size, writable=True)
        # Without the size seals a worker could truncate the file and kill the judge by SIGBUS.
        seals = fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        if sealed:
            seals |= F_SEAL_FUTURE_WRITE  # our own mapping above stays writable
        fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, seals)
        self.buffer: Bytes = numpy.frombuffer(self.memory, dtype=numpy.uint8)

    def tensor(self, placement: Placement) -> Any:
        """Return a placed tensor as a torch tensor over the mapped file."""
        return torch_view(self.memory, placement)

    def constant(self, content: bytes) -> Bytes:
        """Return constant bytes as an array."""
        return numpy.frombuffer(content, dtype=numpy.uint8)

    def fingerprint(self, nbytes: int, key: int) -> int:
        """Return 0: the kernel refuses to write a sealed file."""
        return 0

    def close(self) -> None:
        """Close the descriptor."""
        if self.fd is not None:
            os.close(self.fd)
            self.fd = None


class Arena:
    """Memory that the judge can always write, with tensors at random places.

    Args:
        size: In bytes; rounded up to whole huge pages.
        sealed: Whether workers may only read.
        index: Position among the arenas of a worker.
        key: Of the red zones' pattern; random by default.
        backing: Where the bytes lie; host memory by default.

    Attributes:
        size: In bytes, a multiple of the huge page.
    """

    def __init__(
        self,
        size: int,
        *,
        sealed: bool,
        index: int = 0,
        key: bytes = b"",
        backing: Callable[[int], Backing] | None = None,
    ) -> None:
        self.size = max(math.ceil(size / HUGE_BYTES), 1) * HUGE_BYTES
        self.sealed = sealed
        self.index = index
        self.backing: Backing = (
            backing(self.size) if backing else MemoryFile(self.size, sealed=sealed)
        )
        self._bytes = self.backing.buffer
        self._end = 0
        self._used: list[tuple[int, int]] = []
        self._seal = (0, 0)  # key, and how many bytes
        self._hash = 0
        pattern = hashlib.shake_256(key or secrets.token_bytes(32)).digest(RED_ZONE_BYTES)
        self._pattern = self.backing.constant(pattern)

    def seal(self) -> None:
        """Remember what lies here now, so that `broken` can tell."""
        self._seal = secrets.randbits(62), self._end
        self._hash = self.backing.fingerprint(self._end, self._seal[0])

    def broken(self) -> bool:
        """Whether a sealed arena has changed since `seal`."""
        key, end = self._seal
        return self.backing.fingerprint(end, key) != self._hash

    def view(self, offset: int, nbytes: int) -> Any:
        """Return bytes of the arena, writable and shared.

        Raises:
            ValueError: The range is not inside the arena.
        """
        if offset < 0 or nbytes < 0 or offset + nbytes > self.size:
            raise ValueError(f"bytes {offset} to {offset + nbytes} of an arena of {self.size}")
        return self._bytes[offset : offset + nbytes]

    def bytes_of(self, placement: Placement) -> Any:
        """Return the bytes that a placed tensor spans."""
        return self.view(placement.offset, placement.nbytes)

    def tensor(self, placement: Placement) -> Any:
        """Return a placed tensor as a torch tensor over the shared memory."""
        return self.backing.tensor(placement)

    def place(self, spec: TensorSpec, *, alignment: int = 64) -> Placement:
        """Reserve room for a tensor behind a red zone, at a random multiple of `alignment`.

        The offset differs from call to call within one page, so that neither a cached address
        nor an alignment that the contract does not promise helps.

        Args:
            spec: Shape, dtype and strides of the tensor.
            alignment: Bytes, a power of two from 16 to 256.

        Raises:
            ValueError: The arena is full, or the alignment is out of range.
        """
        if alignment not in (16, 32, 64, 128, 256):
            raise ValueError(f"alignment {alignment} is not a power of two from 16 to 256")
        strides = spec.strides or contiguous(spec.shape)
        nbytes = extent(spec.shape, strides) * ITEM_BYTES[spec.dtype]
        start = math.ceil((self._end + RED_ZONE_BYTES) / alignment) * alignment
        start += secrets.randbelow(PAGE_BYTES // alignment) * alignment
        if start + nbytes + RED_ZONE_BYTES > self.size:
            raise ValueError(f"{nbytes} bytes do not fit behind {self._end} of {self.size}")
        self._end = start + nbytes
        self._used.append((start, self._end))
        return Placement(
            arena=self.index, offset=start, shape=spec.shape, strides=strides, dtype=spec.dtype
        )

    def clear(self) -> None:
        """Forget every placement, so that the room can be used for others."""
        self._end = 0
        self._used.clear()

    def paint_red_zones(self) -> None:
        """Fill every byte outside the placed tensors with the pattern."""
        for start, end in self._gaps():
            for at in range(start, end, RED_ZONE_BYTES):
                stop = min(at + RED_ZONE_BYTES, end)
                self._bytes[at:stop] = self._pattern[: stop - at]

    def check_red_zones(self) -> int | None:
        """Return the offset of the first byte that was overwritten outside any tensor, else None.

        The unused tail is looked at for one red zone only: the rest of a large arena would cost
        more than the call.
        """
        for start, end in self._gaps():
            for at in range(start, end, RED_ZONE_BYTES):
                stop = min(at + RED_ZONE_BYTES, end)
                damaged = self._bytes[at:stop] != self._pattern[: stop - at]
                if damaged.any():
                    return at + int((damaged * 1).argmax())  # torch has none of booleans
        return None

    def _gaps(self) -> list[tuple[int, int]]:
        starts = [0, *(end for _, end in self._used)]
        ends = [*(start for start, _ in self._used), min(self._end + RED_ZONE_BYTES, self.size)]
        return list(zip(starts, ends, strict=True))

    def close(self) -> None:
        """Free what a worker could still reach; the memory goes with its last view."""
        self.backing.close()


class HostMemory:
    """Tensors in host memory."""

    device = "cpu"

    def arena(self, size: int, *, sealed: bool, index: int) -> Arena:
        """Return a memory file."""
        return Arena(size, sealed=sealed, index=index)


def torch_view(memory: memoryview, placement: Placement) -> Any:
    """Return a placed tensor as a torch tensor over mapped memory."""
    import warnings

    import torch

    dtype = torch_dtype(placement.dtype)
    if placement.nbytes == 0:
        return torch.empty(placement.shape, dtype=dtype)
    with warnings.catch_warnings():
        # torch has no read-only tensors and warns; sealed memory refuses a store by itself.
        warnings.filterwarnings("ignore", message="The given buffer is not writable")
        flat = torch.frombuffer(
            memory, dtype=torch.uint8, count=placement.nbytes, offset=placement.offset
        )
    return flat.view(dtype).as_strided(placement.shape, placement.strides)


def numpy_name(dtype: str) -> str:
    """Return the NumPy dtype that holds a storage type: itself, or unsigned bits."""
    if dtype.startswith("fp8"):
        return "uint8"
    return _UNSIGNED.get(dtype) or _NUMPY_NAMES.get(dtype, dtype)


def numpy_view(memory: memoryview, placement: Placement) -> NDArray[Any]:
    """Return a placed tensor as a NumPy array, bf16, fp16 and fp8 as unsigned integers."""
    item = ITEM_BYTES[placement.dtype]
    name = numpy_name(placement.dtype)
    if placement.nbytes == 0:
        return numpy.empty(placement.shape, dtype=name)
    return numpy.ndarray(
        placement.shape,
        dtype=name,
        buffer=memory,
        offset=placement.offset,
        strides=tuple(stride * item for stride in placement.strides),
    )
