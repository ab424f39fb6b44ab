"""Draw inputs from an integer hash of (key, index) through quantile tables.

Integer arithmetic, table look-ups and single fp32 multiplications give the same bits on every
device, unlike library generators, whose streams depend on the GPU. The key of a call comes from
the judge's secret seed through SHA-256, so seeing one call's inputs tells nothing about the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

from atrex.judge.tensors import torch_dtype

QUANTILES = 1 << 16  # table entries; 16 hash bits choose one (little-endian halves)
_BLOCK = 1 << 16  # elements hashed at a time, so that intermediates stay in the L2 cache
_STEP = -1640531535  # 2^32 / golden ratio as int32: spreads consecutive indices (Knuth 6.4)
_MIX = (-2048144789, -1028477387)  # multipliers of MurmurHash3's 32-bit finaliser (Appleby, 2011)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A hidden distribution of the inputs.

    Attributes:
        name: Shown in verdicts; values are never shown.
        realistic: Keep the operator's declared gains and row magnitudes.
        factor: Multiplies activations and plain normals.
        table: Quantile table of activations and normals.
        row_octaves: Rows are scaled by 2^U(-row_octaves, row_octaves).
        spike: One element is multiplied by 1000.
        flat: Rows hold one value each, the first row zeros.
        precise: Zero-mean data, all different, on which gates on many elements at once hold.
    """

    name: str
    realistic: bool = False
    factor: float = 1.0
    table: str = "normal"
    row_octaves: float = 0.0
    spike: bool = False
    flat: bool = False
    precise: bool = True


# integrity.md 2.2: C1-C5, C7, C9, C10, C12
CASES = (
    Case(name="x1"),
    Case(name="realistic", realistic=True),
    Case(name="x3", factor=3.0),
    Case(name="x0.01", factor=0.01),
    Case(name="x-1", factor=-1.0),
    Case(name="heavy_tails", table="pareto", precise=False),
    Case(name="scaled_rows", row_octaves=8.0),
    Case(name="flat_rows", flat=True, precise=False),
    Case(name="spike", spike=True, precise=False),
)
TIMED = CASES[1]  # timed calls see realistic values


class Generator:
    """The `Draw` of one call; see `atrex.operator.Draw` for what the methods mean.

    Args:
        key: Secret bytes of this call; see `call_key`.
        case: Distribution to draw from.
        device: torch device that computes and holds the tensors.
    """

    def __init__(self, key: bytes, case: Case, device: str = "cpu") -> None:
        self.key = key
        self.case = case
        self.device = device

    def activation(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        row_stride: int | None = None,
        row_decades: float = 0.0,
    ) -> Any:
        """Draw N(0,1) with channel gains and row magnitudes, as the case says."""
        case, width = self.case, shape[-1]
        columns = None
        if case.realistic:
            columns = self._values(f"{name}/gain", width, "lognormal", 0.5)
        rows = None
        spread = (
            row_decades * 3.3219280948873626 if case.realistic else case.row_octaves
        )  # log2(10)
        if spread:
            rows = self._values(f"{name}/rows", _count(shape) // width, "octaves", spread)
        values = self._fill(name, shape, dtype, rows=rows, columns=columns)
        if row_stride is None or row_stride == width:
            return values
        return _strided(values, row_stride)

    def normal(
        self, name: str, shape: tuple[int, ...], dtype: str, *, mean: float = 0.0, std: float = 1.0
    ) -> Any:
        """Draw N(mean, std^2), scaled by the case."""
        return self._fill(name, shape, dtype, scale=std, shift=mean)

    def weight(self, name: str, shape: tuple[int, ...], dtype: str, *, fan_in: int) -> Any:
        """Draw N(0, 1/fan_in)."""
        return self._parameter(name, shape, dtype, fan_in**-0.5, 0.0)

    def gain(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """Draw 1 + 0.2 N(0,1); in the plain cases N(1, 0.5) of random sign."""
        if self.case.realistic:
            return self._parameter(name, shape, dtype, 0.2, 1.0)
        sign = self._values(f"{name}/sign", _count(shape), "sign", 0.0).reshape(shape)
        return (self._parameter(name, shape, "fp32", 0.5, 1.0) * sign).to(torch_dtype(dtype))

    def bias(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """Draw N(0, 0.01); in the plain cases N(0,1)."""
        return self._parameter(name, shape, dtype, 0.1 if self.case.realistic else 1.0, 0.0)

    def uniform(
        self, name: str, shape: tuple[int, ...], dtype: str, *, low: float = 0.0, high: float = 1.0
    ) -> Any:
        """Draw U(low, high)."""
        values = self._values(name, _count(shape), "uniform", 0.0) * (high - low) + low
        return values.reshape(shape).to(torch_dtype(dtype))

    def integers(
        self, name: str, shape: tuple[int, ...], *, low: int, high: int, dtype: str = "int32"
    ) -> Any:
        """Draw integers in [low, high), by the high bits of a 32-bit hash."""
        import torch

        count = _count(shape)
        out = torch.empty(count, dtype=torch.int64, device=self.device)
        for start, block in self._hashes(name, count):
            wide = block.to(torch.int64) & 0xFFFFFFFF
            out[start : start + len(block)] = low + ((wide * (high - low)) >> 32)
        return out.reshape(shape).to(torch_dtype(dtype))

    def _parameter(
        self, name: str, shape: tuple[int, ...], dtype: str, std: float, mean: float
    ) -> Any:
        values = self._values(name, _count(shape), "normal", 0.0) * std + mean
        return values.reshape(shape).to(torch_dtype(dtype))

    def _values(self, name: str, count: int, table: str, parameter: float) -> Any:
        """Return `count` fp32 values of a quantile table."""
        import torch

        quantiles = _table(table, parameter, self.device)
        out = torch.empty(count, dtype=torch.float32, device=self.device)
        for start, index in self._indices(name, count):
            torch.index_select(quantiles, 0, index, out=out[start : start + len(index)])
        return out

    def _fill(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        rows: Any = None,
        columns: Any = None,
        scale: float = 1.0,
        shift: float = 0.0,
    ) -> Any:
        """Draw a tensor of the case's distribution block by block; the cast rounds once."""
        import torch

        case, count = self.case, _count(shape)
        if case.flat:
            return self._flat_rows(name, shape, dtype, scale, shift)
        table = _table(case.table, 0.0, self.device) * (case.factor * scale)
        out = torch.empty(count, dtype=torch_dtype(dtype), device=self.device)
        if rows is None and columns is None and not shift:
            table = table.to(out.dtype)  # one rounding either way, at half the traffic
            for start, index in self._indices(name, count):
                torch.index_select(table, 0, index, out=out[start : start + len(index)])
        else:
            width = shape[-1]
            step = 2 * max(1, _BLOCK // (2 * width)) * width
            for start, index in self._indices(name, count, step):
                values = torch.index_select(table, 0, index).reshape(-1, width)
                if columns is not None:
                    values *= columns
                if rows is not None:
                    first = start // width
                    values *= rows[first : first + len(values), None]
                if shift:
                    values += shift
                out[start : start + len(index)] = values.reshape(-1).to(out.dtype)
        if case.spike:
            where = int(self.integers(f"{name}/spike", (1,), low=0, high=count)[0])
            out[where] = (out[where].float() * 1000).to(out.dtype)
        return out.reshape(shape)

    def _flat_rows(
        self, name: str, shape: tuple[int, ...], dtype: str, scale: float, shift: float
    ) -> Any:
        import torch

        rows = self._values(f"{name}/flat", _count(shape) // shape[-1], "normal", 0.0) * scale
        rows[0] = 0.0
        rows += shift
        ones = torch.ones(shape[-1], dtype=torch.float32, device=self.device)
        return (rows[:, None] * ones).reshape(shape).to(torch_dtype(dtype))

    def _indices(self, name: str, count: int, step: int = _BLOCK) -> Iterator[tuple[int, Any]]:
        """Yield (start, table indices) block by block; each 32-bit hash gives two of 16 bits."""
        import torch

        for half, block in self._hashes(name, (count + 1) // 2, step // 2):
            index = block.view(torch.int16).to(torch.int32)
            index &= 0xFFFF
            yield 2 * half, index[: count - 2 * half]

    def _hashes(self, name: str, count: int, step: int = _BLOCK) -> Iterator[tuple[int, Any]]:
        """Yield (start, int32 hashes) block by block."""
        digest = hashlib.sha256(self.key + name.encode()).digest()
        offset, twist = (int.from_bytes(digest[i : i + 4], "little", signed=True) for i in (0, 4))
        ramp = _ramp(max(step, 1), self.device)
        for start in range(0, count, step):
            block = ramp[: min(step, count - start)] + _wrap(start * _STEP + offset)
            block ^= (block >> 16) & 0xFFFF
            block *= _MIX[0]
            block ^= twist
            block ^= (block >> 13) & 0x7FFFF
            block *= _MIX[1]
            block ^= (block >> 16) & 0xFFFF
            yield start, block


class Sketch(Generator):
    """Gives the shapes of a draw without its values: floats lie on the meta device.

    Integers are drawn, from a public key: lengths and ids decide shapes and costs.
    """

    def __init__(self) -> None:
        super().__init__(b"sketch", TIMED)

    def activation(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        *,
        row_stride: int | None = None,
        row_decades: float = 0.0,
    ) -> Any:
        """Return a meta tensor of the shape and strides."""
        import torch

        if row_stride is None:
            return _meta(shape, dtype)
        return torch.empty_strided(shape, (row_stride, 1), dtype=torch_dtype(dtype), device="meta")

    def normal(
        self, name: str, shape: tuple[int, ...], dtype: str, *, mean: float = 0.0, std: float = 1.0
    ) -> Any:
        """Return a meta tensor."""
        return _meta(shape, dtype)

    def gain(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """Return a meta tensor."""
        return _meta(shape, dtype)

    def uniform(
        self, name: str, shape: tuple[int, ...], dtype: str, *, low: float = 0.0, high: float = 1.0
    ) -> Any:
        """Return a meta tensor."""
        return _meta(shape, dtype)

    def _parameter(
        self, name: str, shape: tuple[int, ...], dtype: str, std: float, mean: float
    ) -> Any:
        return _meta(shape, dtype)


def _meta(shape: tuple[int, ...], dtype: str) -> Any:
    import torch

    return torch.empty(shape, dtype=torch_dtype(dtype), device="meta")


def call_key(seed: bytes, *parts: object) -> bytes:
    """Derive the key of one call from the secret seed, the task, the case and the call number."""
    return hashlib.sha256(seed + "\0".join(map(str, parts)).encode()).digest()


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _wrap(value: int) -> int:
    """Reduce to a signed 32-bit integer, as int32 arithmetic does."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


@cache
def _ramp(length: int, device: str) -> Any:
    import torch

    return torch.arange(length, dtype=torch.int32, device=device) * _STEP


@cache
def _table(name: str, parameter: float, device: str) -> Any:
    """Return a quantile table in fp32, computed in fp64 on the CPU so that no device differs."""
    import torch

    u = (torch.arange(QUANTILES, dtype=torch.float64) + 0.5) / QUANTILES
    centred = 2 * u - 1
    values: Any
    if name == "normal":
        values = torch.special.ndtri(u)
    elif name == "uniform":
        values = u
    elif name == "sign":
        values = centred.sign()
    elif name == "lognormal":
        values = (parameter * torch.special.ndtri(u)).exp()
    elif name == "octaves":
        values = (parameter * centred).exp2()
    elif name == "pareto":  # symmetric, alpha = 1.5 (C7)
        values = centred.sign() * centred.abs() ** (-1 / 1.5)
    else:
        raise KeyError(name)
    return values.to(torch.float32).to(device)


def _strided(values: Any, row_stride: int) -> Any:
    """Place rows `row_stride` elements apart; what lies between is huge but finite."""
    import torch

    rows, width = values.shape
    wide = torch.full((rows, row_stride), 30000.0, device=values.device).to(values.dtype)
    wide[:, :width] = values
    return wide[:, :width]
