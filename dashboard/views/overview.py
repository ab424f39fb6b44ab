"""Overview: the score with what it rests on, the largest gaps, and who owns the GPU."""

from __future__ import annotations

from typing import Any

import polars as pl
import shell
import streamlit as st
import words

from atrex import charts, units

LOW_COVERAGE = 0.5  # below, the score says more about what was not judged than about the kernel
LARGEST_GAPS = 3
MOST_TILES = 400  # of a treemap; the smallest workloads of an operator become one tile

RUNS = """
select r.run, r.started, r.status, r.device, r.environment, r.selected, r.torn_bytes
from run r
where exists (select 1 from measurement m where m.run = r.run)
order by r.started desc, r.run desc
"""
CANDIDATES = """
select c.candidate_sha, c.candidate, c.operator, c.backend,
       s.score, s.low, s.high, s.coverage, s.score_selected, s.with_fallbacks, s.weight_correct,
       (select count(*) from latest_measurement m
        where m.run = c.run and m.candidate_sha = c.candidate_sha) as judged,
       (select count(*) from shape w where w.run = c.run) as workloads
from candidate c
left join score s on s.run = c.run and s.candidate_sha = c.candidate_sha
where c.run = $run
order by s.score desc nulls last, c.operator, c.candidate
"""
WEIGHTS = """
select time_source, count(*) as workloads, sum(weight) as weight
from shape where run = $run group by time_source order by time_source
"""
OUTCOMES = """
select ended.outcome, count(*) as workloads, sum(ended.weight) as weight
from (
    select coalesce(m.outcome, 'not judged') as outcome, s.weight
    from shape s
    left join latest_measurement m
      on m.run = s.run and m.workload = s.workload and m.candidate_sha = $candidate
    where s.run = $run
) ended
group by ended.outcome
order by ended.outcome = 'not judged', sum(ended.weight) desc
"""
GAPS = """
select operator, workload, axes, dtype, phase, outcome, reason, weight, s,
       weight * (1 - s) as gap, time_ns, low_ns, high_ns, samples, sol_ns, time_source
from latest_measurement
where run = $run and candidate_sha = $candidate and s < 1
order by gap desc, workload
limit 50
"""
TRACES = """
select trace, path, gpu, gpu_ns, kernels, trace_coverage, truncated from trace order by gpu_ns desc
"""
FUNNEL = """
select level, sum(f.gpu_ns)::bigint as gpu_ns,
       sum(f.gpu_ns) / sum(t.gpu_ns) as share
from funnel f join trace t on t.trace = f.trace
where $trace in ('all', f.trace)
group by level
order by gpu_ns desc, level
"""
TIME_MAP = """
with best as (
    select workload, max(s) as s
    from latest_measurement
    where environment = $environment and s is not null
    group by workload
)
select g.phase, g.operator, g.kind, g.workload, g.axes, g.dtype,
       sum(g.calls)::bigint as calls, sum(g.gpu_ns)::bigint as gpu_ns,
       string_agg(distinct g.time_source, ' and ' order by g.time_source) as time_source,
       any_value(b.s) as s
from gpu_time g left join best b on b.workload = g.workload
where $trace in ('all', g.trace) and $phase in ('all', g.phase)
group by g.phase, g.operator, g.kind, g.workload, g.axes, g.dtype
order by gpu_ns desc
"""


def page(database: shell.Database) -> None:
    """Show where we are: one candidate of one run, and the traces behind the weights."""
    runs = database.ask(RUNS).frame
    traces = database.ask(TRACES).frame
    run = None
    if runs.is_empty():
        shell.empty("This store holds no measurements yet.", "atrex demo")
    else:
        run = _choose_run(runs)
        shell.unfinished(run)
        _standing(database, run, traces)
    if traces.is_empty():
        st.subheader("Who owns the GPU")
        shell.empty("This store holds no traces yet.", "atrex ingest TRACE")
    else:
        _time(database, traces, run)


def _choose_run(runs: pl.DataFrame) -> dict[str, Any]:
    rows = {row["run"]: row for row in runs.iter_rows(named=True)}
    name = shell.choose("Run", list(rows), param="run")
    return rows[name]


def _standing(database: shell.Database, run: dict[str, Any], traces: pl.DataFrame) -> None:
    answer = database.ask(CANDIDATES, run=run["run"])
    rows = {row["candidate_sha"][:12]: row for row in answer.frame.iter_rows(named=True)}
    chosen = shell.choose(
        "Candidate",
        list(rows),
        param="candidate",
        write=lambda key: words.candidate(rows[key]),
    )
    candidate = rows[chosen]
    keys = {"run": run["run"], "candidate": candidate["candidate_sha"]}
    outcomes = database.ask(OUTCOMES, **keys)
    _banner(candidate, outcomes.frame)
    _headline(candidate, traces, database.ask(WEIGHTS, run=run["run"]).frame)
    st.page_link(
        "views/run.py",
        label=f"All measurements of this run, on {run['device']}",
        query_params={"run": run["run"]},
    )
    if len(rows) > 1:
        _candidates(answer)
    st.subheader("Outcomes")
    shell.chart(
        charts.outcomes(outcomes.frame),
        outcomes,
        name="outcomes",
        description="Catalogue weight by outcome",
    )
    _gaps(database.ask(GAPS, **keys), run["run"], chosen)


def _banner(candidate: dict[str, Any], outcomes: pl.DataFrame) -> None:
    violations = outcomes.filter(outcome="violation")["workloads"].sum()
    if violations:
        st.error(f"{violations} workloads ended in a violation: a person should look at them.")
    coverage = candidate["coverage"]
    if coverage is not None and coverage < LOW_COVERAGE:
        st.warning(
            f"Only {units.percent(coverage)} of the catalogue's weight was judged; what was not "
            "judged counts as 0 in the score."
        )


def _headline(candidate: dict[str, Any], traces: pl.DataFrame, weights: pl.DataFrame) -> None:
    shell.figures(
        (
            "Share of roofline",
            units.share(candidate["score"]),
            f"95 % interval {units.interval(candidate['low'], candidate['high'], units.share)}"
            if candidate["coverage"] is not None
            else "a run is scored when it ends",
            "The score: sum of weight × S over the whole catalogue, S = attainable time / time. "
            "What was not judged, or is not ok, counts as 0.",
        ),
        (
            "Selected shapes",
            units.share(candidate["score_selected"]),
            f"with fallbacks {units.share(candidate['with_fallbacks'])} of the whole",
            "The score rescaled to the workloads that were selected for this run.",
        ),
        (
            "Coverage",
            units.percent(candidate["coverage"]),
            f"n = {candidate['judged']} of {candidate['workloads']} workloads",
            "Catalogue weight of the workloads that have a verdict.",
        ),
        ("Trace coverage", *_trace_coverage(traces)),
    )
    sources = [f"{units.percent(part)} {source}" for source, _, part in weights.iter_rows()]
    st.caption(f"GPU time behind the weights: {' and '.join(sources) or units.MISSING}.")


def _trace_coverage(traces: pl.DataFrame) -> tuple[str, str, str]:
    total = traces["gpu_ns"].sum()
    covered = (traces["trace_coverage"] * traces["gpu_ns"]).sum() / total if total else None
    return (
        units.percent(covered),
        f"{traces.height} traces, {units.time(total)} GPU time" if total else "no traces ingested",
        "Share of the traces' GPU time in operators with complete axes.",
    )


def _candidates(answer: shell.Answer) -> None:
    st.subheader("Candidates of this run")
    shell.table(
        answer.frame.select(
            pl.col("candidate").alias("Candidate"),
            pl.col("operator").alias("Operator"),
            pl.col("backend").alias("Backend"),
            pl.col("score").alias("Score"),
            pl.col("low").alias("95 % low"),
            pl.col("high").alias("95 % high"),
            (100 * pl.col("coverage")).alias("Coverage, %"),
            pl.col("judged").alias("Workloads judged"),
        ),
        {"Score": "%.3f", "95 % low": "%.3f", "95 % high": "%.3f", "Coverage, %": "%.1f"},
    )
    shell.data(answer, name="candidates")


def _gaps(answer: shell.Answer, run: str, candidate: str) -> None:
    st.subheader("Largest gaps")
    if answer.frame.is_empty():
        st.caption("No judged workload leaves a gap.")
        return
    st.caption("What the score still lacks: weight × (1 - S), over the judged workloads.")
    for row in answer.frame.head(LARGEST_GAPS).iter_rows(named=True):
        with st.container(border=True):
            size, sentence, link = st.columns([2, 10, 3], vertical_alignment="center")
            size.markdown(f"**{units.share(row['gap'])}**")
            sentence.markdown(_gap(row))
            link.page_link(
                "views/run.py",
                label="Its samples",
                query_params={"run": run, "measurement": f"{candidate}.{row['workload']}"},
            )
    shell.data(answer, name="gaps")


def _gap(row: dict[str, Any]) -> str:
    name = f"**{words.escaped(row['operator'])}** {words.escaped(words.shape(row['axes']))}"
    weight = f"{units.percent(row['weight'])} of production time ({row['time_source']})"
    if row["outcome"] != "ok":
        outcome = words.escaped(row["outcome"].replace("_", " "))
        return f"{name}, {row['dtype']}, is {outcome}, so its {weight} counts as 0."
    return (
        f"{name}, {row['dtype']}, takes {units.time(row['time_ns'])} "
        f"{words.escaped(units.interval(row['low_ns'], row['high_ns']))} (n = {row['samples']}) "
        f"where {units.time(row['sol_ns'])} is attainable: S = {units.share(row['s'])}, over "
        f"{weight}."
    )


def _time(database: shell.Database, traces: pl.DataFrame, run: dict[str, Any] | None) -> None:
    paths = dict(traces.select("trace", "path").iter_rows())
    trace = shell.choose(
        "Trace", ["all", *paths], param="trace", write=lambda name: paths.get(name, "All traces")
    )
    phases = database.ask("select distinct phase from fact order by phase").frame["phase"].to_list()
    phase = shell.choose("Phase", ["all", *phases], param="phase", write=_phase)
    st.subheader("Who owns the GPU")
    st.caption(
        "GPU time by phase, operator and workload. Colour is the best share of roofline measured "
        "for the workload in the environment of the chosen run; hatched grey was not measured."
    )
    environment = run["environment"] if run else ""
    answer = database.ask(TIME_MAP, trace=trace, phase=phase, environment=environment)
    shell.chart(
        charts.time_treemap(_tiles(answer.frame)),
        answer,
        name="gpu-time",
        description="Treemap of GPU time by phase, operator and workload",
    )
    st.subheader("How far the traces were understood")
    st.caption("What no operator claims stays in the denominator; nothing is dropped.")
    for (path,) in traces.filter(pl.col("truncated")).select("path").iter_rows():
        st.warning(f"The trace {words.escaped(path)} ended early; its complete events are counted.")
    funnel = database.ask(FUNNEL, trace=trace)
    shell.chart(
        charts.coverage_funnel(funnel.frame),
        funnel,
        name="coverage",
        description="Share of GPU time by how far it was understood",
    )


def _phase(name: str) -> str:
    return "All phases" if name == "all" else name.capitalize()


def _tiles(frame: pl.DataFrame) -> pl.DataFrame:
    """Label the workloads; all but the largest are put together by phase and operator."""
    labelled = frame.with_columns(
        label=pl.Series(
            [
                f"{words.shape(axes)}, {dtype}" if workload else "axes unknown"
                for workload, axes, dtype in frame.select("workload", "axes", "dtype").iter_rows()
            ],
            dtype=pl.String,
        )
    )
    rest = labelled.slice(MOST_TILES)
    together = rest.group_by("phase", "operator", "s", maintain_order=True).agg(
        pl.col("calls", "gpu_ns").sum(),
        pl.col("time_source").first(),
        pl.format("{} smaller workloads", pl.len()).alias("label"),
    )
    return pl.concat([labelled.head(MOST_TILES), together], how="diagonal")


shell.show(page, title="Overview", question="Where are we?")
