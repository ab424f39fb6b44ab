"""Find a trace's format from its content, never from its name, and read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from atrex.trace.kineto import read_kineto
from atrex.trace.recording import Progress, Recording
from atrex.trace.source import Source


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of trace file.

    Attributes:
        recognises: Whether the first plain bytes of a file are of this format.
        read: Reads the file.
    """

    recognises: Callable[[bytes], bool]
    read: Callable[[Source], Recording]


FORMATS: tuple[Format, ...] = ()  # kineto, which any other JSON is tried as, is the last resort


def read_recording(path: Path, progress: Progress | None = None) -> Recording:
    """Read a trace of any format.

    Raises:
        UsageError: The path is missing.
        SetupError: The format needs a package that is not installed; names it.
        DataError: The file is no trace; says what it is instead, as far as its beginning tells.
    """
    source = Source(path, progress)
    beginning = source.beginning()
    for form in FORMATS:
        if form.recognises(beginning):
            return form.read(source)
    return read_kineto(source)
