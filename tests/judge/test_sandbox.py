import os
from pathlib import Path

import pytest

from atrex.judge.sandbox import Cores, achieved_tier, clean_environment, split_cores


@pytest.fixture
def one_cpu():
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(before)})
    yield
    os.sched_setaffinity(0, before)


def test_one_cpu_is_shared_rather_than_split(one_cpu):
    cores = split_cores(1)
    assert cores == Cores()
    assert not cores.apart


def test_worker_and_judge_share_no_cpu():
    for threads in (1, 2, len(os.sched_getaffinity(0))):
        cores = split_cores(threads)
        assert not cores.worker & cores.judge
        assert bool(cores.worker) == bool(cores.judge) == cores.apart


def test_the_judge_is_moved_away_and_back(one_cpu):
    allowed = os.sched_getaffinity(0)
    cores = Cores(worker=frozenset({10**6}), judge=frozenset(allowed))
    with cores.judge_apart():
        assert os.sched_getaffinity(0) == allowed
    assert os.sched_getaffinity(0) == allowed


def test_a_process_that_nothing_confines_has_no_tier():
    assert achieved_tier(os.getpid()) is None


def test_a_process_that_is_gone_has_no_tier():
    pid = os.posix_spawn("/bin/true", ["true"], {})
    os.waitpid(pid, 0)
    assert achieved_tier(pid) is None


def test_the_environment_of_workers_is_the_same_whatever_the_caller_has(monkeypatch):
    before = clean_environment(Path("/x"))
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "canary")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    monkeypatch.setenv("LD_PRELOAD", "evil.so")
    assert clean_environment(Path("/x")) == before
