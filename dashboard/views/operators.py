"""Operator: whether a kernel is good on all of its shapes, beside every baseline."""

from __future__ import annotations

import json

import polars as pl
import shell
import streamlit as st
import words

from atrex.charts import roofline

LATEST = "latest"

OPERATORS = "select operator, count(*) as n from latest_measurement group by all order by operator"
RUNS = """
select distinct run, started from latest_measurement
where operator = $operator order by started desc, run desc
"""
CANDIDATES = """
select candidate_sha[:12] as key, any_value(candidate) as candidate,
       any_value(c.operator) as operator, any_value(backend) as backend
from candidate c join run using (run)
where c.operator = $operator and $run in ('latest', run)
group by 1 order by max(started) desc, 1
"""
MEASUREMENTS = """
select candidate_sha[:12] || '.' || workload as measurement, run, candidate, operator, workload,
       axes, dtype, phase, outcome, kind, reason, method, time_ns, low_ns, high_ns, samples as n,
       baseline, baseline_ns, baselines_ns, noise, sol_ns, s, flop, moved_bytes, weight,
       environment, device
from latest_measurement
where operator = $operator and candidate_sha[:12] = $candidate and $run in ('latest', run)
qualify row_number() over (partition by workload order by started desc, run desc) = 1
order by weight desc nulls last, workload
"""
PEAKS = "select pipe, kind, value from latest_peak where device = $device"


def page(database: shell.Database) -> None:
    """Show one candidate on every shape of an operator, beside all baselines."""
    operators = database.ask(OPERATORS).frame
    if operators.is_empty():
        shell.empty("This store holds no measurements yet.", "atrex demo")
        return
    operator = shell.choose("Operator", operators["operator"].to_list(), param="operator")
    runs = database.ask(RUNS, operator=operator).frame["run"].to_list()
    run = shell.choose(
        "Run",
        [LATEST, *runs],
        param="run",
        write=lambda name: "The latest of each shape" if name == LATEST else name,
    )
    rows = database.ask(CANDIDATES, operator=operator, run=run).frame.iter_rows(named=True)
    candidates = {row["key"]: row for row in rows}
    if not candidates:
        st.info("No candidate of this run is for this operator.")
        return
    candidate = shell.choose(
        "Candidate",
        list(candidates),
        param="candidate",
        write=lambda key: words.candidate(candidates.get(key)),
    )
    answer = database.ask(MEASUREMENTS, operator=operator, candidate=candidate, run=run)
    if answer.frame.is_empty():
        st.info("This candidate has no measurement yet.")
        return
    frame = _labelled(answer.frame)
    _summary(frame)
    _heat_map(answer, frame)
    _side_by_side(answer, frame)
    _scaling(database, answer, frame)


def _labelled(frame: pl.DataFrame) -> pl.DataFrame:
    sizes = words.differing(frame.select("operator", "axes").iter_rows())
    labels = [f"{size}, {dtype}" for size, dtype in zip(sizes, frame["dtype"], strict=True)]
    return frame.with_columns(pl.Series("label", labels, dtype=pl.String))


def _summary(frame: pl.DataFrame) -> None:
    counts = frame["outcome"].value_counts(sort=True)
    ended = ", ".join(f"{words.spaced(name)} {count}" for name, count in counts.iter_rows())
    environments = frame["environment"].unique().sort()
    weight = frame["weight"].sum()
    shell.facts(
        ("Shapes", str(frame.height)),
        ("Outcomes", ended),
        ("Weight in the catalogue", f"{100 * weight:.1f} %"),
        ("Device", ", ".join(frame["device"].unique().sort())),
        ("Environments", ", ".join(environments)),
    )
    if len(environments) > 1:
        st.warning("These numbers come from different environments: choose one run to compare.")
    interpreted = frame.filter(method="interpreter").height
    if interpreted:
        st.info(f"{interpreted} shapes were judged in the interpreter: correct or not, untimed.")


def _heat_map(answer: shell.Answer, frame: pl.DataFrame) -> None:
    st.subheader("Share of roofline over two axes")
    axes = [json.loads(text) for text in frame["axes"]]
    varying = [name for name in axes[0] if len({each[name] for each in axes}) > 1]
    choices = [*varying, "dtype"]
    if len(choices) < 2:
        choices = [*axes[0], "dtype"]
    left, right = st.columns(2)
    across = shell.choose("Across", choices, param="x", place=left)
    down = shell.choose("Down", [c for c in choices if c != across], param="y", place=right)
    cells = frame.with_columns(
        *(
            pl.Series(name, [str(each[name]) for each in axes], dtype=pl.String)
            for name in (across, down)
            if name != "dtype"
        )
    )
    st.caption(
        "S of each shape; several in a cell are their mean by weight. ✕ failed, ? the interval is "
        "too wide, empty was not judged."
    )
    shell.chart(
        roofline.share_map(cells, across, down),
        answer,
        name="share-map",
        description=f"Share of roofline over {across} and {down}",
    )


def _side_by_side(answer: shell.Answer, frame: pl.DataFrame) -> None:
    st.subheader("Baselines side by side")
    times = [json.loads(text or "{}") for text in frame["baselines_ns"]]
    names = list(dict.fromkeys(name for each in times for name in each))
    micro = {column: pl.col(column) / 1e3 for column in ("time_ns", "low_ns", "high_ns", "sol_ns")}
    table = frame.select(
        pl.col("label").alias("Shape"),
        pl.Series("Outcome", [words.spaced(o) for o in frame["outcome"]], dtype=pl.String),
        pl.col("s").alias("S"),
        micro["sol_ns"].alias("Attainable, µs"),
        micro["time_ns"].alias("Candidate, µs"),
        micro["low_ns"].alias("95 % low, µs"),
        micro["high_ns"].alias("95 % high, µs"),
        pl.when(pl.col("n") > 0).then("n").alias("n"),
        *(_baseline(name, times) for name in names),
        (pl.col("baseline_ns") / pl.col("time_ns")).alias("Speed-up, ×"),
        (100 * pl.col("noise")).alias("± of it, %"),
        (100 * pl.col("weight")).alias("Weight, %"),
    )
    formats = {name: "%.2f" for name in table.columns if name.endswith(("µs", "×"))}
    shell.table(table, formats | {"S": "%.3f", "± of it, %": "%.1f", "Weight, %": "%.1f"})
    st.caption(
        "Baselines: medians of three screening calls; the fastest is timed in pairs with the "
        "candidate, and the speed-up and its half-width are those of the pairs."
    )
    shell.data(answer, name="operator")


def _baseline(name: str, times: list[dict[str, int]]) -> pl.Series:
    values = [each[name] / 1e3 if name in each else None for each in times]
    return pl.Series(f"{name}, µs", values, dtype=pl.Float64)


def _scaling(database: shell.Database, answer: shell.Answer, frame: pl.DataFrame) -> None:
    st.subheader("Time against size")
    timed = frame.filter(pl.col("time_ns").is_not_null() & pl.col("moved_bytes").is_not_null())
    if timed.is_empty():
        st.info("No shape of this choice was timed.")
        return
    peaks = database.ask(PEAKS, device=timed["device"][0]).frame
    work = [words.heaviest(text) for text in timed["flop"]]
    drawn = timed.with_columns(
        pl.Series("pipe", [pipe for pipe, _ in work], dtype=pl.String),
        pl.Series("flop", [flop for _, flop in work], dtype=pl.Int64),
    )
    st.caption(f"{drawn.height} timed shapes with their fastest baselines, above the memory roof.")
    shell.chart(
        roofline.time_by_size(drawn, peaks, {}, baselines=True),
        answer,
        name="scaling",
        description="Time of candidate and baseline over the bytes that must move",
    )


shell.show(page, title="Operator", question="Is this kernel good on every shape?")
