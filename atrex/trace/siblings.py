"""Recover the operators of kernels without a launch from kernels of the same kind that have one.

The same kernel with the same grid, block and shared memory belongs to the same operator and shapes
wherever all that are known agree. Where the geometry is not recorded, which is so on ROCm for work
launched before the window, the kernels around it on its stream stand in for it. One known shape
that differs leaves a kernel unknown.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence

from atrex.trace.capture import Stack
from atrex.trace.timeline import Timeline

BESIDE = 8  # kernels on each side; a layer of a decoder launches some 15


def recover(
    timeline: Timeline, known: Mapping[int, Stack], wanted: Sequence[int]
) -> dict[int, int]:
    """Return for each wanted kernel, where one is sure, a known kernel of the same operator.

    Args:
        timeline: The trace.
        known: Kernel to the signatures of the operators around its launch.
        wanted: Kernels without an operator.
    """
    if not wanted or not known:
        return {}
    by_geometry = _by_geometry(timeline)
    found = _unanimous(by_geometry, known, wanted)
    left = [kernel for kernel in wanted if kernel not in found]
    for kernel, witness in _unanimous(_by_neighbours(timeline), known, left).items():
        if by_geometry.get(kernel) in (None, by_geometry.get(witness)):
            found[kernel] = witness
    return found


def _unanimous(
    keys: Mapping[int, Hashable], known: Mapping[int, Stack], wanted: Sequence[int]
) -> dict[int, int]:
    """Match by key, if all known kernels of that key have the same operators and inputs."""
    asked = {keys[kernel] for kernel in wanted if kernel in keys}
    witness: dict[Hashable, int] = {}
    torn = set()
    for kernel, stack in known.items():
        key = keys.get(kernel)
        if key in asked and known[witness.setdefault(key, kernel)] != stack:
            torn.add(key)
    return {
        kernel: witness[keys[kernel]]
        for kernel in wanted
        if kernel in keys and keys[kernel] in witness and keys[kernel] not in torn
    }


def _by_geometry(timeline: Timeline) -> dict[int, Hashable]:
    kernels, geometries = timeline.kernels, timeline.geometries.values
    recorded = [bool(grid and block) for grid, block, _ in geometries]
    return {
        kernel: (kernels.name[kernel], geometry)
        for kernel, geometry in enumerate(kernels.geometry)
        if recorded[geometry]
    }


def _by_neighbours(timeline: Timeline) -> dict[int, Hashable]:
    """Return the names around each kernel on its stream; at the ends too few tell."""
    kernels = timeline.kernels
    lanes: defaultdict[tuple[int, int], list[int]] = defaultdict(list)
    for kernel in sorted(range(len(kernels)), key=kernels.start.__getitem__):
        lanes[kernels.device[kernel], kernels.stream[kernel]].append(kernel)
    keys: dict[int, Hashable] = {}
    for lane in lanes.values():
        names = [kernels.name[kernel] for kernel in lane]
        for at in range(BESIDE, len(lane) - BESIDE):
            keys[lane[at]] = tuple(names[at - BESIDE : at + BESIDE + 1])
    return keys
