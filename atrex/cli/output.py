"""Print answers: one JSON object on standard output, or text for people; errors as one line.

Data goes to standard output, progress and warnings to standard error.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, NoReturn

import msgspec
import typer
from rich.console import Console, RenderableType

from atrex.errors import AtrexError
from atrex.model import Outcome

Store = Annotated[
    Path,
    typer.Option(
        "--store", envvar="ATREX_STORE", help="Folder that keeps runs, facts and the database."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object on standard output.")]
DEFAULT_STORE = Path("atrex-store")

# design section 9; of several codes the first of PRECEDENCE wins
EXIT_CODE = {
    Outcome.OK: 0,
    Outcome.UNSUPPORTED: 0,
    Outcome.SKIPPED: 0,
    Outcome.INCORRECT: 1,
    Outcome.FALLBACK: 1,
    Outcome.FORBIDDEN: 1,
    Outcome.COMPILE_FAILED: 1,
    Outcome.CRASHED: 1,
    Outcome.OUT_OF_MEMORY: 1,
    Outcome.INFRA_ERROR: 3,
    Outcome.TASK_ERROR: 4,
    Outcome.VIOLATION: 5,
    Outcome.TIMED_OUT: 6,
    Outcome.INCONCLUSIVE: 7,
}
PRECEDENCE = (130, 2, 5, 3, 4, 6, 1, 7, 0)


def exit_code(codes: Iterable[int]) -> int:
    """Return the code that wins when several apply."""
    present = set(codes) or {0}
    return next(code for code in PRECEDENCE if code in present)


def progress_console() -> Console:
    """Console for progress and warnings, on standard error."""
    return Console(stderr=True, highlight=False, soft_wrap=True)


def answer(
    command: str,
    data: Any,
    *,
    as_json: bool,
    text: Iterable[RenderableType] = (),
    warnings: Sequence[str] = (),
    code: int = 0,
) -> NoReturn:
    """Print a command's answer and exit with its code.

    Args:
        command: Name in the schema, e.g. ``"ingest"``.
        data: Records or plain values.
        as_json: Whether to print the JSON object instead of `text`.
        text: What people read.
        warnings: Shown on standard error, and part of the object.
        code: Exit code; `ok` is true exactly when it is 0.
    """
    if as_json:
        _print_json(
            {
                "schema": f"atrex.{command}/1",
                "ok": code == 0,
                "data": msgspec.to_builtins(data),
                "warnings": list(warnings),
            }
        )
    else:
        console = Console(highlight=False, soft_wrap=True)
        for part in text:
            console.print(part)
        stderr = progress_console()
        for warning in warnings:
            stderr.print(f"warning: {warning}", style="yellow", markup=False)
    raise typer.Exit(code)


@contextmanager
def answering(command: str, as_json: bool) -> Iterator[None]:
    """Turn an `AtrexError` into one line, or into the JSON object's `error`, and its exit code."""
    try:
        yield
    except AtrexError as error:
        if as_json:
            _print_json(
                {
                    "schema": f"atrex.{command}/1",
                    "ok": False,
                    "data": {},
                    "warnings": [],
                    "error": {
                        "code": error.code,
                        "message": error.message,
                        "where": error.where,
                        "remedy": error.remedy,
                    },
                }
            )
        else:
            progress_console().print(f"atrex {command}: {error}", style="red", markup=False)
        raise typer.Exit(error.exit_code) from error
    except KeyboardInterrupt:
        progress_console().print("interrupted", style="yellow")
        raise typer.Exit(130) from None
    except BrokenPipeError:  # `| head` ends the command quietly
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(0) from None


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")  # NaN and infinity become null
    sys.stdout.flush()
