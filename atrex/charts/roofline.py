"""Figures about the roofline: how much of a device each workload uses, and what bounds it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import plotly.graph_objects as go
import polars as pl

from atrex import units
from atrex.charts import BASELINE, NEUTRAL, OUTCOME_SYMBOL, finish, in_words, plain

# Told apart by every common colour blindness (Okabe and Ito); symbols tell outcomes besides.
OPERATOR_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#8a7d2a", "#666666",
)  # fmt: skip
DASH = {"measured": "solid", "datasheet": "dash"}
SMALLEST, LARGEST = 7.0, 26.0  # pixels of a point, by the root of its weight
MARGIN = 2.0  # factor around the points
MEMORY = "memory"


def roofline(frame: pl.DataFrame, peaks: pl.DataFrame, *, baselines: bool = False) -> go.Figure:
    """Draw achieved FLOP/s over arithmetic intensity, log-log, below the device's roofs.

    Args:
        frame: One row for each measurement: label, operator, outcome, pipe, flop (on that pipe),
            moved_bytes, time_ns, low_ns, high_ns, n, weight, s, baseline, baseline_ns, measurement
            (its id, which a click returns).
        peaks: pipe (``"memory"`` among them), kind, value (FLOP/s or byte/s).
        baselines: Whether each point's baseline is drawn, joined to it by a line.
    """
    frame = frame.with_columns(
        (pl.col("flop") / pl.col("moved_bytes")).alias("x"),
        (pl.col("flop") / pl.col("time_ns") * 1e9).alias("y"),
        (pl.col("flop") / pl.col("baseline_ns") * 1e9).alias("baseline_y"),
    )
    figure = go.Figure()
    _roofs(figure, frame, peaks)
    if baselines:
        _baselines(figure, frame)
    _points(figure, frame)
    figure.update_xaxes(title="Arithmetic intensity, FLOP / byte", type="log", dtick=1)
    figure.update_yaxes(title="Achieved FLOP/s", type="log", tickformat=".1s", dtick=1)
    return finish(figure, height=520, legend=True)


def time_by_size(
    frame: pl.DataFrame, peaks: pl.DataFrame, floors: dict[str, int], *, baselines: bool = False
) -> go.Figure:
    """Draw time over the bytes that must move, log-log, above the memory roof and launch floors.

    Args:
        frame: As for `roofline`; workloads without arithmetic stand here too.
        peaks: As for `roofline`.
        floors: Kind of worker to its launch floor in ns.
        baselines: Whether each point's baseline is drawn, joined to it by a line.
    """
    frame = frame.with_columns(
        pl.col("moved_bytes").alias("x"),
        (pl.col("time_ns") / 1e3).alias("y"),
        (pl.col("baseline_ns") / 1e3).alias("baseline_y"),
    )
    figure = go.Figure()
    low, high = _span(frame["x"])
    for row in peaks.filter(pipe=MEMORY).iter_rows(named=True):
        _line(
            figure,
            [low, high],
            [low / row["value"] * 1e6, high / row["value"] * 1e6],
            f"memory roof, {row['kind']}: {units.rate(row['value'], 'B/s')}",
            row["kind"],
        )
    for name, floor_ns in floors.items():
        label = f"launch floor, {in_words(name)}: {units.time(floor_ns)}"
        _line(figure, [low, high], [floor_ns / 1e3] * 2, label, "floor")
    if baselines:
        _baselines(figure, frame)
    _points(figure, frame)
    figure.update_xaxes(title="Bytes that must move", type="log", tickformat=".1s", dtick=1)
    figure.update_yaxes(title="Time of a call, µs", type="log", dtick=1)
    return finish(figure, height=520, legend=True)


def _roofs(figure: go.Figure, frame: pl.DataFrame, peaks: pl.DataFrame) -> None:
    """Draw min(intensity x bandwidth, peak) for every pipe that a point uses."""
    low, high = _span(frame["x"])
    used = set(frame["pipe"])
    for kind in DASH:
        known = {row["pipe"]: row["value"] for row in peaks.filter(kind=kind).iter_rows(named=True)}
        if MEMORY not in known:
            continue
        for pipe in sorted(used & known.keys()):
            ridge = known[pipe] / known[MEMORY]
            x = sorted({low, min(max(ridge, low), high), high})
            y = [min(each * known[MEMORY], known[pipe]) for each in x]
            _line(figure, x, y, f"{pipe}, {kind}: {units.rate(known[pipe], 'FLOP/s')}", kind)


def _line(figure: go.Figure, x: list[float], y: list[float], name: str, kind: str) -> None:
    figure.add_scatter(
        x=x,
        y=y,
        mode="lines",
        name=name,
        line={"width": 1.5, "color": NEUTRAL, "dash": DASH.get(kind, "dot")},
        hovertemplate=f"{plain(name)}<extra></extra>",
    )


def _baselines(figure: go.Figure, frame: pl.DataFrame) -> None:
    """Draw every point's baseline as a hollow diamond, joined to it."""
    known = frame.filter(pl.col("baseline_y").is_not_null())
    x: list[float | None] = []
    y: list[float | None] = []
    for row in known.iter_rows(named=True):
        x += [row["x"], row["x"], None]
        y += [row["baseline_y"], row["y"], None]
    joined = {"width": 1, "color": BASELINE}
    figure.add_scatter(x=x, y=y, mode="lines", line=joined, hoverinfo="skip", showlegend=False)
    figure.add_scatter(
        x=known["x"].to_list(),
        y=known["baseline_y"].to_list(),
        mode="markers",
        name="fastest baseline",
        marker={"symbol": "diamond-open", "size": 8, "color": BASELINE},
        hovertext=[
            f"{plain(row['baseline'])} on {plain(row['label'])}<br>"
            f"time {units.time(row['baseline_ns'])}"
            for row in known.iter_rows(named=True)
        ],
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _points(figure: go.Figure, frame: pl.DataFrame) -> None:
    """Draw the measurements: colour is the operator, symbol the outcome, size the weight."""
    heaviest = float(frame["weight"].fill_null(0.0).max() or 1.0)  # type: ignore[arg-type]
    operators = sorted(set(frame["operator"]))
    for operator in operators:
        colour = OPERATOR_COLOURS[operators.index(operator) % len(OPERATOR_COLOURS)]
        for outcome in frame.filter(operator=operator)["outcome"].unique(maintain_order=True):
            part = frame.filter(operator=operator, outcome=outcome)
            figure.add_scattergl(
                x=part["x"].to_list(),
                y=part["y"].to_list(),
                mode="markers",
                name=f"{plain(operator)}, {in_words(outcome)} ({part.height})",
                customdata=part["measurement"].to_list(),
                marker={
                    "color": colour,
                    "symbol": OUTCOME_SYMBOL.get(outcome, "x"),
                    "size": [
                        SMALLEST + (LARGEST - SMALLEST) * math.sqrt((weight or 0.0) / heaviest)
                        for weight in part["weight"]
                    ],
                    "line": {"width": 1, "color": colour},
                    "opacity": 0.85,
                },
                hovertext=[_hover(row) for row in part.iter_rows(named=True)],
                hovertemplate="%{hovertext}<extra></extra>",
            )


def _hover(row: dict[str, Any]) -> str:
    interval = units.interval(row["low_ns"], row["high_ns"])
    lines = [
        f"<b>{plain(row['label'])}</b>",
        f"{in_words(row['outcome'])}, S {units.share(row['s'])}",
        f"time {units.time(row['time_ns'])} {interval}, n = {row['n'] or 0:,}, measured",
        f"{units.size(row['moved_bytes'])} must move",
    ]
    if row["flop"]:
        rate = units.rate(row["flop"] / row["time_ns"] * 1e9, "FLOP/s")
        lines.append(f"{rate} on the pipe {plain(row['pipe'])}")
    lines.append(f"environment {plain(row['environment'])}, weight {units.percent(row['weight'])}")
    return "<br>".join(lines)


def _span(values: pl.Series) -> tuple[float, float]:
    """Return the ends of a logarithmic axis around the points."""
    return float(values.min()) / MARGIN, float(values.max()) * MARGIN  # type: ignore[arg-type]


def share_map(frame: pl.DataFrame, x: str, y: str) -> go.Figure:
    """Draw S over two axes of an operator as a heat map.

    Failures are crosses, intervals too wide question marks, so that colour alone says nothing.

    Args:
        frame: One row for each measurement: the columns `x` and `y`, s, outcome, time_ns, weight,
            label. Several in one cell are shown as their mean by weight.
        x: Axis across.
        y: Axis down.
    """
    cells: dict[tuple[Any, Any], list[dict[str, Any]]] = {}
    for row in frame.iter_rows(named=True):
        cells.setdefault((row[x], row[y]), []).append(row)
    across, down = (_sorted({key[place] for key in cells}) for place in (0, 1))
    z = [[_mean(cells.get((a, d), ())) for a in across] for d in down]
    text = [[_mark(cells.get((a, d), ())) for a in across] for d in down]
    hover = [
        ["<br>".join(_cell(row) for row in cells.get((a, d), ())) for a in across] for d in down
    ]
    figure = go.Figure(
        go.Heatmap(
            x=[plain(each) for each in across],
            y=[plain(each) for each in down],
            z=z,
            text=text,
            texttemplate="%{text}",
            hovertext=hover,
            hovertemplate="%{hovertext}<extra></extra>",
            zmin=0.0,
            zmax=1.0,
            colorscale=[(0.0, "#c2571a"), (0.5, "#e8dfc8"), (1.0, "#1f6aa5")],
            colorbar={"title": {"text": "S", "side": "right"}, "thickness": 12},
            xgap=2,
            ygap=2,
            hoverongaps=False,
        )
    )
    figure.update_xaxes(title=plain(x), type="category")
    figure.update_yaxes(title=plain(y), type="category", ticklabelstandoff=8)
    return finish(figure, height=150 + 38 * len(down))


def _sorted(values: set[str]) -> list[str]:
    """Sort integers by value, before names."""
    return sorted(values, key=lambda text: (0, int(text), "") if text.isdigit() else (1, 0, text))


def _mean(rows: Sequence[dict[str, Any]]) -> float | None:
    known = [(row["s"], row["weight"] or 1.0) for row in rows if row["s"] is not None]
    total = sum(weight for _, weight in known)
    return sum(s * weight for s, weight in known) / total if known else None


def _mark(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    failed = [row for row in rows if row["outcome"] not in ("ok", "inconclusive")]
    if failed:
        return f"✕ {in_words(failed[0]['outcome'])}"
    mean = _mean(rows)
    unsure = any(row["outcome"] == "inconclusive" for row in rows)
    shown = "untimed" if mean is None else f"{mean:.2f}"
    return f"{shown} ?" if unsure else shown


def _cell(row: dict[str, Any]) -> str:
    return (
        f"{plain(row['label'])}: {in_words(row['outcome'])}, S {units.share(row['s'])}, "
        f"time {units.time(row['time_ns'])}"
    )
