"""`atrex demo`: the whole path on bundled data, on this CPU, without a network."""

from __future__ import annotations

from pathlib import Path

from rich.text import Text

from atrex import api, reports
from atrex.cli import output
from atrex.cli.score import ScoreProgress, warnings


def command(
    store: output.Store = output.DEFAULT_STORE,
    json: output.Json = False,
) -> None:
    """Ingest a sample trace, judge an honest kernel and its cheating twin, keep the evidence.

    The exit code is 0 if the twin was refused and the honest kernel passed, 7 if this host is too
    busy to time any shape.
    """
    with output.answering("demo", json), ScoreProgress(json) as show:
        result = api.demo(store=store, progress=show)
    scored = result.scored
    composed = reports.report(scored.run, scored.measurements, scored.scores)
    data = {
        "store": str(store),
        "traces": result.traces,
        "expected": result.expected,
        "surprises": result.surprises,
    } | reports.answer(scored.run, scored.measurements, scored.scores)
    output.answer(
        "demo",
        data,
        as_json=json,
        code=result.exit_code,
        text=[Text(reports.text(composed).rstrip()), Text(_next(store))],
        warnings=[*warnings(scored), *result.surprises],
    )


def _next(store: Path) -> str:
    return (
        f"\nEverything is in the store {store}. Next:\n"
        f"  atrex dashboard --store {store}\n"
        f"  atrex report last --store {store}\n"
        f"  atrex ops show OPERATOR          # the interface, and a template that runs\n"
        f"  atrex score my_kernel.py --store {store}"
    )
