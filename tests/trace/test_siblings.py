"""Kernels without a launch, recovered from their like."""

from atrex.trace.siblings import BESIDE, recover
from atrex.trace.timeline import Timeline


def timeline(names, geometries=None):
    found = Timeline()
    for place, name in enumerate(names):
        kernels = found.kernels
        kernels.name.append(found.names.id(name))
        kernels.start.append(10 * place)
        kernels.duration.append(5)
        kernels.device.append(0)
        kernels.stream.append(7)
        grid = geometries[place] if geometries else b""
        kernels.geometry.append(found.geometries.id((grid, grid, b"")))
    return found


def layers(count, length=BESIDE + 1):
    return [f"kernel {place}" for _ in range(count) for place in range(length)]


def test_the_same_kernel_with_the_same_geometry_has_the_same_operators():
    trace = timeline("aab", [b"[1]", b"[1]", b"[1]"])
    assert recover(trace, {0: (5, 6), 2: (9,)}, [1]) == {1: 0}


def test_another_geometry_tells_nothing():
    trace = timeline("aa", [b"[1]", b"[2]"])
    assert recover(trace, {0: (5,)}, [1]) == {}


def test_one_known_kernel_that_differs_leaves_it_unknown():
    trace = timeline("aaa", [b"[1]"] * 3)
    assert recover(trace, {0: (5,), 1: (6,)}, [2]) == {}


def test_where_no_geometry_is_recorded_the_kernels_around_stand_in_for_it():
    trace = timeline(layers(5))
    length = BESIDE + 1
    known = {kernel: (kernel % length,) for kernel in range(2 * length, 5 * length)}
    found = recover(trace, known, list(range(2 * length)))
    assert {kernel: known[witness] for kernel, witness in found.items()} == {
        kernel: (kernel % length,) for kernel in range(BESIDE, 2 * length)
    }  # the first ones have too few before them


def test_a_bare_name_is_not_enough():
    trace = timeline(["a", "b", "a", "c"] + ["x"] * 20)
    assert recover(trace, {0: (5,)}, [2]) == {}


def test_neighbours_settle_what_a_shared_geometry_leaves_open_if_it_agrees():
    names = layers(4)
    geometries = [b"[1]" if name == "kernel 0" else b"[2]" for name in names]
    names = ["same" if name in ("kernel 0", "kernel 4") else name for name in names]
    trace = timeline(names, [b"[1]"] * len(names))
    known = {
        kernel: (1 if geometries[kernel] == b"[1]" else 2,)
        for kernel in range(2 * (BESIDE + 1), 4 * (BESIDE + 1))
        if names[kernel] == "same"
    }
    wanted = [kernel for kernel in range(BESIDE, 2 * (BESIDE + 1)) if names[kernel] == "same"]
    found = recover(trace, known, wanted)
    assert {kernel: known[witness] for kernel, witness in found.items()} == {9: (1,), 13: (2,)}
