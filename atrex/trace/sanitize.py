"""Write a kineto trace that a team can share: what ran and for how long, and nothing of where.

An allow-list decides: a category, argument, key or word that is not listed here is not written.
Only names of operators and kernels are free text, and lose whatever looks like a path, a file or
an address. Reading the written trace gives the facts of the original, to the nanosecond.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from isal import igzip

from atrex.errors import DataError, UsageError
from atrex.trace.files import rank_in_name
from atrex.trace.formats import FORMATS
from atrex.trace.kineto import SYNTHETIC_KEY, read_keys
from atrex.trace.neutral import NUMBER, clean_name, is_known
from atrex.trace.recording import Progress
from atrex.trace.rewrite import Rewriter, decode_all, decode_any
from atrex.trace.source import Source
from atrex.trace.window import Windows

# top-level keys and fields of a device whose numbers are written
NUMBERED_KEYS = (
    "schemaVersion", "baseTimeNanoseconds", "record_shapes", "cuda_runtime_version",
    "cuda_driver_version", "cupti_version", "hip_runtime_version", "hip_driver_version",
    "roctracer_version",
)  # fmt: skip
DEVICE_KEYS = (
    "id", "totalGlobalMem", "computeMajor", "computeMinor", "maxThreadsPerBlock",
    "maxThreadsPerMultiprocessor", "regsPerBlock", "regsPerMultiprocessor", "warpSize",
    "sharedMemPerBlock", "sharedMemPerBlockOptin", "sharedMemPerMultiprocessor", "numSms",
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Sanitized:
    """What was written and what was not.

    Attributes:
        name: Name of the written file.
        events: Events read.
        written: Events written, by category.
        removed: Events left out, by category.
        arguments: Arguments of written events left out, by name.
        keys: Top-level keys left out.
        replaced: Texts replaced, by kind.
        lost: Events that could not be used, by reason.
        repaired: Events mended, by kind.
        lossless: Whether every kernel of the trace was written.
        notes: What the reader should know, in sentences.
    """

    name: str
    events: int
    written: Mapping[str, int]
    removed: Mapping[str, int]
    arguments: Mapping[str, int]
    keys: tuple[str, ...]
    replaced: Mapping[str, int]
    lost: Mapping[str, int]
    repaired: Mapping[str, int]
    lossless: bool
    notes: tuple[str, ...]


def sanitize(path: Path, out: Path, progress: Progress | None = None) -> Sanitized:
    """Write what `read_trace` needs of a kineto trace, as a stream; Perfetto opens it too.

    Args:
        path: The trace.
        out: The file to write, gzip if its name ends in ``.gz``; it appears when it is complete.
        progress: Called with the bytes read since the last call.

    Raises:
        UsageError: `path` is missing, or `out` cannot be written or is `path`.
        DataError: The file is no kineto trace.
    """
    if out.exists() and path.exists() and out.samefile(path):
        raise UsageError("the sanitised trace would overwrite the trace", where=str(out))
    source = Source(path, progress)
    beginning = source.beginning()
    if any(form.recognises(beginning) for form in FORMATS):
        raise DataError(
            "only kineto traces can be sanitised",
            where=path.name,
            remedy="Pass the .json or .json.gz that torch.profiler's export_chrome_trace wrote.",
        )
    windows = Windows(source, many=decode_all, one=decode_any)
    rewriter = Rewriter()
    with _complete(out) as file:
        file.write(b'{"traceEvents": [')
        between = b"\n"
        for events in windows:
            for text in rewriter.events(events):
                file.write(between + text)
                between = b",\n"
        for text in rewriter.rows():
            file.write(between + text)
            between = b",\n"
        given = read_keys(windows)
        keys = _keys(given, path.name)
        file.write(b"\n]")
        for key, value in keys.items():
            file.write(b',\n"%b": %b' % (key.encode(), msgspec.json.encode(value)))
        file.write(b"\n}\n")
    left_out = tuple(sorted(set(given) - set(keys) - {"traceEvents"}))
    return _report(out, source, windows, rewriter, left_out)


@contextmanager
def _complete(out: Path) -> Iterator[Any]:
    """Open a file for writing that takes its name once all is written.

    Its name until then is nobody's, so no file of the user's is touched.
    """
    if out.exists() and not out.is_file():
        raise UsageError("the output is no plain file", where=str(out))
    part = out.with_name(f".{out.name}.{secrets.token_hex(4)}.part")
    try:
        with part.open("xb") as plain:
            if out.name.endswith(".gz"):  # without a name or time of its own in the gzip header
                with igzip.IGzipFile("", "wb", fileobj=plain, mtime=0) as file:  # type: ignore[no-untyped-call]
                    yield file
            else:
                yield plain
        part.replace(out)
    except OSError as error:
        raise UsageError(f"cannot write: {error.strerror}", where=str(out)) from error
    finally:
        with suppress(OSError):  # it took its name, or was never there
            part.unlink()


def _keys(given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return the top-level keys to write."""
    kept = {key: given[key] for key in NUMBERED_KEYS if _is_number(given.get(key))}
    if devices := _devices(given.get("deviceProperties")):
        kept["deviceProperties"] = devices
    if job := _job(given.get("distributedInfo"), name):
        kept["distributedInfo"] = job
    if SYNTHETIC_KEY in given:
        kept[SYNTHETIC_KEY] = 1
    return kept


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) or (
        isinstance(value, str) and bool(NUMBER.fullmatch(value))
    )


def _devices(given: Any) -> list[dict[str, Any]]:
    return [
        {key: each[key] for key in DEVICE_KEYS if isinstance(each.get(key), int)}
        | ({"name": clean_name(each["name"])[0]} if isinstance(each.get("name"), str) else {})
        for each in (given if isinstance(given, list) else ())
        if isinstance(each, dict)
    ]


def _job(given: Any, name: str) -> dict[str, Any]:
    """Return what is known of the job; where the trace tells no rank, its file's name may."""
    given = given if isinstance(given, dict) else {}
    job = {key: given[key] for key in ("rank", "world_size") if isinstance(given.get(key), int)}
    if isinstance(given.get("backend"), str) and is_known(given["backend"]):
        job["backend"] = given["backend"]
    rank = job.get("rank", rank_in_name(name))
    return job if rank is None else {**job, "rank": rank}


def _report(
    out: Path, source: Source, windows: Windows, rewriter: Rewriter, left_out: tuple[str, ...]
) -> Sanitized:
    truncated = windows.truncated or source.truncated
    lost = rewriter.lost + windows.skipped
    kernels = sum(count for reason, count in lost.items() if "kernel" in reason)
    notes = []
    if truncated:
        notes.append("the input ends early; complete events were kept")
    if source.damage:
        notes.append(source.damage)
    return Sanitized(
        name=out.name,
        events=rewriter.read + windows.skipped.total(),
        written=dict(rewriter.written),
        removed=dict(rewriter.removed),
        arguments=dict(rewriter.arguments),
        keys=left_out,
        replaced=dict(rewriter.replaced),
        lost=dict(lost),
        repaired=dict(windows.repaired),
        lossless=not (truncated or source.damaged or kernels),
        notes=tuple(notes),
    )
