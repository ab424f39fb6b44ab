"""Records in words: shapes, commands and differences as a reader wants them; no Streamlit.

Whatever comes from a trace, a candidate or a file is foreign text. `escaped` makes it safe inside
Markdown, where it could otherwise become a link, an image or a formula.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping

_MARKDOWN = re.compile(r"([!-/:-@\[-`{-~])")  # CommonMark: any ASCII punctuation may be escaped


def escaped(text: object) -> str:
    """Make foreign text literal in Markdown; line breaks become spaces."""
    return _MARKDOWN.sub(r"\\\1", " ".join(str(text).split()))


def shape(axes: str) -> str:
    """Write axes, which are JSON, in words: ``rows 2048, width 4096``."""
    return ", ".join(f"{axis} {value}" for axis, value in json.loads(axes or "{}").items())


def differing(shapes: Iterable[tuple[str, str]]) -> list[str]:
    """Write the axes in which the workloads of an operator differ, and always the first one.

    Args:
        shapes: operator, and axes as JSON, of each workload.
    """
    listed = [(operator, json.loads(axes or "{}")) for operator, axes in shapes]
    values: dict[tuple[str, str], set[int | str]] = {}
    for operator, axes in listed:
        for axis, value in axes.items():
            values.setdefault((operator, axis), set()).add(value)
    return [
        ", ".join(
            f"{axis} {value}"
            for place, (axis, value) in enumerate(axes.items())
            if place == 0 or len(values[operator, axis]) > 1
        )
        for operator, axes in listed
    ]


def workloads(shapes: Iterable[tuple[str, str, str]]) -> list[str]:
    """Name workloads so that those beside each other are told apart.

    Args:
        shapes: operator, axes as JSON, and dtype, of each workload.
    """
    listed = list(shapes)
    sizes = differing((operator, axes) for operator, axes, _ in listed)
    return [
        f"{operator}, {size}, {dtype}"
        for (operator, _, dtype), size in zip(listed, sizes, strict=True)
    ]


def heaviest(flop: str | None) -> tuple[str, int]:
    """Return the pipe with most FLOPs, and these; ``""`` and 0 for a copy. `flop` is JSON."""
    known: dict[str, int] = json.loads(flop or "{}")
    return max(known.items(), key=lambda item: item[1], default=("", 0))


def spaced(name: str) -> str:
    """Write a name of a closed set as words: ``out of memory``."""
    return name.replace("_", " ")


def moment(utc: str | None) -> str:
    """Write a time of day, ISO 8601 in UTC, to the second."""
    return f"{utc[:10]} {utc[11:19]} UTC" if utc else "not yet"


def candidate(row: Mapping[str, str] | None) -> str:
    """Name a candidate; names repeat within a run, operators tell them apart."""
    return f"{row['candidate']} ({row['operator']}, {row['backend']})" if row else "All candidates"


def attribution(found: str | None, *, evidence: bool = False) -> str:
    """Say whose code did the work, and how that was found; `found` is JSON."""
    if found is None:
        return "not examined"
    record = json.loads(found)
    who = "own code" if record["own"] else "a library"
    reasons = "; ".join(record["evidence"]) if evidence else ""
    return f"{who} ({spaced(record['route'])}){': ' if reasons else ''}{reasons}"


def command(arguments: Iterable[str]) -> str:
    """Write a command so that it can be pasted into a shell."""
    words = list(arguments)
    return shlex.join(words if words[:1] == ["atrex"] else ["atrex", *words])


def quoted(path: object) -> str:
    """Quote a path for a shell."""
    return shlex.quote(str(path))


def differences(now: Mapping[str, object], before: Mapping[str, object]) -> list[str]:
    """Name the fields in which two environments differ: ``torch 2.12.0 → 2.13.0``."""
    return [
        f"{field} {before[field] or 'none'} → {value or 'none'}"
        for field, value in now.items()
        if field != "environment" and value != before[field]
    ]


def runnable(sql: str, parameters: Mapping[str, str]) -> str:
    """Write a query with its parameters in place, for people; the page itself binds them."""
    literals = {name: "'" + value.replace("'", "''") + "'" for name, value in parameters.items()}
    return re.sub(r"\$(\w+)", lambda found: literals[found[1]], sql).strip()
