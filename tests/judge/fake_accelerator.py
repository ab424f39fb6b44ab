"""A GPU that is none: its memory is shared host memory, its clock the host's, its kernels are seen.

It serves the judge and its workers alike, each in its own process. Kernels of Triton candidates run
in the interpreter; torch operators are recorded as the kernels that a GPU would run for them.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import time
import weakref
from contextlib import contextmanager

from atrex.judge.devices.accelerator import Activity, Facts, Recording, Telemetry

FASTER = 4  # than the host, so that recording makes no kernel longer than its call
ALLOCATION = ("aten::empty", "aten::view", "aten::as_strided", "aten::detach", "aten::slice")


class Device:
    """The fake; tests read `log` and script `telemetries`."""

    device = "cpu"

    def __init__(self) -> None:
        self.log: list[str] = []
        self.telemetries: list[Telemetry] = []
        self._activities: list[Activity] = []
        self._range = ""
        self._launching = False
        self._files: dict[int, str] = {}
        self._watch_launches()

    def facts(self) -> Facts:
        return Facts(
            name="Fake GPU", driver="1.0", runtime="13.0", capability="9.0", multiprocessors=4,
            l2_bytes=1 << 16, memory_bytes=1 << 30, power_limit_w=700, sm_clock_mhz=1980,
            mem_clock_mhz=3201,
        )  # fmt: skip

    def telemetry(self) -> Telemetry:
        self.log.append("telemetry")
        if self.telemetries:
            return self.telemetries.pop(0)
        return Telemetry(sm_clock_mhz=1980, mem_clock_mhz=3201, temperature_c=40, power_w=300.0)

    def allocate(self, nbytes: int):
        fd, path = tempfile.mkstemp(prefix="atrex-fake-", dir="/dev/shm")
        os.ftruncate(fd, nbytes)
        memory = _mapped(fd, nbytes)
        self._files[memory.data_ptr()] = path
        weakref.finalize(memory, os.unlink, path)
        return memory

    def share(self, memory) -> bytes:
        return self._files[memory.data_ptr()].encode()

    def open(self, handle: bytes, nbytes: int):
        return _mapped(os.open(handle.decode(), os.O_RDWR), nbytes)

    def synchronise(self) -> None:
        self.log.append("synchronise")

    def spin(self) -> None:
        self.log.append("spin")

    def mark(self) -> int:
        self.log.append("mark")
        return time.monotonic_ns()

    def elapsed_ns(self, start: int, end: int) -> int:
        return end - start

    def flush(self) -> None:
        self.log.append("flush")

    def free_bytes(self) -> int:
        return 1 << 30

    @contextmanager
    def own(self, label: str):
        before, self._range = self._range, label
        try:
            yield
        finally:
            self._range = before

    @contextmanager
    def recorder(self):
        from torch.utils._python_dispatch import TorchDispatchMode

        device = self

        class Operators(TorchDispatchMode):
            def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
                name = function.name().partition(".")[0]
                start = time.monotonic_ns()
                result = function(*arguments, **(keywords or {}))
                if name not in ALLOCATION and not device._launching:
                    device._ran(f"{name.replace('::', '_')}_kernel", name, start)
                return result

        self._activities = []
        with Operators():
            yield self

    def recording(self) -> Recording:
        return Recording(activities=tuple(self._activities))

    def _ran(self, name: str, launcher: str, start: int) -> None:
        self._activities.append(
            Activity(kind="kernel", name=name, start_ns=start, stream=7, launcher=launcher,
                     duration_ns=(time.monotonic_ns() - start) // FASTER)
        )  # fmt: skip

    def _watch_launches(self) -> None:
        if os.environ.get("TRITON_INTERPRET") != "1":
            return
        from atrex.backends.triton_interpreter import install, on_launch

        install()

        def launch(kernel, grid, proceed):
            start, self._launching = time.monotonic_ns(), True
            proceed()
            self._launching = False
            self._ran(kernel.fn.__name__, self._range, start)

        on_launch(launch)


def _mapped(fd: int, nbytes: int):
    import torch

    memory = torch.frombuffer(mmap.mmap(fd, nbytes), dtype=torch.uint8)
    os.close(fd)
    return memory
