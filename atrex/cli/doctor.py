"""`atrex doctor`: what this machine can do, and what to install."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from atrex import api
from atrex.cli import output
from atrex.diagnosis import Finding

STYLES = {"ok": "", "warning": "yellow", "missing": "red"}


def command(json: output.Json = False) -> None:
    """Check versions, compilers, the sandbox and devices; exit code 3 if nothing can be judged."""
    with output.answering("doctor", json):
        findings = api.doctor()
        missing = any(finding.state == "missing" for finding in findings)
        output.answer(
            "doctor",
            {"findings": findings},
            as_json=json,
            text=[_table(findings)],
            code=3 if missing else 0,
        )


def _table(findings: Sequence[Finding]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in ("", "topic", "what", "found", "what to do"):
        table.add_column(heading, overflow="fold")
    for finding in findings:
        cells = finding.state, finding.topic, finding.name, finding.found, finding.remedy
        table.add_row(*(Text(cell) for cell in cells), style=STYLES[finding.state])
    return table
