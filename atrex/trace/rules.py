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
from pathlib import Path
from typing import Any

from atrex.errors import DataError
from atrex.model import UNKNOWN
from atrex.registry import content
from atrex.trace.recipes import Recipe

FILES = {"operator_kernels.toml": "operator", "kernel_classes.toml": "class"}  # file: kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)  # hashed by identity
class Rule:
    """Names of one operator or class.

    Attributes:
        kind: ``"operator"`` or ``"class"``.
        kernels: Matches kernels that begin a call; auxiliary: those that only continue one.
        ops: Matches CPU operators.
        recipes: CPU operator to how axes are read from its inputs.
        by_kernel: How axes are read from a kernel's name, geometry and place, first that fits.
        examples: Kernel names, as recorded, that the rule must recognise.
    """

    name: str
    kind: str
    priority: int
    kernels: re.Pattern[str]
    auxiliary: re.Pattern[str]
    ops: re.Pattern[str]
    recipes: Mapping[str, Recipe] = field(default_factory=dict)
    by_kernel: tuple[Recipe, ...] = ()
    examples: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """All rules, in the order they are tried.

    Attributes:
        containers: Matches CPU operators that only enclose others.
        transparent: Classes that tell nothing of the calls beside them on a stream.
        communication: Classes whose kernels wait for other ranks.
    """

    rules: tuple[Rule, ...]
    containers: re.Pattern[str]
    transparent: frozenset[str] = frozenset()
    communication: frozenset[str] = frozenset()

    def named(self, name: str) -> Rule | None:
        """Return the rule of an operator or class."""
        return next((rule for rule in self.rules if rule.name == name), None)

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
    transparent: set[str] = set()
    communication: set[str] = set()
    for file, kind in FILES.items():
        table = _read(folder / file)
        containers += table.get("containers", [])
        transparent |= set(table.get("transparent", []))
        communication |= set(table.get("communication", []))
        rules += [_rule(entry, kind, folder / file) for entry in table["rule"]]
    rules.sort(key=lambda rule: rule.priority)
    return Rules(
        rules=tuple(rules),
        containers=_names(containers),
        transparent=frozenset(transparent),
        communication=frozenset(communication),
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise DataError(str(error), where=str(path), remedy="Reinstall atrex.") from error


def _rule(entry: dict[str, Any], kind: str, path: Path) -> Rule:
    try:
        recipes = [(table, _recipe(table)) for table in entry.get("axes", [])]
        return Rule(
            name=entry["name"],
            kind=kind,
            priority=entry["priority"],
            kernels=_patterns(_marked(entry.get("kernels", {}))),
            auxiliary=_patterns(entry.get("auxiliary", [])),
            ops=_names(_marked(entry.get("ops", {}))),
            recipes={op: recipe for table, recipe in recipes for op in table.get("ops", [])},
            by_kernel=tuple(recipe for _, recipe in recipes if recipe.kernel),
            examples=tuple(entry["examples"]),
        )
    except (KeyError, re.error) as error:
        raise DataError(f"broken rule {entry.get('name')!r}: {error}", where=str(path)) from error


def _recipe(table: dict[str, Any]) -> Recipe:
    return Recipe(
        values=table["values"],
        dtype=table.get("dtype", UNKNOWN),
        kernel=re.compile(table["kernel"]) if "kernel" in table else None,
        before=frozenset(table.get("before", [])),
        after=frozenset(table.get("after", [])),
    )


def _marked(marks: dict[str, list[str]]) -> list[str]:
    """Return the names under all evidence marks."""
    return [name for names in marks.values() for name in names]


def _patterns(patterns: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)")


def _names(names: list[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(name) for name in names) or r"(?!)")
