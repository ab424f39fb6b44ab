import ast
import tomllib
from pathlib import Path

import pytest

from atrex import registry
from atrex.backends.c import Interface
from atrex.errors import UsageError
from atrex.judge import policy
from atrex.judge.builder import build, veiled
from atrex.judge.channel import Fault
from atrex.operator import TensorSpec

VILLAINS = Path(__file__).parent.parent / "villains"
EXPECTED = tomllib.loads((VILLAINS / "expected.toml").read_text())
STOPPED = ("compile_failed", "forbidden")


def interface(operator="rms_norm", dtype="bf16"):
    return Interface(
        operator=operator,
        inputs={
            "x": TensorSpec(shape=(3, 8), dtype=dtype),
            "weight": TensorSpec(shape=(8,), dtype=dtype),
            "eps": 1e-6,
            "weight_offset": 0,
        },
        outputs={"out": TensorSpec(shape=(3, 8), dtype=dtype)},
    )


def built(tmp_path, text, name="kernel.py"):
    """Write a candidate and build it."""
    path = tmp_path / name
    path.write_text(text)
    return build(registry.candidate(path, operator="rms_norm"), interface(), tmp_path / "build")


def c(source, head=""):
    return f'OPERATOR = "rms_norm"\nBACKEND = "c"\n{head}SOURCE = r"""\n{source}"""\n'


def numba(body):
    return f'OPERATOR = "rms_norm"\nBACKEND = "numba"\n{body}\n'


EMPTY = "int run(const struct rms_norm_args *args) { return args->x == 0; }\n"


def fault_of(tmp_path, text):
    with pytest.raises(Fault) as caught:
        built(tmp_path, text)
    return caught.value.outcome.value, caught.value.reason


@pytest.mark.parametrize("name", [n for n, end in EXPECTED.items() if end.split(":")[0] in STOPPED])
def test_a_villain_is_stopped_here_with_its_outcome(name, tmp_path):
    candidate = registry.candidate(VILLAINS / f"{name}.py", operator="rms_norm")
    with pytest.raises(Fault) as caught:
        build(candidate, interface(), tmp_path)
    assert caught.value.outcome == EXPECTED[name]


@pytest.mark.parametrize(
    "name", [n for n, end in EXPECTED.items() if end.split(":")[0] not in STOPPED]
)
def test_every_other_villain_is_built(name, tmp_path):
    artefact = build(registry.candidate(VILLAINS / f"{name}.py"), interface(), tmp_path)
    assert artefact.path.is_file()
    assert len(artefact.sha) == 64


def test_each_villain_has_an_expected_outcome():
    assert sorted(EXPECTED) == sorted(path.stem for path in VILLAINS.glob("*.py"))


def test_a_c_artefact_names_its_libraries_and_what_the_build_took(tmp_path):
    source = '#include <math.h>\n#include "rms_norm.h"\n' + EMPTY.replace(
        "== 0", "== 0 && sqrt(args->eps) > 1"
    )
    artefact = built(tmp_path, c(source))
    assert artefact.kind == "native"
    assert set(artefact.imports) <= {"libc.so.6", "libm.so.6"}
    assert artefact.compile_ns > 0
    assert artefact.path.stat().st_mode & 0o777 == 0o500


def test_equal_sources_give_equal_artefacts(tmp_path):
    shas = set()
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        shas.add(built(tmp_path / folder, c('#include "rms_norm.h"\n' + EMPTY)).sha)
    assert len(shas) == 1


def test_a_candidate_in_c_is_never_executed(tmp_path):
    text = c('#include "rms_norm.h"\n' + EMPTY, head="raise SystemExit\n")
    assert built(tmp_path, text).kind == "native"


def test_a_module_is_frozen_as_a_copy_of_its_own(tmp_path):
    artefact = built(tmp_path, 'OPERATOR = "rms_norm"\nBACKEND = "torch"\n')
    (tmp_path / "kernel.py").write_text("changed = 1\n")
    assert "changed" not in artefact.path.read_text()
    assert artefact.path.stat().st_mode & 0o777 == 0o400
    assert artefact.audit is None


def test_the_first_compiler_error_is_the_reason_with_the_line_of_the_module(tmp_path):
    text = c('#include "rms_norm.h"\n' + EMPTY.replace("return", "return y +"))
    assert text.splitlines()[4].startswith("int run(")
    outcome, reason = fault_of(tmp_path, text)
    assert outcome == "compile_failed"
    assert reason.startswith("kernel.py:5:")
    assert "'y' undeclared" in reason.replace("\u2018", "'").replace("\u2019", "'")
    assert str(tmp_path) not in reason


def test_a_symbol_that_nothing_defines_fails_the_build(tmp_path):
    body = EMPTY.replace("return", "sgemm_(); return")
    outcome, reason = fault_of(tmp_path, c(f'#include "rms_norm.h"\nvoid sgemm_(void);\n{body}'))
    assert outcome == "compile_failed"
    assert "undefined" in reason
    assert "sgemm_" in reason


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ('#include <stdlib.h>\nint run() { return system("true"); }', "symbol: uses system"),
        ("#include <unistd.h>\nint run() { return fork(); }", "symbol: uses fork"),
        ('#include <unistd.h>\nint run() { return execl("/bin/true", "", (char *)0); }',
         "symbol: uses execl"),
        ("#include <sys/mman.h>\nint run() { return mprotect(0, 0, PROT_EXEC); }",
         "symbol: uses mprotect"),
        ("#include <unistd.h>\nint run() { return syscall(57); }", "symbol: uses syscall"),
        ('__asm__(".text\\n.byte 0xc3");\nint run() { return 0; }', "asm: assembly with .text"),
    ],
)  # fmt: skip
def test_a_kernel_that_leaves_its_bounds_is_forbidden(source, reason, tmp_path):
    assert fault_of(tmp_path, c(source)) == ("forbidden", reason)


def test_an_include_of_a_foreign_file_is_forbidden_also_through_a_macro(tmp_path):
    foreign = tmp_path / "foreign.h"
    foreign.write_text("int hidden;\n")
    source = f'#define PLACE "{foreign}"\n#include PLACE\nint run() {{ return hidden; }}'
    assert fault_of(tmp_path, c(source)) == (
        "forbidden",
        "foreign.h: includes a file outside the build folder",
    )


def test_a_barrier_in_assembly_is_allowed(tmp_path):
    source = '#include "rms_norm.h"\n' + EMPTY.replace(
        "return", '__asm__ volatile("" ::: "memory"); return'
    )
    assert built(tmp_path, c(source)).kind == "native"


def test_a_source_outside_the_folder_of_the_module_is_refused(tmp_path):
    text = 'OPERATOR = "rms_norm"\nBACKEND = "c"\nSOURCE = "../kernel.c"\n'
    assert fault_of(tmp_path, text) == (
        "compile_failed",
        "SOURCE names no file beside the module: ../kernel.c",
    )


def test_a_syntax_error_names_its_line(tmp_path):
    outcome, reason = fault_of(tmp_path, 'OPERATOR = "rms_norm"\ndef run(:\n')
    assert outcome == "compile_failed"
    assert reason.startswith("kernel.py, line 2: ")


@pytest.mark.parametrize("backend", ["pallas", "tilelang"])
def test_a_known_backend_without_a_judge_is_unsupported(backend, tmp_path):
    outcome, reason = fault_of(tmp_path, f'OPERATOR = "rms_norm"\nBACKEND = "{backend}"\n')
    assert outcome == "unsupported"
    assert reason.startswith(f"{backend}: ")


def test_an_unknown_backend_or_another_operator_is_the_users_error(tmp_path):
    with pytest.raises(UsageError, match="Known: c, numba, torch"):
        built(tmp_path, 'OPERATOR = "rms_norm"\nBACKEND = "fortran"\n')
    path = tmp_path / "kernel.py"
    path.write_text('OPERATOR = "rms_norm"\nBACKEND = "torch"\n')
    with pytest.raises(UsageError, match="OPERATOR is 'rms_norm', not 'silu'"):
        build(registry.candidate(path), interface("silu"), tmp_path / "b")


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("import os", "line 3: imports os.os"),
        ("from os import system", "line 3: imports os.system"),
        ("import numba.core.dispatcher", "line 3: imports numba.core.dispatcher"),
        ("from numba import objmode", "line 3: imports objmode"),
        ("import numba\nwith numba.objmode(): pass", "line 4: uses .objmode"),
        ("eval('1')", "line 3: uses eval"),
        ("x = ().__class__", "line 3: uses __class__"),
        ("__builtins__['eval']", "line 3: uses __builtins__"),
        ("address = out.ctypes", "line 3: uses .ctypes"),
        ("from numpy import *", "line 3: imports *"),
    ],
)
def test_a_numba_candidate_may_not_go_round_its_kernels(body, reason, tmp_path):
    got = fault_of(tmp_path, numba(body))
    assert got == ("forbidden", f"kernel.py, {reason.replace('os.os', 'os')}")


def test_plain_numba_and_numpy_pass_the_policy():
    text = (
        "from __future__ import annotations\nimport math\nimport numpy as np\n"
        "from numba import njit, prange, types\n"
        "from atrex.backends.numba_types import bf16_to_float32\n"
    )
    assert policy.check_device_python(ast.parse(text)) is None
    assert policy.check_reference(ast.parse(text)) is None


@pytest.mark.parametrize(
    "line",
    ["import atrex", "from atrex.judge import task", "import atrex.registry as r",
     "path = 'operators/rms_norm/definition.py'"],
)  # fmt: skip
def test_touching_the_reference_fails_the_build(line, tmp_path):
    outcome, reason = fault_of(tmp_path, f'OPERATOR = "rms_norm"\nBACKEND = "torch"\n{line}\n')
    assert outcome == "compile_failed"
    assert "line 3" in reason


def test_data_are_veiled_and_lengths_are_not():
    given = {
        "q": TensorSpec(shape=(2,), dtype="bf16"),
        "lens": TensorSpec(shape=(2,), dtype="int32"),
        "eps": 1.0,
    }
    out = {"out": TensorSpec(shape=(2,), dtype="int32")}
    assert veiled(Interface(operator="o", inputs=given, outputs=out)) == ("q", "out")
    del given["q"]
    assert veiled(Interface(operator="o", inputs=given, outputs=out)) == ("lens", "out")
