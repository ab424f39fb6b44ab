"""Who may import whom; design: lower layers never import higher ones."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Each row may import its own row and the rows above it.
LAYERS = (
    {"model", "units", "errors", "closing"},
    {"operator", "stats", "hardware", "roofline", "record"},
    {
        "registry", "lengths", "modelconfig", "devices", "trace", "workload", "fleet", "catalogue",
        "scoring",
    },
    {"backends", "judge"},
    {"store"},
    {"executor", "importers", "optimise"},
    {"reports", "charts", "diagnosis", "scaffold"},
    {"api"},
    {"cli"},
)  # fmt: skip
ROW = {name: row for row, names in enumerate(LAYERS) for name in names}

# Who may import a library at all, by first folder or module under atrex/.
ONLY = {
    "typer": {"cli"},
    "rich": {"cli"},
    "plotly": {"charts"},
    "duckdb": {"store"},
    "streamlit": set(),
    "polars": {"trace", "fleet", "catalogue", "store", "reports", "charts", "api"},
}


def imports(path):
    """Yield (line, module, whether inside a function) of every import."""
    tree = ast.parse(path.read_text())
    inside = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            yield node.lineno, name, id(node) in inside


def modules():
    return sorted((ROOT / "atrex").rglob("*.py"))


def layer(path):
    return path.relative_to(ROOT / "atrex").with_suffix("").parts[0]


def test_no_module_imports_a_higher_layer():
    wrong = []
    for path in modules():
        mine = ROW.get(layer(path))
        if mine is None:  # atrex/__init__.py
            continue
        for line, name, _ in imports(path):
            parts = name.split(".")
            target = parts[1] if parts[0] == "atrex" and len(parts) > 1 else ""
            if ROW.get(target, mine) > mine:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_every_module_has_a_layer():
    assert {layer(path) for path in modules()} - set(ROW) == {"__init__", "__main__"}


@pytest.mark.parametrize("library", ONLY)
def test_a_library_is_imported_only_where_it_belongs(library):
    users = {
        layer(path)
        for path in modules()
        for _, name, _ in imports(path)
        if name.split(".")[0] == library
    }
    assert users <= ONLY[library]


def test_torch_is_imported_inside_functions_only():
    wrong = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in (*modules(), *(ROOT / "operators").glob("*/definition.py"))
        for line, name, inside in imports(path)
        if name.split(".")[0] == "torch" and not inside
    ]
    assert wrong == []


def test_the_dashboard_imports_store_charts_and_streamlit_only():
    allowed = {"atrex.store", "atrex.charts", "atrex.units", "atrex.errors", "atrex.model"}
    for path in (ROOT / "dashboard").rglob("*.py"):
        for line, name, _ in imports(path):
            if name.startswith("atrex"):
                assert ".".join(name.split(".")[:2]) in allowed, f"{path}:{line} imports {name}"
            assert name.split(".")[0] not in ("torch", "duckdb", "plotly"), f"{path}:{line}"


def test_the_machine_never_names_an_operator():
    names = {path.parent.name for path in (ROOT / "operators").glob("*/definition.py")}
    wrong = []
    for path in modules():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Constant) and node.value in names:
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno} names {node.value}")
    assert wrong == []


FORBIDDEN_AFTER = {
    "import atrex": ("torch", "polars", "duckdb", "streamlit", "numpy"),
    "import atrex.cli": ("torch", "polars", "duckdb", "streamlit"),
    "import atrex.trace, atrex.catalogue, atrex.registry as r; r.operators()": ("torch",),
    "import atrex.store, atrex.charts": ("torch", "streamlit"),
    # the judge on a bare GPU machine: from plan to measurement records
    "import atrex.judge.session, atrex.judge.devices.cuda, atrex.scoring": (
        "polars", "duckdb", "streamlit", "plotly", "pandas",
    ),
    "import atrex.registry as r; r.operators()": (
        "polars", "duckdb", "streamlit", "plotly", "pandas",
    ),
}  # fmt: skip


@pytest.mark.parametrize("statement", FORBIDDEN_AFTER)
def test_importing_does_not_load(statement):
    forbidden = FORBIDDEN_AFTER[statement]
    code = f"import sys; {statement}; print([m for m in {forbidden!r} if m in sys.modules])"
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    assert answer.stdout.strip() == "[]"
