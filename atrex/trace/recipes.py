"""How axes are read where no operator folder reads them: small expressions, kept as data.

The form is explained in `data/operator_kernels.toml`. What a trace does not tell is unknown, never
a guess; what a recipe had to look at decides the rung.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod

from atrex.model import UNKNOWN
from atrex.operator import Call, Step

BINDING = {"+": 1, "-": 1, "*": 2, "/": 2}  # operators, the tighter ones with more
RUNGS = {"model": "period", "step": "period", "grid": "grid", "block": "grid", "$": "name"}
# spellings of a dtype inside kernel names
LETTERS: Mapping[str, str] = {
    "bf16": "bf16", "bfloat16": "bf16",
    "fp16": "fp16", "float16": "fp16", "half": "fp16", "f16": "fp16",
    "fp32": "fp32", "float": "fp32", "f32": "fp32",
    "e4m3": "fp8_e4m3fn", "__nv_fp8_e4m3": "fp8_e4m3fn", "fp8_e4m3": "fp8_e4m3fn",
    "e5m2": "fp8_e5m2", "__nv_fp8_e5m2": "fp8_e5m2", "fp8_e5m2": "fp8_e5m2",
    "signed char": "int8", "unsigned char": "uint8", "int": "int32", "long": "int64",
}  # fmt: skip


class Untold(Exception):
    """The trace does not tell what an expression asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to read axes from what a trace shows of a call.

    Attributes:
        values: Axis to expression.
        dtype: Input whose dtype it is, two of them (``"0/2"``, ``"1>0"``), a named group
            (``"$dtype"``) or a dtype.
        kernel: Reads calls of kernels of this name; None reads inputs of CPU operators instead.
        before, after: Operators or classes that the next and the previous call on the stream must
            be; empty for any.
    """

    values: Mapping[str, str]
    dtype: int | str = UNKNOWN
    kernel: re.Pattern[str] | None = None
    before: frozenset[str] = field(default_factory=frozenset)
    after: frozenset[str] = field(default_factory=frozenset)

    def read(self, call: Call, step: Step) -> tuple[dict[str, int | str], str, str]:
        """Return axes, dtype, and the furthest rung that an axis needed.

        The rung is "" where inputs of operators told everything.
        """
        found = self.kernel.search(call.kernels[0]) if self.kernel and call.kernels else None
        reader = _Reader(call, step, found.groupdict("") if found else {})
        axes = {name: reader.axis(text) for name, text in self.values.items()}
        return axes, reader.dtype(self.dtype), reader.rung

    def fits(self, call: Call) -> bool:
        """Whether a recipe by kernel name may read this call."""
        if self.kernel is None or not call.kernels or not self.kernel.search(call.kernels[0]):
            return False
        follows = not self.after or call.after in self.after
        return follows and (not self.before or call.before in self.before)


class _Reader:
    """Evaluates the expressions of one recipe for one call."""

    def __init__(self, call: Call, step: Step, groups: Mapping[str, str]) -> None:
        self._call = call
        self._step = step
        self._groups = groups
        self._needed: set[str] = set()

    @property
    def rung(self) -> str:
        return next((rung for rung in ("name", "grid", "period") if rung in self._needed), "")

    def axis(self, text: str) -> int | str:
        """Evaluate an axis; `UNKNOWN` where the trace recorded fewer or other things."""
        before = set(self._needed)
        try:
            if "{" in text:
                return re.sub(r"\{(.*?)\}", lambda found: str(self._expression(found[1])), text)
            return self._expression(text)
        except (Untold, IndexError, ValueError, TypeError, ZeroDivisionError):
            self._needed = before
            return UNKNOWN

    def dtype(self, text: int | str) -> str:
        if isinstance(text, int):
            return self._call.dtype(text)
        for separator in "/>":
            left, found, right = text.partition(separator)
            if found:
                parts = self.dtype(_index(left)), self.dtype(_index(right))
                if UNKNOWN in parts:
                    return UNKNOWN
                return parts[0] if parts[0] == parts[1] else separator.join(parts)
        if text.startswith("$"):
            return LETTERS.get(self._groups.get(text[1:], "").lower(), UNKNOWN)
        return text

    def _expression(self, text: str) -> int | str:
        tokens = text.split()
        value = self._climb(tokens, 1)
        if tokens:
            raise ValueError(f"no axis recipe: {text!r}")
        return value

    def _climb(self, tokens: list[str], tightest: int) -> int | str:
        """Evaluate by precedence climbing, taking tokens off the front."""
        value = self._operand(tokens)
        while tokens and BINDING.get(tokens[0], 0) >= tightest:
            sign = tokens.pop(0)
            right = self._climb(tokens, BINDING[sign] + 1)
            value = _combine(int(value), sign, int(right))
        return value

    def _operand(self, tokens: list[str]) -> int | str:
        token = tokens.pop(0)
        if token != "(":
            return self._term(token, self._call)
        value = self._climb(tokens, 1)
        tokens.remove(")")
        return value

    def _term(self, term: str, call: Call) -> int | str:
        if term.startswith("="):
            return int(call.concrete[int(term[1:])])
        if term.startswith("$"):
            return self._group(term[1:])
        sibling, colon, rest = term.rpartition(":")
        if colon:
            return self._term(rest, self._sibling(sibling))
        source, dot, axis = term.partition(".")
        if not dot:
            return int(term) if term.isdigit() else term
        if source in RUNGS:
            self._needed.add(RUNGS[source])
            return self._source(source, axis)
        dims = call.dims[int(source)]
        return prod(dims[:-1]) if axis == "lead" else int(dims[int(axis)])

    def _group(self, name: str) -> int | str:
        text = self._groups.get(name, "")
        if not text:
            raise Untold(name)
        self._needed.add("name")
        return int(text) if text.isdigit() else text

    def _sibling(self, name: str) -> Call:
        for call in self._step.siblings:
            if call.name == name:
                return call
        raise Untold(name)

    def _source(self, source: str, name: str) -> int | str:
        if source in ("grid", "block"):
            sizes = self._call.grid if source == "grid" else self._call.block
            if sizes is None:
                raise Untold(source)
            return sizes[int(name)]
        value = self._step.model.get(name) if source == "model" else getattr(self._step, name)
        if value is None:
            raise Untold(name)
        return value


def _combine(left: int, sign: str, right: int) -> int:
    if sign == "+":
        return left + right
    if sign == "-":
        return left - right
    if sign == "*":
        return left * right
    if left % right:
        raise ValueError(f"{left} is no multiple of {right}")
    return left // right


def _index(text: str) -> int | str:
    return int(text) if text.isdigit() else text
