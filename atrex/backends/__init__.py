"""The languages a candidate may be written in, and where each of them runs.

A closed table: a backend is known here or nowhere. What the judge cannot run yet is listed with
its reason, so that such a candidate ends as `unsupported` and says why, never as a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from atrex.model import DeviceKind

Flavour = Literal["native", "torch", "numba", "triton", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """One language of candidates.

    Attributes:
        name: Value of ``BACKEND``.
        devices: Devices it is judged on; empty if none yet.
        flavour: Kind of worker that runs it; None where no device does.
        interpreted: Devices on which an interpreter runs it: judged correct there, never timed.
        reason: Why it is unsupported on the devices it lacks.
    """

    name: str
    devices: tuple[DeviceKind, ...] = ()
    flavour: Flavour | None = None
    interpreted: tuple[DeviceKind, ...] = ()
    reason: str = ""

    def supports(self, device: DeviceKind) -> bool:
        """Whether candidates of this backend are judged on `device`."""
        return device in self.devices


_NEEDS_CUDA = "it needs a CUDA device; judge with --device cuda on a machine that has one"
_NO_ADAPTER = "it has no adapter in this version yet"
_ON_CPU = "it is judged on the CPU only"

BACKENDS: Mapping[str, Backend] = MappingProxyType(
    {
        backend.name: backend
        for backend in (
            Backend(name="c", devices=("cpu",), flavour="native", reason=_ON_CPU),
            Backend(name="numba", devices=("cpu",), flavour="numba", reason=_ON_CPU),
            Backend(name="torch", devices=("cpu", "cuda"), flavour="torch"),
            Backend(
                name="triton",
                devices=("cpu", "cuda"),
                flavour="triton",
                interpreted=("cpu",),
            ),
            *(
                Backend(name=name, devices=("cuda",), flavour="cuda", reason=_NEEDS_CUDA)
                for name in ("gluon", "cuda", "cupy")
            ),
            *(Backend(name=name, reason=_NO_ADAPTER) for name in ("cutedsl", "tilelang")),
            Backend(name="pallas", reason="JAX has no destination arrays and no adapter here yet"),
        )
    }
)


def interprets(backend: str, device: DeviceKind) -> bool:
    """Whether a device only interprets candidates of a backend, so that nothing is timed."""
    return backend in BACKENDS and device in BACKENDS[backend].interpreted
