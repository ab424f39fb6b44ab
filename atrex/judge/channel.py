"""The judge's end of the socket to a worker: who may say what, and how failures are named.

The judge sends messages of any content; a worker answers with fixed records only, so nothing
that a candidate writes is ever parsed. Records are believed for their order alone: what was
computed, the judge reads from the arenas.
"""

from __future__ import annotations

import os
import secrets
import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

import msgspec

from atrex.judge.memory import Placement
from atrex.model import Outcome, Record

HEADER = struct.Struct("<IIQQ")  # kind, payload bytes, nonce, number
RECORD = struct.Struct("<QQIIIIQ")  # nonce, number, kind, status, detail, reserved, device ns
_SIZES = struct.Struct("<QQ")
_PLACE = struct.Struct("<QQQ")
PAYLOAD_BYTES = 64 << 10  # a message is one datagram; arguments take a few hundred bytes
POLL_NS = 10_000_000  # how often a waiting judge looks at the worker's memory and state
OUTPUT_BYTES = 64 << 10  # kept of what a worker prints; its tail, where the traceback ends
PIPE_BYTES = 1 << 20  # room between two polls, so that a chatty candidate seldom waits


class Target(Record, frozen=True, kw_only=True):
    """What a worker is to run.

    Attributes:
        kind: ``"native"`` (a shared object with a function `run`), ``"candidate"`` (a module with
            `run`, destination passing), ``"baseline"`` (an implementation that a definition.py
            declares, returns its outputs).
        path: The shared object, module or definition.
        name: Name of the implementation, for a baseline.
        compiled: Whether a baseline goes through torch.compile.
        environment: Further variables of the worker, e.g. ``TORCHINDUCTOR_CACHE_DIR``.
        accelerator: Module of the device that it runs on; "" for the CPU.
        handles: (handle, bytes) of each arena on that device.
    """

    kind: Literal["native", "candidate", "baseline"]
    path: str
    name: str = ""
    compiled: bool = False
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    accelerator: str = ""
    handles: tuple[tuple[bytes, int], ...] = ()


class Arguments(Record, frozen=True, kw_only=True):
    """The arguments of one call of a Python worker; in-place tensors stand in both maps.

    Attributes:
        inputs: Placed tensors and attributes by name.
        outputs: Placed destinations by name.
    """

    inputs: dict[str, Placement | int | float]
    outputs: dict[str, Placement]

    def encode(self) -> bytes:
        """Return the payload of BIND, PREPARE takes the same with the static inputs only."""
        return msgspec.msgpack.encode(self)


class Block(Record, frozen=True, kw_only=True):
    """The arguments of one call of a native worker.

    Attributes:
        data: The argument struct, pointers zero.
        relocations: (offset in the struct, arena, byte offset in the arena) of each pointer.
    """

    data: bytes
    relocations: tuple[tuple[int, int, int], ...]

    def encode(self) -> bytes:
        """Return the payload of BIND and PREPARE."""
        places = b"".join(_PLACE.pack(*place) for place in self.relocations)
        return _SIZES.pack(len(self.data), len(self.relocations)) + self.data + places


class Fault(Exception):
    """A worker ended or misbehaved; the worker is to be closed.

    Attributes:
        outcome: What it means for the measurement.
        kind: The kind within a violation, else "".
        reason: One line for people.
    """

    def __init__(self, outcome: Outcome, reason: str, *, kind: str = "") -> None:
        super().__init__(f"{outcome}{':' + kind if kind else ''}: {reason}")
        self.outcome = outcome
        self.kind = kind
        self.reason = reason


def protocol_violation(reason: str) -> Fault:
    """Return the fault of a worker that does not keep to the protocol."""
    return Fault(Outcome.VIOLATION, reason, kind="protocol")


class Kind(IntEnum):
    """What a message asks for; native_runner.c has the same numbers."""

    HELLO = 0  # never sent: the worker's first record, when its arenas are mapped
    LOAD = 1
    PREPARE = 2
    BIND = 3
    ARM = 4  # answer, then wait for GO without sleeping, so that no wake-up is timed
    GO = 5
    COLLECT = 6
    QUIT = 7


class Status(IntEnum):
    """How a request ended; native_runner.c has the same numbers."""

    OK = 0
    FAILED = 1  # an exception, or a non-zero return value (in `detail`)
    NO_MEMORY = 2
    STRUCTURE = 3  # returned outputs of the wrong names, shapes or dtypes


@dataclass(frozen=True, slots=True)
class Reply:
    """A worker's answer, as its record says; worth no more than that.

    Attributes:
        detail: A native kernel's own error.
        device_ns: What the worker read off its device's clock around the call; 0 without one.
    """

    status: Status
    detail: int
    device_ns: int = 0


class Ended(Exception):
    """The worker's end of the socket is closed."""


class Channel:
    """Sends numbered requests and accepts each answer once."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._fd = connection.fileno()
        # A blocking read that gives up costs one system call; poll() before it would cost two.
        connection.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVTIMEO, struct.pack("ll", 0, POLL_NS // 1000)
        )
        self._number = 0
        self._expected = (0, 0, int(Kind.HELLO))

    def compose(self, kind: Kind, payload: bytes = b"") -> bytes:
        """Return the next message; its answer is the only one that will be accepted."""
        if len(payload) > PAYLOAD_BYTES:
            raise ValueError(f"a payload of {len(payload)} bytes")
        self._number += 1
        nonce = secrets.randbits(64)
        self._expected = (nonce, self._number, int(kind))
        return HEADER.pack(kind, len(payload), nonce, self._number) + payload

    def send(self, message: bytes) -> None:
        """Send a composed message.

        Raises:
            Ended: The worker is gone.
        """
        try:
            os.write(self._fd, message)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise Ended from error

    def receive(self, *, awake: bool = False) -> bytes | None:
        """Return one record as it came, None if there is none within `POLL_NS`.

        Args:
            awake: Poll instead of sleeping: waking up an idle CPU took 30 us on a virtual machine,
                three times a whole empty call.

        Raises:
            Ended: The worker is gone.
        """
        try:
            record = self._poll() if awake else os.read(self._fd, RECORD.size + 1)
        except BlockingIOError:
            return None
        except ConnectionResetError as error:
            raise Ended from error
        if not record:
            raise Ended
        return record

    def _poll(self) -> bytes:
        end = time.monotonic_ns() + POLL_NS
        while True:
            try:
                return self._connection.recv(RECORD.size + 1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if time.monotonic_ns() > end:
                    raise

    def accept(self, record: bytes) -> Reply:
        """Return the answer in a record.

        Raises:
            Fault: It is no answer to the last request: a protocol violation.
        """
        if len(record) != RECORD.size:
            raise protocol_violation(f"a record of {len(record)} bytes instead of {RECORD.size}")
        nonce, number, kind, status, detail, reserved, device_ns = RECORD.unpack(record)
        if (nonce, number, kind) != self._expected:
            raise protocol_violation(f"an answer to no request (number {number}, kind {kind})")
        if status not in tuple(Status) or reserved:
            raise protocol_violation(f"an answer of unknown status {status}")
        self._expected = (-1, -1, -1)
        return Reply(Status(status), detail, device_ns)

    def refuse_surplus(self) -> None:
        """Check that nothing was sent beyond the answers asked for.

        Raises:
            Fault: Something was: a protocol violation.
        """
        try:
            record = self._connection.recv(RECORD.size + 1, socket.MSG_DONTWAIT)
        except (BlockingIOError, ConnectionResetError):
            return
        if record:
            raise protocol_violation("more records than requests")

    def close(self) -> None:
        """Close the judge's end."""
        self._connection.close()


class Output:
    """What a worker printed: captured, bounded, shown escaped, never parsed."""

    def __init__(self) -> None:
        self._fd, self.write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        os.set_blocking(self.write_fd, True)
        _widen(self._fd)
        self._tail = b""

    def opened(self) -> None:
        """Close our copy of the writing end, once the worker has its own."""
        os.close(self.write_fd)
        self.write_fd = -1

    def drain(self) -> None:
        """Take what has been written; called at every poll, so that no worker waits for us."""
        # At most one pipe's worth: a worker that prints without end must not hold the judge.
        taken = 0
        while self._fd >= 0 and taken < PIPE_BYTES:
            try:
                part = os.read(self._fd, OUTPUT_BYTES)
            except BlockingIOError:
                return
            if not part:
                return
            taken += len(part)
            self._tail = (self._tail + part)[-OUTPUT_BYTES:]

    def text(self) -> str:
        """Return the kept output with every control character escaped, line ends kept."""
        self.drain()
        lines = self._tail.decode(errors="backslashreplace").split("\n")
        return "\n".join(escaped(line) for line in lines)

    def last_line(self) -> str:
        """Return the last line that is not blank, escaped; at most 300 characters."""
        lines = [line for line in self.text().split("\n") if line.strip()]
        return lines[-1].strip()[:300] if lines else ""

    def close(self) -> None:
        """Close both ends; what was captured stays."""
        self.drain()
        for fd in (self._fd, self.write_fd):
            if fd >= 0:
                os.close(fd)
        self._fd = self.write_fd = -1


def escaped(line: str) -> str:
    """Return a line that cannot move a cursor or forge a second line when it is shown."""
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode()
        for character in line
    )


def _widen(fd: int) -> None:
    import contextlib
    import fcntl

    with contextlib.suppress(PermissionError):  # over the user's pipe quota: it stays at 64 KiB
        fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
