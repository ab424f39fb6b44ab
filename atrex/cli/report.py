"""`atrex report RUN`: one run as text, Markdown or JSON."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.text import Text

from atrex import reports
from atrex.cli import output
from atrex.store import Store


class Format(StrEnum):
    """How a report is laid out."""

    TEXT = "text"
    MD = "md"


def command(
    run: Annotated[str, typer.Argument(help='A run, the beginning of its name, or "last".')],
    store: output.Store = output.DEFAULT_STORE,
    json: output.Json = False,
    layout: Annotated[Format, typer.Option("--format", help="Layout.")] = Format.TEXT,
) -> None:
    """Report one run: outcomes, times with their intervals, share of the roofline, score."""
    with output.answering("report", json):
        opened = Store.existing(store)
        header, journal = opened.run(run), opened.journal(run)
        scores = opened.scores(run)
        composed = reports.report(header, journal.latest, scores)
        lay_out = reports.markdown if layout is Format.MD else reports.text
        output.answer(
            "report",
            reports.answer(header, journal.latest, scores),
            as_json=json,
            text=[Text(lay_out(composed).rstrip())],
            warnings=[
                *(["the last record is torn and left out"] if journal.torn_bytes else []),
                *([f"{journal.duplicates} repeated records"] if journal.duplicates else []),
            ],
        )
