"""`atrex compile CANDIDATE...`: compile Triton kernels for GPUs that need not be here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.text import Text

from atrex import api, reports, units
from atrex.cli import output
from atrex.cli.score import ScoreProgress
from atrex.model import CompiledLaunch, CompileReport

COLUMNS = (
    "target", "kernel", "shapes", "registers", "spills", "shared", "tensor core", "async copies",
    "time", "size", "specialised to",
)  # fmt: skip


def command(
    candidates: Annotated[
        list[Path], typer.Argument(help="Kernel files in Triton; see `atrex ops show OPERATOR`.")
    ],
    operator: Annotated[
        str | None, typer.Option("--operator", help="Operator of files that do not name one.")
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--shapes",
            help="all, top:N (by GPU time) or a workload id; repeatable. By default the three "
            "heaviest of each dtype and a reduced one.",
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help="sm_80, sm_90a, sm_100a or gfx942; repeatable. By default all but sm_80.",
        ),
    ] = None,
    operators: Annotated[
        list[Path] | None, typer.Option("--operators", help="Further operator folder; repeatable.")
    ] = None,
    store: output.Store = output.DEFAULT_STORE,
    json: output.Json = False,
) -> None:
    """Compile every launch of Triton kernels for named GPUs, without one.

    Shows registers, spills, shared memory, tensor core instructions and asynchronous copies, or
    why a launch does not compile or fit. Nothing is run: `atrex score` judges.
    """
    with output.answering("compile", json), ScoreProgress(json) as show:
        compiled = api.compile(
            candidates,
            store=store,
            operator=operator,
            shapes=tuple(shapes or ()),
            targets=tuple(target or ()),
            operators=tuple(operators or ()),
            progress=show,
        )
    output.answer(
        "compile",
        {"store": str(store), "compiled": [row for each in compiled for row in rows(each)]},
        as_json=json,
        text=[Text(text(each)) for each in compiled],
        warnings=[f"{each.candidate.name}: {note}" for each in compiled for note in each.left_out],
        code=1 if any(each.failures for each in compiled) else 0,
    )


def rows(report: CompileReport) -> Iterator[dict[str, Any]]:
    """Yield the fields of each launch in the JSON answer."""
    for launch in report.launches:
        workload = launch.workload
        yield {
            "candidate": report.candidate.name,
            "candidate_sha": report.candidate.source_sha,
            "operator": workload.operator,
            "workload": workload.id,
            "axes": workload.axes,
            "dtype": workload.dtype,
            "ok": launch.ok,
            **{name: each for name, each in msgspec.structs.asdict(launch).items()
               if name != "workload"},
        }  # fmt: skip


def text(report: CompileReport) -> str:
    """Lay out what was found for people: a row for each kernel as compiled, then what is wrong."""
    shapes: Counter[bytes] = Counter()
    different: dict[bytes, CompiledLaunch] = {}
    for launch in report.launches:
        key = msgspec.json.encode(msgspec.structs.asdict(launch) | {"workload": None})
        shapes[key] += 1
        different.setdefault(key, launch)
    table = [_row(launch, shapes[key]) for key, launch in different.items() if launch.kernel]
    lines = [f"{report.candidate.name}, for {report.candidate.operator}"]
    if table:
        lines += ["", reports.text_table(COLUMNS, table)]
    lines += ["", _verdict(report), *(_finding(each, shapes[key]) for key, each in
                                      different.items() if not each.ok)]  # fmt: skip
    return "\n".join(lines)


def _row(launch: CompiledLaunch, shapes: int) -> tuple[str, ...]:
    return (
        launch.target,
        launch.kernel,
        str(shapes),
        reports.plain(launch.registers),
        _spills(launch),
        units.size(launch.shared_bytes),
        _counts(launch.tensor_core),
        _counts(launch.async_copies),
        units.time(launch.compile_ns),
        units.size(launch.binary_bytes),
        _specialised(launch),
    )


def _spills(launch: CompiledLaunch) -> str:
    if launch.spill_store_bytes is None or launch.spill_load_bytes is None:
        return units.MISSING
    return f"{launch.spill_store_bytes + launch.spill_load_bytes} B"


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or units.MISSING


def _specialised(launch: CompiledLaunch) -> str:
    pointers = dict.fromkeys(
        kind.removeprefix("*").partition(" ")[0]
        for kind in launch.arguments.values()
        if kind.startswith("*")
    )
    constants = (f"{name}={reports.plain(value)}" for name, value in launch.constants.items())
    tuned = ("autotuned",) if launch.autotuned else ()
    return " ".join(
        ("/".join(pointers), f"warps={launch.num_warps} stages={launch.num_stages}", *constants,
         *tuned)
    )  # fmt: skip


def _verdict(report: CompileReport) -> str:
    count, wrong = len(report.launches), len(report.failures)
    launches = "1 launch" if count == 1 else f"{count} launches"
    return f"{launches}, {wrong or 'none'} of which {'fail' if wrong > 1 else 'fails'}"


def _finding(launch: CompiledLaunch, shapes: int) -> str:
    what = "passed over by the autotuner" if launch.passed_over else "fails"
    where = f"{launch.place}: " if launch.place else ""
    more = f" and {shapes - 1} more" if shapes > 1 else ""
    name = launch.kernel or "host code"
    return f"{launch.target}: {name} {what} on {launch.workload}{more}: {where}{launch.error}"
