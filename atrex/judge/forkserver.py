"""A process that holds a loaded framework and forks a worker whenever the judge asks.

It is executed apart from the judge, so that no worker inherits a secret, and it runs no candidate
code itself. It adopts orphans: whatever a worker leaves behind becomes its child and is killed
with it. When the judge is gone it kills everything below it and ends.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import gc
import os
import select
import shutil
import signal
import socket
import sys
from typing import Literal, NoReturn

import msgspec

from atrex.judge import procfs, sandbox
from atrex.judge.channel import PAYLOAD_BYTES
from atrex.model import Record

Flavour = Literal["native", "numba", "torch", "inductor", "triton", "cuda", "compile"]

CONTROL_FD = 3  # in every worker: the channel; the arenas follow
MAX_FDS = 64
PARENT_CHECK_S = 1.0  # the judge's socket may live on in a process that it forked


class Start(Record, frozen=True, kw_only=True, tag="start"):
    """Fork a worker; its channel, its output pipe and its arenas come along as descriptors.

    Attributes:
        home: Fresh folder, its HOME, TMPDIR and working directory.
        access: One letter for each arena, ``"r"`` or ``"w"``.
        file_bytes: Size limit of a file.
        cpus: CPUs to be pinned to, any if empty.
        environment: Further variables.
    """

    home: str
    access: str
    file_bytes: int
    cpus: tuple[int, ...] = ()
    environment: dict[str, str] = msgspec.field(default_factory=dict)


class End(Record, frozen=True, kw_only=True, tag="end"):
    """Kill a worker with all its descendants and tell how it ended."""

    pid: int


class Answer(Record, frozen=True, kw_only=True):
    """A pid after `Start`, a wait status after `End`, the forkserver's pid when it is ready."""

    value: int


def main() -> None:
    """Serve until the judge is gone: `python -c ... FLAVOUR FD RUNNER`."""
    flavour: Flavour = sys.argv[1]  # type: ignore[assignment]
    connection = socket.socket(fileno=int(sys.argv[2]))
    connection.set_inheritable(False)
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the judge's to handle
    sandbox.adopt_orphans()
    preload(flavour)
    gc.collect()
    gc.freeze()  # else the first collection in every child copies the framework's pages
    Server(connection, flavour, runner=sys.argv[3]).serve()


def preload(flavour: Flavour) -> None:
    """Import what workers need, and take the first-use costs, without starting a thread."""
    if flavour == "native":
        return
    import atrex.judge.runtime
    import atrex.registry  # noqa: F401

    if flavour == "numba":
        import numba
        import numpy

        numba.njit(lambda x: x[0])(numpy.zeros(1, dtype=numpy.float32))
        return
    if flavour == "triton":
        os.environ["TRITON_INTERPRET"] = "1"  # read when kernels are defined, and by no other
    import torch

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    torch.set_grad_enabled(False)
    torch.nn.functional.silu(torch.ones(8, dtype=torch.bfloat16)).float().sum().item()
    if flavour == "compile":
        from atrex.backends.triton_compile import launches

        launches.preload()
    if flavour == "inductor":
        import torch._dynamo
        import torch._inductor.compile_fx
    if flavour == "cuda":  # no context: it does not survive a fork
        import triton  # noqa: F401
    if flavour == "triton":
        from atrex.backends import triton_interpreter
        from atrex.judge import triton_audit

        triton_interpreter.install()
        triton_audit.preload()


class Server:
    """Answers one request at a time, in order."""

    def __init__(self, connection: socket.socket, flavour: Flavour, *, runner: str) -> None:
        self._connection = connection
        self._flavour = flavour
        self._runner = runner  # executed instead of the Python runtime, "" if none
        self._judge = os.getppid()
        self._workers: set[int] = set()
        self._decoder = msgspec.msgpack.Decoder(Start | End)

    def serve(self) -> NoReturn:
        """Answer requests until the judge is gone, then kill every descendant and tidy up."""
        try:
            self._answer(os.getpid())
            while True:
                self._wait()
                data, fds = _receive(self._connection)
                if not data:
                    break
                request = self._decoder.decode(data)
                if isinstance(request, Start):
                    self._answer(self._start(request, fds))
                else:
                    self._answer(self._end(request.pid))
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self._kill(os.getpid())
            shutil.rmtree(os.environ["HOME"], ignore_errors=True)  # a killed judge cannot
            os._exit(0)

    def _answer(self, value: int) -> None:
        self._connection.send(msgspec.msgpack.encode(Answer(value=value)))

    def _wait(self) -> None:
        while not select.select([self._connection], [], [], PARENT_CHECK_S)[0]:
            if os.getppid() != self._judge:
                raise BrokenPipeError

    def _start(self, request: Start, fds: list[int]) -> int:
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            # Nothing may return into the server's loop, whatever happens.
            try:
                self._become_worker(parent, request, fds)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(70)
        for fd in fds:
            os.close(fd)
        self._workers.add(pid)
        return pid

    def _become_worker(self, parent: int, request: Start, fds: list[int]) -> None:
        sandbox.enter(parent, request.file_bytes, request.cpus)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        _arrange(fds)
        os.chdir(request.home)
        os.environ.update(
            HOME=request.home,
            TMPDIR=request.home,
            TRITON_CACHE_DIR=f"{request.home}/triton",
            **request.environment,
        )
        if self._runner:
            os.execv(self._runner, [self._runner, request.access])
        from atrex.judge.runtime import Runtime

        Runtime(CONTROL_FD, request.access, self._flavour).serve()

    def _end(self, pid: int) -> int:
        if pid not in self._workers:
            raise ValueError(f"{pid} is no worker")
        self._kill(pid)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # a zombie keeps the status it ended with
        _, status = os.waitpid(pid, 0)
        self._workers.remove(pid)
        self._kill_orphans()
        return status

    def _kill(self, root: int) -> None:
        """Kill all descendants of a process, again until none is left."""
        if root != os.getpid():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(root, signal.SIGKILL)
        while found := procfs.descendants(root):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if root == os.getpid():
                _reap(found)

    def _kill_orphans(self) -> None:
        while orphans := set(procfs.children(os.getpid())) - self._workers:
            for pid in orphans:
                self._kill(pid)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            _reap(list(orphans))


def _reap(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(pid, 0)


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Return a request and its descriptors, closed in every program executed later."""
    room = socket.CMSG_SPACE(MAX_FDS * array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(PAYLOAD_BYTES, room, socket.MSG_CMSG_CLOEXEC)
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    return data, list(fds)


def _arrange(fds: list[int]) -> None:
    """Give the channel and the arenas their fixed numbers, output to 1 and 2, close the rest."""
    above = CONTROL_FD + len(fds)
    channel, output, *arenas = [fcntl.fcntl(fd, fcntl.F_DUPFD, above) for fd in fds]
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    for number in (1, 2):
        os.dup2(output, number)
    for number, fd in enumerate([channel, *arenas], start=CONTROL_FD):
        os.dup2(fd, number)
    last = CONTROL_FD + 1 + len(arenas)
    os.closerange(last, os.sysconf("SC_OPEN_MAX"))


if __name__ == "__main__":
    main()
