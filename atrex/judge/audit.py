"""The veil: inside an audited worker, data exist only while a kernel of the candidate's own runs.

Everywhere else the candidate holds decoys, arrays of the same shape and strides full of poison.
NumPy, BLAS or Python work on them computes from poison, so its outputs are wrong and the judge sees
a fallback; a candidate that works in its own kernels gives the same outputs as ever. Scratch
memory is veiled too, from the first launch it is passed to, so copying the data into scratch by an
own kernel and going on in NumPy fails alike. What the host writes (zeros, counters) reaches the
kernels.

This code shares the worker with the candidate: it sorts honest work from library work, it does not
stop an attack on the audit itself. The static policy refuses the usual tools of one.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A huge finite value in every float, an index out of range in every integer; not a pattern that
# host code writes by itself.
POISON = 0xFD

_SCALARS = (int, float, complex, np.generic, type(None))

Array = NDArray[Any]


class _Memory:
    """Bytes at an address, as NumPy takes them; alive as long as `keep` is."""

    def __init__(self, address: int, nbytes: int, *, writable: bool, keep: object) -> None:
        self.keep = keep
        self.__array_interface__ = {
            "data": (address, not writable),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


class _Hidden:
    """An allocation that the candidate sees poisoned, and where its content really is.

    It holds the owner weakly, so that scratch is freed as it would be without the veil.
    """

    def __init__(self, owner: Array, content: Array, item_bytes: int) -> None:
        self.owner = weakref.ref(owner)
        self.content = content
        self.visible = _bytes_of(owner, keep=None)
        self._item_bytes = item_bytes

    def absorb(self) -> None:
        """Carry what the host wrote since the last launch over to the content."""
        if not self.content.flags.writeable:
            return
        touched = self.visible != POISON
        if not touched.any():
            return
        if self.visible.size % self._item_bytes == 0:  # an element is written whole or not at all
            touched = touched.reshape(-1, self._item_bytes).any(axis=1).repeat(self._item_bytes)
        self.content[touched] = self.visible[touched]
        self.visible[touched] = POISON

    def shown(self, real: Array) -> Array | None:
        """Return the poisoned twin of an array inside the content, None if it lies elsewhere."""
        offset, owner = _address(real) - _address(self.content), self.owner()
        if owner is None or not 0 <= offset < self.content.size:
            return None
        buffer = owner if owner.flags.c_contiguous else owner.T
        return np.ndarray(real.shape, real.dtype, buffer, offset, real.strides)


class Veil:
    """Swaps decoys for data around every launch of a kernel that `path` defines."""

    def __init__(self, path: Path) -> None:
        self._path = str(path)
        self._hidden: dict[int, _Hidden] = {}

    def owns(self, function: Any) -> bool:
        """Whether a function was written in the candidate's file."""
        return bool(function.__code__.co_filename == self._path)

    def decoy(self, real: Array) -> Array:
        """Return a poisoned array like `real`, which stands for it outside launches."""
        content = _bytes_of(real, keep=real)
        owner = np.full(content.shape, POISON, np.uint8)
        offset = _address(real) - _address(content)
        shown: Array = np.ndarray(real.shape, real.dtype, owner, offset, real.strides)
        shown.flags.writeable = real.flags.writeable
        self._hide(owner, content, real.dtype.itemsize)
        return shown

    def launch(self, kernel: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Call an own kernel with the data, and veil whatever it returns."""
        real = [self._reveal(value) for value in arguments]
        result = kernel(*real, **{name: self._reveal(value) for name, value in keywords.items()})
        return self._conceal(result)

    def settle(self) -> None:
        """Carry over what the host wrote after the last launch."""
        for hidden in list(self._hidden.values()):
            hidden.absorb()

    def _hide(self, owner: Array, content: Array, item_bytes: int) -> _Hidden:
        key = id(owner)
        hidden = self._hidden[key] = _Hidden(owner, content, item_bytes)
        weakref.finalize(owner, self._hidden.pop, key, None)
        return hidden

    def _reveal(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(self._reveal(part) for part in value)
        if not isinstance(value, np.ndarray) or value.size == 0:
            return value
        owner = _owner(value)
        hidden = self._hidden.get(id(owner))
        if hidden is None:
            if not owner.flags.writeable:
                return value  # static inputs that `prepare` kept
            hidden = self._cover(owner)
        hidden.absorb()
        offset = _address(value) - _address(hidden.visible)
        real: Array = np.ndarray(value.shape, value.dtype, hidden.content, offset, value.strides)
        real.flags.writeable = value.flags.writeable and hidden.content.flags.writeable
        return real

    def _cover(self, owner: Array) -> _Hidden:
        """Poison scratch memory in place; its content moves out of sight."""
        hidden = self._hide(owner, _bytes_of(owner, keep=None).copy(), owner.dtype.itemsize)
        hidden.visible[:] = POISON
        return hidden

    def _conceal(self, result: Any) -> Any:
        """Return what the host gets to see of a kernel's result."""
        if isinstance(result, tuple):
            return tuple(self._conceal(part) for part in result)
        if isinstance(result, np.ndarray) and result.size:
            for hidden in self._hidden.values():  # an argument, or a part of one, handed back
                shown = hidden.shown(result)
                if shown is not None:
                    return shown
            self._cover(_owner(result))
        elif not isinstance(result, (*_SCALARS, np.ndarray)):
            raise TypeError(f"a kernel returned a {type(result).__name__}")
        return result


def _owner(array: Array) -> Array:
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array


def _address(array: Array) -> int:
    return int(array.__array_interface__["data"][0])


def _bytes_of(array: Array, *, keep: object) -> Array:
    """View all bytes between the first and the last element, gaps included."""
    low, high = np.lib.array_utils.byte_bounds(array)
    return np.asarray(_Memory(low, high - low, writable=bool(array.flags.writeable), keep=keep))


def install(veil: Veil) -> None:
    """Make every numba kernel that is compiled from now on launch through the veil."""
    from numba.core import target_extension, withcontexts
    from numba.core.registry import CPUDispatcher
    from numba.np.ufunc.dufunc import DUFunc
    from numba.np.ufunc.gufunc import GUFunc

    class Audited(CPUDispatcher):
        def __call__(self, *arguments: Any, **keywords: Any) -> Any:
            kernel = super().__call__
            if not veil.owns(self.py_func):
                return kernel(*arguments, **keywords)
            return veil.launch(kernel, *arguments, **keywords)

    registry = target_extension.dispatcher_registry
    # its own assignment refuses a second one
    dict.__setitem__(registry, target_extension.target_registry["cpu"], Audited)
    for kind, function in ((DUFunc, "_dispatcher"), (GUFunc, "gufunc_builder")):
        setattr(kind, "__call__", _veiled_ufunc(veil, kind.__call__, function))  # noqa: B010 - typed

    def refuse(*_: object, **__: object) -> None:
        raise TypeError("a kernel goes back to the interpreter (objmode)")

    setattr(withcontexts._ObjModeContextType, "mutate_with_body", refuse)  # noqa: B010 - typed


def _veiled_ufunc(veil: Veil, call: Callable[..., Any], function: str) -> Callable[..., Any]:
    def launch(self: Any, *arguments: Any, **keywords: Any) -> Any:
        if not veil.owns(getattr(self, function).py_func):
            return call(self, *arguments, **keywords)
        return veil.launch(lambda *a, **k: call(self, *a, **k), *arguments, **keywords)

    return launch


def audited(
    path: Path, veiled: Iterable[str]
) -> tuple[Callable[..., None], Callable[..., Any] | None]:
    """Load a numba candidate under the veil; return its `run` and `prepare`.

    Args:
        path: The candidate's file.
        veiled: Names of the arguments that are shown as decoys.
    """
    from atrex.registry import load_module

    veil = Veil(path)
    install(veil)
    module: ModuleType = load_module(path)
    names = frozenset(veiled)

    def run(**arguments: Any) -> None:
        shown = {
            name: veil.decoy(value) if name in names else value for name, value in arguments.items()
        }
        module.run(**shown)
        veil.settle()

    return run, getattr(module, "prepare", None)
