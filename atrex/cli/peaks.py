"""`atrex peaks`: measure what this device attains."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from atrex import api, units
from atrex.cli import output
from atrex.judge.peaks import is_wide
from atrex.model import Peak


class Device(StrEnum):
    """Devices whose peaks can be measured."""

    CPU = "cpu"
    CUDA = "cuda"


def command(
    device: Annotated[Device, typer.Option(help="Device to measure.")] = Device.CPU,
    store: output.Store = output.DEFAULT_STORE,
    json: output.Json = False,
) -> None:
    """Measure arithmetic rates and memory bandwidth of one core or GPU, and keep them."""
    with output.answering("peaks", json):
        console = output.progress_console()
        columns = TextColumn("measuring peaks"), BarColumn(), TimeRemainingColumn()
        with Progress(*columns, console=console, disable=not console.is_terminal) as bar:
            task = bar.add_task("peaks", total=None)
            measured = api.peaks(
                store,
                device="cuda" if device is Device.CUDA else "cpu",
                progress=lambda done, rounds: bar.update(task, completed=done, total=rounds),
            )
        peaks = measured.peaks
        name = peaks[0].device
        output.answer(
            "peaks",
            {"device": name, "peaks": peaks, "throttled": measured.throttled},
            as_json=json,
            text=[name if device is Device.CUDA else f"{name}, one thread", _table(peaks)],
            warnings=_warnings(measured),
        )


def _warnings(measured: api.Peaks) -> list[str]:
    if measured.throttled:
        return [f"the clocks were held down: {', '.join(measured.throttled)}"]
    wide = [peak.pipe for peak in measured.peaks if is_wide(peak)]
    if not wide:
        return []
    return [
        f"other work ran on this machine: a tenth of the samples of {', '.join(wide)} lie more "
        "than 10 % under the peak"
    ]


def _table(peaks: list[Peak]) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("pipe", no_wrap=True)
    for heading in ("peak", "10 %", "90 %", "n"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("how", no_wrap=True)
    for peak in peaks:
        unit = "B/s" if peak.pipe == "memory" else "FLOP/s"
        rates = (units.rate(rate, unit) for rate in (peak.value, peak.low, peak.high))
        table.add_row(peak.pipe, *rates, str(peak.n), peak.source.removeprefix("peaks.c "))
    return table
