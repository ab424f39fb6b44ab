"""What an author starts from: the arguments of an operator, and a candidate that already runs.

A template is judged `incorrect`, not `crashed`: it fills the first output with zeros through a
kernel of its own, so that an author changes mathematics and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from atrex.backends import c
from atrex.backends.c import Interface
from atrex.operator import TensorSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Argument:
    """One argument of `run`.

    Attributes:
        role: ``"in"``, ``"static"`` (may be prepared), ``"out"``, ``"in place"``, ``"attribute"``.
        dtype: Storage type, ``"int"`` or ``"float"``.
        shape, strides: Of the example, strides in elements; None for an attribute.
    """

    name: str
    role: str
    dtype: str
    shape: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None


def arguments(interface: Interface, static: tuple[str, ...]) -> list[Argument]:
    """List the arguments of `run` in order, with the shapes of one example."""
    return [_tensor(name, spec, interface, static) for name, spec in interface.tensors.items()] + [
        Argument(name=name, role="attribute", dtype=type(value).__name__)
        for name, value in interface.attributes.items()
    ]


def _tensor(name: str, spec: TensorSpec, interface: Interface, static: tuple[str, ...]) -> Argument:
    if name in interface.outputs:
        role = "in place" if name in interface.inputs else "out"
    else:
        role = "static" if name in static else "in"
    return Argument(name=name, role=role, dtype=spec.dtype, shape=spec.shape, strides=spec.strides)


def template(interface: Interface, backend: str) -> str:
    """Write a candidate that builds, runs and fills the first output with zeros.

    Raises:
        KeyError: There is no template for this backend.
    """
    return TEMPLATES[backend](interface)


def _signature(interface: Interface) -> str:
    names = (*interface.tensors, *interface.attributes)
    return f"def run({', '.join(names)}, prepared=None):"


def _triton(interface: Interface) -> str:
    name, output = interface.operator, next(iter(interface.outputs))
    return f'''"""{name} in Triton: say here what bounds it and where it is valid."""

import triton
import triton.language as tl

OPERATOR = "{name}"
BACKEND = "triton"


@triton.jit
def zero_kernel(out, size, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + index, 0.0, mask=index < size)


{_signature(interface)}
    size = {output}.numel()
    zero_kernel[(triton.cdiv(size, 4096),)]({output}, size, BLOCK=4096)
'''


def _numba(interface: Interface) -> str:
    name, output = interface.operator, next(iter(interface.outputs))
    return f'''"""{name} in numba: say here what bounds it and where it is valid.

bf16, fp16 and fp8 arrive as unsigned bits; atrex.backends.numba_types converts bf16.
"""

import numba

OPERATOR = "{name}"
BACKEND = "numba"


@numba.njit
def zero(out):
    for index in range(out.size):
        out[index] = 0


{_signature(interface)}
    zero({output}.reshape(-1))
'''


TEMPLATES: Mapping[str, Callable[[Interface], str]] = {
    "triton": _triton,
    "c": c.template,
    "numba": _numba,
}
