"""Figures of the dashboard and of notebooks: pure functions from a frame to a Plotly figure.

Nothing here reads a store or knows Streamlit. Colour never carries a meaning alone: whatever it
says is also a label, a symbol or a pattern. Foreign text is escaped, because Plotly reads a
subset of HTML. Backgrounds and text colours are left to the page, so that light and dark work.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go
import polars as pl

from atrex import units

CANDIDATE = "#2a78b8"  # blue and orange stay apart for every common colour blindness
BASELINE = "#d9822b"
NEUTRAL = "#8b929c"
ARM_COLOUR = {"candidate": CANDIDATE, "baseline": BASELINE}
ARM_SYMBOL = {"candidate": "circle", "baseline": "diamond-open"}
UNMEASURED = "#b4b9c1"
FRAME = "#dcdfe4"  # of the tiles that hold operators: they have no one S worth a colour
OPERATOR_DEPTH = 2  # in the tree: all GPU time, phases, operators, workloads
SHARE_COLOURS = (  # of S: orange far from the roofline, blue at it
    (0.0, (194, 87, 26)),
    (0.35, (233, 161, 91)),
    (0.55, (232, 223, 200)),
    (0.75, (127, 178, 214)),
    (1.0, (31, 106, 165)),
)
HATCH = {"fillmode": "overlay", "fgopacity": 0.35, "size": 6, "solidity": 0.15}
FUNNEL_LEVELS = {
    "gpu": "All GPU time",
    "launched": "With its launch",
    "attributed": "Operator or class known",
    "shaped": "All axes known",
}
# an outcome's symbol, for those that are drawn on the axis of S; all others are crosses
OUTCOME_SYMBOL = {"ok": "circle", "inconclusive": "circle-open", "fallback": "square-open"}
OUTCOME_COLOUR = {
    "ok": CANDIDATE,
    "inconclusive": "#7fb2d6",
    "fallback": "#e9a15b",
    "not judged": "#b4b9c1",
}
OUTCOME_PATTERN = {"ok": "", "inconclusive": ".", "fallback": "/", "not judged": ""}
MOST_POINTS = 2000  # of one arm in run order; more are medians of neighbours
BINS = 60


def plain(text: object) -> str:
    """Escape foreign text for Plotly's labels and hover boxes."""
    return html.escape(str(text), quote=False)


def time_treemap(frame: pl.DataFrame) -> go.Figure:
    """Draw who owns the GPU: phase, operator, workload; area is GPU time, colour is S.

    Args:
        frame: One row for each workload and phase: phase, operator, label, gpu_ns, calls,
            time_source, and s, which is null where nothing was measured.
    """
    nodes = _tree(frame)
    whole = frame["gpu_ns"].sum()
    shares = [node["gpu_ns"] / whole if whole else 0.0 for node in nodes]
    figure = go.Figure(
        go.Treemap(
            ids=[node["id"] for node in nodes],
            parents=[node["parent"] for node in nodes],
            labels=[node["label"] for node in nodes],
            values=[node["gpu_ns"] for node in nodes],
            branchvalues="total",
            text=[_tile(node, share) for node, share in zip(nodes, shares, strict=True)],
            hovertext=[_hover(node, share) for node, share in zip(nodes, shares, strict=True)],
            texttemplate="%{label}<br>%{text}",
            hovertemplate="%{hovertext}<extra></extra>",
            sort=True,
            tiling={"pad": 2},
            marker={
                # colours, not numbers: with patterns Plotly 7 paints numbers black
                "colors": [_node_colour(node) for node in nodes],
                "line": {"width": 1, "color": "rgba(128,128,128,0.35)"},
                "pattern": {
                    "shape": ["/" if node["hatched"] else "" for node in nodes],
                    **HATCH,
                },
            },
            outsidetextfont={"color": "#20242a"},  # of the outermost frame
        )
    )
    figure.add_trace(_colour_bar())
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    finish(figure, height=480)
    return figure.update_layout(
        margin={"l": 0, "r": 0, "t": 8, "b": 0}, uniformtext={"minsize": 10, "mode": "hide"}
    )


def _colour_bar() -> go.Scatter:
    """Return a trace that draws nothing but the colours of S."""
    return go.Scatter(
        x=[None],
        y=[None],
        marker={
            "color": [0.0],
            "cmin": 0.0,
            "cmax": 1.0,
            "colorscale": [(place, _css(colour)) for place, colour in SHARE_COLOURS],
            "showscale": True,
            "colorbar": {
                "title": {"text": "Share of roofline S", "side": "right"},
                "thickness": 12,
                "outlinewidth": 0,
            },
        },
        hoverinfo="skip",
    )


def _node_colour(node: dict[str, Any]) -> str:
    if node["depth"] < OPERATOR_DEPTH:
        return FRAME
    return UNMEASURED if node["s"] is None else _share_colour(node["s"])


def _share_colour(s: float) -> str:
    for (start, first), (end, last) in pairwise(SHARE_COLOURS):
        if s <= end:
            part = (s - start) / (end - start)
            return _css(tuple(a + part * (b - a) for a, b in zip(first, last, strict=True)))
    return _css(SHARE_COLOURS[-1][1])


def _css(colour: Sequence[float]) -> str:
    return f"rgb({', '.join(str(round(part)) for part in colour)})"


def _tree(frame: pl.DataFrame) -> list[dict[str, Any]]:
    """Return the nodes of the treemap, leaves last; an inner node's S is that of its measured time.

    Plotly keeps a tile's children apart by their ids, which therefore hold the whole path.
    """
    time = pl.col("gpu_ns").sum()
    measured = pl.col("gpu_ns").filter(pl.col("s").is_not_null()).sum()
    inner = (
        time,
        pl.col("calls").sum(),
        measured.alias("measured_ns"),
        ((pl.col("s") * pl.col("gpu_ns")).sum() / measured).alias("s"),
        pl.col("time_source").unique().sort().str.join(" and "),
    )
    levels: tuple[list[str], ...] = (
        [],
        ["phase"],
        ["phase", "operator"],
        ["phase", "operator", "label"],
    )
    nodes = []
    for depth, keys in enumerate(levels):
        rows = (
            frame.group_by(keys, maintain_order=True).agg(*inner) if keys else frame.select(inner)
        )
        for row in rows.iter_rows(named=True):
            path = ["GPU time", *(plain(row[key]) for key in keys)]
            found = row["measured_ns"] > 0
            nodes.append(
                {
                    **row,
                    "id": "\x1f".join(path),
                    "parent": "\x1f".join(path[:-1]),
                    "label": path[-1],
                    "s": row["s"] if found else None,
                    "depth": depth,
                    "hatched": depth == len(levels) - 1 and not found,
                }
            )
    return nodes


def _tile(node: dict[str, Any], share: float) -> str:
    state = "not measured" if node["s"] is None else f"S {units.share(node['s'])}"
    return f"{units.time(node['gpu_ns'])} · {units.percent(share)}<br>{state}"


def _hover(node: dict[str, Any], share: float) -> str:
    lines = [
        f"<b>{node['label']}</b>",
        f"GPU time {units.time(node['gpu_ns'])}, {units.percent(share)} of all shown",
        f"{node['calls']:,} calls, time {node['time_source']}",
    ]
    if node["s"] is None:
        lines.append("Share of roofline: not measured")
    else:
        part = node["measured_ns"] / node["gpu_ns"] if node["gpu_ns"] else 0.0
        lines.append(
            f"Share of roofline {units.share(node['s'])}, measured for {units.percent(part)} of it"
        )
    return "<br>".join(lines)


def coverage_funnel(frame: pl.DataFrame) -> go.Figure:
    """Draw how far traces were understood, from all GPU time down to complete shapes.

    Args:
        frame: level (a key of `FUNNEL_LEVELS`), gpu_ns, share of all GPU time.
    """
    rows = [row for row in frame.iter_rows(named=True) if row["level"] in FUNNEL_LEVELS]
    rows.sort(key=lambda row: list(FUNNEL_LEVELS).index(row["level"]))
    figure = go.Figure(
        go.Bar(
            orientation="h",
            y=[FUNNEL_LEVELS[row["level"]] for row in rows],
            x=[row["share"] for row in rows],
            text=[f"{units.percent(row['share'])} · {units.time(row['gpu_ns'])}" for row in rows],
            textposition="auto",
            marker={"color": CANDIDATE},
            hovertemplate="%{y}<br>%{text}<extra></extra>",
            width=0.62,
        )
    )
    figure.update_xaxes(title="Share of GPU time", range=[0, 1.0], tickformat=".0%")
    figure.update_yaxes(autorange="reversed", ticklabelstandoff=8)
    return finish(figure, height=250)


def outcomes(frame: pl.DataFrame) -> go.Figure:
    """Draw how judging ended as one bar of catalogue weight.

    Args:
        frame: outcome (``"not judged"`` among them), workloads, weight (a share of the catalogue).
    """
    figure = go.Figure()
    for row in frame.iter_rows(named=True):
        outcome, count = str(row["outcome"]), row["workloads"]
        weight = units.percent(row["weight"])
        figure.add_bar(
            orientation="h",
            y=[""],
            x=[row["weight"]],
            name=f"{in_words(outcome)} ({count})",
            text=[f"{in_words(outcome)} {weight}"],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            marker={
                "color": OUTCOME_COLOUR.get(outcome, "#c2571a"),
                "pattern": {"shape": OUTCOME_PATTERN.get(outcome, "x"), **HATCH},
                "line": {"width": 1, "color": "rgba(128,128,128,0.35)"},
            },
            hovertemplate=f"{in_words(outcome)}: {weight} of the catalogue's weight, "
            f"{count} workload{'s' * (count != 1)}<extra></extra>",
        )
    figure.update_layout(barmode="stack", uniformtext={"minsize": 10, "mode": "hide"})
    figure.update_xaxes(title="Weight in the catalogue", range=[0, 1], tickformat=".0%")
    figure.update_yaxes(showticklabels=False)
    return finish(figure, height=190, legend=True)


def share_of_roofline(frame: pl.DataFrame) -> go.Figure:
    """Draw S for every workload with its interval, in the order of the frame.

    Args:
        frame: workload (its id, which a click returns), label, outcome, s, s_low, s_high (null
            without samples), weight, time_ns, sol_ns, n.
    """
    figure = go.Figure()
    labels = [plain(label) for label in frame["label"]]
    for outcome in frame["outcome"].unique(maintain_order=True):
        part = frame.with_columns(y=pl.Series(labels, dtype=pl.String)).filter(outcome=outcome)
        shown = part["s"].fill_null(0.0)
        figure.add_scatter(
            x=shown.to_list(),
            y=part["y"].to_list(),
            mode="markers",
            name=in_words(outcome),
            customdata=part["workload"].to_list(),
            marker={
                "size": 10,
                "symbol": OUTCOME_SYMBOL.get(outcome, "x"),
                "color": OUTCOME_COLOUR.get(outcome, "#c2571a"),
                "line": {"width": 1.5, "color": OUTCOME_COLOUR.get(outcome, "#c2571a")},
            },
            error_x={
                "type": "data",
                "symmetric": False,
                "array": (part["s_high"] - shown).fill_null(0.0).to_list(),
                "arrayminus": (shown - part["s_low"]).fill_null(0.0).to_list(),
                "thickness": 1.5,
                "width": 4,
            },
            hovertext=[_share_hover(row) for row in part.iter_rows(named=True)],
            hovertemplate="%{hovertext}<extra></extra>",
        )
    figure.add_vline(x=1.0, line={"width": 1.5, "dash": "dash", "color": NEUTRAL})
    figure.update_xaxes(
        title="Share of roofline S = attainable time / time (1 is the roofline)",
        range=[-0.03, 1.05],
    )
    figure.update_yaxes(
        categoryorder="array",
        categoryarray=labels,
        range=[len(set(labels)) - 0.5, -0.5],
        ticklabelstandoff=8,
    )
    return finish(figure, height=130 + 26 * frame.height, legend=True)


def _share_hover(row: dict[str, Any]) -> str:
    interval = units.interval(row["s_low"], row["s_high"], units.share)
    return "<br>".join(
        (
            f"<b>{plain(row['label'])}</b>",
            f"{in_words(row['outcome'])}, S {units.share(row['s'])} {interval}",
            f"time {units.time(row['time_ns'])}, attainable {units.time(row['sol_ns'])}, "
            f"n = {row['n'] or 0:,}",
            f"weight {units.percent(row['weight'])}",
        )
    )


def sample_histogram(frame: pl.DataFrame) -> go.Figure:
    """Draw the distribution of both arms over the same bins.

    The last bin takes everything beyond ten interquartile ranges above the median of the slower
    arm; otherwise one interruption of the host would squeeze all samples into a single bin.

    Args:
        frame: arm (``"candidate"`` or ``"baseline"``), ns.
    """
    edges, overflow = _edges(frame)
    scale, unit = _time_unit(edges[-1])
    width = (edges[1] - edges[0]) / scale
    figure = go.Figure()
    for arm in _arms(frame):
        times = frame.filter(arm=arm)["ns"]
        index = ((times - edges[0]) // (edges[1] - edges[0])).clip(0, BINS - 1).cast(pl.Int64)
        counts = index.value_counts().sort(index.name)
        left = [edges[i] / scale for i in counts[index.name]]
        figure.add_bar(
            x=[start + width / 2 for start in left],
            y=counts["count"].to_list(),
            width=width,
            name=f"{arm} (n = {times.len():,})",
            customdata=[units.interval(s * scale, (s + width) * scale) for s in left],
            hovertemplate=f"{arm}: %{{y}} samples in %{{customdata}}<extra></extra>",
            marker={
                "color": ARM_COLOUR[arm],
                "opacity": 0.65,
                "pattern": {"shape": "/" if arm == "baseline" else "", **HATCH},
            },
        )
        median = float(times.median() or 0)  # type: ignore[arg-type]  # integers have one
        figure.add_vline(
            x=median / scale,
            line={"width": 1.5, "color": ARM_COLOUR[arm], "dash": _dash(arm)},
            annotation={"text": f"median {units.time(median)}", "font": {"size": 11}},
        )
    figure.update_layout(barmode="overlay", bargap=0)
    beyond = f"; last bin: {overflow:,} beyond it too" if overflow else ""
    figure.update_xaxes(title=f"Time of a call, {unit}{beyond}")
    figure.update_yaxes(title="Samples")
    return finish(figure, height=320, legend=True)


def _edges(frame: pl.DataFrame) -> tuple[list[float], int]:
    low, high = float(frame["ns"].min()), float(frame["ns"].max())  # type: ignore[arg-type]
    quartiles = frame.group_by("arm").agg(
        pl.col("ns").quantile(0.25).alias("q1"),
        pl.col("ns").median().alias("q2"),
        pl.col("ns").quantile(0.75).alias("q3"),
    )
    usual = max(q2 + 10 * max(q3 - q1, q2 / 100) for _, q1, q2, q3 in quartiles.iter_rows())
    top = min(high, usual)
    width = max((top - low) / BINS, 1.0)
    overflow = frame.filter(pl.col("ns") > low + BINS * width).height
    return [low + i * width for i in range(BINS + 1)], overflow


def sample_order(frame: pl.DataFrame) -> go.Figure:
    """Draw the samples of both arms in the order they were taken.

    Args:
        frame: arm (``"candidate"`` or ``"baseline"``), i (place in its arm), ns.
    """
    highest = float(frame["ns"].max())  # type: ignore[arg-type]  # integers
    scale, unit = _time_unit(highest)
    figure = go.Figure()
    for arm in _arms(frame):
        part = frame.filter(arm=arm).sort("i")
        together = math.ceil(part.height / MOST_POINTS)
        shown = part.group_by(pl.col("i") // together * together, maintain_order=True).agg(
            pl.col("ns").median()
        )
        name = arm if together == 1 else f"{arm}, medians of {together} neighbours"
        figure.add_scatter(
            x=shown["i"].to_list(),
            y=(shown["ns"] / scale).to_list(),
            mode="markers",
            name=name,
            marker={"color": ARM_COLOUR[arm], "symbol": ARM_SYMBOL[arm], "size": 5},
            hovertemplate=f"{arm} %{{x}}: %{{y:.4g}} {unit}<extra></extra>",
        )
    figure.update_xaxes(title="Place in run order")
    figure.update_yaxes(title=f"Time of a call, {unit}")
    return finish(figure, height=320, legend=True)


def _arms(frame: pl.DataFrame) -> Sequence[str]:
    present = set(frame["arm"])
    return [arm for arm in ARM_COLOUR if arm in present]


def _dash(arm: str) -> str:
    return "solid" if arm == "candidate" else "dash"


def _time_unit(ns: float) -> tuple[float, str]:
    """Choose microseconds, as everywhere, unless the numbers become unwieldy."""
    return (1e3, "µs") if ns < 1e8 else (1e6, "ms")


def in_words(name: str) -> str:
    """Write a name of a closed set as words: ``out of memory``."""
    return plain(name.replace("_", " "))


def finish(figure: go.Figure, *, height: int, legend: bool = False) -> go.Figure:
    """Give a figure what all have in common."""
    figure.update_layout(
        height=height,
        margin={"l": 8, "r": 28, "t": 36 if legend else 8, "b": 8},
        showlegend=legend,
        legend={
            "orientation": "h",
            "traceorder": "normal",
            "x": 0,
            "y": 1.0,
            "xanchor": "left",
            "yanchor": "bottom",
        },
        hoverlabel={"align": "left"},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
    )
    figure.update_xaxes(automargin=True)
    figure.update_yaxes(automargin=True)
    return figure
