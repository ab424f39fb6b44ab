"""Two-sided ablation of a Triton candidate in the interpreter: whose work its outputs are.

Without torch's compute operators the outputs must still be right, else a library did a part.
Without the candidate's own launches each output must be wrong, else they did nothing for it. Both
are seen on every reduced shape, in fresh workers that run `atrex.judge.triton_audit`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

from atrex.judge.attribution import audited_cases, ending
from atrex.judge.builder import Artefact
from atrex.judge.channel import Fault
from atrex.judge.generator import Case
from atrex.judge.table import Start, Table
from atrex.judge.task import Contender, Task
from atrex.judge.triton_audit import REPORT, REPORT_BYTES, Report
from atrex.model import Attribution
from atrex.operator import Inputs

Outputs = dict[str, Any]


def ablate(
    contender: Contender,
    artefact: Artefact,
    tasks: Sequence[Task],
    start: Start,
    secret: random.Random,
) -> Attribution:
    """Find who did the work of a correct candidate, on reduced shapes.

    Args:
        contender: The candidate.
        artefact: As built.
        tasks: The shapes.
        start: Starts a fresh worker.
        secret: Chooses the cases.
    """
    assert artefact.audit is not None
    assert artefact.ablation is not None
    counts: Counter[str] = Counter(own=0)
    calls = 0
    for task in tasks:
        cases = audited_cases(secret)
        drawn = [(case, task.draw(case, number)) for number, case in enumerate(cases)]
        reporting = task.reporting(REPORT, REPORT_BYTES)
        with Table(contender.under(artefact.audit), reporting, start, secret) as table:
            right, evidence = _without_torch(table, task, drawn, counts)
        if not evidence:
            with Table(contender.under(artefact.ablation), task, start, secret) as table:
                evidence = _without_kernels(table, task, drawn, right)
        if evidence:
            return _attribution(counts, own=False, evidence=f"{evidence} ({task.workload})")
        calls += len(drawn)
    return _attribution(
        counts,
        own=True,
        evidence=f"in {calls} calls on {len(tasks)} reduced shapes right without torch's operators "
        "and wrong without its own kernels",
    )


def _without_torch(
    table: Table, task: Task, drawn: list[tuple[Case, Inputs]], counts: Counter[str]
) -> tuple[list[Outputs], str]:
    """Return the outputs of every call, and what shows that torch computed a part of one."""
    right = []
    for case, inputs in drawn:
        try:
            outputs = table.ask(inputs)
        except Fault as fault:
            return [], f"without torch's operators it {ending(fault)}"
        report = Report.decode(outputs.pop(REPORT).numpy().tobytes())
        counts.update(own=report.own, package=report.package, aten=report.native)
        counts.update(copy=report.copies)
        if report.native:
            return [], f"calls {report.names} outside its own kernels"
        if report.package:
            return [], "launches kernels that are not its own"
        if task.check(outputs, inputs, case).kind:
            return [], f"without torch's operators its outputs are wrong in case {case.name}"
        right.append(outputs)
    return right, ""


def _without_kernels(
    table: Table, task: Task, drawn: list[tuple[Case, Inputs]], right: list[Outputs]
) -> str:
    """Return which outputs come out right though no kernel of the candidate's ran."""
    suspects = set(task.outputs)
    for (case, inputs), expected in zip(drawn, right, strict=True):
        try:
            outputs = table.ask(inputs)
        except Fault:  # it cannot even go on without them
            return ""
        before = table.seat.poison
        suspects = {
            name
            for name in suspects
            if _made(outputs[name], before[name], expected[name])
            and not task.check({**expected, name: outputs[name]}, inputs, case).kind
        }
    return f"without its own kernels {', '.join(sorted(suspects))} is right" if suspects else ""


def _made(output: Any, before: Any, expected: Any) -> bool:
    """Whether there is something to do and something was done.

    An output of zeros may be cleared by the host, and one that keeps what it held needs no work.
    """
    import torch

    bits = [each.reshape(-1).view(torch.uint8) for each in (output, before, expected)]
    return bool(bits[2].any()) and not torch.equal(bits[0], bits[1])


def _attribution(counts: Counter[str], *, own: bool, evidence: str) -> Attribution:
    seen = {kind: count for kind, count in counts.items() if count}
    return Attribution(route="ablation", own=own, counts=seen, evidence=(evidence,))
