"""Compare outputs with the fp64 reference: METHOD.md section 2.

Every element must pass. A gate is a band above everything the contract permits and below the first
rounding or omission that it does not. No gate has an absolute tolerance. Tensors are compared a few
rows at a time, so that the intermediates of a large output stay in the cache.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from atrex.judge.tensors import LARGEST, dtype_name

_NORM = {"bf16": (3.5e-3, 2.5e-2), "fp16": (4.5e-4, 3e-3), "fp32": (2e-6, 1e-5)}
# Gates on RMS and largest error by class and storage type of the output (METHOD.md 2.3). The
# largest error is relative to the row's RMS, in the GEMM classes to the operator's condition
# magnitude s.
RMS_MAX: Mapping[str, Mapping[str, tuple[float, float]]] = {
    # the output rounding (0.43 u) and one permitted rounding before the weight
    "NORM": _NORM,
    # a sum that may be rounded before the norm is a third rounding in quadrature
    "NORM_SUM": {d: (1.5**0.5 * rms, 1.5**0.5 * most) for d, (rms, most) in _NORM.items()},
    # probabilities and partial results in the storage type
    "ATTN": {"bf16": (5e-3, 3e-2), "fp16": (8e-4, 5e-3), "fp32": (2e-5, 2e-4)},
    # the intermediate and each expert's output in the storage type
    "MOE": {"bf16": (6e-3, 4e-2), "fp16": (8e-4, 5e-3)},
    # fp32 accumulation, split-K partial sums in the storage type
    "GEMM": {"bf16": (3.5e-3, 2.5e-2), "fp16": (4.5e-4, 3e-3), "fp32": (2e-5, 2e-4)},
    # fp8 operands: hardware may accumulate with fewer bits than fp32
    "GEMM8": {"bf16": (5e-3, 3e-2), "fp16": (5e-3, 3e-2), "fp32": (5e-3, 3e-2)},
}
SCALED = ("GEMM", "GEMM8")  # classes that are held to the operator's scale, not to the row's RMS
# Relative error of each element: weights of a softmax in fp32 (seen 7.6e-6), and the scores of what
# was chosen, which tells ties from wrong choices.
RELATIVE = {"PROB": 2e-5, "CHOICE": 1e-6}
LEAST = 1e-30  # a probability below counts as this: exp underflows in fp32
CODES_SHARE = 1e-3  # of fp8 codes that may be one step off: division or its reciprocal
# Output units in the last place that class EW admits, the share of elements above one, and how many
# may be above one however small the tensor is.
EW_ULP, EW_SHARE, EW_FEW = 1.5, 0.03, 3
EW_FP32_ULP = 8.5  # transcendental functions in fp32: 16 u of the element, and the rounding
SLICE = 64  # elements from which on a row is held to the RMS gate of its own
SLICE_FACTOR = 1.4  # a legal variant's rows scatter by up to 12 %; 1.4 keeps them in
SMALL = 4096  # a tensor of fewer elements scatters like a slice and is held to the same

_MANTISSA = {"bf16": 7, "fp16": 10, "fp32": 23}  # stored bits
_SMALLEST_NORMAL = {"bf16": 2.0**-126, "fp16": 2.0**-14, "fp32": 2.0**-126}
_EXPONENT_BITS = 0x7FF0000000000000  # of an fp64 number
_TINY = 1e-300  # keeps 0 / 0 out of the relative error
_BLOCK = 1 << 16  # elements compared at a time


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What the comparator says of one output.

    Attributes:
        kind: "" if it passed, else the kind of `incorrect`.
        detail: Gate and magnitude, never an expected value.
        max_abs, max_rel: Largest absolute error, and relative to the gate's scale.
        index: First failing element.
        checked: Elements compared.
    """

    kind: str = ""
    detail: str = ""
    max_abs: float = 0.0
    max_rel: float = 0.0
    index: tuple[int, ...] | None = None
    checked: int = 0


def check(
    actual: Mapping[str, Any],
    expected: Mapping[str, Any],
    classes: Mapping[str, str],
    *,
    precise: bool,
    scale: Mapping[str, Any] | None = None,
    poison: Mapping[str, Any] | None = None,
) -> Finding:
    """Compare every output and return the first failure, or the largest errors.

    Args:
        actual: Output name to the tensor that the judge copied, in its storage type.
        expected: Output name to the fp64 reference.
        classes: Output name to tolerance class.
        precise: Whether the data are zero-mean and all different, so that gates on many elements
            at once hold.
        scale: Condition magnitude s per output, where the operator defines one.
        poison: What the outputs held before the call; bits left untouched are a coverage failure.
    """
    max_abs = max_rel = 0.0
    checked = 0
    for name, reference in expected.items():
        comparison = _Comparison(actual[name], reference, classes[name], (scale or {}).get(name))
        finding = comparison.finding(precise, (poison or {}).get(name))
        max_abs, max_rel = max(max_abs, finding.max_abs), max(max_rel, finding.max_rel)
        checked += finding.checked
        if finding.kind:
            return Finding(
                kind=finding.kind,
                detail=f"{name}: {finding.detail}",
                max_abs=max_abs,
                max_rel=max_rel,
                index=finding.index,
                checked=checked,
            )
    return Finding(max_abs=max_abs, max_rel=max_rel, checked=checked)


class _Comparison:
    """One output against its reference, seen as rows of its last axis."""

    def __init__(self, actual: Any, reference: Any, kind: str, scale: Any) -> None:
        self.shape = tuple(reference.shape)
        self.checked = int(reference.numel())
        self.dtype = dtype_name(actual)
        # codes are those of fp8; in other types nothing is quantised
        self.kind = "EXACT" if kind == "CODES" and self.dtype not in LARGEST else kind
        width = self.shape[-1] if self.shape else 1
        self.actual = actual.reshape(-1, width)
        self.reference = reference.reshape(-1, width).double()  # integers too
        self.scale = None if scale is None else scale.reshape(-1, width)
        if scale is None and kind in SCALED:
            raise ValueError(f"class {kind} needs the operator's scale")
        self.max_abs = self.max_rel = 0.0
        self.failed = self.unequal = 0  # elements beyond the gate, and beyond one ulp
        self.first: tuple[int, ...] | None = None  # first failing element
        self.error_square = self.reference_square = 0.0
        self.worst_row = 0.0  # RMS error of a row over the row's RMS
        self.not_finite = 0

    def finding(self, precise: bool, poison: Any) -> Finding:
        """Compare block by block and give the verdict."""
        rows, width = self.reference.shape
        step = max(1, _BLOCK // max(width, 1))
        for start in range(0, rows, step):
            self._block(start, start + step)
        if self.not_finite:
            return self._fail("nan", f"{self.not_finite} elements are not finite", poison)
        if self.failed:
            gate = {"EXACT": "bit equality", "EW": "the gate in ulp", "CODES": "one step"}
            detail = (
                f"{self.failed} of {self.checked} elements exceed "
                f"{gate.get(self.kind, 'the element gate')}, "
                f"the worst by {self.max_rel:.1e} of its size"
            )
            return self._fail("value", detail, poison)
        if detail := self._imprecise(precise):
            return self._fail("precision", detail, None)
        return Finding(max_abs=self.max_abs, max_rel=self.max_rel, checked=self.checked)

    def _block(self, start: int, stop: int) -> None:
        error, finite = self._error(start, stop)
        if not finite:
            return
        reference = self.reference[start:stop]
        largest = float(error.max()) if error.numel() else 0.0
        self.max_abs = max(self.max_abs, largest)
        if self.kind in RMS_MAX:
            self._rms_max(start, error, reference)
        elif largest == 0.0:
            return
        elif self.kind in RELATIVE:
            size = reference.abs().clamp_min(LEAST)
            self._gate(start, error, size, error > RELATIVE[self.kind] * size)
        elif self.kind == "CODES":
            self._codes(start, error, reference)
        elif self.kind == "EXACT":
            rounded = self._rounded(reference)
            self._gate(start, error, reference.abs(), self.actual[start:stop] != rounded)
        else:
            self._elementwise(start, error, reference)

    def _rounded(self, reference: Any) -> Any:
        """Round by way of fp32, which is the path of an fp32 addition; integers stay."""
        if not self.actual.is_floating_point():
            return reference.to(self.actual.dtype)
        return reference.float().to(self.actual.dtype)

    def _error(self, start: int, stop: int) -> tuple[Any, bool]:
        """Return |actual - reference|, and whether it is finite."""
        reference = self.reference[start:stop]
        wide = self.actual[start:stop].double()
        error = (wide - reference).abs_()
        if not error.numel() or float(error.max()) < float("inf"):  # NaN is not
            return error, True
        # a value beyond the range of the storage type is rightly an infinity; the difference is not
        rounded = reference.to(self.actual.dtype).double()
        error[(wide == rounded) & rounded.isinf()] = 0.0
        bad = ~error.isfinite()
        if count := int(bad.sum()):
            self.not_finite += count
            self._remember(start, bad)
        return error, not count

    def _elementwise(self, start: int, error: Any, reference: Any) -> None:
        size = reference.abs()
        if self.scale is not None:
            size = size.maximum(self.scale[start : start + len(size)])
        unit = self._ulp(size)
        allowed = EW_FP32_ULP if self.dtype == "fp32" else EW_ULP
        self._gate(start, error, size, error > allowed * unit)
        if self.dtype != "fp32":
            self.unequal += int((error > unit).sum())

    def _codes(self, start: int, error: Any, reference: Any) -> None:
        """Hold fp8 codes to the nearest one, or a neighbour for a few."""
        actual = self.actual[start : start + len(reference)]
        rounded = reference.float().clamp(-LARGEST[self.dtype], LARGEST[self.dtype])
        steps = (_ordered(actual) - _ordered(rounded.to(actual.dtype))).abs()
        self.unequal += int((steps > 0).sum())
        self._gate(start, error, reference.abs(), steps > 1)

    def _rms_max(self, start: int, error: Any, reference: Any) -> None:
        squares = reference.square().mean(-1, keepdim=True)
        rows = squares.sqrt()
        # an element above its row's RMS is held to its own size: a rounding is relative to it
        size = reference.abs().maximum(rows)
        if self.scale is not None:
            scale = self.scale[start : start + len(reference)]
            size = scale if self.kind in SCALED else size.maximum(scale)
        gate = RMS_MAX[self.kind][self.dtype][1]
        allowed = gate * size + 0.5 * self._ulp(reference.abs())
        self._gate(start, error, size, error > allowed)
        mean_error = error.square().mean(-1, keepdim=True)
        self.reference_square += float(squares.sum())
        self.error_square += float(mean_error.sum())
        if error.shape[-1] >= SLICE:
            ratio = float((mean_error.sqrt() / rows.clamp_min(_TINY)).max())
            self.worst_row = max(self.worst_row, ratio)

    def _gate(self, start: int, error: Any, size: Any, bad: Any) -> None:
        self.max_rel = max(self.max_rel, float((error / size.clamp_min(_TINY)).max()))
        if count := int(bad.sum()):
            self.failed += count
            self._remember(start, bad)

    def _remember(self, start: int, bad: Any) -> None:
        if self.first is None:
            row, column = (int(i) for i in bad.nonzero()[0])
            self.first = self._index((start + row) * bad.shape[-1] + column)

    def _index(self, position: int) -> tuple[int, ...]:
        index = []
        for extent in reversed(self.shape):
            index.append(position % extent)
            position //= extent
        return tuple(reversed(index))

    def _imprecise(self, precise: bool) -> str:
        """Apply the gates on many elements at once, where they differ; return what exceeds them."""
        if self.kind == "CODES" and self.unequal > max(EW_FEW, CODES_SHARE * self.checked):
            return f"{self.unequal / self.checked:.1%} of the codes are one step off"
        if not precise:
            return ""
        if self.kind == "EW" and self.unequal > max(EW_FEW, EW_SHARE * self.checked):
            return f"{self.unequal / self.checked:.1%} of the elements are more than one ulp off"
        if self.kind not in RMS_MAX:
            return ""
        gate = RMS_MAX[self.kind][self.dtype][0]
        factor = SLICE_FACTOR if self.checked < SMALL else 1.0
        rms = (self.error_square / max(self.reference_square, _TINY)) ** 0.5
        if rms <= factor * gate and self.worst_row <= SLICE_FACTOR * gate:
            return ""
        return f"RMS error {rms:.2e}, worst row {self.worst_row:.2e}, gate {gate:.1e}"

    def _fail(self, kind: str, detail: str, poison: Any) -> Finding:
        """Call it coverage if a wrong element still holds what it held before the call."""
        if poison is not None:
            bits = _bits(self.actual)
            wrong = bits != _bits(self.reference.to(self.actual.dtype))
            untouched = bits == _bits(poison.reshape(self.actual.shape))
            if bool((wrong & untouched).any()):
                kind = "coverage"
        return Finding(
            kind=kind,
            detail=detail,
            max_abs=self.max_abs,
            max_rel=self.max_rel,
            index=self.first,
            checked=self.checked,
        )

    def _ulp(self, size: Any) -> Any:
        """Return the spacing of the storage type at each magnitude, subnormals included."""
        import torch

        power = (size.view(torch.int64) & _EXPONENT_BITS).view(torch.float64)
        power = power.clamp_min_(_SMALLEST_NORMAL[self.dtype])
        return power.mul_(2.0 ** -_MANTISSA[self.dtype])


def _ordered(codes: Any) -> Any:
    """Return integers in the order of the fp8 values, so that neighbours differ by one."""
    import torch

    bits = codes.view(torch.int8).to(torch.int16)
    return torch.where(bits < 0, -(bits & 0x7F), bits)


def _bits(tensor: Any) -> Any:
    import torch

    names = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(names[tensor.element_size()])
