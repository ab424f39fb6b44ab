"""Tensors in a device's memory: owned by the judge, opened by workers through a handle.

A device has no mapping that only one process may write, so inputs are fingerprinted before a call
and again after it: who changes one is found out, not hindered.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from atrex.judge.devices.accelerator import Accelerator
from atrex.judge.memory import Arena, Placement
from atrex.judge.tensors import torch_dtype

_BLOCK = 1 << 20  # words hashed at a time: 8 MiB of intermediates
ALL_BYTES = 64 << 20  # up to here every block is hashed
SHARE = 16  # of larger ones, one block in so many
_ODD = -7046029254386353131  # 2^64 / golden ratio as int64, odd: spreads consecutive indices


class DeviceMemory:
    """Memory of one device, as the judge hands it out."""

    def __init__(self, accelerator: Accelerator) -> None:
        self._accelerator = accelerator
        self.device = accelerator.device
        # of the calibration's copy: beyond the cache, some 50 us on a current GPU
        self.copy_bytes = 2 * accelerator.facts().l2_bytes

    def arena(self, size: int, *, sealed: bool, index: int) -> Arena:
        """Allocate device memory."""
        return Arena(size, sealed=sealed, index=index, backing=self._backing)

    def _backing(self, size: int) -> DeviceBuffer:
        return DeviceBuffer(self._accelerator, size)


class DeviceBuffer:
    """The bytes of an arena on a device."""

    fd: int | None = None

    def __init__(self, accelerator: Accelerator, size: int) -> None:
        self.buffer = accelerator.allocate(size)
        self.handle = accelerator.share(self.buffer)

    def tensor(self, placement: Placement) -> Any:
        """Return a placed tensor."""
        return device_view(self.buffer, placement)

    def constant(self, content: bytes) -> Any:
        """Return constant bytes on the device."""
        import torch

        return torch.frombuffer(bytearray(content), dtype=torch.uint8).to(self.buffer.device)

    def fingerprint(self, nbytes: int, key: int) -> int:
        """Return a keyed 64-bit hash of the first bytes."""
        return fingerprint(self.buffer[:nbytes], key)

    def close(self) -> None:
        """Do nothing: the memory is freed with its last view."""


def device_view(buffer: Any, placement: Placement) -> Any:
    """Return a placed tensor over a flat uint8 tensor."""
    import torch

    dtype = torch_dtype(placement.dtype)
    if placement.nbytes == 0:
        return torch.empty(placement.shape, dtype=dtype, device=buffer.device)
    flat = buffer[placement.offset : placement.offset + placement.nbytes].view(dtype)
    return flat.as_strided(placement.shape, placement.strides)


def fingerprint(content: Any, key: int) -> int:
    """Hash bytes as a sum of words times secret odd weights, modulo 2^64.

    Whoever does not know the key changes a word without changing the sum by luck only, one in 2^32
    or less. Of large inputs the key chooses a sixteenth of the blocks (integrity.md 2.1). Integer
    arithmetic gives the same number on every device.

    Args:
        content: Flat uint8 tensor; a rest of less than four bytes counts byte by byte.
        key: Secret, 63 bits.
    """
    import torch

    whole = len(content) // 4 * 4
    total = 0
    for part in (content[:whole].view(torch.int32), content[whole:]):
        for start in _starts(len(part), key):
            words = part[start : start + _BLOCK].to(torch.int64)
            index = torch.arange(start, start + len(words), device=content.device)
            weights = (index * _ODD) ^ key
            weights = (weights ^ (weights >> 29)) * _ODD
            total += int(((weights | 1) * words).sum())
        key ^= 1 << 62
    return total & 0xFFFFFFFFFFFFFFFF


def _starts(words: int, key: int) -> Iterator[int]:
    """Yield where the blocks begin that are hashed."""
    sampled = 4 * words > ALL_BYTES
    for number, start in enumerate(range(0, words, _BLOCK)):
        if not sampled or random.Random(key + number).randrange(SHARE) == 0:
            yield start
