"""Whose kernels a device ran, from what its profiler recorded.

Names label, they never decide: a kernel is the candidate's own if it was launched inside its own
launch, by correlation. Library work within the last 5 % is allowed and listed (integrity.md 4).
"""

from __future__ import annotations

import random
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from atrex.judge.attribution import audited_cases
from atrex.judge.builder import Artefact
from atrex.judge.channel import Fault
from atrex.judge.devices.accelerator import Activity, Recording, busy_ns
from atrex.judge.devices.profiled import OWN, REPORT, REPORT_BYTES, decode
from atrex.judge.table import Start, Table
from atrex.judge.task import Contender, Task
from atrex.model import Attribution, Outcome

OWN_SHARE = 0.95  # of device time; less is a fallback
SHOWN = 5  # kernels that the evidence names
# Kernels of vendor libraries that are launched without an operator, by fragments of their names.
VENDOR = re.compile(r"cublas|cudnn|cutlass|cusparse|cufft|curand|nvjet|xmma|ampere_|sm[0-9]+_")


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What the audit of a candidate found.

    Attributes:
        kernel_share: Part of device time in own kernels; None where there is no device clock.
        busy_ns: Least device time that a call took over all streams; None likewise.
    """

    attribution: Attribution
    kernel_share: float | None = None
    busy_ns: int | None = None


def profile(
    contender: Contender, artefact: Artefact, task: Task, start: Start, secret: random.Random
) -> Evidence:
    """Record calls of a correct candidate and find who did its work.

    Args:
        contender: The candidate.
        artefact: As built.
        task: The workload.
        start: Starts a fresh worker.
        secret: Chooses the cases.

    Raises:
        Fault: Its outputs are wrong under the profiler, work is nobody's, or records were lost.
    """
    if artefact.profile is None:
        return Evidence(attribution=_declared(contender))
    reporting = task.reporting(REPORT, REPORT_BYTES)
    recordings = []
    with Table(contender.under(artefact.profile), reporting, start, secret) as table:
        for number, case in enumerate(audited_cases(secret)):
            inputs = task.draw(case, number)
            answer: dict[str, Any] = table.ask(inputs)
            recordings.append(decode(answer.pop(REPORT).cpu().numpy().tobytes()))
            finding = task.check(answer, inputs, case)
            if finding.kind:
                raise Fault(Outcome.INCORRECT, f"while profiled: {finding.detail}", kind="value")
    return evidence(recordings)


def evidence(recordings: list[Recording]) -> Evidence:
    """Judge what was recorded of several calls.

    Raises:
        Fault: Records were lost (infra_error), or device work was nobody's (unattributed).
    """
    activities = [each for recording in recordings for each in recording.activities]
    if lost := sum(recording.lost for recording in recordings):
        raise Fault(Outcome.INFRA_ERROR, f"the profiler lost {lost} records")
    spent: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    names: dict[str, Counter[str]] = {}
    for each in activities:
        kind = classify(each)
        spent[kind] += each.duration_ns
        counts[kind] += 1
        names.setdefault(kind, Counter())[each.name] += each.duration_ns
    if counts["unattributed"]:
        raise Fault(
            Outcome.VIOLATION,
            f"device work that nobody launched: {_top(names['unattributed'])}",
            kind="unattributed",
        )
    total = spent.total()
    share = spent["own"] / total if total else 0.0
    return Evidence(
        attribution=Attribution(
            route="profiler",
            own=share >= OWN_SHARE,
            counts=dict(counts),
            evidence=_sentences(share, spent, names),
        ),
        kernel_share=share,
        busy_ns=min(busy_ns(recording.activities) for recording in recordings),
    )


def classify(activity: Activity) -> str:
    """Name the class of one activity (integrity.md 4)."""
    if activity.launcher == OWN:
        return "own"
    if activity.kind != "kernel":
        return "copy"
    if "CompiledFxGraph" in activity.launcher or activity.launcher.startswith("triton_"):
        return "inductor"
    if "::" in activity.launcher:
        return "aten"
    if VENDOR.search(activity.name):
        return "vendor"
    return "unattributed"


def _sentences(
    share: float, spent: Counter[str], names: dict[str, Counter[str]]
) -> tuple[str, ...]:
    others = [kind for kind, _ in spent.most_common() if kind != "own"]
    total = max(1, spent.total())
    said = [f"{share:.1%} of device time in own kernels"]
    said += [f"{kind} {spent[kind] / total:.1%}: {_top(names[kind])}" for kind in others]
    if others and share >= OWN_SHARE:
        said.append("assisted")
    return tuple(said)


def _top(names: Counter[str]) -> str:
    return ", ".join(name[:60] for name, _ in names.most_common(SHOWN))


def _declared(contender: Contender) -> Attribution:
    return Attribution(
        route="declared",
        own=False,
        evidence=(f"{contender.name} declares a library's backend",),
    )
