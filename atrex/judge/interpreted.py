"""Judge a candidate that this machine can only interpret: correct and own, but untimed.

An interpreter takes a millisecond for each program of a grid, so that whole shapes are out of
reach. The operator's reduced shapes, which hold its edge cases, are judged in every hidden case,
and the verdict applies to each workload of their dtype.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import msgspec

from atrex.judge.ablation import ablate
from atrex.judge.builder import Artefact
from atrex.judge.correctness import verify
from atrex.judge.table import Start
from atrex.judge.task import Contender, Task
from atrex.model import Measurement, Outcome


def examine(
    contender: Contender,
    artefact: Artefact,
    tasks: Sequence[Task],
    blank: Measurement,
    start: Start,
    secret: random.Random,
) -> Measurement:
    """Judge a candidate on reduced shapes and return the verdict, without a time.

    Args:
        contender: The candidate.
        artefact: As built.
        tasks: The reduced shapes of one dtype.
        blank: What is known of the measurement before.
        start: Starts a worker.
        secret: Source of poison, order and the audit's cases.

    Raises:
        TaskError: A definition is at fault.
    """
    correct = verify(contender, list(tasks), start, secret)
    result = msgspec.structs.replace(correct.recorded(blank), compile_ns=artefact.compile_ns)
    if correct.outcome is not Outcome.OK:
        return result
    evidence = ablate(contender, artefact, tasks, start, secret)
    result = msgspec.structs.replace(result, attribution=evidence)
    if not evidence.own:
        return msgspec.structs.replace(
            result, outcome=Outcome.FALLBACK, reason=evidence.evidence[0], s=0.0
        )
    return msgspec.structs.replace(
        result, reason=f"on {len(tasks)} reduced shapes in the interpreter"
    )
