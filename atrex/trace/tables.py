"""Views of the facts of one or several traces."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import polars as pl

from atrex.trace.ingest import Ingested
from atrex.trace.schema import FACTS, UNATTRIBUTED


def all_facts(traces: Iterable[Ingested]) -> pl.DataFrame:
    """Return the facts of several traces as one frame."""
    return pl.concat([pl.DataFrame(schema=FACTS), *(trace.facts for trace in traces)])


def all_unattributed(traces: Iterable[Ingested]) -> pl.DataFrame:
    """Return the kernels outside the operators by name and class, most time first."""
    frame = pl.concat(
        [pl.DataFrame(schema=UNATTRIBUTED), *(trace.unattributed for trace in traces)]
    )
    return _sums(frame, ["kernel", "class"])


def operators(facts: pl.DataFrame) -> pl.DataFrame:
    """Return operator, calls, gpu_ns and share of all kernel time, most time first."""
    return _sums(facts.filter(pl.col("kind") == "operator"), ["operator"]).with_columns(
        share=pl.col("gpu_ns") / facts["gpu_ns"].sum()
    )


def classes(facts: pl.DataFrame) -> pl.DataFrame:
    """Return class, calls and gpu_ns outside the operators, the unknown included."""
    outside = facts.filter(pl.col("kind") != "operator").rename({"operator": "class"})
    return _sums(outside, ["class"])


def shapes(facts: pl.DataFrame) -> pl.DataFrame:
    """Return operator or class, axes, dtype, calls and gpu_ns of what has axes, as text."""
    return _sums(facts.filter(pl.col("axes") != "{}"), ["operator", "axes", "dtype"])


def axes(text: str) -> dict[str, int | str]:
    """Decode the axes of a fact."""
    return msgspec.json.decode(text, type=dict[str, int | str])


def _sums(frame: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    return (
        frame.group_by(keys)
        .agg(pl.col("calls", "gpu_ns").sum())
        .sort(["gpu_ns", *keys], descending=[True, *([False] * len(keys))])
    )
