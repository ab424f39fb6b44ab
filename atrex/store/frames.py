"""Measurements as Polars frames, the form of compacted runs and of the database.

The columns follow from `Measurement`, so that a field added there is never lost here: a workload
becomes four columns, mappings and records become JSON text, and all else keeps its type.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from atrex.errors import DataError
from atrex.model import Measurement

WORKLOAD = ("workload", "operator", "axes", "dtype")


def _column(hint: Any) -> tuple[pl.DataType, bool]:
    """Return a field's column type, and whether it is stored as JSON text."""
    if isinstance(hint, types.UnionType):
        (hint,) = (option for option in typing.get_args(hint) if option is not types.NoneType)
    origin = typing.get_origin(hint)
    if origin is tuple:
        return pl.List(_column(typing.get_args(hint)[0])[0]), False
    if origin is typing.Literal or (isinstance(hint, type) and issubclass(hint, str | Enum)):
        return pl.String(), False
    plain = {int: pl.Int64(), float: pl.Float64(), bool: pl.Boolean()}
    return (plain[hint], False) if hint in plain else (pl.String(), True)


_COLUMNS = {
    name: _column(hint)
    for name, hint in typing.get_type_hints(Measurement).items()
    if name in Measurement.__struct_fields__ and name != "workload"
}
SCHEMA: dict[str, pl.DataType] = {
    "line": pl.Int64(),  # place in the run's journal, in order of arrival
    **dict.fromkeys(WORKLOAD, pl.String()),  # its id; operator; axes as JSON in their order; dtype
    **{name: dtype for name, (dtype, _) in _COLUMNS.items()},
}


def _json(value: Any) -> str | None:
    return None if value is None else msgspec.json.encode(value).decode()


def frame(measurements: Sequence[Measurement]) -> pl.DataFrame:
    """Lay measurements out as `SCHEMA`, in the order given."""
    workloads = [m.workload for m in measurements]
    columns: dict[str, list[Any]] = {
        "line": list(range(len(measurements))),
        "workload": [w.id for w in workloads],
        "operator": [w.operator for w in workloads],
        "axes": [_json(w.axes) for w in workloads],
        "dtype": [w.dtype for w in workloads],
    }
    for name, (_, as_json) in _COLUMNS.items():
        values = [getattr(m, name) for m in measurements]
        columns[name] = [_json(value) for value in values] if as_json else values
    return pl.DataFrame(columns, schema=SCHEMA)


def measurements(path: Path) -> list[Measurement]:
    """Read a compacted run back, in order of arrival.

    Raises:
        DataError: The file is no run of ours, or torn.
    """
    try:
        return [_record(row) for row in pl.read_parquet(path).sort("line").iter_rows(named=True)]
    except (pl.exceptions.PolarsError, OSError, KeyError, msgspec.DecodeError) as error:
        raise DataError(
            f"unreadable: {error}", where=str(path), remedy="Restore the run from a copy."
        ) from error


def _record(row: dict[str, Any]) -> Measurement:
    values = {name: row[name] for name in _COLUMNS if name in row}  # older runs lack newer fields
    for name, (_, as_json) in _COLUMNS.items():
        if as_json and values.get(name) is not None:
            values[name] = msgspec.json.decode(values[name])
    values["workload"] = {
        "operator": row["operator"],
        "axes": msgspec.json.decode(row["axes"]),
        "dtype": row["dtype"],
    }
    return msgspec.convert(values, Measurement)
