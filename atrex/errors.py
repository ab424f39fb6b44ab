"""Errors that are the user's or the environment's to mend; each carries its exit code.

A failing kernel is no error: it is a `Measurement` with an outcome. A bug of ours is a plain
exception and shows its traceback. The codes are the contract of the command line.
"""

from __future__ import annotations


class AtrexError(Exception):
    """Stop the command with one line that says what is wrong and what to do.

    Attributes:
        code: Short stable name for programs, e.g. ``"bad_data"``.
        exit_code: Process exit code.
        where: File, line or field at fault, if any.
        remedy: What the user can do about it.
    """

    code = "error"
    exit_code = 2

    def __init__(self, message: str, *, where: str = "", remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.remedy = remedy

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        if not self.remedy:
            return f"{place}{self.message}"
        stop = "" if self.message.endswith((".", "?", "!")) else "."
        return f"{place}{self.message}{stop} {self.remedy}"


class UsageError(AtrexError):
    """A wrong option, name or path (exit code 2)."""

    code = "usage"
    exit_code = 2


class SetupError(AtrexError):
    """Nothing can run here: a missing extra, compiler or device (exit code 3)."""

    code = "environment"
    exit_code = 3


class DataError(AtrexError):
    """Input that is refused: no trace, a torn store, a wrong schema (exit code 4)."""

    code = "bad_data"
    exit_code = 4


class NotATrace(DataError):
    """A file that is whole, and something else than a trace (exit code 4)."""
