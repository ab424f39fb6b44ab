"""Call an untrusted worker under the judge's clock, and end it whatever happens.

Every wait has a deadline and looks at the worker's memory and state in between, at each step of
the protocol alike; how a worker failed is told from what the kernel says about it. The time of a
call runs from just before GO to the answer, and CPU time used after the answer is charged, so
that work moved behind the answer costs the same.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from atrex.closing import Closing
from atrex.errors import SetupError
from atrex.judge import procfs, sandbox
from atrex.judge.channel import (
    Arguments,
    Block,
    Channel,
    Ended,
    Fault,
    Kind,
    Output,
    Reply,
    Status,
    Target,
    protocol_violation,
)
from atrex.judge.forkserver import Start
from atrex.judge.memory import Arena
from atrex.model import Outcome, Record

GRACE_NS = 1_000_000_000  # from a closed socket to a dead process
RETURN_NS = 1_000_000  # in which an honest worker is back in its read; looking costs more
# Stopping a sleeping thread costs it 3 to 18 us of CPU time (2,000 stops on a 2-core VM); what
# goes beyond is work that a thread did after it was seen asleep.
STOP_NS = 30_000


class Limits(Record, frozen=True, kw_only=True):
    """Budgets of one worker (integrity.md 1.6).

    Attributes:
        load_s: Loading, `prepare`, and binding (where torch.compile compiles), each, in s.
        call_s: One call, in s.
        settle_s: From the answer of a call until every thread is asleep, in s.
        threads: Cores that it may use at a time; it is pinned to as many, away from the judge.
        memory_bytes: Virtual and resident memory beyond what it has before the candidate loads,
            arenas not counted, descendants counted.
        virtual: Whether virtual memory counts; a GPU's driver reserves far more than it uses.
        file_bytes: Largest file that it may write.
    """

    load_s: float = 60.0
    call_s: float = 10.0
    settle_s: float = 2.0
    threads: int = 1
    memory_bytes: int = 2 << 30
    virtual: bool = True
    file_bytes: int = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class CallResult:
    """What one call took.

    Attributes:
        elapsed_ns: From just before GO to the answer, by the judge's raw monotonic clock.
        charged_ns: CPU time used after the answer, until every thread was asleep.
        cpu_ns: CPU time of all threads from GO until then; some microseconds too much.
        queued_ns: Time that threads waited for a CPU: the call was disturbed.
        device_ns: From the first to the last event of the call by the device's clock, as the worker
            says; 0 on the CPU. The judge's own clock bounds it.
    """

    elapsed_ns: int
    charged_ns: int
    cpu_ns: int
    queued_ns: int
    device_ns: int = 0

    @property
    def time_ns(self) -> int:
        """The time of the call: elapsed and charged."""
        return self.elapsed_ns + self.charged_ns


class _Rest(NamedTuple):
    """A worker of which every thread sleeps."""

    cpu_ns: int  # used so far
    threads: int  # most that were seen while waiting


class Server(Protocol):
    """Who forks and reaps workers."""

    home: Path  # private folder, gone when the server ends

    def fork(self, request: Start, fds: Sequence[int]) -> int:
        """Fork a confined process and return its pid."""

    def end(self, pid: int) -> int:
        """Kill a worker and whatever it started; return its wait status."""

    def orphans(self) -> list[int]:
        """Return the processes that workers started and left."""


class Worker(Closing):
    """One untrusted process. After a `Fault` it is dead; `close` is always safe."""

    def __init__(
        self, server: Server, target: Target, arenas: Sequence[Arena], limits: Limits
    ) -> None:
        self.target = target
        self.limits = limits
        self._server = server
        self._home = Path(tempfile.mkdtemp(dir=server.home))
        self._output = Output()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._channel = Channel(ours)
        self._oom_kills = procfs.oom_kills()
        self._ended_with: int | None = None  # wait status
        self._budget: tuple[int, int] | None = None  # virtual, resident; none before HELLO
        files = [(a.backing.fd, a.sealed) for a in arenas if a.backing.fd is not None]
        fds = [theirs.fileno(), self._output.write_fd, *(fd for fd, _ in files)]
        access = "".join("r" if sealed else "w" for _, sealed in files)
        self._cores = sandbox.split_cores(limits.threads)
        self.pid = server.fork(
            Start(
                home=str(self._home),
                access=access,
                file_bytes=limits.file_bytes,
                cpus=tuple(sorted(self._cores.worker)),
                environment=target.environment,
            ),
            fds,
        )
        theirs.close()
        self._output.opened()
        self._cpu_clock = procfs.cpu_clock(self.pid)
        self._held = False  # stopped by SIGSTOP
        self._idle_bytes = 0

    def load(self) -> None:
        """Wait until the arenas are mapped, note the memory in use, then load the target.

        Raises:
            Fault: compile_failed if the import fails; otherwise by how the worker ended.
        """
        self._accept(self._wait(self.limits.load_s))
        virtual, resident = procfs.memory(self.pid)
        self._budget = (virtual + self.limits.memory_bytes, resident + self.limits.memory_bytes)
        path = self.target.path.encode() + b"\0"
        native = self.target.kind == "native"
        reply = self._request(
            Kind.LOAD, path if native else msgspec.msgpack.encode(self.target), self.limits.load_s
        )
        self._check(reply, Outcome.COMPILE_FAILED)
        self.reset_peak()

    def prepare(self, arguments: Arguments | Block) -> int:
        """Run the optional `prepare` over the static inputs; return its time in ns."""
        start = time.monotonic_ns()
        reply = self._request(Kind.PREPARE, arguments.encode(), self.limits.load_s)
        self._check(reply, Outcome.CRASHED)
        return time.monotonic_ns() - start

    def bind(self, arguments: Arguments | Block) -> None:
        """Hand over the arguments of the calls that follow."""
        reply = self._request(Kind.BIND, arguments.encode(), self.limits.load_s)
        self._check(reply, Outcome.CRASHED)

    def call(self) -> CallResult:
        """Call once with the bound arguments; afterwards the worker is stopped.

        Raises:
            Fault: The call failed, or left a process behind.
        """
        self._release()
        resting = self._settle()
        with self._cores.judge_apart():
            armed = self._arm()
            queued = procfs.queued_ns(self.pid)
            message = self._channel.compose(Kind.GO)
            start = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            self._send(message)
            record = self._wait(self.limits.call_s, awake=self._cores.apart)
            end = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
            answered_cpu_ns = procfs.cpu_ns(self._cpu_clock)
            rest = self._settle()
        self._hold()
        after_ns = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - end
        late_ns = procfs.cpu_ns(self._cpu_clock) - rest.cpu_ns
        late_ns = late_ns if late_ns > STOP_NS * rest.threads else 0
        queued = procfs.queued_ns(self.pid) - queued
        reply = self._accept(record)
        self._check(reply, Outcome.CRASHED)
        self._refuse_processes()
        return CallResult(
            elapsed_ns=end - start,
            # The CPU clock of a thread that still ran at the answer may lag by a tick; no thread
            # can have used more than the time that passed.
            charged_ns=min(rest.cpu_ns - answered_cpu_ns + late_ns, after_ns * rest.threads),
            cpu_ns=max(rest.cpu_ns + late_ns - resting.cpu_ns - (start - armed), 0),
            queued_ns=queued,
            device_ns=reply.device_ns,
        )

    def collect(self) -> None:
        """Have a baseline copy the outputs it returned into the destinations, untimed."""
        reply = self._request(Kind.COLLECT, b"", self.limits.call_s)
        self._check(reply, Outcome.CRASHED)

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Have every thread stopped while the judge reads outputs or writes inputs.

        The worker stays stopped until the next request: it runs only when it is asked to.
        """
        self._hold()
        yield

    def linger(self, seconds: float) -> None:
        """Let the worker run unasked for a while, so that late writes of its threads show."""
        self._release()
        time.sleep(seconds)
        self._hold()

    def peak_bytes(self) -> int:
        """Return the resident high-water mark beyond the memory in use at `reset_peak`."""
        return max(procfs.peak_resident(self.pid) - self._idle_bytes, 0)

    def reset_peak(self) -> None:
        """Measure `peak_bytes` from here; called once after loading."""
        procfs.reset_peak(self.pid)
        _, self._idle_bytes = procfs.memory(self.pid)

    def maps(self) -> list[str]:
        """Return the files mapped into the worker, loaded objects among them."""
        return procfs.mapped_files(self.pid)

    def tasks(self) -> dict[int, str]:
        """Return the state letter of every thread."""
        return procfs.tasks(self.pid)

    def tier(self) -> int | None:
        """Return the sandbox tier that the kernel confirms."""
        return sandbox.achieved_tier(self.pid)

    def output(self) -> str:
        """Return what the worker printed, escaped."""
        return self._output.text()

    def close(self) -> None:
        """Kill the worker with everything it started, and free what it held."""
        self._end()
        self._channel.close()
        self._output.close()
        shutil.rmtree(self._home, ignore_errors=True)

    def _arm(self) -> int:
        """Wake the worker if it has a core of its own; return the time from which it is awake.

        Spinning on the judge's core would keep the judge from sending GO.
        """
        if self._cores.apart:
            self._check(self._request(Kind.ARM, b"", self.limits.call_s), Outcome.CRASHED)
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)

    def _request(self, kind: Kind, payload: bytes, seconds: float) -> Reply:
        self._output.drain()
        self._release()
        self._send(self._channel.compose(kind, payload))
        return self._accept(self._wait(seconds))

    def _send(self, message: bytes) -> None:
        try:
            self._channel.send(message)
        except Ended:
            raise self._death() from None

    def _accept(self, record: bytes) -> Reply:
        try:
            reply = self._channel.accept(record)
            self._channel.refuse_surplus()
        except Fault:
            self._end()
            raise
        return reply

    def _wait(self, seconds: float, *, awake: bool = False) -> bytes:
        """Return the next record, watching memory, output and life until it comes.

        Until the first look at the worker an `awake` judge polls, as for any call that is timed.
        """
        deadline = time.monotonic_ns() + int(seconds * 1e9)
        while True:
            try:
                record = self._channel.receive(awake=awake)
                awake = False
            except Ended:
                raise self._death() from None
            if record is not None:
                return record
            self._watch()
            if time.monotonic_ns() > deadline:
                self._end()
                raise Fault(Outcome.TIMED_OUT, f"no answer within {seconds:g} s")

    def _watch(self) -> None:
        self._output.drain()
        if procfs.ended(self.pid):
            raise self._death()
        used = [procfs.memory(pid) for pid in (self.pid, *procfs.descendants(self.pid))]
        virtual = sum(size for size, _ in used)
        resident = sum(size for _, size in used)
        over = self._budget and (
            (self.limits.virtual and virtual > self._budget[0]) or resident > self._budget[1]
        )
        if over:
            self._end()
            raise self._out_of_memory()

    def _watch_until(self, deadline: int, reason: str) -> None:
        """Watch a worker that does not come to rest, and end it at the deadline."""
        self._watch()
        if time.monotonic_ns() > deadline:
            self._end()
            raise Fault(Outcome.VIOLATION, reason, kind="async_escape")

    def _settle(self) -> _Rest:
        """Wait until every thread is asleep."""
        patience = time.monotonic_ns() + RETURN_NS
        deadline = patience + int(self.limits.settle_s * 1e9)
        threads = 1
        while True:
            used = procfs.cpu_ns(self._cpu_clock)
            states = procfs.tasks(self.pid)
            threads = max(threads, len(states))
            # Two threads that hand work to each other can each be seen asleep in turn; they
            # cannot without using CPU time meanwhile.
            asleep = bool(states) and set(states.values()) == {"S"}
            if asleep and procfs.cpu_ns(self._cpu_clock) == used:
                return _Rest(used, threads)
            if time.monotonic_ns() > patience:
                self._watch_until(deadline, "a thread works on after the answer")

    def _hold(self) -> None:
        if self._held:
            return
        self._signal(signal.SIGSTOP)
        self._held = True
        deadline = time.monotonic_ns() + int(self.limits.settle_s * 1e9)
        while set(procfs.tasks(self.pid).values()) != {"T"}:
            self._watch_until(deadline, "a thread cannot be stopped")

    def _release(self) -> None:
        if self._held:
            self._held = False
            self._signal(signal.SIGCONT)

    def _refuse_processes(self) -> None:
        started = procfs.children(self.pid) + self._server.orphans()
        if started:
            self._end()
            raise Fault(
                Outcome.VIOLATION, f"started {len(started)} processes", kind="extra_process"
            )

    def _check(self, reply: Reply, failed: Outcome) -> None:
        """Turn a bad status into a fault; `failed` is what an exception means at this step."""
        if reply.status is Status.OK:
            return
        self._end()
        said = self._output.last_line()
        if reply.status is Status.NO_MEMORY:
            raise self._out_of_memory()
        if reply.status is Status.STRUCTURE:
            raise Fault(Outcome.INCORRECT, said, kind="structure")
        code = reply.detail - (1 << 32) if reply.detail >> 31 else reply.detail
        raise Fault(failed, f"the kernel returned {code}" if code else said or "failed silently")

    def _out_of_memory(self) -> Fault:
        budget = f"{self.limits.memory_bytes >> 20} MiB"
        return Fault(Outcome.OUT_OF_MEMORY, f"needs more memory than its budget of {budget}")

    def _death(self) -> Fault:
        """Tell how a worker that no longer answers has ended."""
        deadline = time.monotonic_ns() + GRACE_NS
        while not procfs.ended(self.pid):
            if time.monotonic_ns() > deadline:
                self._end()
                return protocol_violation("closed its channel")
        status = self._end()
        if self._budget is None:  # no candidate code has run yet
            return Fault(Outcome.INFRA_ERROR, f"the worker did not start (status {status})")
        if not os.WIFSIGNALED(status):
            return protocol_violation(f"exited early with code {os.waitstatus_to_exitcode(status)}")
        number = os.WTERMSIG(status)
        if number == signal.SIGKILL and procfs.oom_kills() > self._oom_kills:
            return Fault(Outcome.OUT_OF_MEMORY, "killed by the kernel for want of memory")
        name = signal.Signals(number).name
        return Fault(Outcome.CRASHED, f"{name}: {signal.strsignal(number)}")

    def _signal(self, number: signal.Signals) -> None:
        if self._ended_with is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, number)

    def _end(self) -> int:
        """Kill and reap the worker once; return its wait status."""
        if self._ended_with is None:
            self._output.drain()
            self._signal(signal.SIGKILL)
            self._ended_with = signal.SIGKILL
            # Without its server the worker is dead too: it is told to die with its parent.
            with contextlib.suppress(SetupError):
                self._ended_with = self._server.end(self.pid)
        return self._ended_with
