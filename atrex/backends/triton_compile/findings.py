"""What went wrong, in one line, and the candidate's line that it went wrong on."""

from __future__ import annotations

import re
import traceback
from pathlib import Path

REASON_CHARS = 300


def diagnosis(error: BaseException, printed: str, source: Path) -> tuple[str, str]:
    """Return where a compiler found something wrong ("" if it does not say), and what.

    Args:
        error: What Triton raised; for passes and assemblers it says only that they failed.
        printed: The compiler's messages.
        source: The candidate.
    """
    from triton.compiler.errors import CompilationError

    inner = error
    while isinstance(inner.__cause__, CompilationError):  # the callee's error is the cause
        inner = inner.__cause__
    if isinstance(inner, CompilationError):
        line = line_of(source, inner.src, getattr(inner.node, "lineno", 0))
        text = inner.error_message or str(inner.__cause__ or inner).splitlines()[-1]
        return f"{source.name}:{line}" if line else "", _shortened(text)
    found = re.search(rf"{re.escape(source.name)}:(\d+):\d+: error: (.*)", printed)
    if found:
        return f"{source.name}:{found[1]}", _shortened(found[2])
    telling = [line for line in printed.splitlines() if re.search(r"\b(error|fatal)\s*:", line)]
    return "", _shortened(telling[0]) if telling else reason(error)


def line_of(source: Path, function: str | None, line: int) -> int | None:
    """Return the line of a file on which a line of a function's text stands."""
    text = source.read_text(errors="replace")
    at = text.find(function) if function and line else -1
    return text.count("\n", 0, at) + line if at >= 0 else None


def reason(error: BaseException) -> str:
    """Return an exception in one line."""
    lines = str(error).strip().splitlines()
    return _shortened(f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__)


def place(error: BaseException, source: Path) -> str:
    """Return the innermost line of the candidate that an exception came through."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == str(source)]
    return f"{source.name}:{lines[-1]}" if lines else source.name


def _shortened(text: str) -> str:
    return re.sub(r"(/[^\s:]+)+/", "", text.strip().splitlines()[0])[:REASON_CHARS]
