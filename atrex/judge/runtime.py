"""What runs inside a Python worker: it does what the judge's messages say, one at a time.

Candidate code shares this process, so nothing here is a defence; a worker that answers wrongly
only harms its own verdict. GO does nothing but call: decoding and views belong to BIND.
"""

from __future__ import annotations

import os
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

import msgspec

from atrex.judge.channel import (
    HEADER,
    PAYLOAD_BYTES,
    RECORD,
    Arguments,
    Kind,
    Status,
    Target,
)
from atrex.judge.mapping import map_arena
from atrex.judge.memory import Placement, numpy_view, torch_view

if TYPE_CHECKING:
    from atrex.judge.devices.side import Side

SPIN_NS = 1_000_000  # GO follows ARM within microseconds, or not at all


class Structure(Exception):
    """Returned outputs that are not what the definition declares."""


class Runtime:
    """The worker's side of the protocol, for arrays of one framework."""

    def __init__(self, channel_fd: int, access: str, flavour: str) -> None:
        self._connection = socket.socket(fileno=channel_fd)
        self._view = numpy_view if flavour == "numba" else torch_view
        self._arenas = [
            map_arena(fd, os.fstat(fd).st_size, writable=letter == "w")
            for fd, letter in enumerate(access, start=channel_fd + 1)
        ]
        for fd in range(channel_fd + 1, channel_fd + 1 + len(access)):
            os.close(fd)
        self._buffer = bytearray(HEADER.size + PAYLOAD_BYTES)
        self._arguments = msgspec.msgpack.Decoder(Arguments)
        self._run: Callable[..., Any] = _unloaded
        self._prepare: Callable[..., Any] | None = None
        self._target = Target(kind="candidate", path="")
        self._static: dict[str, Any] = {}
        self._keywords: dict[str, Any] = {}
        self._destinations: dict[str, Any] = {}
        self._returned: Any = None
        self._compiled_for: set[tuple[object, ...]] = set()
        self._device: Side | None = None
        self._device_ns = 0

    def serve(self) -> NoReturn:
        """Answer messages until QUIT or until the judge is gone."""
        actions = {
            Kind.LOAD: self._load,
            Kind.PREPARE: self._prepare_static,
            Kind.BIND: self._bind,
            Kind.ARM: _nothing,
            Kind.GO: self._go,
            Kind.COLLECT: self._collect,
        }
        self._connection.send(RECORD.pack(0, 0, Kind.HELLO, Status.OK, 0, 0, 0))
        kind: int = Kind.HELLO
        while True:
            size = self._receive(awake=kind == Kind.ARM)
            if size < HEADER.size:
                os._exit(0)
            kind, payload_bytes, nonce, number = HEADER.unpack_from(self._buffer)
            if kind == Kind.QUIT:
                os._exit(0)
            payload = memoryview(self._buffer)[HEADER.size : HEADER.size + payload_bytes]
            status = self._guarded(actions[cast(Kind, kind)], payload)
            device_ns = self._device_ns if kind == Kind.GO else 0
            self._connection.send(RECORD.pack(nonce, number, kind, status, 0, 0, device_ns))

    def _receive(self, *, awake: bool) -> int:
        """Read a message; `awake` polls first, so that the judge times no wake-up."""
        end = time.monotonic_ns() + SPIN_NS if awake else 0
        while time.monotonic_ns() < end:
            try:
                return self._connection.recv_into(self._buffer, 0, socket.MSG_DONTWAIT)
            except BlockingIOError:
                continue
        return self._connection.recv_into(self._buffer)

    def _guarded(self, action: Callable[[memoryview], None], payload: memoryview) -> Status:
        """Run an action; whatever it raises becomes a status, with the traceback on stderr."""
        try:
            action(payload)
        except SystemExit as leaving:
            os._exit(leaving.code if isinstance(leaving.code, int) else 1)
        except Structure as error:
            os.write(2, f"\n{error}\n".encode())
            return Status.STRUCTURE
        except BaseException as error:  # the worker's rim: anything may come from a candidate
            os.write(2, f"\n{traceback.format_exc()}".encode(errors="backslashreplace"))
            return Status.NO_MEMORY if _out_of_memory(error) else Status.FAILED
        return Status.OK

    def _load(self, payload: memoryview) -> None:
        from atrex.registry import load_module

        target = self._target = msgspec.msgpack.decode(payload, type=Target)
        if target.accelerator:
            from atrex.judge.devices.side import Side

            self._device = Side(target)
        module = load_module(Path(target.path))
        if target.kind == "candidate":
            self._run = module.run
            self._prepare = getattr(module, "prepare", None)
            return
        chosen = {baseline.name: baseline for baseline in module.DEFINITION.baselines}
        self._run = chosen[target.name].run
        if target.compiled:
            import torch

            self._run = torch.compile(self._run, dynamic=False)

    def _prepare_static(self, payload: memoryview) -> None:
        if self._prepare is not None:
            arguments = self._arguments.decode(payload)
            self._static = {"prepared": self._prepare(**self._values(arguments.inputs))}
            self._settle()

    def _bind(self, payload: memoryview) -> None:
        arguments = self._arguments.decode(payload)
        self._returned = None  # else its memory would be freed inside the next timed call
        self._keywords = self._values(arguments.inputs) | self._static
        self._destinations = self._values(arguments.outputs)
        if self._target.kind == "candidate":
            self._keywords |= self._destinations
        else:  # a baseline changes in-place tensors where they are
            in_place = self._keywords.keys() & self._destinations.keys()
            self._keywords |= {name: self._destinations[name] for name in in_place}
        if self._target.compiled:
            self._compile(arguments)

    def _values(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return {
            name: self._tensor(value) if isinstance(value, Placement) else value
            for name, value in arguments.items()
        }

    def _tensor(self, placement: Placement) -> Any:
        if self._device is not None:
            return self._device.view(placement)
        return self._view(self._arenas[placement.arena], placement)

    def _settle(self) -> None:
        if self._device is not None:
            self._device.settle()

    def _compile(self, arguments: Arguments) -> None:
        """Call once for every new signature, since torch.compile compiles at a first call."""
        signature = tuple(
            (value.shape, value.strides, value.dtype) if isinstance(value, Placement) else value
            for value in arguments.inputs.values()
        )
        if signature not in self._compiled_for:
            self._run(**self._keywords)
            self._settle()
            self._compiled_for.add(signature)

    def _go(self, payload: memoryview) -> None:
        if self._device is None:
            self._returned = self._run(**self._keywords)
        else:
            timed = self._device.timed(lambda: self._run(**self._keywords))
            self._returned, self._device_ns = timed

    def _collect(self, payload: memoryview) -> None:
        """Copy a baseline's returned outputs into the destinations."""
        returned = self._returned
        if not isinstance(returned, dict) or returned.keys() != self._destinations.keys():
            names = sorted(returned) if isinstance(returned, dict) else type(returned).__name__
            raise Structure(f"returned {names}, expected {sorted(self._destinations)}")
        for name, destination in self._destinations.items():
            result = returned[name]
            if result.shape != destination.shape or result.dtype != destination.dtype:
                raise Structure(
                    f"{name} is {tuple(result.shape)} {result.dtype}, expected "
                    f"{tuple(destination.shape)} {destination.dtype}"
                )
            destination.copy_(result)
        self._settle()


def _out_of_memory(error: BaseException) -> bool:
    # torch's CPU allocator raises a RuntimeError, not MemoryError.
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _unloaded(**arguments: Any) -> None:
    raise RuntimeError("GO before LOAD")


def _nothing(payload: memoryview) -> None:
    """ARM asks only for an answer."""
