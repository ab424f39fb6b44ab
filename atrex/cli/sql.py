"""`atrex sql QUERY`: one query that reads, over everything in the store."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Any

import typer
from rich.text import Text

from atrex import reports
from atrex.cli import output
from atrex.store import Store


def command(
    query: Annotated[
        str, typer.Argument(help='What to select, e.g. "from latest_measurement" or "show tables".')
    ],
    store: output.Store = output.DEFAULT_STORE,
    json: output.Json = False,
    limit: Annotated[int, typer.Option("--limit", min=1, help="Most rows to print.")] = 1000,
    seconds: Annotated[
        float, typer.Option("--seconds", min=0.1, help="Time after which it is stopped.")
    ] = 30.0,
) -> None:
    """Query runs, measurements, samples, facts and peaks; nothing can be written."""
    with output.answering("sql", json):
        table = Store.existing(store).query(query, limit=limit, seconds=seconds)
        cut = f"only the first {limit} rows are shown; --limit shows more"
        output.answer(
            "sql",
            {
                "columns": table.columns,
                "rows": [[_number(value) for value in row] for row in table.rows],
                "truncated": table.truncated,
            },
            as_json=json,
            text=[Text(reports.text_table(table.columns, _cells(table.rows)))],
            warnings=[cut] if table.truncated else [],
        )


def _cells(rows: list[tuple[Any, ...]]) -> list[list[str]]:
    return [[reports.plain(_number(value)) for value in row] for row in rows]


def _number(value: Any) -> Any:
    """Turn what JSON has no number for into one: decimals, and sums beyond 64 bits."""
    wide = isinstance(value, int) and abs(value) >= 2**63
    return float(value) if wide or isinstance(value, Decimal) else value
