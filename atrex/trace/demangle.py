"""Demangle the Itanium names that ROCm profilers leave as they are.

Enough of the grammar for kernels: nested names, template arguments, literals, packs, qualifiers
and the narrow float types. Substitutions are shown as they stand, since matching needs names and
literals. A name beyond this grammar keeps its qualified name and lists the identifiers and literals
after it.

Source: Itanium C++ ABI, section 5.1 (itanium-cxx-abi.github.io, read 2026-08).
"""

from __future__ import annotations

import re

BUILTIN = {
    "v": "void", "w": "wchar_t", "b": "bool", "c": "char", "a": "signed char",
    "h": "unsigned char", "s": "short", "t": "unsigned short", "i": "int", "j": "unsigned int",
    "l": "long", "m": "unsigned long", "x": "long long", "y": "unsigned long long",
    "f": "float", "d": "double", "e": "long double", "z": "...",
}  # fmt: skip
QUALIFIER = {"P": "*", "R": "&", "O": "&&", "K": " const", "V": " volatile", "r": " restrict"}
STANDARD = {"St": "std", "Sa": "std::allocator", "Ss": "std::string"}
IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
LITERAL = re.compile(r"L([bijlmstxy])(n?\d+)E")  # of a built-in type


class _Unknown(ValueError):
    """The name uses grammar that is not covered."""


def demangle(name: str) -> str:
    """Return the qualified name with its template arguments, without the argument list."""
    parser = _Parser(name)
    try:
        return parser.name()
    except (_Unknown, IndexError):
        listed = ", ".join(_identifiers(name, parser.at))
        return f"{parser.qualified}<{listed}>" if parser.qualified else name


def _identifiers(text: str, at: int) -> list[str]:
    """Collect length-prefixed identifiers and literals; a number after L<type> is no length."""
    found = []
    while at < len(text):
        if literal := LITERAL.match(text, at):
            found.append(_written(*literal.groups()))
            at = literal.end()
            continue
        digits = re.match(r"\d+", text[at:])
        if digits and not (at >= 2 and text[at - 2] == "L"):
            start = at + digits.end()
            word = text[start : start + int(digits[0])]
            if IDENTIFIER.fullmatch(word):
                found.append(word)
                at = start + len(word)
                continue
        at += digits.end() if digits else 1
    return found


def _written(kind: str, value: str) -> str:
    """Write a literal as names show it: true, -1, 128."""
    if kind == "b":
        return "false" if value == "0" else "true"
    return value.replace("n", "-")


class _Parser:
    """A cursor over one mangled name.

    Attributes:
        at: Index of the next character.
        qualified: The outermost qualified name read so far.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 2  # after _Z
        self.qualified = ""

    def name(self) -> str:
        if self._take("N"):
            return self._nested(outermost=True)
        self.qualified = self._source_name()
        return self.qualified + self._template()

    def _take(self, prefix: str) -> bool:
        if self.text.startswith(prefix, self.at):
            self.at += len(prefix)
            return True
        return False

    def _number(self) -> int:
        found = re.compile(r"\d+").match(self.text, self.at)
        if not found:
            raise _Unknown
        self.at = found.end()
        return int(found[0])

    def _source_name(self) -> str:
        length = self._number()
        word = self.text[self.at : self.at + length]
        self.at += length
        return word

    def _nested(self, *, outermost: bool = False) -> str:
        parts: list[str] = []
        while self._take("K") or self._take("V"):
            pass
        while not self._take("E"):
            if self.text[self.at] == "I":
                arguments = self._template()
                parts[-1] += arguments
            elif self.text[self.at] == "S":
                parts.append(self._substitution())
            elif self._take("C1") or self._take("C2"):
                parts.append(parts[-1])
            else:
                self._take("L")
                parts.append(self._source_name())
            parts = [part for part in parts if part != "_GLOBAL__N_1"]
            if outermost:
                self.qualified = "::".join(parts)
        return "::".join(parts)

    def _substitution(self) -> str:
        for code, meaning in STANDARD.items():
            if self._take(code):
                return meaning
        found = re.compile(r"S[0-9A-Z]*_").match(self.text, self.at)
        if not found:
            raise _Unknown
        self.at = found.end()
        return found[0]

    def _template(self) -> str:
        return f"<{', '.join(self._arguments())}>" if self._take("I") else ""

    def _arguments(self) -> list[str]:
        found: list[str] = []
        while not self._take("E"):
            if self._take("J"):
                found += self._arguments()
            elif self._take("Tn"):
                self._type()  # the declared type of the argument that follows
            else:
                found.append(self._argument())
        return found

    def _argument(self) -> str:
        if self._take("L"):
            return self._literal()
        if self._take("X"):
            self._take("ad")
            value = self._argument()
            if not self._take("E"):
                raise _Unknown
            return value
        return self._type()

    def _literal(self) -> str:
        if self._take("_Z"):
            value = self.name()
            while not self._take("E"):
                self._type()
            return value
        kind = self._type()
        sign = "-" if self._take("n") else ""
        value = sign + str(self._number())
        if not self._take("E"):
            raise _Unknown
        if kind == "bool":
            return "true" if value == "1" else "false"
        return value if kind in BUILTIN.values() else f"({kind}){value}"

    def _type(self) -> str:
        char = self.text[self.at]
        if self._take("DF16b"):
            return "bf16"
        if self._take("DF16_") or self._take("Dh"):
            return "fp16"
        if self._take("Dp"):
            return self._type()
        if char in BUILTIN:
            self.at += 1
            return BUILTIN[char]
        if char in QUALIFIER:
            self.at += 1
            return self._type() + QUALIFIER[char]
        if char.isdigit():
            return self._source_name() + self._template()
        if self._take("N"):
            return self._nested()
        if self._take("F"):
            parts = []
            while not self._take("E"):
                parts.append(self._type())
            return f"{parts[0]} ({', '.join(parts[1:])})"
        if self._take("A"):
            size = self._number()
            self._take("_")
            return f"{self._type()} [{size}]"
        if char == "S":
            return self._substitution() + self._template()
        found = re.compile(r"T[0-9]*_").match(self.text, self.at)
        if found:
            self.at = found.end()
            return found[0] + self._template()
        raise _Unknown
