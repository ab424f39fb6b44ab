"""Kernels and their launches, whatever the profiler did to correlations."""

import pytest

from atrex.trace.formats import read_recording
from atrex.trace.join import join

US = 1000


def launches(trace, path=None):
    """Return kernel name to the process of its launch, None without one; and the join."""
    timeline = read_recording(path or trace.write()).timeline
    found = join(timeline)
    kernels, rows = timeline.kernels, timeline.launches
    names = [timeline.names.values[name] for name in kernels.name]
    pids = [timeline.threads.values[rows.thread[row]][0] if row >= 0 else None
            for row in found.launch]  # fmt: skip
    return dict(zip(names, pids, strict=True)), found


def launch(trace, pid, correlation, ts, name="cudaLaunchKernel", **args):
    trace.event(
        ph="X", cat="cuda_runtime", name=name, pid=pid, tid=pid, ts=ts, dur=1,
        args={"correlation": correlation, **args},
    )  # fmt: skip


def kernel(trace, name, pid, correlation, ts, device=0):
    trace.event(
        ph="X", cat="kernel", name=name, pid=pid, tid=7, ts=ts, dur=5,
        args={"correlation": correlation, "device": device, "stream": 7},
    )  # fmt: skip


def test_ranks_that_a_merger_wrote_into_the_process_keep_their_correlations_apart(trace):
    for rank in ("[TP00]", "[TP01]"):
        launch(trace, f"{rank} 4711", 5, ts=10)
        kernel(trace, f"of {rank}", f"{rank} 0", 5, ts=20)
    found, joined = launches(trace)
    assert found == {"of [TP00]": b'"[TP00] 4711"', "of [TP01]": b'"[TP01] 4711"'}
    assert joined.ambiguous == 0


def test_a_device_belongs_to_the_process_whose_other_kernels_it_ran(trace):
    for pid, device in ((11, 0), (22, 1)):
        launch(trace, pid, 5, ts=10)
        kernel(trace, f"shared {device}", device, 5, ts=20, device=device)
        launch(trace, pid, 100 + device, ts=30)
        kernel(trace, f"own {device}", device, 100 + device, ts=40, device=device)
    found, joined = launches(trace)
    assert found == {"shared 0": b"11", "own 0": b"11", "shared 1": b"22", "own 1": b"22"}
    assert joined.ambiguous == 0


def test_a_launch_after_its_kernel_cannot_be_the_one(trace):
    launch(trace, 11, 5, ts=10)
    launch(trace, 22, 5, ts=30)
    kernel(trace, "k", 0, 5, ts=20)
    found, _ = launches(trace)
    assert found == {"k": b"11"}


def test_kernels_that_two_processes_could_have_launched_stay_without_and_are_counted(trace):
    launch(trace, 11, 5, ts=10)
    launch(trace, 22, 5, ts=11)
    kernel(trace, "k", 0, 5, ts=20)
    found, joined = launches(trace)
    assert found == {"k": None}
    assert joined.ambiguous == 1


def test_of_kernels_that_share_a_launch_the_one_that_it_names_keeps_it(trace):
    launch(trace, 11, 5, ts=10, name="hipLaunchKernel", kernel="mine")
    launch(trace, 11, 6, ts=12, name="hipLaunchKernel", kernel="yours")
    kernel(trace, "mine", 0, 5, ts=20)
    kernel(trace, "yours", 0, 5, ts=30)
    found, joined = launches(trace)
    assert found == {"mine": b"11", "yours": None}
    assert (joined.ambiguous, joined.childless) == (1, 1)


def test_a_graph_launch_owns_all_of_its_kernels(trace):
    launch(trace, 11, 5, ts=10, name="hipGraphLaunch")
    for name in ("a", "b", "c"):
        kernel(trace, name, 0, 5, ts=20)
    found, joined = launches(trace)
    assert set(found.values()) == {b"11"}
    assert joined.ambiguous == 0


@pytest.mark.parametrize("name", ["cuLaunchKernel", "cuLaunchKernelEx", "INVALID"])
def test_driver_calls_and_nameless_calls_launch(trace, name):
    launch(trace, 11, 5, ts=10, name=name)
    kernel(trace, "k", 0, 5, ts=20)
    assert launches(trace)[0] == {"k": b"11"}


def test_a_call_that_launches_wins_over_others_of_its_correlation(trace):
    launch(trace, 22, 5, ts=9, name="cudaStreamSynchronize")
    launch(trace, 11, 5, ts=10)
    launch(trace, 33, 5, ts=11, name="cudaEventRecord")
    kernel(trace, "k", 0, 5, ts=20)
    found, joined = launches(trace)
    assert (found, joined.ambiguous) == ({"k": b"11"}, 0)


def test_correlation_zero_means_none(trace):
    launch(trace, 11, 0, ts=10)
    kernel(trace, "k", 0, 0, ts=20)
    found, joined = launches(trace)
    assert (found, joined.ambiguous) == ({"k": None}, 0)
