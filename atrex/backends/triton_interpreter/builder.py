# triton is not typed
# mypy: disallow-subclassing-any=False, disallow-untyped-calls=False
"""What replaces the parts of Triton's interpreter that compute other numbers than compiled code.

The interpreter keeps the codes of bf16 and 8-bit floats in integer arrays, and computes with the
codes. Here a value is decoded to float32 before it is computed with, and the result rounded back.
Imported by `install` only, once the interpreter is known to be on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as memory
from triton._C.libtriton import ir
from triton.runtime import interpreter

from atrex.backends.triton_interpreter import formats
from atrex.backends.triton_interpreter.formats import Array

Handle = interpreter.TensorHandle
Binary = Callable[[Array, Array], Array]

_convert_argument, _patch_language = interpreter._implicit_cvt, interpreter._patch_lang


class Builder(interpreter.InterpreterBuilder):
    """Computes Triton's operations with the results of compiled code."""

    def __init__(self) -> None:
        super().__init__()
        # The checks for overflow end in an assertion that is off, and cost a third of the time.
        self.options = interpreter.InterpreterOptions(sanitize_overflow=False)

    def get_bf16(self, value: float) -> Any:
        """Return a constant."""
        return Handle(formats.encode(np.array([value], np.float64), "bf16"), tl.bfloat16)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        """Convert between numbers, to nearest, ties to even."""
        target = dst_type.scalar
        if target.name not in formats.NARROW:
            return Handle(_values(src).astype(interpreter._get_np_dtype(target)), target)
        values = _values(src)
        if values.dtype != np.float32:
            values = values.astype(np.float64)
        return Handle(formats.encode(values, target.name), target)

    def create_fp_to_fp(self, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        """Convert between floats, rounding as asked for."""
        target = dst_type.scalar
        if rounding_mode != ir.ROUNDING_MODE.RTZ:
            return self.cast_impl(src, dst_type)
        if target == tl.bfloat16:
            return Handle(formats.bf16_toward_zero(_values(src)), target)
        if target == tl.float16:
            return Handle(formats.fp16_toward_zero(_values(src)), target)
        raise NotImplementedError(f"the interpreter does not round to {target} toward zero")

    def binary_op(self, lhs: Any, rhs: Any, op: Binary) -> Any:
        """Compute element by element; a comparison gives int1, whatever it compares."""
        result = super().binary_op(_computable(lhs), _computable(rhs), op)
        if result.data.dtype == np.bool_:
            return Handle(result.data, tl.int1)
        return _like(result, lhs)

    def unary_op(self, arg: Any, op: Callable[[Array], Array]) -> Any:
        """Compute element by element."""
        return _like(super().unary_op(_computable(arg), op), arg)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        """Compute x * y + z, rounded once."""
        if z.dtype.scalar == tl.float64:
            return super().create_fma(x, y, z)
        total = formats.fused_multiply_add(*(_computable(term).data for term in (x, y, z)))
        return self.cast_impl(Handle(total, tl.float64), z.dtype)

    def create_minnumf(self, lhs: Any, rhs: Any) -> Any:
        """Return the lesser value, and the other one of a NaN."""
        return self.binary_op(lhs, rhs, _lesser)

    def create_maxnumf(self, lhs: Any, rhs: Any) -> Any:
        """Return the greater value, and the other one of a NaN."""
        return self.binary_op(lhs, rhs, _greater)

    def create_clampf(self, arg: Any, lo: Any, hi: Any, propagate_nans: Any) -> Any:
        """Clamp; a NaN becomes `lo` unless it is to be propagated."""
        if propagate_nans == ir.PROPAGATE_NAN.NONE:
            return self.create_minnumf(self.create_maxnumf(arg, lo), hi)
        return self.binary_op(self.binary_op(arg, lo, np.maximum), hi, np.minimum)

    def create_dot(
        self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: int
    ) -> Any:
        """Multiply matrices and add `d`, all in float32 (float64 for fp64 and integers)."""
        kind = a.dtype.scalar
        wide = np.float64 if kind == tl.float64 or kind.is_int() else np.float32
        left, right = (_values(operand).astype(wide, copy=False) for operand in (a, b))
        if kind == tl.float32 and input_precision == ir.INPUT_PRECISION.TF32:
            left, right = formats.tf32(left), formats.tf32(right)
        total = np.matmul(left, right) + d.data
        return Handle(total.astype(d.data.dtype), d.dtype.scalar)

    def create_atomic_rmw(
        self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        """Change memory and return what it held; lanes of one address take their turns."""
        if val.dtype.scalar != tl.bfloat16:
            return super().create_atomic_rmw(rmwOp, ptr, val, mask, sem, scope)
        pointers, added, active = np.broadcast_arrays(ptr.data, val.data, mask.data)
        held = np.zeros(added.shape, np.uint16)
        waiting = np.flatnonzero(active)
        while waiting.size:
            _, first = np.unique(pointers.flat[waiting], return_index=True)
            lanes, waiting = waiting[first], np.delete(waiting, first)
            all_lanes = np.ones(lanes.size, np.bool_)
            old = memory.load(pointers.flat[lanes], all_lanes, held.flat[lanes], held.dtype)
            total = _combine(np.add, old, added.flat[lanes], tl.bfloat16)
            memory.store(pointers.flat[lanes], total, all_lanes)
            held.flat[lanes] = old
        return Handle(held, tl.bfloat16)


class Reduction(interpreter.ReduceOps):
    """Reduces floats of 16 bits as compiled code does, and bits at once."""

    def apply_impl(self, input: Any) -> Any:
        """Reduce; sorting is made of reductions by xor, which would go element by element."""
        bitwise = {tl.standard._xor_combine: np.bitwise_xor, tl.standard._or_combine: np.bitwise_or}
        if self.combine_fn not in bitwise:
            return super().apply_impl(input)
        reduce = bitwise[self.combine_fn].reduce
        data = reduce(input[0].handle.data, axis=self.axis, keepdims=self.keep_dims)
        return self.to_tensor(data, input[0].dtype)

    def sum(self, input: Any) -> Any:
        """Add up; sums of 16 bits are rounded after every addition, halves against halves."""
        if not _is_short(input):
            return super().sum(input)
        data = input.handle.data
        rows = data.reshape(-1) if self.axis is None else np.moveaxis(data, self.axis, 0)
        while len(rows) > 1:
            middle = len(rows) // 2
            rows = _combine(np.add, rows[:middle], rows[middle:], input.dtype)
        total = rows[0]
        if self.keep_dims:
            axes = tuple(range(data.ndim)) if self.axis is None else self.axis
            total = np.expand_dims(total, axes)
        return self.to_tensor(total, input.dtype)

    def min_max(self, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        """Find extremes, by value."""
        value = input[0] if isinstance(input, tuple) else input
        if value.dtype.name not in formats.NARROW:
            return super().min_max(input, val_reduce_op, idx_reduce_op)
        wide = self.to_tensor(_computable(value.handle).data, tl.float32)
        found = super().min_max(wide, val_reduce_op, idx_reduce_op)
        extreme, *index = found if isinstance(found, tuple) else (found,)
        block = extreme.type.is_block()
        kind = tl.block_type(value.dtype, extreme.shape) if block else value.dtype
        narrow = tl.tensor(_like(extreme.handle, value.handle), kind)
        return (narrow, *index) if index else narrow


class Scan(interpreter.ScanOps):
    """Scans floats of 16 bits as compiled code does."""

    def cumsum(self, input: Any) -> list[Any]:
        """Add up along the axis."""
        return self._scan(np.add, input) if _is_short(input) else super().cumsum(input)

    def cumprod(self, input: Any) -> list[Any]:
        """Multiply up along the axis."""
        return self._scan(np.multiply, input) if _is_short(input) else super().cumprod(input)

    def _scan(self, op: Binary, input: Any) -> list[Any]:
        """Combine at distances that double, rounding every time."""
        rows = np.moveaxis(input.handle.data, self.axis, 0)
        distance = 1
        while distance < len(rows):
            combined = _combine(op, rows[:-distance], rows[distance:], input.dtype)
            rows = np.concatenate((rows[:distance], combined))
            distance *= 2
        return [self.to_tensor(np.moveaxis(rows, 0, self.axis), input.dtype)]


def convert_argument(arg: Any) -> Any:
    """Pass a kernel's argument as a launch does: numbers are tensors of their own type.

    A float would otherwise stay Python's, and take the type of the tensor it meets.
    """
    if isinstance(arg, bool):
        return tl.tensor(Handle(np.array([arg]), tl.int1), tl.int1)
    if isinstance(arg, float):
        return tl.tensor(Handle(np.array([arg], np.float32), tl.float32), tl.float32)
    return _convert_argument(arg)


def patch_language(kernel: Any) -> Any:
    """Turn the language to the interpreter for a launch; functions that it calls find it done.

    Triton looks through all of the language again in every call of a function, for a millisecond.
    """
    if not any(tl.core.is_builtin(module.load) for module in (tl, tl.core)):
        return interpreter._LangPatchScope()
    scope = _patch_language(kernel)
    scope._changes += _patch_language(tl.standard.zeros.fn)._changes
    scope.set_attr(tl.dtype, "to_ir", lambda self, builder: self)  # 3.7 knows no fnuz formats
    return scope


def correct() -> bool:
    """Put the corrected parts in place; return whether they were not there yet."""
    if isinstance(interpreter.interpreter_builder, Builder):
        return False
    # Rewritten kernels hold on to the semantics, so it stays the same object.
    interpreter.interpreter_builder = interpreter.interpreter_semantic.builder = Builder()
    interpreter.ReduceOps, interpreter.ScanOps = Reduction, Scan
    interpreter._implicit_cvt = convert_argument
    interpreter._patch_lang = patch_language
    return True


def _values(handle: Any) -> Array:
    """Return the numbers of a handle."""
    name = handle.dtype.scalar.name
    data: Array = handle.data
    return formats.decode(data, name) if name in formats.NARROW else data


def _computable(handle: Any) -> Any:
    """Return a handle to compute with, of float32 where NumPy lacks the type.

    Raises:
        TypeError: It holds 8-bit floats, for which compilation fails, too.
    """
    kind = handle.dtype.scalar
    if kind.name in formats.BYTE_FORMATS:
        raise TypeError(f"there is no arithmetic on {kind}: convert to fp32 or fp16 first")
    return Handle(_values(handle), tl.float32) if kind == tl.bfloat16 else handle


def _like(result: Any, operand: Any) -> Any:
    """Round a result to the type of an operand that was made computable."""
    if operand.dtype.scalar != tl.bfloat16:
        return result
    return Handle(formats.encode(result.data, "bf16"), tl.bfloat16)


def _lesser(left: Array, right: Array) -> Array:
    """Return the lesser number; np.fmin lets a signalling NaN through."""
    return np.where(np.isnan(left) | (right < left), right, left)


def _greater(left: Array, right: Array) -> Array:
    return np.where(np.isnan(left) | (right > left), right, left)


def _is_short(tensor: Any) -> bool:
    return bool(tensor.dtype.is_floating() and tensor.dtype.primitive_bitwidth < 32)


def _combine(op: Binary, left: Array, right: Array, kind: Any) -> Array:
    result = interpreter.interpreter_builder.binary_op(Handle(left, kind), Handle(right, kind), op)
    data: Array = result.data
    return data
