"""Which workloads a candidate is compiled for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from atrex.backends.triton_compile.targets import Target
from atrex.errors import UsageError
from atrex.judge.plan import select
from atrex.model import Candidate, Shape, Workload
from atrex.operator import Operator

BACKEND = "triton"
HEAVIEST = 3  # shapes of each dtype, unless others are asked for


def workloads(
    candidates: Sequence[Candidate],
    operators: Mapping[str, Operator],
    shapes: Sequence[Shape],
    wanted: Sequence[str],
) -> list[tuple[Candidate, list[Workload]]]:
    """Choose the workloads of every candidate, in the dtypes that it declares.

    By default these are the heaviest shapes of each dtype, and a reduced one, whose extents are
    seldom multiples of anything. An operator without a catalogue has its reduced ones only.

    Args:
        candidates: Triton kernels.
        operators: Every operator by name.
        shapes: The catalogue.
        wanted: ``all``, ``top:N`` or ids; empty for the default.

    Raises:
        UsageError: A candidate is no Triton kernel, or nothing fits.
    """
    names = {each.operator for each in _triton(candidates)}
    pools = {name: _pool(operators[name], shapes) for name in names}
    if wanted:
        ids = select([shape for pool in pools.values() for shape in pool], wanted, names)
    chosen = []
    for candidate in candidates:
        pool = pools[candidate.operator]
        if wanted:
            found = [each.workload for each in pool if each.workload.id in ids]
        else:
            found = _default(operators[candidate.operator], pool)
        fitting = [each for each in found if _declares(candidate, each)]
        if not fitting:
            raise UsageError(
                f"none of the chosen workloads has a dtype of {', '.join(candidate.dtypes)}",
                where=candidate.path,
                remedy="Change DTYPES or --shapes.",
            )
        chosen.append((candidate, fitting))
    return chosen


def left_out(mine: Sequence[Workload], targets: Sequence[Target]) -> tuple[str, ...]:
    """Say which dtypes the targets lack, so that their workloads are not compiled."""
    return tuple(
        f"{target.name} has no {dtype}"
        for target in targets
        for dtype in dict.fromkeys(workload.dtype for workload in mine)
        if not target.supports(dtype)
    )


def _triton(candidates: Sequence[Candidate]) -> Sequence[Candidate]:
    for candidate in candidates:
        if candidate.backend != BACKEND:
            raise UsageError(
                f"BACKEND is {candidate.backend!r}",
                where=candidate.path,
                remedy=f"Kernels in {BACKEND!r} are compiled here; `atrex score` takes the others.",
            )
    return candidates


def _pool(operator: Operator, shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes to choose from, heaviest first."""
    mine = [shape for shape in shapes if shape.workload.operator == operator.name]
    reduced = [
        Shape(workload=small, phase="other", source="", calls=0, gpu_ns=0, time_source="modelled")
        for small in operator.small
    ]
    return sorted(mine, key=lambda shape: -shape.gpu_ns) or reduced


def _default(operator: Operator, pool: Sequence[Shape]) -> list[Workload]:
    if not any(shape.calls for shape in pool):  # it has no catalogue
        return [shape.workload for shape in pool]
    chosen: dict[str, Workload] = {}
    for dtype in dict.fromkeys(each.dtype for each in operator.small):
        heavy = [each.workload for each in pool if each.workload.dtype == dtype][:HEAVIEST]
        reduced = [each for each in operator.small if each.dtype == dtype][:1]
        chosen |= {each.id: each for each in (*heavy, *reduced)}
    return list(chosen.values())


def _declares(candidate: Candidate, workload: Workload) -> bool:
    return not candidate.dtypes or workload.dtype in candidate.dtypes
