"""Rules that are data: names of operators without a folder and of classes outside the operators.

Read from `data/*.toml`; the form is explained there.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

from atrex.errors import DataError
from atrex.model import UNKNOWN
from atrex.operator import Call
from atrex.registry import content

FILES = {"operator_kernels.toml": "operator", "kernel_classes.toml": "class"}  # file: kind


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to read axes from the inputs of a CPU operator."""

    dtype: int
    values: Mapping[str, str]

    def read(self, call: Call) -> tuple[dict[str, int | str], str]:
        """Return axes and dtype; what the call does not tell is unknown."""
        axes = {name: _evaluate(text, call) for name, text in self.values.items()}
        return axes, call.dtype(self.dtype)


def _evaluate(text: str, call: Call) -> int | str:
    try:
        match text.split():
            case [term]:
                return _term(term, call)
            case [left, "/", right]:
                dividend, divisor = int(_term(left, call)), int(_term(right, call))
                return dividend // divisor if dividend % divisor == 0 else UNKNOWN
            case [left, "-", right]:
                return int(_term(left, call)) - int(_term(right, call))
    except (IndexError, ValueError, TypeError, ZeroDivisionError):
        return UNKNOWN  # the trace recorded fewer or other inputs than the operator has
    raise DataError(f"no axis recipe: {text!r}", where="data/")


def _term(text: str, call: Call) -> int | str:
    if text.startswith("="):
        return int(call.concrete[int(text[1:])])
    index, dot, axis = text.partition(".")
    if not dot:
        return int(text) if text.isdigit() else text
    dims = call.dims[int(index)]
    return prod(dims[:-1]) if axis == "lead" else int(dims[int(axis)])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # hashed by identity
class Rule:
    """Names of one operator or class.

    Attributes:
        kind: ``"operator"`` or ``"class"``.
        kernels: Matches kernels that begin a call; auxiliary: those that only continue one.
        ops: Matches CPU operators; recipes: CPU operator to how axes are read.
        examples: Kernel names, as recorded, that the rule must recognise.
    """

    name: str
    kind: str
    priority: int
    kernels: re.Pattern[str]
    auxiliary: re.Pattern[str]
    ops: re.Pattern[str]
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules, in the order they are tried, and the operators that only enclose others."""

    rules: tuple[Rule, ...]
    containers: re.Pattern[str]

    def of_op(self, name: str) -> Rule | None:
        """Return the rule that knows a CPU operator."""
        return next((rule for rule in self.rules if rule.ops.fullmatch(name)), None)

    def of_kernel(self, name: str) -> Rule | None:
        """Return the rule that knows a normalised kernel name."""
        for rule in self.rules:
            if rule.kernels.search(name) or rule.auxiliary.search(name):
                return rule
        return None

    def continues(self, rule: Rule, kernel: str) -> bool:
        """Whether a kernel never begins a call of the rule."""
        return bool(rule.auxiliary.search(kernel)) and not rule.kernels.search(kernel)

    def encloses(self, name: str) -> bool:
        """Whether a CPU operator encloses several operators."""
        return bool(self.containers.fullmatch(name))


@cache
def load_rules() -> Rules:
    """Read the bundled rules.

    Raises:
        DataError: A file is missing, or a rule is broken; names it.
    """
    folder = content("data")
    rules: list[Rule] = []
    containers: list[str] = []
    for file, kind in FILES.items():
        table = _read(folder / file)
        containers += table.get("containers", [])
        rules += [_rule(entry, kind, folder / file) for entry in table["rule"]]
    rules.sort(key=lambda rule: rule.priority)
    return Rules(rules=tuple(rules), containers=_names(containers))


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(str(error), where=str(path), remedy="Reinstall atrex.") from error


def _rule(entry: dict[str, Any], kind: str, path: Path) -> Rule:
    try:
        recipes = {
            op: Recipe(dtype=recipe["dtype"], values=recipe["values"])
            for recipe in entry.get("axes", [])
            for op in recipe["ops"]
        }
        return Rule(
            name=entry["name"],
            kind=kind,
            priority=entry["priority"],
            kernels=_patterns(_marked(entry.get("kernels", {}))),
            auxiliary=_patterns(entry.get("auxiliary", [])),
            ops=_names(_marked(entry.get("ops", {}))),
            recipes=recipes,
            examples=tuple(entry["examples"]),
        )
    except (KeyError, re.error) as error:
        raise DataError(f"broken rule {entry.get('name')!r}: {error}", where=str(path)) from error


def _marked(marks: dict[str, list[str]]) -> list[str]:
    """Return the names under all evidence marks."""
    return [name for names in marks.values() for name in names]


def _patterns(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)")


def _names(names: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(name) for name in names) or r"(?!)")
