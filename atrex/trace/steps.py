"""Read what engines write about a step into its annotation: vLLM, SGLang, ATOM, capture runs.

Parsing is lenient: unknown text stays an opaque step, and of nested annotations the inner one
wins while the outer one fills what it leaves open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from atrex.model import Phase
from atrex.operator import Step

# execute_8192_context_9(sq8155sk8430sqsq7475785sqsk7671310)_generation_37(sq37sk34489...)
# execute_context_1(888_788544)_generation_0(0): the padded count and the sums may be missing
EXECUTE = re.compile(
    r"execute_(?:(?P<tokens>\d+)_)?context_(?P<prefills>\d+)\((?P<context>[^)]*)\)"
    r"_generation_(?P<decodes>\d+)\((?P<generation>[^)]*)\)"
)
SUMS = re.compile(r"sq(?P<query>\d+)sk(?P<kv>\d+)")
# step[EXTEND bs=15 toks=15360]
SGLANG = re.compile(r"step\[(?P<mode>\w+) bs=(?P<sequences>\d+)(?: toks=(?P<tokens>\d+))?")
# prefill[bs=2 tok=14721 ctx=[7803, 6918]], decode[bs=117/128 tok=117 d=117]: real/padded
ATOM = re.compile(
    r"(?P<mode>prefill|decode|mixed)\[bs=(?P<sequences>\d+)(?:/(?P<padded>\d+))?"
    r"(?: tok=(?P<tokens>\d+))?"
)
CAPTURE = re.compile(r"capture_(?P<tokens>\d+)_\w+")  # capture_8192_PIECEWISE
LOGGED = re.compile(r"atrex_step\[(\d+)\]")  # the recorder's; its log tells the rest
DIFFUSION = re.compile(r"execute_diffusion_(?P<sequences>\d+)_\d+x\d+")

MODES: dict[str, Phase] = {
    "EXTEND": "prefill",
    "PREFILL": "prefill",
    "DECODE": "decode",
    "MIXED": "mixed",
}
NO_STEP = Step()


def parse_step(text: str, log: Mapping[int, Step] | None = None) -> Step | None:
    """Return what an annotation says of its step, None if it marks no step that we know.

    Args:
        text: The annotation.
        log: Steps as the engine logged them, by the number that the annotation gives.
    """
    if found := LOGGED.match(text):
        return (log or {}).get(int(found[1]), Step(annotation=text))
    if found := EXECUTE.match(text):
        return _executed(text, found)
    if found := SGLANG.match(text) or ATOM.match(text):
        return _moded(text, found.groupdict())
    if found := CAPTURE.match(text):
        return Step(annotation=text, phase="capture", tokens=int(found["tokens"]))
    if found := DIFFUSION.match(text):
        return Step(annotation=text, sequences=int(found["sequences"]))
    return None


def _executed(text: str, found: re.Match[str]) -> Step:
    prefills, decodes = int(found["prefills"]), int(found["decodes"])
    query: list[int] = []
    kv: list[int] = []
    for group in (found["context"], found["generation"]):
        if sums := SUMS.match(group):
            query.append(int(sums["query"]))
            kv.append(int(sums["kv"]))
        elif plain := re.match(r"\d+", group):
            query.append(int(plain[0]))
    phase: Phase = "mixed" if prefills and decodes else "prefill" if prefills else "decode"
    return Step(
        annotation=text,
        phase=phase if prefills or decodes else "other",
        tokens=int(found["tokens"] or sum(query)),
        query_tokens=sum(query) if len(query) == 2 else None,
        kv_tokens=sum(kv) if len(kv) == 2 else None,
        sequences=prefills + decodes,
    )


def _moded(text: str, found: dict[str, Any]) -> Step:
    phase = MODES.get(found["mode"].upper(), "other")
    sequences = int(found["sequences"])
    tokens = int(found["tokens"]) if found["tokens"] else None
    if tokens is None and phase == "decode":
        tokens = sequences  # one query each
    padded = found.get("padded")
    return Step(
        annotation=text,
        phase=phase,
        tokens=int(padded) if padded else tokens,
        query_tokens=tokens,
        sequences=sequences,
    )


def merge_steps(nested: Sequence[Step]) -> Step:
    """Merge the annotations around a launch, outermost first, into one step."""
    step = NO_STEP
    for inner in nested:
        known = {
            name: getattr(inner, name)
            for name in ("tokens", "query_tokens", "kv_tokens", "sequences")
            if getattr(inner, name) is not None and getattr(step, name) is None
        }
        phase = step.phase if inner.phase == "other" else inner.phase
        step = replace(step, annotation=inner.annotation, phase=phase, **known)
    return step
