"""Draw inputs from an integer hash of (key, index) through quantile tables.

Integer arithmetic, table look-ups and single fp32 multiplications give the same bits on every
device, unlike library generators, whose streams depend on the GPU. The key of a call comes from
the judge's secret seed through SHA-256, so seeing one call's inputs tells nothing about the next.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from atrex import lengths
from atrex.judge.tensors import LARGEST, torch_dtype

QUANTILES = 1 << 16  # table entries; 16 hash bits choose one (little-endian halves)
_BLOCK = 1 << 16  # elements hashed at a time, so that intermediates stay in the L2 cache
_STEP = -1640531535  # 2^32 / golden ratio as int32: spreads consecutive indices (Knuth 6.4)
OCTAVES_PER_DECADE = 3.3219280948873626  # log2(10)
PUBLIC_KEY = b"public"  # of what is part of a workload: loads of experts
HUGE = 30000.0  # finite in every 16-bit float; fp8 saturates
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
        spread = row_decades * OCTAVES_PER_DECADE if case.realistic else case.row_octaves
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
        return _cast(self._parameter(name, shape, "fp32", 0.5, 1.0) * sign, dtype)

    def bias(self, name: str, shape: tuple[int, ...], dtype: str) -> Any:
        """Draw N(0, 0.01); in the plain cases N(0,1)."""
        return self._parameter(name, shape, dtype, 0.1 if self.case.realistic else 1.0, 0.0)

    def uniform(
        self, name: str, shape: tuple[int, ...], dtype: str, *, low: float = 0.0, high: float = 1.0
    ) -> Any:
        """Draw U(low, high)."""
        values = self._values(name, _count(shape), "uniform", 0.0) * (high - low) + low
        return _cast(values, dtype).reshape(shape)

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

    def scale(self, name: str, shape: tuple[int, ...], *, typical: float, decades: float) -> Any:
        """Draw typical x 10^U(-decades, decades), in fp32."""
        values = self._values(name, _count(shape), "octaves", decades * OCTAVES_PER_DECADE)
        return (values * typical).reshape(shape)

    def lengths(self, spec: int | str, count: int) -> Any:
        """Return the public lengths of an axis value."""
        import torch

        return torch.tensor(lengths.resolve(spec, count), dtype=torch.int64, device=self.device)

    def permutation(self, name: str, count: int) -> Any:
        """Return a secret order: that of 31-bit hashes, ties by index."""
        return self.integers(name, (count,), low=0, high=1 << 31, dtype="int64").argsort(
            stable=True
        )

    def routing(
        self,
        name: str,
        tokens: int,
        experts: int,
        top_k: int,
        *,
        local: int | None = None,
        profile: str = "skewed",
    ) -> Any:
        """Route publicly, then rename experts and reorder tokens and slots secretly."""
        import torch

        local = experts if local is None else local
        chosen = _chosen(tokens, experts, top_k, profile, self.device)
        names = torch.full((experts,), -1, dtype=torch.int64, device=self.device)
        names[:local] = self.permutation(f"{name}/experts", local)
        ids = names[chosen[self.permutation(f"{name}/tokens", tokens)]]
        keys = self.integers(f"{name}/slots", (tokens, top_k), low=0, high=1 << 31, dtype="int64")
        return ids.gather(1, keys.argsort(dim=-1, stable=True)).to(torch.int32)

    def page_table(self, name: str, lens: Any, page: int) -> tuple[Any, int]:
        """Spread each sequence over shuffled pages."""
        import torch

        needs = (lens + page - 1) // page
        need, width = int(needs.sum()), max(1, int(needs.max()) if len(needs) else 0)
        padding = 1 if need < len(lens) * width else 0
        pages = max(need + need // 4 + 1, need + padding + 1)
        order = self.permutation(name, pages)
        column = torch.arange(width, device=self.device)
        used = column < needs[:, None]
        table = torch.full((len(lens), width), int(order[-1]), device=self.device)
        table[used] = order[:need]
        return table.to(torch.int32), pages

    def paged(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        table: Any,
        lens: Any,
        *,
        std: float = 1.0,
    ) -> Any:
        """Draw a cache, then spoil what no token of a sequence occupies."""
        import torch

        pages, page = shape[:2]
        cache = self.normal(name, shape, dtype, std=std)
        column = torch.arange(table.shape[1], device=self.device)
        pages_used = column < ((lens + page - 1) // page)[:, None]
        named = torch.zeros(pages, dtype=torch.bool, device=self.device)
        named[table.long()] = True
        position = column[:, None] * page + torch.arange(page, device=self.device)
        held = torch.zeros(pages, page, dtype=torch.bool, device=self.device)
        held[table.long()[pages_used]] = (position < lens[:, None, None])[pages_used]
        bits = cache.view(_bits()[cache.element_size()])
        for where, value in ((~held, HUGE), (~named, float("nan"))):
            filler = torch.tensor(value, device=self.device)
            filler = filler.to(cache.dtype) if value != value else _cast(filler, dtype)
            bits[where] = filler.view(bits.dtype)
        return cache

    def replace(self, tensor: Any, index: tuple[Any, ...], values: Any) -> Any:
        """Return the tensor, changed in place."""
        bits = _bits()[tensor.element_size()]
        tensor.view(bits)[tuple(part.long() for part in index)] = values.to(tensor.dtype).view(bits)
        return tensor

    def _parameter(
        self, name: str, shape: tuple[int, ...], dtype: str, std: float, mean: float
    ) -> Any:
        values = self._values(name, _count(shape), "normal", 0.0) * std + mean
        return _cast(values, dtype).reshape(shape)

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
            table = _cast(table, dtype)  # one rounding either way, at half the traffic
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
                out[start : start + len(index)] = _cast(values.reshape(-1), dtype)
        if case.spike:
            where = int(self.integers(f"{name}/spike", (1,), low=0, high=count)[0])
            out[where] = _cast(out[where].float() * 1000, dtype)
        return out.reshape(shape)

    def _flat_rows(
        self, name: str, shape: tuple[int, ...], dtype: str, scale: float, shift: float
    ) -> Any:
        import torch

        rows = self._values(f"{name}/flat", _count(shape) // shape[-1], "normal", 0.0) * scale
        rows[0] = 0.0
        rows += shift
        ones = torch.ones(shape[-1], dtype=torch.float32, device=self.device)
        return _cast(rows[:, None] * ones, dtype).reshape(shape)

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

    def scale(self, name: str, shape: tuple[int, ...], *, typical: float, decades: float) -> Any:
        """Return a meta tensor."""
        return _meta(shape, "fp32")

    def paged(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: str,
        table: Any,
        lens: Any,
        *,
        std: float = 1.0,
    ) -> Any:
        """Return a meta tensor."""
        return _meta(shape, dtype)

    def replace(self, tensor: Any, index: tuple[Any, ...], values: Any) -> Any:
        """Return the tensor as it is."""
        return tensor

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


def _cast(values: Any, dtype: str) -> Any:
    """Round to a storage type; fp8 saturates, as quantisers do."""
    if dtype in LARGEST:
        values = values.clamp(-LARGEST[dtype], LARGEST[dtype])
    return values.to(torch_dtype(dtype))


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def _wrap(value: int) -> int:
    """Reduce to a signed 32-bit integer, as int32 arithmetic does."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


@lru_cache(maxsize=8)
def _chosen(tokens: int, experts: int, top_k: int, profile: str, device: str) -> Any:
    """Return the public routing [tokens, top_k], before experts and tokens are renamed."""
    public = Generator(PUBLIC_KEY, TIMED, device)
    logits = public._values(f"routing/{tokens}/noise", tokens * experts, "gumbel", 0.0)
    bias = public._values(f"routing/{experts}/bias", experts, "normal", 0.0) * 0.5
    logits = logits.reshape(tokens, experts) + bias
    if profile == "hot":
        logits[:, 0] = 1000.0
    elif profile != "skewed":
        raise ValueError(f"no routing profile {profile!r}; known: skewed, hot")
    # tables have few values, so ties are common: a stable sort breaks them alike everywhere
    return logits.argsort(dim=-1, descending=True, stable=True)[:, :top_k]


@cache
def _bits() -> dict[int, Any]:
    """Return the integer type of each width: indexed stores of fp8 are not built everywhere."""
    import torch

    return {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


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
    elif name == "gumbel":
        values = -(-u.log()).log()
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
    wide = torch.full((rows, row_stride), HUGE, device=values.device).to(values.dtype)
    wide[:, :width] = values
    return wide[:, :width]
