"""Find trace files, the captures and logs that lie beside them, and the ranks of one job."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from glob import glob, has_magic
from pathlib import Path

import msgspec

from atrex.errors import UsageError
from atrex.trace.steplog import SUFFIX as LOG

CAPTURE_FOLDERS = ("capture_traces", "graph_capture_profile")  # vLLM's, SGLang's
CAPTURE_INDEX = "execution_details.json"  # [{"file": ..., "batch_size": ..., "mode": ...}]
# bs_32_rank0.json.gz, graph_capture_rank_0.<ns>.pt.trace.json.gz, capture_trace_rank_0.json.gz
CAPTURE_NAME = re.compile(r"(bs_\d+_rank\d+|(graph_capture|capture_trace)_rank_?\d+)\b")
TRACE_NAME = re.compile(r"\.(json|sqlite|csv|pb)(\.gz|\.zst)?$")
# rank-0.json, bs_32_rank0.json, TP-3.json, dp0_pp0_tp1_dcp0_ep1_rank1
RANK_IN_NAME = (
    re.compile(r"rank[-_]?(\d+)", re.IGNORECASE),
    re.compile(r"(?:^|[-_.])TP[-_]?(\d+)", re.IGNORECASE),
)
# what differs in the names of a job's ranks: ranks along each axis, and times in ns
OF_RANK = re.compile(r"(?:rank|tp|dp|pp|ep|dcp)[-_]?\d+|\d{12,}", re.IGNORECASE)


def trace_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files to read, each once.

    A folder stands for the traces inside it, captures left out; a pattern for what it matches.

    Raises:
        UsageError: A path is missing, a folder holds no traces, or a pattern matches nothing.
    """
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            files |= dict.fromkeys(_inside(path))
        elif not path.exists() and has_magic(str(path)):
            files |= dict.fromkeys(_matches(path))
        elif path.is_file():
            files[path] = None
        else:
            raise UsageError("no such file", where=str(path))
    return list(files)


def _matches(pattern: Path) -> list[Path]:
    found = [Path(each) for each in sorted(glob(str(pattern), recursive=True))]
    files = [path for path in found if path.is_file() and not path.name.endswith(LOG)]
    files += [inside for path in found if path.is_dir() for inside in _inside(path)]
    if not files:
        raise UsageError("no file matches the pattern", where=str(pattern))
    return files


def _inside(folder: Path) -> list[Path]:
    found = [
        path
        for path in sorted(folder.rglob("*"))
        if TRACE_NAME.search(path.name) and path.is_file() and not _is_capture(path, folder)
    ]
    if not found:
        raise UsageError(
            "the folder holds no traces",
            where=str(folder),
            remedy="Traces end in .json, .sqlite, .csv or .pb, plain or with .gz or .zst.",
        )
    return found


def _is_capture(path: Path, folder: Path) -> bool:
    inside = set(CAPTURE_FOLDERS) & set(path.relative_to(folder).parts[:-1])
    return bool(inside) or path.name == CAPTURE_INDEX or bool(CAPTURE_NAME.match(path.name))


def captures_beside(trace: Path) -> list[Path]:
    """Return the capture traces that lie beside a trace, in a folder of their own or by name."""
    beside = [path for path in trace.parent.glob("*") if CAPTURE_NAME.match(path.name)]
    inside = (each for name in CAPTURE_FOLDERS for each in (trace.parent / name).glob("*"))
    return sorted(
        path
        for path in (*beside, *inside)
        if TRACE_NAME.search(path.name) and path.name != CAPTURE_INDEX and path != trace
    )


def rank_in_name(name: str) -> int | None:
    """Return the rank that a file's name tells, None if none."""
    found = next(filter(None, (pattern.search(name) for pattern in RANK_IN_NAME)), None)
    return int(found[1]) if found else None


def captured_tokens(capture: Path) -> int | None:
    """Return the padded tokens of a capture as the index beside it says, None if it does not."""
    try:
        entries = msgspec.json.decode((capture.parent / CAPTURE_INDEX).read_bytes())
        told = [each["batch_size"] for each in entries if each.get("file") == capture.name]
    except (OSError, msgspec.DecodeError, TypeError, KeyError, AttributeError):
        return None
    return told[0] if len(told) == 1 and isinstance(told[0], int) else None


def jobs(files: Sequence[Path]) -> dict[Path, str]:
    """Return the job of each file that is one of several ranks; names differ by rank and time."""
    groups: defaultdict[tuple[Path, str], list[Path]] = defaultdict(list)
    for path in files:
        if rank_in_name(path.name) is not None:
            groups[path.parent, OF_RANK.sub("*", path.name)].append(path)
    return {path: name for (_, name), found in groups.items() if len(found) > 1 for path in found}
