"""Names of storage types, and what torch calls them."""

from __future__ import annotations

from functools import cache
from typing import Any

ITEM_BYTES = {
    "fp64": 8, "int64": 8, "fp32": 4, "int32": 4, "bf16": 2, "fp16": 2, "int16": 2,
    "fp8_e4m3fn": 1, "fp8_e4m3fnuz": 1, "fp8_e5m2": 1, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip
FLOATS = frozenset(name for name in ITEM_BYTES if name.startswith(("fp", "bf")))

# Largest finite values of the formats that overflow to NaN: a cast beyond them must clamp first.
LARGEST = {"fp8_e4m3fn": 448.0, "fp8_e4m3fnuz": 240.0, "fp8_e5m2": 57344.0}


@cache
def torch_dtype(name: str) -> Any:
    """Return the torch dtype of a storage type."""
    import torch

    return {
        "fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16,
        "fp16": torch.float16, "fp8_e4m3fn": torch.float8_e4m3fn,
        "fp8_e4m3fnuz": torch.float8_e4m3fnuz, "fp8_e5m2": torch.float8_e5m2,
        "int64": torch.int64, "int32": torch.int32, "int16": torch.int16, "int8": torch.int8,
        "uint8": torch.uint8, "bool": torch.bool,
    }[name]  # fmt: skip


def write_bytes(tensor: Any, content: bytes) -> None:
    """Fill a uint8 tensor of as many elements, wherever it lies."""
    import torch

    tensor.copy_(torch.frombuffer(bytearray(content), dtype=torch.uint8))


def dtype_name(tensor: Any) -> str:
    """Return the storage type of a tensor."""
    return next(name for name in ITEM_BYTES if torch_dtype(name) == tensor.dtype)
