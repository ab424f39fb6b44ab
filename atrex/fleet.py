"""A fleet: which GPUs serve which model for how long, and the traces that stand for them.

How long a profile lasts is an accident of its recording. With a fleet a trace counts for the GPU
hours of its deployment instead (METHOD.md section 8):

    factor(deployment) = gpus x hours_per_day / kernel time of the deployment's traces

Each nanosecond of kernel time in one of its traces stands for that many nanoseconds of a day.
"""

from __future__ import annotations

import glob
import hashlib
import math
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from atrex import units
from atrex.errors import DataError, UsageError
from atrex.model import Deployment, Fleet, TraceSummary

if TYPE_CHECKING:
    import polars as pl

NS_PER_HOUR = 3_600_000_000_000
MOST_GPU_HOURS = (2**63 - 1) // NS_PER_HOUR  # of a day: sums of times are 64-bit nanoseconds
REMEDY = (
    "A deployment has name, model, gpu, gpus (a whole number from 1), hours_per_day (above 0, at "
    "most 24) and traces (a list of files or patterns, relative to the fleet file)."
)

_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Entry(msgspec.Struct, forbid_unknown_fields=True, kw_only=True):
    """One `[[deployment]]` as it is written."""

    name: _Text
    model: _Text
    gpu: _Text
    gpus: Annotated[int, msgspec.Meta(gt=0)]
    hours_per_day: Annotated[float, msgspec.Meta(gt=0, le=24)]
    traces: Annotated[list[_Text], msgspec.Meta(min_length=1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Traces that stand for the same GPUs, each in proportion to its kernel time.

    Attributes:
        name: The deployment; "" for all traces of a store without a fleet.
        gpu_ns: Time that they stand for together.
        kernel_ns: Kernel time by trace; none is 0.
    """

    name: str
    gpu_ns: float
    kernel_ns: dict[str, int]

    @property
    def factor(self) -> float:
        """Time that one nanosecond of kernel time stands for."""
        return self.gpu_ns / sum(self.kernel_ns.values())


def read(path: Path) -> Fleet:
    """Read a fleet file and identify its traces by their content.

    Raises:
        UsageError: The file, or a trace, cannot be read.
        DataError: A deployment, field or trace is wrong; says which.
    """
    found = _deployments(path)
    _refuse_names_used_twice(found, path)
    _refuse_more_hours_than_fit(found, path)
    fleet = Fleet(deployments=tuple(_deployment(entry, path) for entry in found))
    _refuse_shared_traces(fleet, path)
    return fleet


def trace_files(path: Path) -> list[Path]:
    """Return the traces that a fleet file names, each file once.

    Raises:
        UsageError: There is no such file.
        DataError: A deployment, field or trace is wrong; says which.
    """
    return list(dict.fromkeys(file for entry in _deployments(path) for file in _files(entry, path)))


def pools(summaries: Iterable[TraceSummary], deployments: Sequence[Deployment] = ()) -> list[Pool]:
    """Group a store's traces by deployment; without a fleet all stand together for themselves.

    Deployments of which the store holds no kernel time have no pool.
    """
    kernel_ns = {each.trace: each.gpu_ns for each in summaries if each.gpu_ns}
    if not deployments:
        own_time = Pool(name="", gpu_ns=sum(kernel_ns.values()), kernel_ns=kernel_ns)
        return [own_time] if kernel_ns else []
    return [
        Pool(name=each.name, gpu_ns=each.gpu_hours * NS_PER_HOUR, kernel_ns=own)
        for each in deployments
        if (own := {trace: kernel_ns[trace] for trace in each.traces if trace in kernel_ns})
    ]


def scale(
    facts: pl.DataFrame, summaries: Iterable[TraceSummary], deployments: Sequence[Deployment]
) -> pl.DataFrame:
    """Scale facts to what their deployments do in a day; those of other traces are left out.

    Args:
        facts: `atrex.trace.schema.FACTS`.
        summaries: The traces that facts are known of.
        deployments: The fleet's.

    Returns:
        The same columns, with `calls`, `kernels` and `gpu_ns` of a day, to the nearest one.
    """
    import polars as pl

    grouped = pools(summaries, deployments)
    factors = pl.DataFrame(
        [(trace, pool.factor) for pool in grouped for trace in pool.kernel_ns],
        schema={"trace": pl.String, "factor": pl.Float64},
        orient="row",
    )
    amounts = pl.col("calls", "kernels", "gpu_ns")
    return (
        facts.join(factors, on="trace", how="inner", maintain_order="left")
        .with_columns((amounts * pl.col("factor")).round().cast(pl.Int64))
        .select(facts.columns)
    )


def unlisted(
    summaries: Iterable[TraceSummary], deployments: Iterable[Deployment]
) -> list[TraceSummary]:
    """Return the traces that no deployment names."""
    named = {trace for each in deployments for trace in each.traces}
    return [each for each in summaries if each.trace not in named]


def notes(summaries: Sequence[TraceSummary], deployments: Sequence[Deployment]) -> list[str]:
    """Say in sentences which traces and deployments the weights of a fleet leave out."""
    known = {each.trace for each in summaries}
    weighing = {pool.name: len(pool.kernel_ns) for pool in pools(summaries, deployments)}
    found = []
    if outside := unlisted(summaries, deployments):
        names = ", ".join(f"{each.path} ({units.time(each.gpu_ns)})" for each in outside)
        found.append(f"left out, as no deployment of the fleet names them: {names}")
    for each in deployments:
        absent = [file for trace, file in each.traces.items() if trace not in known]
        if each.name not in weighing:
            names = ", ".join(each.traces.values())
            found.append(
                f"deployment {each.name}: no weight, as no kernel time is known of {names}"
            )
        elif absent:
            found.append(f"deployment {each.name}: not in the store: {', '.join(absent)}")
    if alone := [name for name, count in weighing.items() if count == 1]:
        names = ", ".join(alone)
        found.append(f"deployments with one trace add nothing to the intervals of weights: {names}")
    return found


def _deployments(path: Path) -> list[_Entry]:
    try:
        table = tomllib.loads(path.read_text())
    except OSError as error:
        raise UsageError(
            f"cannot read the fleet file: {error.strerror}", where=str(path)
        ) from error
    except ValueError as error:  # no TOML, or no UTF-8
        raise DataError(f"this is no TOML: {error}", where=str(path)) from error
    listed = table.pop("deployment", None)
    if table or not isinstance(listed, list) or not listed:
        wrong = f"unknown {', '.join(table)}" if table else "it has no [[deployment]]"
        raise DataError(wrong, where=str(path), remedy="Write one [[deployment]] for each.")
    return [_entry(each, number, path) for number, each in enumerate(listed, start=1)]


def _entry(table: Any, number: int, path: Path) -> _Entry:
    name = table.get("name") if isinstance(table, dict) else None
    try:
        return msgspec.convert(table, _Entry)
    except msgspec.ValidationError as error:
        raise DataError(str(error), where=_place(path, name or number), remedy=REMEDY) from error


def _deployment(entry: _Entry, path: Path) -> Deployment:
    return Deployment(
        name=entry.name,
        model=entry.model,
        gpu=entry.gpu,
        gpus=entry.gpus,
        hours_per_day=entry.hours_per_day,
        traces={_identity(file): file.name for file in _files(entry, path)},
    )


def _place(path: Path, deployment: object) -> str:
    return f"{path}: deployment {deployment}"


def _files(entry: _Entry, path: Path) -> list[Path]:
    """Return the files that a deployment's patterns match, each once."""
    found: dict[Path, None] = {}
    for pattern in entry.traces:
        literal = path.parent / pattern  # a name may hold brackets
        matching = (
            [literal]
            if literal.is_file()
            else [
                path.parent / name
                for name in sorted(glob.glob(pattern, root_dir=path.parent, recursive=True))
                if (path.parent / name).is_file()
            ]
        )
        if not matching:
            raise DataError(
                f"traces: no file matches {pattern!r}",
                where=_place(path, entry.name),
                remedy=f"Files and patterns are relative to {path.parent.resolve().name or '/'}/, "
                "the folder of the fleet file.",
            )
        found |= dict.fromkeys(matching)
    return list(found)


def _identity(path: Path) -> str:
    """Return what `TraceSummary.trace` is for a file."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()[:16]
    except OSError as error:
        raise UsageError(f"cannot read the trace: {error.strerror}", where=str(path)) from error


def _refuse_names_used_twice(entries: Iterable[_Entry], path: Path) -> None:
    for name, count in Counter(entry.name for entry in entries).items():
        if count > 1:
            raise DataError(
                f"name: {count} deployments have it",
                where=_place(path, name),
                remedy="Give each a name of its own.",
            )


def _refuse_more_hours_than_fit(entries: Iterable[_Entry], path: Path) -> None:
    hours = math.fsum(entry.gpus * entry.hours_per_day for entry in entries)
    if hours > MOST_GPU_HOURS:
        raise DataError(
            f"gpus: {hours:,.0f} GPU hours a day are more than {MOST_GPU_HOURS:,}",
            where=str(path),
            remedy="Count them in units of several GPUs; only their ratios weigh.",
        )


def _refuse_shared_traces(fleet: Fleet, path: Path) -> None:
    owner: dict[str, str] = {}
    for each in fleet.deployments:
        for trace, file in each.traces.items():
            if owner.setdefault(trace, each.name) != each.name:
                raise DataError(
                    f"traces: {file} is in deployment {owner[trace]} too",
                    where=_place(path, each.name),
                    remedy="A trace stands for one deployment: name it once.",
                )
