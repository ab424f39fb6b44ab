"""The driver that stands in for a GPU's: it names a target and launches nothing.

It lives in the worker that compiles, where candidate code asks it what a real driver would know.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from atrex.backends.triton_compile.binaries import Resources
from atrex.backends.triton_compile.targets import Target

MAX_THREADS = 1024  # of a block, on every target


class StandIn:
    """Answers for one target as Triton's drivers do; their interface fixes the names.

    Attributes:
        device: Number of the device in use. Each has its own kernels in Triton's memory, so that
            a new number forgets what was launched before.
        tuning: Whether an autotuner is trying a configuration.
        failed: Whether the last launch did not compile or fit.
        used: What compiled kernels use, by their machine code.
    """

    def __init__(self, target: Target) -> None:
        from triton.backends.compiler import GPUTarget

        self.device = 0
        self.tuning = False
        self.failed = False
        self.used: dict[bytes, Resources] = {}
        self.utils = self
        self._target = target
        self._triton_target = GPUTarget(target.backend, target.architecture, target.warp_size)

    def launcher_cls(self, src: Any, metadata: Any) -> Callable[..., None]:
        """Return what launches a kernel: nothing does."""
        return lambda *arguments: None

    def load_binary(self, name: str, binary: bytes, shared: int, device: int) -> tuple[Any, ...]:
        """Return module, function, registers, spills and most threads of a kernel."""
        used = self.used[binary]
        return name, name, used.registers, used.spill_store_bytes // 4, MAX_THREADS

    def unload_module(self, module: Any) -> None:
        """Forget a kernel."""

    def get_device_properties(self, device: int) -> dict[str, int]:
        """Return what kernels ask of a device."""
        return {
            "max_shared_mem": self._target.shared_bytes,
            "max_num_regs": 65_536,
            "multiprocessor_count": self._target.processors,
            "warpSize": self._target.warp_size,
        }

    def get_current_target(self) -> Any:
        """Return Triton's name of the target."""
        return self._triton_target

    def get_current_device(self) -> int:
        """Return the number of the device."""
        return self.device

    def set_current_device(self, device: int) -> None:
        """Leave the device as it is: there is one."""

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        """Return the compute capability."""
        return self._target.capability

    def get_current_stream(self, device: Any = None) -> int:
        """Return the default stream."""
        return 0

    def get_active_torch_device(self) -> Any:
        """Return where tensors lie: nowhere."""
        import torch

        return torch.device("meta")

    def get_benchmarker(self) -> Callable[..., list[float]]:
        """Return what an autotuner measures with."""
        return self.benchmark

    def benchmark(self, kernel_call: Callable[[], object], *_: Any, **__: Any) -> list[float]:
        """Have a configuration compiled; all that fit are equally fast."""
        self.tuning, self.failed = True, False
        try:
            kernel_call()
        finally:
            self.tuning = False
        return [math.inf if self.failed else 0.0] * 3

    def map_python_to_cpp_type(self, kind: str) -> str:
        """Return a type's name: no launcher is compiled."""
        return kind

    def assemble_tensormap_to_arg(self, tensormaps: Any, arguments: Any) -> Any:
        """Return the arguments: no tensor map is filled in."""
        return arguments


def install(driver: StandIn, target: Target) -> None:
    """Put the driver in the place of this process's GPU, for Triton and for what torch tells."""
    import torch
    import triton.testing
    from triton.runtime.driver import driver as active

    active.set_active(driver)
    triton.testing.do_bench = driver.benchmark
    triton.testing.do_bench_cudagraph = driver.benchmark
    properties = SimpleNamespace(
        name=target.product,
        major=target.capability[0],
        minor=target.capability[1],
        multi_processor_count=target.processors,
        shared_memory_per_block_optin=target.shared_bytes,
        warp_size=target.warp_size,
    )
    told: dict[str, Callable[..., Any]] = {
        "current_device": driver.get_current_device,
        "get_device_capability": driver.get_device_capability,
        "get_device_name": lambda device=None: target.product,
        "get_device_properties": lambda device=None: properties,
    }
    for name, answer in told.items():
        setattr(torch.cuda, name, answer)
