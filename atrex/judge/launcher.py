"""Start the forkservers, and through them the workers.

One forkserver of each flavour is executed and kept; a worker is then a fork away, which costs
milliseconds where importing a framework costs a second. A server that died is started anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from atrex.backends.compiler import Compiler, compile_c
from atrex.closing import Closing
from atrex.errors import SetupError
from atrex.judge import procfs, sandbox
from atrex.judge.channel import Output, Target
from atrex.judge.forkserver import Answer, End, Flavour, Start
from atrex.judge.memory import Arena
from atrex.judge.worker import Limits, Worker

START_S = 60.0  # importing a framework from a cold disk
RUNNER_SOURCE = Path(__file__).with_name("native_runner.c")
RUNNER_FLAGS = ("-O2", "-std=gnu11", "-Wall")

# Executed with -I, so that neither the working directory nor PYTHON* variables of the caller
# decide what is imported; the judge's own path is handed over, which also serves a source tree.
_BOOT = (
    "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); "
    "from atrex.judge.forkserver import main; main()"
)


def build_runner(compiler: Compiler, cache: Path) -> Path:
    """Compile the native runner once for each source and compiler.

    Raises:
        SetupError: The compiler cannot compile it.
    """
    identity = RUNNER_SOURCE.read_bytes() + repr((compiler, RUNNER_FLAGS)).encode()
    runner = cache / f"native_runner-{hashlib.sha256(identity).hexdigest()[:12]}"
    if not runner.exists():
        cache.mkdir(parents=True, exist_ok=True)
        partial = runner.with_suffix(f".{os.getpid()}")
        built = compile_c(
            compiler, RUNNER_SOURCE, partial, flags=RUNNER_FLAGS, shared=False, link=("-ldl",)
        )
        if not built.ok:
            raise SetupError(f"the native runner does not compile: {built.log.strip()}")
        partial.replace(runner)
    return runner


class Forkserver(Closing):
    """A forkserver of one flavour, seen from the judge."""

    def __init__(self, flavour: Flavour, *, runner: Path | None = None) -> None:
        """Execute the server.

        Args:
            flavour: What it loads beforehand.
            runner: The program of `build_runner`, for the flavour ``"native"``.

        Raises:
            SetupError: The framework cannot be loaded.
        """
        if (flavour == "native") != (runner is not None):
            raise ValueError(f"the flavour {flavour} with the runner {runner}")
        self.flavour = flavour
        self._runner = str(runner) if runner else ""
        self._workers: set[int] = set()
        self._launch()

    def _launch(self) -> None:
        self._workers.clear()
        self.home = Path(tempfile.mkdtemp(prefix="atrex-"))
        self._output = Output()
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = json.dumps([entry for entry in sys.path if os.path.isabs(entry)])
        command = (sys.executable, "-I", "-c", _BOOT)
        environment = sandbox.clean_environment(self.home)
        if self.flavour == "cuda":
            environment |= sandbox.device_environment()
        self._process = subprocess.Popen(
            [*command, path, self.flavour, str(theirs.fileno()), self._runner],
            stdin=subprocess.DEVNULL,
            stdout=self._output.write_fd,
            stderr=self._output.write_fd,
            pass_fds=[theirs.fileno()],
            env=environment,
            cwd=self.home,
            start_new_session=True,  # a terminal's Ctrl-C is the judge's to handle
        )
        theirs.close()
        self._output.opened()
        self._connection.settimeout(START_S)
        try:
            self.pid = self._answer()
        except SetupError:
            self.close()
            raise

    def start(
        self, target: Target, arenas: Sequence[Arena], limits: Limits | None = None
    ) -> Worker:
        """Fork a worker, hand it the arenas and load the target.

        Raises:
            Fault: It failed to load.
        """
        if self._process.poll() is not None:
            self.close()
            self._launch()
        worker = Worker(self, target, arenas, limits or Limits())
        try:
            worker.load()
        except BaseException:
            worker.close()
            raise
        return worker

    def fork(self, request: Start, fds: Sequence[int]) -> int:
        """Fork a confined process and return its pid, which stays its own until `end`."""
        socket.send_fds(self._connection, [msgspec.msgpack.encode(request)], list(fds))
        pid = self._answer()
        self._workers.add(pid)
        return pid

    def end(self, pid: int) -> int:
        """Kill a worker and whatever it started; return its wait status.

        Raises:
            SetupError: The server itself is gone, and its workers with it.
        """
        self._workers.discard(pid)
        try:
            self._connection.send(msgspec.msgpack.encode(End(pid=pid)))
        except (BrokenPipeError, ConnectionResetError) as error:
            raise SetupError(f"the {self.flavour} worker server ended") from error
        return self._answer()

    def orphans(self) -> list[int]:
        """Return the processes that workers started and left, adopted by the server."""
        return [pid for pid in procfs.children(self.pid) if pid not in self._workers]

    def _answer(self) -> int:
        try:
            data = self._connection.recv(256)
        except (TimeoutError, ConnectionResetError):
            data = b""
        if not data:
            reason = self._output.last_line() or "it does not answer"
            raise SetupError(f"the {self.flavour} worker server cannot run: {reason}")
        return msgspec.msgpack.decode(data, type=Answer).value

    def close(self) -> None:
        """End the server and every worker that still runs."""
        self._connection.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._output.close()
        shutil.rmtree(self.home, ignore_errors=True)
