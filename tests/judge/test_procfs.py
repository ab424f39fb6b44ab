import os
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest

from atrex.judge import procfs

ME = os.getpid()


@pytest.fixture
def sleeper():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_threads_are_listed_with_their_state():
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    states = procfs.tasks(ME)
    done.set()
    thread.join()
    assert states[ME] == "R"
    assert len(states) >= 2


def test_a_name_that_looks_like_a_state_does_not_deceive(tmp_path):
    program = tmp_path / ") R 1 ("
    program.symlink_to("/bin/sleep")
    with subprocess.Popen([program, "60"]) as process:
        while procfs.tasks(process.pid).get(process.pid) == "R":
            pass
        os.kill(process.pid, signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        assert procfs.tasks(process.pid) == {process.pid: "T"}
        process.kill()


def test_a_zombie_has_ended_and_a_live_process_has_not(sleeper):
    assert not procfs.ended(sleeper.pid)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert procfs.ended(sleeper.pid)


def test_children_of_children_are_descendants(sleeper):
    command = [sys.executable, "-c", "import subprocess; subprocess.run(['sleep', '60'])"]
    with subprocess.Popen(command, start_new_session=True) as parent:
        while not procfs.descendants(parent.pid):
            pass
        (child,) = procfs.descendants(parent.pid)
        assert {parent.pid, child, sleeper.pid} <= set(procfs.descendants(ME))
        assert parent.pid in procfs.children(ME)
        assert child not in procfs.children(ME)
        assert procfs.session(child) == parent.pid
        os.killpg(parent.pid, signal.SIGKILL)


def test_touched_memory_is_resident_and_untouched_is_virtual():
    virtual, resident = procfs.memory(ME)
    kept = numpy.empty(64 << 20, dtype=numpy.uint8)
    assert procfs.memory(ME)[0] - virtual >= 60 << 20
    assert procfs.memory(ME)[1] - resident < 30 << 20
    kept[:] = 1
    assert procfs.memory(ME)[1] - resident >= 60 << 20


def test_the_peak_stays_after_freeing_until_it_is_reset():
    numpy.ones(64 << 20, dtype=numpy.uint8)
    assert procfs.peak_resident(ME) - procfs.memory(ME)[1] >= 50 << 20
    assert procfs.reset_peak(ME)
    assert procfs.peak_resident(ME) - procfs.memory(ME)[1] < 30 << 20


def test_cpu_time_grows_only_with_work(sleeper):
    clock = procfs.cpu_clock(ME)
    before = procfs.cpu_ns(clock)
    deadline = time.process_time() + 0.02
    while time.process_time() < deadline:
        pass
    assert procfs.cpu_ns(clock) - before >= 20_000_000
    assert procfs.queued_ns(ME) >= 0


def test_mapped_files_name_loaded_libraries():
    assert any("libc" in path for path in procfs.mapped_files(ME))


def test_a_process_that_is_gone_gives_empty_answers():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert procfs.tasks(pid) == {}
    assert procfs.ended(pid)
    assert procfs.children(pid) == []
    assert procfs.memory(pid) == (0, 0)
    assert procfs.peak_resident(pid) == 0
    assert procfs.queued_ns(pid) == 0
    assert procfs.mapped_files(pid) == []
    assert procfs.cpu_ns(procfs.cpu_clock(pid)) == 0
    assert not procfs.reset_peak(pid)


def test_the_kernels_count_of_memory_kills_is_a_number():
    assert procfs.oom_kills() >= 0
