"""Run: everything that one run measured, and whether its numbers are real."""

from __future__ import annotations

import json
from typing import Any

import polars as pl
import shell
import streamlit as st
import words

from atrex import charts, units

MOST_ROWS = 40  # of the chart: the heaviest workloads; the table has them all
ALL = "all"

RUNS = "select run, started from run order by started desc, run desc"
HEADER = "select * from run where run = $run"
SEEN = """
select
    (select count(distinct (candidate_sha, workload)) from measurement where run = $run) as judged,
    (select count(*) from candidate where run = $run) as candidates
"""
CANDIDATES = """
select candidate_sha[:12] as key, candidate, operator, backend, path from candidate
where run = $run order by operator, candidate, candidate_sha
"""
MEASUREMENTS = """
select candidate_sha[:12] || '.' || workload as measurement,
       candidate, operator, workload, axes, dtype, phase, outcome, kind, reason, method,
       time_ns, low_ns, high_ns, noise, samples, baseline, baseline_ns, first_ns, sol_ns, s,
       overhead_bound, weight, time_source, calls, stop_reason, kernel_share, attribution,
       max_abs_error, max_rel_error, peak_bytes, baseline_peak_bytes, compile_ns, attempt
from latest_measurement
where run = $run
  and $candidate in ('all', candidate_sha[:12])
  and $operator in ('all', operator)
  and $outcome in ('all', outcome)
order by weight desc nulls last, operator, workload, candidate_sha
"""
SAMPLES = """
select arm, i, block, ns from sample
where run = $run and candidate_sha[:12] || '.' || workload = $measurement
  and attempt = (select max(attempt) from measurement
                 where run = $run and candidate_sha[:12] || '.' || workload = $measurement)
order by arm, i
"""
VALUES = "select distinct operator, outcome from latest_measurement where run = $run"
ENVIRONMENT = "select * from environment where environment = $environment"
BEFORE = """
select e.*, r.run from run r join environment e on e.environment = r.environment
where (r.started, r.run) < ($started, $run) and r.device_kind = $device_kind
order by r.started desc, r.run desc limit 1
"""

FORMATS = {
    "Time, µs": "%.2f",
    "95 % low, µs": "%.2f",
    "95 % high, µs": "%.2f",
    "Baseline, µs": "%.2f",
    "Attainable, µs": "%.2f",
    "Speed-up, ×": "%.2f",
    "S": "%.3f",
    "Weight, %": "%.1f",
}


def page(database: shell.Database) -> None:
    """Show what a run measured, and how sure it is."""
    runs = database.ask(RUNS).frame
    if runs.is_empty():
        shell.empty("This store holds no runs yet.", "atrex demo")
        return
    name = shell.choose("Run", runs["run"].to_list(), param="run")
    run = database.ask(HEADER, run=name).frame.row(0, named=True)
    candidates = {
        row["key"]: row for row in database.ask(CANDIDATES, run=name).frame.iter_rows(named=True)
    }
    shell.unfinished(run)
    _header(database, run)
    answer = _filtered(database, name, candidates)
    if answer.frame.is_empty():
        st.info("No measurement of this run fits the filters.")
    else:
        _shares(answer)
        _table(answer)
        _measurement(database, run, answer.frame, candidates)
    st.subheader("Environment")
    environment = database.ask(ENVIRONMENT, environment=run["environment"])
    known = {
        name: str(value)
        for name, value in environment.frame.row(0, named=True).items()
        if value is not None
    }
    shell.table(pl.DataFrame({"Field": list(known), "Value": list(known.values())}))
    shell.data(environment, name="environment")


def _header(database: shell.Database, run: dict[str, Any]) -> None:
    seen = database.ask(SEEN, run=run["run"]).frame.row(0, named=True)
    shell.facts(
        ("Device", run["device"]),
        ("Started", words.moment(run["started"])),
        ("State", f"{run['status']}, finished {words.moment(run['finished'])}"),
        ("Judged", f"{seen['judged']} measurements of {seen['candidates']} candidates"),
        ("Catalogue", f"{run['catalogue']}, {run['selected']} workloads selected"),
        ("Environment", _compared(database, run)),
    )
    st.code(words.command(json.loads(run["command"])), language="bash", wrap_lines=True)
    hashes = ", ".join(json.loads(run["seed_sha"])) or units.MISSING
    seeds = ", ".join(json.loads(run["seed"])) or "published when the run ends"
    st.caption(f"SHA-256 of the seed: {words.escaped(hashes)}. Seed: {words.escaped(seeds)}.")


def _compared(database: shell.Database, run: dict[str, Any]) -> str:
    keys = {key: run[key] for key in ("run", "started", "device_kind")}
    before = database.ask(BEFORE, **keys).frame
    if before.is_empty():
        return f"{run['environment']}, the first of its kind here"
    now = database.ask(ENVIRONMENT, environment=run["environment"]).frame.row(0, named=True)
    earlier = before.row(0, named=True)
    changed = words.differences(now, earlier)
    if not changed:
        return f"{run['environment']}, as in the run before ({earlier['run']})"
    return f"{run['environment']}; since {earlier['run']}: {', '.join(changed)}"


def _filtered(
    database: shell.Database, run: str, candidates: dict[str, dict[str, Any]]
) -> shell.Answer:
    candidate = shell.choose(
        "Candidate",
        [ALL, *candidates],
        param="candidate",
        write=lambda key: words.candidate(candidates.get(key)),
    )
    seen = database.ask(VALUES, run=run).frame
    operator = shell.choose(
        "Operator",
        [ALL, *seen["operator"].unique().sort()],
        param="operator",
        write=lambda name: "All operators" if name == ALL else name,
    )
    outcome = shell.choose(
        "Outcome",
        [ALL, *seen["outcome"].unique().sort()],
        param="outcome",
        write=lambda name: "All outcomes" if name == ALL else words.spaced(name),
    )
    return database.ask(
        MEASUREMENTS, run=run, candidate=candidate, operator=operator, outcome=outcome
    )


def _shares(answer: shell.Answer) -> None:
    st.subheader("Share of roofline by workload")
    shares = answer.frame.filter(pl.col("s").is_not_null() | (pl.col("method") != "interpreter"))
    interpreted = answer.frame.height - shares.height
    if interpreted:
        st.info(f"{interpreted} workloads were judged in the interpreter: they have no time.")
    if shares.is_empty():
        return
    heaviest = shares.head(MOST_ROWS)
    st.caption(
        f"{heaviest.height} of {answer.frame.height} measurements, by weight, with their 95 % "
        "intervals; what is not ok counts as 0. Click a point to see its samples."
    )
    attainable = pl.col("sol_ns")
    shown = heaviest.with_columns(
        pl.col("measurement").alias("workload"),
        pl.Series("label", _labels(heaviest)),
        pl.col("samples").alias("n"),
        pl.when(pl.col("outcome") == "ok")
        .then(pl.min_horizontal(1.0, attainable / pl.col("high_ns")))
        .alias("s_low"),
        pl.when(pl.col("outcome") == "ok")
        .then(pl.min_horizontal(1.0, attainable / pl.col("low_ns")))
        .alias("s_high"),
    )
    shell.chart(
        charts.share_of_roofline(shown),
        answer,
        name="share-of-roofline",
        description="Share of roofline of every workload, with intervals",
        on_click=_open,
    )


def _open(measurement: str) -> None:
    st.query_params["measurement"] = measurement


def _labels(frame: pl.DataFrame) -> list[str]:
    """Name measurements by workload, and by candidate where a run has several."""
    names = words.workloads(frame.select("operator", "axes", "dtype").iter_rows())
    if frame["measurement"].str.head(12).n_unique() == frame["operator"].n_unique():
        return names
    return [f"{name} · {who}" for name, who in zip(names, frame["candidate"], strict=True)]


def _table(answer: shell.Answer) -> None:
    st.subheader("Measurements")
    frame = answer.frame
    shapes = words.differing(frame.select("operator", "axes").iter_rows())
    micro = {column: pl.col(column) / 1e3 for column in ("time_ns", "low_ns", "high_ns")}
    table = frame.select(
        pl.col("candidate").alias("Candidate"),
        pl.col("operator").alias("Operator"),
        pl.Series("Shape", shapes, dtype=pl.String),
        pl.col("dtype").alias("dtype"),
        pl.col("phase").alias("Phase"),
        pl.Series("Outcome", _outcomes(frame), dtype=pl.String),
        micro["time_ns"].alias("Time, µs"),
        micro["low_ns"].alias("95 % low, µs"),
        micro["high_ns"].alias("95 % high, µs"),
        pl.when(pl.col("samples") > 0).then("samples").alias("n"),
        pl.col("baseline").alias("Baseline"),
        (pl.col("baseline_ns") / 1e3).alias("Baseline, µs"),
        (pl.col("baseline_ns") / pl.col("time_ns")).alias("Speed-up, ×"),
        (pl.col("sol_ns") / 1e3).alias("Attainable, µs"),
        pl.col("s").alias("S"),
        (100 * pl.col("weight")).alias("Weight, %"),
        pl.col("time_source").alias("Weight is"),
        pl.col("stop_reason").alias("Stopped by"),
        pl.Series("Done by", [words.attribution(a) for a in frame["attribution"]], dtype=pl.String),
    )
    shell.table(table, FORMATS)
    st.caption(
        "Time: median of n calls, caches flushed before each, transport included; the interval is "
        "that of these calls alone. S: attainable time / time, at most 1, 0 unless ok. "
        "Axes that are the same for all shapes of an operator are only in the data."
    )
    shell.data(answer, name="measurements")


def _outcomes(frame: pl.DataFrame) -> list[str]:
    return [
        words.spaced(f"{outcome} ({kind})" if kind else outcome)
        for outcome, kind in frame.select("outcome", "kind").iter_rows()
    ]


def _measurement(
    database: shell.Database,
    run: dict[str, Any],
    frame: pl.DataFrame,
    candidates: dict[str, dict[str, Any]],
) -> None:
    st.subheader("One measurement")
    labels = dict(zip(frame["measurement"], _labels(frame), strict=True))
    key = shell.choose(
        "Measurement", list(labels), param="measurement", write=labels.__getitem__, place=st
    )
    row = frame.row(by_predicate=pl.col("measurement") == key, named=True)
    interval = units.interval(row["low_ns"], row["high_ns"])
    shell.facts(
        ("Outcome", words.spaced(row["outcome"])),
        ("Share of roofline S", units.share(row["s"])),
        ("Time, 95 % interval", f"{units.time(row['time_ns'])} {interval}, n = {row['samples']}"),
        ("Baseline", f"{row['baseline'] or units.MISSING} {units.time(row['baseline_ns'])}"),
        ("First call", units.time(row["first_ns"])),
        ("Memory", f"{units.size(row['peak_bytes'])}, "
                   f"baseline {units.size(row['baseline_peak_bytes'])}"),
        ("Method", f"{row['method']}, stopped by {row['stop_reason'] or units.MISSING}"),
    )  # fmt: skip
    st.caption(words.escaped(f"{row['operator']}: {words.shape(row['axes'])}, {row['dtype']}."))
    if row["reason"]:
        st.markdown(f"Reason: {words.escaped(row['reason'])}")
    st.caption(words.escaped(f"Done by {words.attribution(row['attribution'], evidence=True)}"))
    _samples(database, run["run"], key, row)
    st.caption("Judge this workload again:")
    path = candidates[key.partition(".")[0]]["path"]
    again = ["score", path, "--operator", row["operator"], "--shapes", row["workload"]]
    again += ["--device", run["device_kind"], "--store", str(shell.store_path())]
    st.code(words.command(again), language="bash", wrap_lines=True)


def _samples(database: shell.Database, run: str, key: str, row: dict[str, Any]) -> None:
    answer = database.ask(SAMPLES, run=run, measurement=key)
    if answer.frame.is_empty():
        st.info(f"There are no samples: judging ended as {words.spaced(row['outcome'])} untimed.")
        return
    left, right = st.columns(2)
    with left:
        st.markdown("**Distribution**")
        shell.chart(
            charts.sample_histogram(answer.frame),
            answer,
            name="histogram",
            description="Histogram of the samples of candidate and baseline",
        )
    with right:
        st.markdown("**Run order**")
        shell.chart(
            charts.sample_order(answer.frame),
            answer,
            name="run-order",
            description="Samples of candidate and baseline in run order",
        )


shell.show(page, title="Run", question="What did this run measure, and how sure is it?")
