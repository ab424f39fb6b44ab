import json
import os
import select
import signal
import struct
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import numpy
import pytest
import torch  # noqa: F401 - the judge holds it

from atrex.backends import compiler
from atrex.judge import procfs
from atrex.judge.channel import RECORD, Arguments, Block, Fault, Target
from atrex.judge.launcher import Forkserver, build_runner
from atrex.judge.memory import Arena, required_bytes
from atrex.judge.worker import Limits, Worker
from atrex.model import Outcome
from atrex.operator import TensorSpec

pytestmark = pytest.mark.skipif(compiler.find() is None, reason="needs a C compiler")

ROW = TensorSpec(shape=(256,), dtype="fp32")
LIMITS = Limits(load_s=60, call_s=60, settle_s=2, memory_bytes=256 << 20)
HASTY = Limits(load_s=60, call_s=0.5, settle_s=0.2)
DOUBLE = [2.0 * value for value in range(256)]
HONEST = "for (int64_t i = 0; i < a->n; i++) a->out[i] = 2 * a->x[i];"
PRELUDE = """
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
struct arguments { const float *x; int64_t n; float *out; };
static void *volatile kept; /* else the compiler leaves out allocations that nobody uses */
#define SHARED ((volatile float *)a->out)
#define UNWRITTEN(i) (SHARED[i] != SHARED[i]) /* NaN, as the output is poisoned */
"""


class Bench:
    """One input row 0..255 in a sealed arena, one output row, and the servers."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.inputs = Arena(required_bytes([ROW]), sealed=True, index=0)
        self.outputs = Arena(required_bytes([ROW]), sealed=False, index=1)
        self.x = self.inputs.place(ROW)
        self.out = self.outputs.place(ROW)
        self.inputs.bytes_of(self.x).view(numpy.float32)[:] = numpy.arange(256)
        found = compiler.find()
        assert found is not None
        self.compiler = found
        self.runner = build_runner(found, folder / "runner")
        self.servers: dict[str, Forkserver] = {}

    def server(self, flavour) -> Forkserver:
        if flavour not in self.servers:
            runner = self.runner if flavour == "native" else None
            self.servers[flavour] = Forkserver(flavour, runner=runner)
        return self.servers[flavour]

    def kernel(self, body: str, outside: str = "") -> Target:
        text = f"{PRELUDE}{outside}\nint run(const struct arguments *a) {{ {body}\nreturn 0; }}\n"
        return self.library(text)

    def library(self, text: str) -> Target:
        source = self.folder / f"{sha256(text.encode()).hexdigest()[:12]}.c"
        source.write_text(text)
        built = compiler.compile_c(
            self.compiler, source, source.with_suffix(".so"), flags=("-O1",), link=("-lpthread",)
        )
        assert built.ok, built.log
        return Target(kind="native", path=str(source.with_suffix(".so")))

    def module(self, text: str) -> Target:
        path = self.folder / f"{sha256(text.encode()).hexdigest()[:12]}.py"
        path.write_text(text)
        return Target(kind="candidate", path=str(path))

    def start(self, target: Target, flavour="native", limits: Limits = LIMITS) -> Worker:
        self.outputs.bytes_of(self.out)[:] = 0xFF
        return self.server(flavour).start(target, [self.inputs, self.outputs], limits)

    def arguments(self, target: Target) -> Block | Arguments:
        if target.kind == "native":
            data = struct.pack("<QqQ", 0, 256, 0)
            return Block(data=data, relocations=((0, 0, self.x.offset), (16, 1, self.out.offset)))
        return Arguments(inputs={"x": self.x, "n": 256}, outputs={"out": self.out})

    def run(self, target: Target, flavour="native", limits: Limits = LIMITS) -> list[float]:
        with self.start(target, flavour, limits) as worker:
            worker.bind(self.arguments(target))
            worker.call()
            with worker.frozen():
                return self.result()

    def fault(self, target: Target, flavour="native", limits: Limits = LIMITS) -> Fault:
        """Return how a call fails, having checked that the next worker is none the worse."""
        with pytest.raises(Fault) as caught:
            self.run(target, flavour, limits)
        if flavour == "native":
            assert self.run(self.kernel(HONEST)) == DOUBLE
        else:
            assert self.run(self.module(HONEST_PYTHON), flavour) == DOUBLE
        return caught.value

    def result(self) -> list[float]:
        return self.outputs.bytes_of(self.out).view(numpy.float32).tolist()

    def close(self) -> None:
        for server in self.servers.values():
            server.close()
        self.inputs.close()
        self.outputs.close()


HONEST_PYTHON = "def run(x, n, out, prepared=None):\n    out[:] = 2 * x[:n]\n"


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    made = Bench(tmp_path_factory.mktemp("kernels"))
    yield made
    made.close()


def ends(pid: int, milliseconds: int = 10_000) -> bool:
    """Wait until a process has ended."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    ended = bool(poll.poll(milliseconds))
    os.close(fd)
    return ended


# Honest workers


def test_a_native_kernel_writes_its_output(bench):
    assert bench.run(bench.kernel(HONEST)) == DOUBLE


@pytest.mark.parametrize("flavour", ["numba", "torch"])
def test_a_python_kernel_writes_its_output(bench, flavour):
    assert bench.run(bench.module(HONEST_PYTHON), flavour) == DOUBLE


def test_a_compiled_numba_kernel_gets_arrays(bench):
    text = (
        "import numba\n@numba.njit\ndef double(x, out):\n"
        "    for i in range(x.size):\n        out[i] = 2 * x[i]\n"
        "def run(x, n, out, prepared=None):\n    double(x, out)\n"
    )
    assert bench.run(bench.module(text), "numba") == DOUBLE


def test_the_judge_changes_inputs_between_calls_of_one_worker(bench):
    target = bench.kernel(HONEST)
    row = bench.inputs.bytes_of(bench.x).view(numpy.float32)
    with bench.start(target) as worker:
        worker.bind(bench.arguments(target))
        worker.call()
        with worker.frozen():
            row[:] = 5
        worker.call()
        assert bench.result() == [10.0] * 256
    row[:] = numpy.arange(256)


def test_a_result_has_time_of_the_judges_clock_and_of_the_cpu(bench):
    target = bench.kernel("volatile long n = 0; while (n < 20000000) n++;" + HONEST)
    with bench.start(target) as worker:
        worker.bind(bench.arguments(target))
        result = worker.call()
    assert result.elapsed_ns > 1_000_000
    assert result.cpu_ns > 1_000_000
    assert result.time_ns == result.elapsed_ns + result.charged_ns


def test_prepare_runs_on_request_and_its_result_arrives(bench):
    target = bench.module(
        "def prepare(x):\n    return float(x[3])\n"
        "def run(x, n, out, prepared):\n    out[:] = prepared\n"
    )
    with bench.start(target, "torch") as worker:
        assert worker.prepare(Arguments(inputs={"x": bench.x}, outputs={})) > 0
        worker.bind(bench.arguments(target))
        worker.call()
        assert bench.result() == [3.0] * 256


def test_native_prepare_gets_the_arguments(bench):
    target = bench.library(
        PRELUDE + "static float seventh; int prepare(const struct arguments *a)"
        "{ seventh = a->x[7]; return 0; } int run(const struct arguments *a)"
        "{ for (int64_t i = 0; i < a->n; i++) a->out[i] = seventh; return 0; }"
    )
    with bench.start(target) as worker:
        worker.prepare(bench.arguments(target))
        worker.bind(bench.arguments(target))
        worker.call()
        assert bench.result() == [7.0] * 256


DEFINITION = """
from atrex.operator import Implementation, Operator


def doubled(x, n, prepared=None):
    return {"out": 2 * x}


def wrong_shape(x, n, prepared=None):
    return {"out": x[:3]}


DEFINITION = Operator(
    name="double", axes=(), inputs=None, outputs=None, reference=None, cost=None, match=None,
    tolerance={}, small=(),
    baselines=(
        Implementation(name="doubled", run=doubled),
        Implementation(name="wrong_shape", run=wrong_shape),
    ),
)
"""


def baseline(bench, name: str, **options) -> Target:
    path = bench.folder / "definition.py"
    path.write_text(DEFINITION)
    return Target(kind="baseline", path=str(path), name=name, **options)


def test_a_baseline_returns_outputs_that_are_copied_only_on_request(bench):
    target = baseline(bench, "doubled")
    with bench.start(target, "torch") as worker:
        worker.bind(bench.arguments(target))
        worker.call()
        assert all(value != value for value in bench.result())
        worker.collect()
        assert bench.result() == DOUBLE


def test_a_baseline_of_the_wrong_shape_is_incorrect_in_structure(bench):
    target = baseline(bench, "wrong_shape")
    with bench.start(target, "torch") as worker:
        worker.bind(bench.arguments(target))
        worker.call()
        with pytest.raises(Fault) as caught:
            worker.collect()
    assert (caught.value.outcome, caught.value.kind) == (Outcome.INCORRECT, "structure")
    assert "out is (3,) torch.float32, expected (256,)" in caught.value.reason


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_compiled_baseline_is_compiled_before_it_is_called(bench, tmp_path):
    cache = {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path)}
    target = baseline(bench, "doubled", compiled=True, environment=cache)
    limits = Limits(load_s=250, call_s=10)
    with bench.start(target, "inductor", limits) as worker:
        worker.bind(bench.arguments(target))
        worker.call()
        worker.collect()
        assert bench.result() == DOUBLE
    assert list(tmp_path.rglob("*.so"))


def test_a_torch_kernel_gets_bf16_tensors_and_shared_memory(bench):
    spec = TensorSpec(shape=(4, 8), dtype="bf16", strides=(16, 1))
    arena = Arena(required_bytes([spec]), sealed=True, index=0)
    x = arena.place(spec)
    arena.tensor(x).fill_(1.5)
    text = (
        "import torch\ndef run(x, out, prepared=None):\n"
        "    assert x.dtype is torch.bfloat16 and x.stride() == (16, 1)\n"
        "    out[:32] = x.float().reshape(-1)\n"
    )
    with bench.server("torch").start(bench.module(text), [arena, bench.outputs], LIMITS) as worker:
        worker.bind(Arguments(inputs={"x": x}, outputs={"out": bench.out}))
        worker.call()
    assert bench.result()[:32] == [1.5] * 32
    arena.close()


def test_peak_memory_counts_what_a_call_used_beyond_the_buffers(bench):
    target = bench.kernel("kept = malloc(64 << 20); memset(kept, 1, 64 << 20);"
                          "a->out[0] = ((char *)kept)[12345]; free(kept);")  # fmt: skip
    with bench.start(target) as worker:
        assert worker.peak_bytes() < 4 << 20
        worker.bind(bench.arguments(target))
        worker.call()
        assert 64 << 20 <= worker.peak_bytes() < 72 << 20


def test_loaded_objects_and_the_tier_are_seen_from_outside(bench):
    target = bench.kernel(HONEST)
    with bench.start(target) as worker:
        assert target.path in worker.maps()
        assert not any("libpython" in path or "libtorch" in path for path in worker.maps())
        assert worker.tier() == 0


def test_chatty_output_is_harmless_and_shown_escaped(bench):
    body = 'for (int i = 0; i < 300000; i++) printf("{score: 1}\\n"); printf("\\x1b[2J\\n");'
    target = bench.kernel(body + "fflush(stdout);" + HONEST)
    with bench.start(target) as worker:
        worker.bind(bench.arguments(target))
        worker.call()
        assert bench.result() == DOUBLE
        assert worker.output().endswith("{score: 1}\n\\x1b[2J\n")


def test_a_worker_inherits_no_variable_of_the_judges(bench, monkeypatch):
    monkeypatch.setenv("ATREX_SECRET", "canary")
    with Forkserver("numba") as server:
        target = bench.module(
            "import os\ndef run(x, n, out, prepared=None):\n    print(dict(os.environ))\n"
            "    print(sorted(os.listdir('/proc/self/fd'), key=int), flush=True)\n"
        )
        with server.start(target, [bench.inputs, bench.outputs], LIMITS) as worker:
            worker.bind(bench.arguments(target))
            worker.call()
            output = worker.output()
    assert "canary" not in output
    assert "'OMP_NUM_THREADS': '1'" in output
    assert "['0', '1', '2', '3', " in output


# Failures


@pytest.mark.parametrize(
    ("body", "signal_name"),
    [
        ("((float *)a->x)[0] = 1;", "SIGSEGV"),
        ("*(volatile int *)8 = 1;", "SIGSEGV"),
        ("abort();", "SIGABRT"),
        ("kill(getpid(), SIGKILL);", "SIGKILL"),
    ],
)
def test_a_fatal_signal_is_a_crash_of_the_worker_alone(bench, body, signal_name):
    fault = bench.fault(bench.kernel(body))
    assert fault.outcome is Outcome.CRASHED
    assert fault.reason.startswith(signal_name)
    assert bench.inputs.bytes_of(bench.x).view(numpy.float32).tolist()[:2] == [0.0, 1.0]


@pytest.mark.parametrize("body", ["for (;;) sleep(1);", "for (volatile int i = 0;; i++) ;"])
def test_a_kernel_that_never_returns_is_timed_out(bench, body):
    fault = bench.fault(bench.kernel(body), limits=HASTY)
    assert (fault.outcome, fault.reason) == (Outcome.TIMED_OUT, "no answer within 0.5 s")


def test_a_hanging_kernel_takes_its_grandchildren_with_it(bench):
    body = (
        "if (fork() == 0) { setsid(); if (fork() == 0) { SHARED[0] = getpid(); for (;;) pause(); }"
        " SHARED[1] = getpid(); for (;;) pause(); } for (;;) pause();"
    )
    target = bench.kernel(body)
    with bench.start(target, limits=HASTY) as worker:
        worker.bind(bench.arguments(target))
        with pytest.raises(Fault) as caught:
            worker.call()
    assert caught.value.outcome is Outcome.TIMED_OUT
    started = [int(value) for value in bench.result()[:2]]
    assert len(set(started)) == 2
    assert all(ends(pid) for pid in (worker.pid, *started))


@pytest.mark.parametrize(
    "body",
    [
        "for (;;) { kept = malloc(1 << 20); memset(kept, 1, 1 << 20); }",
        "for (;;) kept = malloc(64 << 20);",
        "for (;;) { kept = malloc(1 << 30); if (kept) *(char *)kept = 1; }",
        "for (fork();;) { kept = malloc(1 << 20); memset(kept, 1, 1 << 20); }",
    ],
)
def test_endless_allocation_in_c_is_out_of_memory(bench, body):
    assert bench.fault(bench.kernel(body)).outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize(
    "body",
    [
        "kept = []\n    while True:\n        kept.append(bytearray(1 << 20))",
        "kept = []\n    while True:\n        kept.append([1.5] * 1000)",
        "bytearray(1 << 50)",
        "raise MemoryError",
    ],
)
def test_endless_allocation_in_python_is_out_of_memory(bench, body):
    target = bench.module(f"def run(x, n, out, prepared=None):\n    {body}\n")
    assert bench.fault(target, "numba").outcome is Outcome.OUT_OF_MEMORY


def test_an_impossible_tensor_is_out_of_memory(bench):
    target = bench.module(
        "import torch\ndef run(x, n, out, prepared=None):\n    torch.empty(1 << 50)\n"
    )
    assert bench.fault(target, "torch").outcome is Outcome.OUT_OF_MEMORY


def test_allocation_without_end_while_loading_is_out_of_memory(bench):
    target = bench.module("kept = []\nwhile True:\n    kept.append(bytearray(1 << 20))\n")
    assert bench.fault(target, "numba").outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize("body", ["exit(0);", "_exit(3);"])
def test_a_native_kernel_that_exits_breaks_the_protocol(bench, body):
    fault = bench.fault(bench.kernel(body))
    assert (fault.outcome, fault.kind) == (Outcome.VIOLATION, "protocol")
    assert "exited early" in fault.reason


@pytest.mark.parametrize("call", ["sys.exit(0)", "os._exit(0)", "exit()"])
def test_a_python_kernel_that_exits_breaks_the_protocol(bench, call):
    target = bench.module(f"import os, sys\ndef run(x, n, out, prepared=None):\n    {call}\n")
    fault = bench.fault(target, "numba")
    assert (fault.outcome, fault.kind) == (Outcome.VIOLATION, "protocol")


FORGED = RECORD.pack(1, 2, 5, 0, 0, 0, 0)


@pytest.mark.parametrize("record", [FORGED, FORGED[:-1], b"passed", b""])
def test_a_forged_record_breaks_the_protocol(bench, record):
    target = bench.module(
        f"import os, socket\ndef run(x, n, out, prepared=None):\n"
        f"    socket.socket(fileno=os.dup(3)).send({record!r})\n"
    )
    fault = bench.fault(target, "numba")
    assert (fault.outcome, fault.kind) == (Outcome.VIOLATION, "protocol")


def test_a_worker_that_closes_its_channel_breaks_the_protocol(bench):
    fault = bench.fault(bench.kernel("close(3); for (;;) pause();"))
    assert (fault.outcome, fault.kind) == (Outcome.VIOLATION, "protocol")


@pytest.mark.parametrize(("code", "shown"), [("5", "returned 5"), ("-2", "returned -2")])
def test_a_native_error_code_is_a_crash_with_its_code(bench, code, shown):
    fault = bench.fault(bench.kernel(f"return {code};"))
    assert fault.outcome is Outcome.CRASHED
    assert shown in fault.reason


def test_an_exception_is_a_crash_with_its_last_line(bench):
    target = bench.module("def run(x, n, out, prepared=None):\n    raise KeyError('tile')\n")
    fault = bench.fault(target, "torch")
    assert (fault.outcome, fault.reason) == (Outcome.CRASHED, "KeyError: 'tile'")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("def run(:\n", "SyntaxError"),
        ("import not_a_module\n", "ModuleNotFoundError: No module named 'not_a_module'"),
        ("x = 1\n", "AttributeError"),
    ],
)
def test_a_module_that_does_not_load_fails_to_compile(bench, text, reason):
    fault = bench.fault(bench.module(text), "numba")
    assert fault.outcome is Outcome.COMPILE_FAILED
    assert fault.reason.startswith(reason)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("int walk(void) { return 0; }", "no function `run`"),
        ("int missing(void); int run(void *a) { return missing(); }", "undefined symbol"),
    ],
)
def test_a_library_that_does_not_load_fails_to_compile(bench, text, reason):
    fault = bench.fault(bench.library(text))
    assert fault.outcome is Outcome.COMPILE_FAILED
    assert reason in fault.reason


# Work after the answer


def test_a_thread_that_never_rests_is_an_async_escape(bench):
    spin = "static void *spin(void *p) { for (volatile int i = 0;; i++) ; return p; }"
    target = bench.kernel("pthread_t t; pthread_create(&t, 0, spin, 0);" + HONEST, spin)
    fault = bench.fault(target, limits=HASTY)
    assert (fault.outcome, fault.kind) == (Outcome.VIOLATION, "async_escape")


def test_cpu_time_used_after_the_answer_is_charged(bench):
    work = "static void *work(void *p) { for (volatile int i = 0; i < 30000000; i++) ; return p; }"
    target = bench.kernel("pthread_t t; pthread_create(&t, 0, work, 0);" + HONEST, work)
    with bench.start(target) as worker:
        worker.bind(bench.arguments(target))
        result = worker.call()
    assert result.charged_ns > 1_000_000


def test_a_worker_is_stopped_from_the_end_of_a_call_to_the_next_request(bench):
    target = bench.kernel(HONEST)
    with bench.start(target) as worker:
        worker.bind(bench.arguments(target))
        worker.call()
        assert set(worker.tasks().values()) == {"T"}
        worker.bind(bench.arguments(target))
        assert set(worker.tasks().values()) <= {"R", "S"}


def test_a_late_write_never_reaches_the_judges_copy_but_shows_when_the_worker_lingers(bench):
    late = (
        "static void *late(void *p) { usleep(300000); const struct arguments *a = p;"
        f"{HONEST} return p; }}"
    )
    target = bench.kernel("pthread_t t; pthread_create(&t, 0, late, (void *)a);", late)
    with bench.start(target) as worker:
        worker.bind(bench.arguments(target))
        worker.call()
        with worker.frozen():
            assert all(value != value for value in bench.result())
        while bench.result() != DOUBLE:
            worker.linger(0.1)


@pytest.mark.parametrize(
    "body",
    [
        "if (fork() == 0) { SHARED[0] = getpid(); for (;;) pause(); }",
        "if (fork() == 0) { setsid(); if (fork() == 0) { SHARED[0] = getpid(); for (;;) pause(); }"
        " while (UNWRITTEN(0)) ; _exit(0); }",
    ],
)
def test_a_process_left_behind_is_a_violation_and_does_not_survive(bench, body):
    target = bench.kernel(body + "while (UNWRITTEN(0)) ;")
    with bench.start(target) as worker:
        worker.bind(bench.arguments(target))
        with pytest.raises(Fault) as caught:
            worker.call()
    assert (caught.value.outcome, caught.value.kind) == (Outcome.VIOLATION, "extra_process")
    assert ends(int(bench.result()[0]))


# Death at every step


KILL = "kill(getpid(), SIGKILL);"


@pytest.mark.parametrize(
    "text",
    [
        f"__attribute__((constructor)) static void load(void) {{ {KILL} }}"
        "int run(void *a) { return 0; }",
        f"int prepare(void *a) {{ {KILL} return 0; }} int run(void *a) {{ return 0; }}",
        f"int run(void *a) {{ {KILL} return 0; }}",
    ],
    ids=["load", "prepare", "go"],
)
def test_sigkill_inside_a_step_is_a_crash(bench, text):
    target = bench.library(PRELUDE + text)

    def live() -> None:
        with bench.start(target) as worker:
            worker.prepare(bench.arguments(target))
            worker.bind(bench.arguments(target))
            worker.call()

    with pytest.raises(Fault) as caught:
        live()
    assert caught.value.outcome is Outcome.CRASHED
    assert bench.run(bench.kernel(HONEST)) == DOUBLE


@pytest.mark.parametrize("step", ["prepare", "bind", "call", "collect"])
@pytest.mark.parametrize("held", [False, True])
def test_sigkill_before_a_step_is_a_crash(bench, step, held):
    target = baseline(bench, "doubled")
    with bench.start(target, "torch") as worker:
        worker.bind(bench.arguments(target))
        if held:
            worker.call()
        os.kill(worker.pid, signal.SIGKILL)
        given = [bench.arguments(target)] if step in ("prepare", "bind") else []
        with pytest.raises(Fault) as caught:
            getattr(worker, step)(*given)
    assert caught.value.outcome is Outcome.CRASHED
    assert bench.run(bench.kernel(HONEST)) == DOUBLE


def test_sigkill_before_any_candidate_code_ran_is_never_the_candidates_fault(bench):
    target = bench.kernel(HONEST)
    worker = Worker(bench.server("native"), target, [bench.inputs, bench.outputs], LIMITS)
    os.kill(worker.pid, signal.SIGKILL)
    assert ends(worker.pid)
    with pytest.raises(Fault) as caught:
        worker.load()
    worker.close()
    assert caught.value.outcome is Outcome.INFRA_ERROR


def test_closing_twice_and_closing_after_a_fault_are_safe(bench):
    worker = bench.start(bench.kernel("abort();"))
    worker.bind(bench.arguments(worker.target))
    with pytest.raises(Fault):
        worker.call()
    worker.close()
    worker.close()
    assert ends(worker.pid)


def test_a_server_that_died_is_started_anew(bench):
    with Forkserver("native", runner=bench.runner) as server:
        os.kill(server.pid, signal.SIGKILL)
        assert ends(server.pid)
        target = bench.kernel(HONEST)
        with server.start(target, [bench.inputs, bench.outputs], LIMITS) as worker:
            worker.bind(bench.arguments(target))
            worker.call()
            assert bench.result() == DOUBLE


def test_workers_of_one_server_live_side_by_side(bench):
    honest, triple = bench.kernel(HONEST), bench.kernel(HONEST.replace("2 *", "3 *"))
    with bench.start(honest) as one, bench.start(triple) as other:
        for worker, expected in ((one, 20.0), (other, 30.0), (one, 20.0)):
            worker.bind(bench.arguments(honest))
            worker.call()
            assert bench.result()[10] == expected


JUDGE = """
import json, sys, threading
from pathlib import Path
from atrex.judge.channel import Block, Target
from atrex.judge.launcher import Forkserver
from atrex.judge.memory import Arena
from atrex.judge.worker import Limits

runner, kernel = sys.argv[1:]
outputs = Arena(4096, sealed=False)
server = Forkserver("native", runner=Path(runner))
worker = server.start(Target(kind="native", path=kernel), [outputs], Limits(call_s=60))
worker.bind(Block(data=bytes(24), relocations=((16, 0, 0),)))
threading.Thread(target=worker.call, daemon=True).start()
started = outputs.view(0, 8).view("float32")
while not started.all():
    pass
print(json.dumps([str(server.home), server.pid, worker.pid, *map(int, started)]), flush=True)
threading.Event().wait()
"""


def test_no_process_survives_sigkill_of_the_judge(bench):
    target = bench.kernel(
        "if (fork() == 0) { setsid(); SHARED[1] = getpid(); for (;;) pause(); }"
        "SHARED[0] = getpid(); for (;;) pause();"
    )
    command = [sys.executable, "-c", JUDGE, str(bench.runner), target.path]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as judge:
        assert judge.stdout is not None
        home, *pids = json.loads(judge.stdout.readline())
        assert not any(procfs.ended(pid) for pid in pids)
        judge.kill()
    assert len(set(pids)) == 3
    assert all(ends(pid) for pid in pids)
    assert not Path(home).exists()


def test_home_folders_are_removed(bench):
    target = bench.module(
        "import os\ndef run(x, n, out, prepared=None):\n    open('left', 'w').close()\n"
        "    print(os.getcwd(), os.environ['HOME'], flush=True)\n"
    )
    with bench.start(target, "numba") as worker:
        worker.bind(bench.arguments(target))
        worker.call()
        folder, home = worker.output().split()
        assert folder == home
        assert Path(folder, "left").exists()
    assert not Path(folder).exists()


def test_torch_in_the_judge_does_not_reach_the_workers(bench):
    assert any("libtorch" in path for path in procfs.mapped_files(os.getpid()))
    target = bench.module("def run(x, n, out, prepared=None):\n    pass\n")
    with bench.start(target, "numba") as worker:
        assert worker.maps()
        assert not any("libtorch" in path for path in worker.maps())
