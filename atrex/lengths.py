"""Turn a length axis into the lengths of a workload's sequences.

Lengths are part of a workload, not of a draw: the same axis value gives the same lengths
everywhere, so that shapes and costs do not depend on a seed. Profiles are quantiles of public
request traces (data/lengths.toml); their sequences sit at evenly spaced probabilities.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Sequence
from functools import cache
from math import exp, log
from statistics import NormalDist

from atrex import registry

_LIST = re.compile(r"\d+(-\d+)+")
_TOTAL = re.compile(r"total:(\d+)@([\w-]+)")
_NORMAL = NormalDist()

Quantiles = tuple[tuple[float, int], ...]


def resolve(spec: int | str, count: int) -> list[int]:
    """Return the lengths of `count` sequences.

    Args:
        spec: A length that all have, a list (``"3-0-1-7"``, kept in this order), the name of a
            profile, or ``"total:<sum>@<profile>"``, rescaled to that sum with at least one token
            each. Profiles give the longest first.
        count: Number of sequences.

    Raises:
        ValueError: The value is none of these, or does not fit `count`.
    """
    if isinstance(spec, int):
        return [spec] * count
    if _LIST.fullmatch(spec):
        listed = [int(part) for part in spec.split("-")]
        if len(listed) != count:
            raise ValueError(f"{spec!r} lists {len(listed)} lengths for {count} sequences")
        return listed
    if found := _TOTAL.fullmatch(spec):
        return _rescaled(_stratified(found[2], count), int(found[1]))
    return [round(length) for length in _stratified(spec, count)]


@cache
def profiles() -> dict[str, Quantiles]:
    """Return the quantiles of every profile, ascending."""
    text = (registry.content("data") / "lengths.toml").read_text()
    return {
        name: tuple((float(p), int(length)) for p, length in table["quantiles"])
        for name, table in tomllib.loads(text).items()
    }


def quantile(points: Quantiles, probability: float) -> float:
    """Return a length whose logarithm is linear in the normal quantile between the points."""
    z = _NORMAL.inv_cdf(probability)
    known = [(_NORMAL.inv_cdf(p), log(length)) for p, length in points]
    index = sum(z > at for at, _ in known[1:-1])
    (z0, y0), (z1, y1) = known[index], known[index + 1]
    return exp(y0 + (y1 - y0) * (z - z0) / (z1 - z0))


def _stratified(name: str, count: int) -> list[float]:
    known = profiles()
    if name not in known:
        raise ValueError(f"no length profile {name!r}; known: {', '.join(known)}")
    steps = ((count - i - 0.5) / count for i in range(count))
    return [max(1.0, quantile(known[name], p)) for p in steps]


def _rescaled(lengths: Sequence[float], total: int) -> list[int]:
    """Scale to a sum, each at least 1; what rounding leaves goes to the largest remainders."""
    if total < len(lengths):
        raise ValueError(f"{total} tokens are too few for {len(lengths)} sequences")
    spare = total - len(lengths)
    exact = [spare * length / sum(lengths) for length in lengths]
    scaled = [int(value) for value in exact]
    order = sorted(range(len(exact)), key=lambda i: (scaled[i] - exact[i], i))
    for index in order[: spare - sum(scaled)]:
        scaled[index] += 1
    return [1 + length for length in scaled]
