"""NVIDIA GPUs: torch for streams and events, the driver for shared memory, NVML for clocks.

Memory that crosses a process goes through the driver's own calls: torch counts the readers of what
it shares, and a reader that is killed would keep it for ever.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cached_property
from typing import Any

from atrex.errors import SetupError
from atrex.judge.devices.accelerator import Activity, ActivityKind, Facts, Recording, Telemetry

FLUSH_BYTES = 256 << 20  # integrity.md 3.2: at least twice L2
SPIN_CYCLES = 50_000  # some 30 us at 1.4 to 2 GHz
HANDLE_BYTES = 64  # CUipcMemHandle
LAZY_PEER_ACCESS = 1  # cuIpcOpenMemHandle
# What holds the clocks down; idle and application settings are no throttling (nvml.h).
THROTTLES = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
_KINDS: dict[str, ActivityKind] = {"Memcpy": "memcpy", "Memset": "memset"}


def available() -> bool:
    """Whether this process can use a CUDA device."""
    if importlib.util.find_spec("torch") is None:
        return False
    import torch

    return bool(torch.cuda.is_available())


class _Raw:
    """Device memory at an address, as torch takes it; freed by `release`."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__cuda_array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 2,
        }


class Device:
    """The current CUDA device of this process.

    Raises:
        SetupError: There is none.
    """

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise SetupError("torch sees no CUDA device", remedy="Judge with --device cpu.")
        torch.cuda.init()  # type: ignore[no-untyped-call]
        self.device = f"cuda:{torch.cuda.current_device()}"
        torch.empty(1, device=self.device)  # makes the context current, also for the driver's calls
        self._driver = ctypes.CDLL("libcuda.so.1")
        self._flushed: Any = None

    def facts(self) -> Facts:
        """Describe the device by torch, and by NVML where it is installed."""
        import torch

        properties = torch.cuda.get_device_properties(self.device)
        return Facts(
            name=properties.name,
            driver=self._nvml_call("nvmlSystemGetDriverVersion") or "unknown",
            runtime=torch.version.cuda or "unknown",
            capability=f"{properties.major}.{properties.minor}",
            multiprocessors=properties.multi_processor_count,
            l2_bytes=getattr(properties, "L2_cache_size", FLUSH_BYTES // 2),
            memory_bytes=properties.total_memory,
            power_limit_w=self._watts(self._nvml_get("nvmlDeviceGetEnforcedPowerLimit")),
            sm_clock_mhz=self._nvml_get("nvmlDeviceGetMaxClockInfo", 1),
            mem_clock_mhz=self._nvml_get("nvmlDeviceGetMaxClockInfo", 2),
        )

    def telemetry(self) -> Telemetry:
        """Read NVML; clocks of 0 where it is absent."""
        reasons = self._nvml_get("nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:
            reasons = self._nvml_get("nvmlDeviceGetCurrentClocksThrottleReasons")
        power = self._nvml_get("nvmlDeviceGetPowerUsage")
        return Telemetry(
            sm_clock_mhz=self._nvml_get("nvmlDeviceGetClockInfo", 1) or 0,
            mem_clock_mhz=self._nvml_get("nvmlDeviceGetClockInfo", 2) or 0,
            temperature_c=self._nvml_get("nvmlDeviceGetTemperature", 0) or 0,
            power_w=(power or 0) / 1000,
            throttled=tuple(name for bit, name in THROTTLES.items() if (reasons or 0) & bit),
        )

    def allocate(self, nbytes: int) -> Any:
        """Allocate by the driver, whose memory can be shared by its address."""
        address = ctypes.c_uint64()
        self._check(
            self._driver.cuMemAlloc_v2(ctypes.byref(address), ctypes.c_size_t(nbytes)),
            f"allocating {nbytes} bytes",
        )
        return self._wrap(address.value, nbytes, self._driver.cuMemFree_v2)

    def share(self, memory: Any) -> bytes:
        """Return the driver's handle of memory that `allocate` gave."""
        handle = ctypes.create_string_buffer(HANDLE_BYTES)
        address = ctypes.c_uint64(memory.data_ptr())
        self._check(self._driver.cuIpcGetMemHandle(handle, address), "sharing memory")
        return handle.raw

    def open(self, handle: bytes, nbytes: int) -> Any:
        """Map memory of the judge."""

        class Handle(ctypes.Structure):  # passed by value
            _fields_ = (("reserved", ctypes.c_char * HANDLE_BYTES),)

        address = ctypes.c_uint64()
        given = Handle.from_buffer_copy(handle)
        self._check(
            self._driver.cuIpcOpenMemHandle_v2(ctypes.byref(address), given, LAZY_PEER_ACCESS),
            "opening shared memory",
        )
        return self._wrap(address.value, nbytes, self._driver.cuIpcCloseMemHandle)

    def synchronise(self) -> None:
        """Wait for all streams."""
        import torch

        torch.cuda.synchronize()

    def spin(self) -> None:
        """Queue a kernel that only waits."""
        import torch

        torch.cuda._sleep(SPIN_CYCLES)  # type: ignore[no-untyped-call]

    def mark(self) -> Any:
        """Record a timing event."""
        import torch

        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def elapsed_ns(self, start: Any, end: Any) -> int:
        """Return the events' distance, which the driver gives in fp32 ms with 0.5 us steps."""
        return round(float(start.elapsed_time(end) * 1e6))

    def flush(self) -> None:
        """Drop persisting lines, then write through a buffer larger than the cache."""
        import torch

        if self._flushed is None:
            size = max(FLUSH_BYTES, 2 * self.facts().l2_bytes)
            self._flushed = torch.empty(size // 4, dtype=torch.int32, device=self.device)
        self._driver.cuCtxResetPersistingL2Cache()
        self._flushed += 1
        torch.cuda.synchronize()

    def recorder(self) -> AbstractContextManager[_Profiler]:
        """Return torch's profiler with device activities."""
        return _Profiler()

    @contextmanager
    def own(self, label: str) -> Iterator[None]:
        """Open a range of that name around launches."""
        import torch

        with torch.profiler.record_function(label):
            yield

    def free_bytes(self) -> int:
        """Return what the driver says is free."""
        import torch

        return int(torch.cuda.mem_get_info(self.device)[0])

    def _wrap(self, address: int, nbytes: int, release: Any) -> Any:
        import torch

        raw = _Raw(address, nbytes)
        # the tensor keeps `raw` alive, and with it the memory
        weakref.finalize(raw, release, ctypes.c_uint64(address))
        return torch.as_tensor(raw, device=self.device)

    def _check(self, status: int, doing: str) -> None:
        if status != 0:
            name = ctypes.c_char_p()
            self._driver.cuGetErrorName(status, ctypes.byref(name))
            raise RuntimeError(f"{doing}: {(name.value or b'error').decode()}")

    @cached_property
    def _nvml(self) -> tuple[Any, Any] | None:
        """The module and this device's handle; None where NVML is absent or forbidden."""
        import torch

        if importlib.util.find_spec("pynvml") is None:
            return None
        import pynvml

        uuid = f"GPU-{torch.cuda.get_device_properties(self.device).uuid}"
        try:
            pynvml.nvmlInit()
            return pynvml, pynvml.nvmlDeviceGetHandleByUUID(uuid)
        except pynvml.NVMLError:
            return None

    def _nvml_get(self, name: str, *arguments: Any) -> Any:
        """Ask NVML about this device; None where it cannot tell."""
        if self._nvml is None:
            return None
        return self._nvml_call(name, self._nvml[1], *arguments)

    def _nvml_call(self, name: str, *arguments: Any) -> Any:
        if self._nvml is None or not hasattr(self._nvml[0], name):
            return None
        with contextlib.suppress(self._nvml[0].NVMLError):
            return getattr(self._nvml[0], name)(*arguments)
        return None

    @staticmethod
    def _watts(milliwatts: int | None) -> int | None:
        return None if milliwatts is None else round(milliwatts / 1000)


class _Profiler:
    """torch's profiler, and its device records with the innermost range around each launch."""

    def __init__(self) -> None:
        from torch.profiler import ProfilerActivity, profile

        self._profile = profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])

    def __enter__(self) -> _Profiler:
        self._profile.__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        self._profile.__exit__(*error)  # type: ignore[no-untyped-call]

    def recording(self) -> Recording:
        """Return the raw records of the device."""
        profiler = self._profile.profiler
        assert profiler is not None
        assert profiler.kineto_results is not None
        return recording_of(list(profiler.kineto_results.events()))


def recording_of(events: Sequence[Any]) -> Recording:
    """Read kineto's raw events: each device record links to the operator that launched it.

    Runtime calls have numbers of their own, which may equal those of operators; they link to one,
    which operators do not.
    """
    from torch._C._autograd import DeviceType

    launchers = {
        event.correlation_id(): event.name()
        for event in events
        if event.device_type() == DeviceType.CPU and event.linked_correlation_id() == 0
    }
    return Recording(
        activities=tuple(
            Activity(
                kind=_KINDS.get(event.name().split(" ")[0], "kernel"),
                name=event.name(),
                start_ns=event.start_ns(),
                duration_ns=event.duration_ns(),
                stream=event.device_resource_id(),
                launcher=launchers.get(event.linked_correlation_id(), ""),
            )
            for event in events
            if event.device_type() == DeviceType.CUDA and not event.is_user_annotation()
        )
    )
