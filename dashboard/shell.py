"""What every page shares: the store, filters in the URL, states, and charts with their data.

A page is a function of one open database, so that everything on it agrees. It reads no other
state than the URL: a pasted link shows the same page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import streamlit as st
import words

from atrex import units
from atrex.errors import AtrexError, UsageError
from atrex.store import Store

FACT_WIDTH = 215  # pixels; what does not fit beside each other moves to the next row
MOST_ROWS_UNSCROLLED = 30
CHART_OPTIONS = {"displaylogo": False, "modeBarButtonsToRemove": ["select2d", "lasso2d"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A query's answer, with the query as `atrex sql` runs it."""

    sql: str
    frame: pl.DataFrame


class Database:
    """An up-to-date, open database; every question keeps the query that it was answered by."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def ask(self, sql: str, **parameters: str) -> Answer:
        """Answer a query; it names its parameters ``$name``."""
        used = {name: value for name, value in parameters.items() if f"${name}" in sql}
        return Answer(sql=words.runnable(sql, used), frame=self._reader.read(sql, used))


def store_path() -> Path:
    """Return the store that the command line names."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--store", type=Path, default=Path("atrex-store"))
    return parser.parse_known_args(sys.argv[1:])[0].store


def show(page: Callable[[Database], None], *, title: str, question: str) -> None:
    """Lay out a page, or say why it cannot be shown."""
    st.title(title)
    st.caption(question)
    try:
        store = _existing(store_path())
        if store is None:
            empty(f"There is no store at {store_path()}.", "atrex demo")
            return
        with store.open() as reader:
            page(Database(reader))
    except AtrexError as error:
        st.error(words.escaped(error.message))
        if error.where:
            st.code(error.where, language=None)
        st.caption(words.escaped(error.remedy))


def _existing(path: Path) -> Store | None:
    try:
        return Store.existing(path)
    except UsageError:  # nothing is there
        return None


def empty(sentence: str, command: str) -> None:
    """Say what is missing, and the command that fills it."""
    st.info(f"{words.escaped(sentence)} This command fills it:")
    st.code(f"{command} --store {words.quoted(store_path())}", language="bash", wrap_lines=True)


def choose(
    label: str,
    options: Sequence[str],
    *,
    param: str,
    write: Callable[[str], str] = str,
    place: Any = None,
) -> str:
    """Let one of several options be chosen; the URL holds the choice.

    Args:
        label: Shown above the choice.
        options: Values as they stand in the URL, the default first.
        param: Name in the URL.
        write: How a value is shown.
        place: Where to put the choice; the sidebar by default.
    """
    asked = st.query_params.get(param)
    chosen = asked if asked in options else options[0]
    if asked is not None and asked != chosen:
        st.warning(
            f"The link asks for {label.lower()} “{words.escaped(asked)}”, which is not among those "
            f"here. Shown: {words.escaped(write(chosen))}."
        )
    key = f"filter-{param}"
    st.session_state[key] = chosen  # the URL is the truth: a link or the back button changes it

    def remember() -> None:
        st.query_params[param] = st.session_state[key]

    (place or st.sidebar).selectbox(label, options, key=key, format_func=write, on_change=remember)
    return chosen


def chart(
    figure: Any,
    answer: Answer,
    *,
    name: str,
    description: str,
    on_click: Callable[[Any], None] | None = None,
) -> None:
    """Place a figure with its data and its query.

    Args:
        figure: From `atrex.charts`.
        answer: What it was drawn from.
        name: Part of the downloaded file's name; unique on a page.
        description: Read out instead of the picture.
        on_click: Called with the `customdata` of a clicked point.
    """
    key = f"chart-{name}"

    def clicked() -> None:
        points = st.session_state[key].selection.points
        if points and on_click is not None:
            on_click(points[0].get("customdata"))

    st.plotly_chart(
        figure,
        key=key,
        config=CHART_OPTIONS,
        alt=description,
        on_select=clicked if on_click else "ignore",
        selection_mode="points",
    )
    data(answer, name=name)


def data(answer: Answer, *, name: str) -> None:
    """Offer the data of a chart or table as CSV, and its query."""
    with st.expander("Data and SQL"):
        st.download_button(
            f"Download {answer.frame.height:,} rows as CSV",
            answer.frame.write_csv,
            file_name=f"atrex-{name}.csv",
            mime="text/csv",
            key=f"csv-{name}",
            on_click="ignore",
        )
        st.caption("`atrex sql` runs this query on the same store.")
        st.code(answer.sql, language="sql", wrap_lines=True)


def unfinished(run: dict[str, Any]) -> None:
    """Say what a run that is under way, or was cut off, still lacks."""
    arguments = ["score", "--resume", run["run"], "--store", str(store_path())]
    resume = f"`{words.command(arguments)}` continues it."
    if run["status"] == "running":
        st.warning(
            "This run has not ended: its numbers may change, and workloads without a record count "
            f"as 0. If its process was killed, {resume}"
        )
    elif run["status"] == "interrupted":
        st.warning(f"This run was interrupted; workloads without a record count as 0. {resume}")
    if run["torn_bytes"]:
        st.warning(f"Its last record was cut off: {run['torn_bytes']} bytes are left out.")


def facts(*shown: tuple[str, str]) -> None:
    """Place short texts side by side, each below its name."""
    with st.container(horizontal=True, gap="small"):
        for name, value in shown:
            with st.container(width=FACT_WIDTH, gap=None):
                st.caption(name)
                st.markdown(words.escaped(value))


def table(frame: pl.DataFrame, formats: dict[str, str] | None = None) -> None:
    """Place a table; `formats` gives printf formats by column, missing values are dashes."""
    columns = {
        name: st.column_config.NumberColumn(format=form) for name, form in (formats or {}).items()
    }
    st.dataframe(
        frame,
        hide_index=True,
        height="content" if len(frame) <= MOST_ROWS_UNSCROLLED else "auto",
        column_config=columns,
        placeholder=units.MISSING,
    )


def figures(*shown: tuple[str, str, str, str]) -> None:
    """Place numbers side by side: label, value, what stands below it, and how it is defined."""
    with st.container(horizontal=True):
        for label, value, below, definition in shown:
            with st.container(border=True, width=FACT_WIDTH, height="stretch", gap=None):
                st.metric(label, value, help=definition)
                st.caption(below)
