"""Find the bundled content and load operator folders by path.

A user's operators load through the same code as the bundled ones. A folder's files are never
imported as a package, so nothing depends on `sys.path` and equal names cannot collide.
"""

from __future__ import annotations

import ast
import csv
import hashlib
import importlib.util
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from atrex.errors import DataError, UsageError
from atrex.model import Candidate, Shape, Workload
from atrex.operator import Operator

_PACKAGE = Path(__file__).parent


def content(folder: str) -> Path:
    """Return a content folder: inside the wheel, or beside `atrex/` in a source tree."""
    for root in (_PACKAGE / "_content", _PACKAGE.parent):
        if (root / folder).is_dir():
            return root / folder
    raise DataError(
        f"the folder {folder!r} is missing", where=str(_PACKAGE), remedy="Reinstall atrex."
    )


def load_module(path: Path) -> ModuleType:
    """Execute a trusted file under a name of its own."""
    name = f"atrex_file_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise DataError("this is no Python file", where=str(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up there
    spec.loader.exec_module(module)
    return module


@cache
def operators(extra: tuple[Path, ...] = ()) -> dict[str, Operator]:
    """Load every operator folder, bundled ones first.

    Raises:
        DataError: A folder's definition is broken or its name differs from the folder's.
    """
    found: dict[str, Operator] = {}
    for root in (content("operators"), *extra):
        for path in sorted(root.glob("*/definition.py")):
            operator = getattr(load_module(path), "DEFINITION", None)
            if not isinstance(operator, Operator) or operator.name != path.parent.name:
                raise DataError(
                    "DEFINITION must be an Operator named like its folder", where=str(path)
                )
            found[operator.name] = operator
    return found


def operator(name: str, extra: tuple[Path, ...] = ()) -> Operator:
    """Return one operator by name, or say which names are close."""
    import difflib

    known = operators(extra)
    if name in known:
        return known[name]
    close = difflib.get_close_matches(name, known, n=3)
    raise UsageError(
        f"no operator {name!r}",
        remedy=f"Did you mean {' or '.join(close)}?" if close else f"Known: {', '.join(known)}.",
    )


def folder(name: str, extra: tuple[Path, ...] = ()) -> Path:
    """Return an operator's folder; the last root that has it wins, as in `operators`."""
    for root in (*reversed(extra), content("operators")):
        if (root / name / "definition.py").is_file():
            return root / name
    raise UsageError(f"no operator folder {name!r}")


def kernels(name: str, extra: tuple[Path, ...] = ()) -> list[Path]:
    """Return the handwritten kernels of an operator (`*_kernel.py` in its folder)."""
    return sorted(folder(name, extra).glob("*_kernel.py"))


def literals(path: Path) -> dict[str, Any]:
    """Read a candidate's upper-case literals without executing it.

    Raises:
        UsageError: The file does not exist.
        SyntaxError: The file is not Python; the builder turns it into `compile_failed`.
    """
    try:
        tree = ast.parse(path.read_bytes(), filename=str(path))
    except (OSError, IsADirectoryError) as error:
        raise UsageError(f"cannot read the candidate: {error.strerror}", where=str(path)) from error
    found: dict[str, Any] = {}
    for node in tree.body:
        if isinstance(node, ast.Assign) and len(node.targets) == 1:
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        if isinstance(target, ast.Name) and target.id.isupper():
            try:
                found[target.id] = ast.literal_eval(value)
            except ValueError:
                continue  # computed values are the module's own business
    return found


def source_file(path: Path, values: dict[str, Any]) -> Path | None:
    """Return the source file that SOURCE names beside the module, None if SOURCE is inline."""
    source = values.get("SOURCE")
    if isinstance(source, str) and "\n" not in source and (path.parent / source).is_file():
        return path.parent / source
    return None


def candidate(path: Path, *, name: str | None = None, operator: str | None = None) -> Candidate:
    """Describe a candidate file; a file that does not parse is the builder's to judge.

    Raises:
        UsageError: The file is missing, or tells no operator and none is given.
    """
    try:
        values = literals(path)
    except SyntaxError:
        values = _guessed(path)
    digest = hashlib.sha256(path.read_bytes())
    beside = source_file(path, values)
    if beside is not None:
        digest.update(beside.read_bytes())
    declared = operator or values.get("OPERATOR") or ""
    return Candidate(
        name=name or path.stem,
        path=str(path),
        operator=str(declared),
        backend=str(values.get("BACKEND", "")),
        dtypes=tuple(values.get("DTYPES", ())),
        source_sha=digest.hexdigest(),
    )


def _guessed(path: Path) -> dict[str, Any]:
    """Find OPERATOR and BACKEND in a file that does not parse, so that its failure has a place."""
    text = path.read_text(errors="replace")
    found = re.findall(r"^(OPERATOR|BACKEND)\s*=\s*[\"'](\w+)[\"']", text, re.MULTILINE)
    return dict(found)


CSV_COLUMNS = ("dtype", "phase", "source", "calls", "gpu_ns", "time_source")  # after the axes


def read_shapes(path: Path, operator: Operator) -> list[Shape]:
    """Read shapes/<operator>.csv.

    Raises:
        DataError: A column or value does not fit; names the line.
    """
    shapes: list[Shape] = []
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        expected = [*operator.axes, *CSV_COLUMNS]
        if rows.fieldnames is None or list(rows.fieldnames) != expected:
            raise DataError(
                f"columns are {rows.fieldnames}, expected {expected}",
                where=f"{path}:1",
                remedy="Run `atrex shapes build`.",
            )
        for line, row in enumerate(rows, start=2):
            try:
                shapes.append(_shape(row, operator))
            except (TypeError, ValueError) as error:
                raise DataError(str(error), where=f"{path}:{line}") from error
    return shapes


def _shape(row: dict[str, str], operator: Operator) -> Shape:
    axes = {axis: _axis(row[axis]) for axis in operator.axes}
    workload = Workload(operator=operator.name, axes=axes, dtype=row["dtype"])
    rest = {column: row[column] for column in CSV_COLUMNS if column != "dtype"}
    return msgspec.convert({"workload": workload, **rest}, Shape, strict=False)


def _axis(text: str) -> int | str:
    return int(text) if text.lstrip("-").isdigit() else text


def bundled_shapes(known: Iterable[Operator]) -> list[Shape]:
    """Read the bundled catalogue of the given operators; one without a CSV has no shapes."""
    root = content("shapes")
    return [
        shape
        for operator in known
        if (root / f"{operator.name}.csv").is_file()
        for shape in read_shapes(root / f"{operator.name}.csv", operator)
    ]
