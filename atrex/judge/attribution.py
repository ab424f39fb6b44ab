"""Whose code did the work: the candidate's own, or a library's.

Kernels in C are linked by the builder against nothing that computes, which settles it. torch is a
library whatever it computes. Kernels in numba stand beside a host language that can compute too, so
they are run once more under the veil (`atrex.judge.audit`): their outputs must still be right.
Interpreted Triton has a module of its own, `atrex.judge.ablation`.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Iterable

from atrex.judge.builder import Artefact
from atrex.judge.channel import Fault, Target
from atrex.judge.generator import CASES, Case
from atrex.judge.table import Start, Table
from atrex.judge.task import Contender, Task
from atrex.model import Attribution, Candidate, Outcome

AUDITED_CASES = 3  # the plain one, and others drawn in secret: a fallback may depend on the data

# Packages whose loaded objects a numba worker needs; anything else computes for the candidate.
_RUNTIME = ("numpy", "numba", "llvmlite", "msgspec", "atrex")
_CLASSES = {"torch": "aten", "scipy": "vendor", "mkl": "vendor", "sklearn": "vendor"}


def attribute(
    candidate: Candidate, artefact: Artefact, task: Task, start: Start, secret: random.Random
) -> Attribution:
    """Find who did the work of a correct candidate on one workload.

    Args:
        candidate: As declared.
        artefact: As built.
        task: The workload.
        start: Starts a fresh worker for the audit.
        secret: Chooses the cases of the audit.
    """
    if artefact.kind == "native":
        libraries = ", ".join(artefact.imports) or "nothing"
        return Attribution(
            route="import_rule", own=True, evidence=(f"compiled from source; links {libraries}",)
        )
    if artefact.audit is None:
        return Attribution(
            route="declared",
            own=False,
            evidence=(f"declares the backend {candidate.backend}: the work is a library's",),
        )
    return _audit(candidate, artefact, task, start, secret)


def _audit(
    candidate: Candidate, artefact: Artefact, task: Task, start: Start, secret: random.Random
) -> Attribution:
    contender = Contender(
        name=candidate.name,
        target=Target(kind="candidate", path=str(artefact.audit)),
        flavour="numba",
    )
    cases = audited_cases(secret)
    with Table(contender, task, start, secret) as table:
        for number, case in enumerate(cases):
            inputs = task.draw(case, number)
            try:
                outputs = table.ask(inputs)
            except Fault as fault:
                return _not_own(f"without data outside its own kernels it {ending(fault)}")
            if task.check(outputs, inputs, case).kind:
                return _not_own(
                    f"without data outside its own kernels its outputs are wrong (case {case.name})"
                )
        objects = foreign_objects(table.seat.worker.maps())
    if objects:
        packages = ", ".join(sorted(objects))
        return Attribution(
            route="object_map",
            own=False,
            counts=dict(Counter(objects.values())),
            evidence=(f"its process loads {packages}",),
        )
    return Attribution(
        route="ablation",
        own=True,
        counts={"own": len(cases)},
        evidence=(f"right in {len(cases)} cases with data only in its own kernels",),
    )


def audited_cases(secret: random.Random) -> list[Case]:
    """Choose the cases of an audit."""
    return [CASES[0], *secret.sample(CASES[1:], AUDITED_CASES - 1)]


def foreign_objects(mapped: Iterable[str]) -> dict[str, str]:
    """Return the packages, with their class, whose shared objects a numba worker should not hold.

    Args:
        mapped: Files mapped into the worker, as the judge reads them from outside.
    """
    found: dict[str, str] = {}
    for path in mapped:
        inside = re.search(r"/(?:site|dist)-packages/([^/]+)/.*\.so", path)
        if inside is None:
            continue
        package = inside.group(1).removesuffix(".libs")
        if package not in _RUNTIME:
            found[package] = _CLASSES.get(package, "package")
    return found


def _not_own(evidence: str) -> Attribution:
    return Attribution(route="ablation", own=False, counts={"cpu": 1}, evidence=(evidence,))


def ending(fault: Fault) -> str:
    """Say in a few words how an audited worker ended."""
    words = {Outcome.CRASHED: "crashes", Outcome.TIMED_OUT: "does not end"}
    return f"{words.get(fault.outcome, 'fails')}: {fault.reason}"
