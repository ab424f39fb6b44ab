"""Roofline: what bounds each workload, and how far it is from the bound."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import shell
import streamlit as st
import words

from atrex.charts import roofline

ALL = "all"
VIEWS = {"intensity": "FLOP/s over intensity", "time": "Time over bytes"}
SWITCH = {"no": "without baselines", "yes": "with baselines"}

RUNS = "select run, started from run order by started desc, run desc"
HEADER = "select * from run where run = $run"
MEASUREMENTS = """
select candidate_sha[:12] || '.' || workload as measurement,
       candidate, operator, workload, axes, dtype, outcome, method, time_ns, low_ns, high_ns,
       samples as n, baseline, baseline_ns, sol_ns, s, flop, moved_bytes, weight, environment
from latest_measurement
where run = $run
  and $candidate in ('all', candidate_sha[:12])
  and $operator in ('all', operator)
order by weight desc nulls last, operator, workload, candidate_sha
"""
CANDIDATES = """
select candidate_sha[:12] as key, candidate, operator, backend from candidate
where run = $run order by operator, candidate, candidate_sha
"""
PEAKS = """
select pipe, kind, value, low, high, n, source, date from latest_peak where device = $device
order by kind, pipe
"""


def page(database: shell.Database) -> None:
    """Show every timed workload of a run below the roofs of its device."""
    runs = database.ask(RUNS).frame
    if runs.is_empty():
        shell.empty("This store holds no runs yet.", "atrex demo")
        return
    name = shell.choose("Run", runs["run"].to_list(), param="run")
    run = database.ask(HEADER, run=name).frame.row(0, named=True)
    shell.unfinished(run)
    answer = _filtered(database, name)
    timed = _timed(answer.frame)
    _left_out(answer.frame, timed)
    peaks = database.ask(PEAKS, device=run["device"])
    if timed.is_empty():
        shell.empty("No workload of this choice was timed.", "atrex score KERNEL.py")
        return
    if peaks.frame.is_empty():
        st.warning(f"No peaks are known for {words.escaped(run['device'])}: no roof is drawn.")
    view = shell.choose("View", list(VIEWS), param="view", write=VIEWS.__getitem__, place=st)
    shown = shell.choose("Points", list(SWITCH), param="baselines", write=SWITCH.__getitem__)
    if view == "intensity":
        _intensity(answer, timed, peaks.frame, shown == "yes")
    else:
        _times(answer, timed, peaks.frame, run, shown == "yes")
    _peaks(peaks)


def _filtered(database: shell.Database, run: str) -> shell.Answer:
    rows = database.ask(CANDIDATES, run=run).frame.iter_rows(named=True)
    candidates = {row["key"]: row for row in rows}
    candidate = shell.choose(
        "Candidate",
        [ALL, *candidates],
        param="candidate",
        write=lambda key: words.candidate(candidates.get(key)),
    )
    operator = shell.choose(
        "Operator",
        [ALL, *sorted({row["operator"] for row in candidates.values()})],
        param="operator",
        write=lambda name: "All operators" if name == ALL else name,
    )
    return database.ask(MEASUREMENTS, run=run, candidate=candidate, operator=operator)


def _timed(frame: pl.DataFrame) -> pl.DataFrame:
    """Return what can be drawn: timed, and with the work that the workload cannot avoid."""
    timed = frame.filter(pl.col("time_ns").is_not_null() & pl.col("moved_bytes").is_not_null())
    work = [words.heaviest(text) for text in timed["flop"]]
    labels = words.workloads(timed.select("operator", "axes", "dtype").iter_rows())
    return timed.with_columns(
        pl.Series("pipe", [pipe for pipe, _ in work], dtype=pl.String),
        pl.Series("flop", [flop for _, flop in work], dtype=pl.Int64),
        pl.Series("label", labels, dtype=pl.String),
    )


def _left_out(frame: pl.DataFrame, timed: pl.DataFrame) -> None:
    """Say how many measurements are not drawn, and why."""
    interpreted = frame.filter(method="interpreter").height
    if interpreted:
        st.info(f"{interpreted} workloads were judged in the interpreter: they have no time.")
    others = frame.height - timed.height - interpreted
    if others:
        st.caption(f"{others} more ended untimed, or were recorded before work was stored.")


def _intensity(
    answer: shell.Answer, timed: pl.DataFrame, peaks: pl.DataFrame, baselines: bool
) -> None:
    drawn = timed.filter(pl.col("flop") > 0)
    st.caption(
        f"{drawn.height} of {timed.height} timed workloads; area by weight. Solid roofs were "
        "measured on this device, dashed ones are the datasheet's. Click a point for its samples."
    )
    if drawn.is_empty():
        st.info("These workloads do no arithmetic: the other view shows them.")
        return
    shell.chart(
        roofline.roofline(drawn, peaks, baselines=baselines),
        answer,
        name="roofline",
        description="Achieved FLOP/s over arithmetic intensity, below the roofs of the device",
        on_click=_open,
    )


def _times(
    answer: shell.Answer,
    timed: pl.DataFrame,
    peaks: pl.DataFrame,
    run: dict[str, Any],
    baselines: bool,
) -> None:
    floors = {
        key.removeprefix("floor_").removesuffix("_ns"): value
        for key, value in json.loads(run["options"]).items()
        if key.startswith("floor_")
    }
    st.caption(
        f"{timed.height} timed workloads; area by weight. Nothing can be faster than the memory "
        "roof, nor than a call that does nothing (dotted, by kind of worker)."
    )
    shell.chart(
        roofline.time_by_size(timed, peaks, floors, baselines=baselines),
        answer,
        name="time-by-size",
        description="Time of a call over the bytes that must move",
        on_click=_open,
    )


def _open(measurement: str) -> None:
    st.query_params["measurement"] = measurement
    st.switch_page("views/run.py")


def _peaks(peaks: shell.Answer) -> None:
    st.subheader("Peaks")
    table = peaks.frame.select(
        pl.col("pipe").alias("Pipe"),
        pl.col("kind").alias("Kind"),
        (pl.col("value") / 1e9).alias("Peak, G/s"),
        (pl.col("low") / 1e9).alias("10 %, G/s"),
        (pl.col("high") / 1e9).alias("90 %, G/s"),
        pl.col("n").alias("n"),
        pl.col("source").alias("How"),
        pl.col("date").alias("Date"),
    )
    shell.table(table, {name: "%.2f" for name in ("Peak, G/s", "10 %, G/s", "90 %, G/s")})
    shell.data(peaks, name="peaks")


shell.show(page, title="Roofline", question="What bounds each workload: memory, compute, launch?")
