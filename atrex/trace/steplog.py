"""Read the log that the recorder writes beside a trace: what its steps ran on.

A line that was cut while it was written is reported and costs only itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from atrex.errors import DataError
from atrex.model import Phase
from atrex.operator import Step

SCHEMA = "atrex.steps/1"
SUFFIX = ".steps.jsonl"


class _Header(msgspec.Struct):
    schema: str
    model: dict[str, Any] = {}


class _Line(msgspec.Struct):
    step: int
    phase: Literal["prefill", "decode", "mixed"] | None = None
    q_lens: Sequence[int] | None = None
    kv_lens: Sequence[int] | None = None
    padded_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepLog:
    """What a recorder logged beside a trace.

    Attributes:
        model: Fields of the served model's configuration, under their Hugging Face names.
        tensor_parallel: Ranks that share a layer.
        steps: Steps by number.
        notes: What could not be read, in sentences.
    """

    model: Mapping[str, Any] = field(default_factory=dict)
    tensor_parallel: int = 1
    steps: Mapping[int, Step] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def log_of(trace: Path) -> Path:
    """Return where the log of a trace would lie."""
    name = trace.name
    for suffix in (".gz", ".zst", ".json"):
        name = name.removesuffix(suffix)
    return trace.with_name(name + SUFFIX)


def read_log(path: Path) -> StepLog:
    """Read a recorder's log.

    Raises:
        DataError: It is not one, or of a later version.
    """
    header, *lines = path.read_bytes().splitlines() or [b""]
    try:
        told = msgspec.json.decode(header, type=_Header)
    except msgspec.DecodeError as error:
        raise DataError(f"no log of steps: {error}", where=path.name) from error
    if told.schema != SCHEMA:
        raise DataError(
            f"a log of steps in form {told.schema!r}, not {SCHEMA!r}",
            where=path.name,
            remedy="Update atrex.",
        )
    steps: dict[int, Step] = {}
    broken = 0
    for text in lines:
        try:
            line = msgspec.json.decode(text, type=_Line)
        except msgspec.DecodeError:
            broken += 1
            continue
        steps[line.step] = _step(line)
    notes = (f"{path.name}: {broken} of {len(lines)} lines cannot be read",) if broken else ()
    parallel = told.model.get("tensor_parallel_size")
    return StepLog(
        model=told.model,
        tensor_parallel=parallel if isinstance(parallel, int) and parallel > 0 else 1,
        steps=steps,
        notes=notes,
    )


def _step(line: _Line) -> Step:
    queries = sum(line.q_lens) if line.q_lens is not None else None
    lens = line.q_lens if line.q_lens is not None else line.kv_lens
    phase: Phase = line.phase or "other"
    return Step(
        annotation=f"atrex_step[{line.step}]",
        phase=phase,
        tokens=queries if line.padded_tokens is None else line.padded_tokens,
        query_tokens=queries,
        kv_tokens=sum(line.kv_lens) if line.kv_lens is not None else None,
        sequences=len(lens) if lens is not None else None,
    )
