"""From a candidate's file to a frozen artefact, before any seed exists.

A candidate in C is read, never executed: its literals are parsed, its source compiled in three
steps, so that what it includes and what it writes in assembly are seen after the preprocessor and
not guessed from the text. A candidate in Python is copied into a folder of its own, read-only.
Whatever is wrong with a candidate is a `Fault` with its outcome; only a name that does not exist is
the user's error.
"""

from __future__ import annotations

import ast
import hashlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from atrex import registry
from atrex.backends import BACKENDS, compiler, cuda
from atrex.backends.c import Interface, header
from atrex.errors import UsageError
from atrex.judge import policy
from atrex.judge.channel import Fault
from atrex.judge.triton_policy import check_triton
from atrex.model import Candidate, Outcome

LOG_CHARS = 4000  # kept of a compiler's messages
REASON_CHARS = 300
FLOATS = ("bf16", "fp16", "fp32", "fp64", "fp8_e4m3fn", "fp8_e4m3fnuz", "fp8_e5m2")
LINK = ("-lm", "-Wl,-z,defs")  # a symbol that nothing defines is an error now, not at the call


@dataclass(frozen=True, slots=True, kw_only=True)
class Artefact:
    """What a worker loads.

    Attributes:
        kind: ``"native"`` (a shared object) or ``"module"`` (Python).
        path: The shared object or module; read-only, alone in its folder with what it was made of.
        sha: SHA-256 of its bytes.
        compile_ns: Time of the build.
        log: The compiler's messages.
        imports: Libraries that a shared object is linked with.
        audit: Module that runs the candidate with all but its own kernels disabled; None where no
            audit is needed.
        ablation: Module that runs it with its own kernels disabled; None where `audit` is enough.
        profile: Module that runs it under a device's profiler; None where no device does.
    """

    kind: Literal["native", "module"]
    path: Path
    sha: str
    compile_ns: int = 0
    log: str = ""
    imports: tuple[str, ...] = ()
    audit: Path | None = None
    ablation: Path | None = None
    profile: Path | None = None


def build(
    candidate: Candidate, interface: Interface, folder: Path, architecture: str = ""
) -> Artefact:
    """Build a candidate for calls of one interface.

    Args:
        candidate: As described by `registry.candidate`.
        interface: Names, dtypes and dimensions of the arguments.
        folder: Private, created here; nothing else writes to it.
        architecture: What CUDA C++ is compiled for, e.g. ``"sm_90a"``.

    Raises:
        UsageError: The candidate's backend is no backend, or its operator is another.
        Fault: compile_failed, forbidden or unsupported.
    """
    start = time.monotonic_ns()
    path = Path(candidate.path)
    tree = _parse(path)
    if candidate.backend not in BACKENDS:
        raise UsageError(
            f"BACKEND is {candidate.backend!r}",
            where=str(path),
            remedy=f"Known: {', '.join(BACKENDS)}.",
        )
    if candidate.operator != interface.operator:
        raise UsageError(
            f"OPERATOR is {candidate.operator!r}, not {interface.operator!r}", where=str(path)
        )
    backend = BACKENDS[candidate.backend]
    if backend.flavour is None:
        raise Fault(Outcome.UNSUPPORTED, f"{backend.name}: {backend.reason}")
    folder.mkdir(parents=True, mode=0o700, exist_ok=True)
    if backend.flavour == "native":
        return _build_c(path, tree, interface, folder, start)
    if backend.name == "cuda":
        return _build_cuda(path, tree, interface, folder, start, architecture)
    return _freeze_module(path, tree, backend.flavour, interface, folder, start)


def _parse(path: Path) -> ast.Module:
    try:
        return ast.parse(path.read_bytes(), filename=path.name)
    except OSError as error:
        raise UsageError(f"cannot read the candidate: {error.strerror}", where=str(path)) from error
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        line = getattr(error, "lineno", None)
        place = f"{path.name}, line {line}: " if line else f"{path.name}: "
        raise Fault(Outcome.COMPILE_FAILED, f"{place}{getattr(error, 'msg', error)}") from error


def _build_c(
    path: Path, tree: ast.Module, interface: Interface, folder: Path, start: int
) -> Artefact:
    found = compiler.find()
    if found is None:
        raise Fault(
            Outcome.UNSUPPORTED, "no C compiler; install gcc or clang, or `pip install ziglang`"
        )
    try:
        (folder / f"{interface.operator}.h").write_text(header(interface))
    except ValueError as error:
        raise Fault(Outcome.UNSUPPORTED, str(error)) from error
    source = folder / "kernel.c"
    source.write_text(_c_source(path, tree))
    log = _compile(found, source)
    breach = policy.check_includes(source.with_suffix(".i").read_text(errors="replace"), folder)
    breach = breach or policy.check_assembly(source.with_suffix(".s").read_text(errors="replace"))
    built = source.with_suffix(".so")
    libraries, refused = policy.check_object(built)
    if breach or refused:
        raise Fault(Outcome.FORBIDDEN, str(breach or refused))
    for leftover in (".i", ".s"):
        source.with_suffix(leftover).unlink()
    return Artefact(
        kind="native",
        path=built,
        sha=_freeze(built),
        compile_ns=time.monotonic_ns() - start,
        log=log,
        imports=libraries,
    )


def _build_cuda(
    path: Path, tree: ast.Module, interface: Interface, folder: Path, start: int, architecture: str
) -> Artefact:
    """Compile CUDA C++, and write the module through which a worker calls it."""
    if cuda.find_nvcc() is None:
        raise Fault(Outcome.UNSUPPORTED, "nvcc is not installed; CuPy's RawKernel needs none")
    (folder / f"{interface.operator}.h").write_text(cuda.header(interface))
    source, built = folder / "kernel.cu", folder / "kernel.so"
    source.write_text(_c_source(path, tree))
    answer = cuda.compile_cuda(source, built, architecture)
    log = answer.log.replace(f"{folder}/", "")
    if not answer.ok:
        raise Fault(Outcome.COMPILE_FAILED, _first_error(log))
    libraries, refused = policy.check_object(built, policy.CUDA_LIBRARIES)
    if refused:
        raise Fault(Outcome.FORBIDDEN, str(refused))
    tensors = {name: len(spec.shape) for name, spec in interface.tensors.items()}
    caller = folder / "cuda_call.py"
    _write_frozen(caller, _CALLER.format(tensors=tensors, attributes=interface.attributes).encode())
    return Artefact(
        kind="module",
        path=caller,
        sha=_freeze(built),
        compile_ns=time.monotonic_ns() - start,
        log=log[:LOG_CHARS],
        imports=libraries,
        profile=_auditor(caller, "devices.profiled", "profiled"),
    )


_CALLER = '''"""Call the compiled candidate beside this file."""

from pathlib import Path

from atrex.backends.cuda import native

run, prepare = native(Path(__file__).with_name("kernel.so"), {tensors!r}, {attributes!r})
'''


def _c_source(path: Path, tree: ast.Module) -> str:
    """Return the C source, marked so that messages count lines as the author sees them."""
    source = registry.literals(path).get("SOURCE")
    if not isinstance(source, str) or not source:
        raise Fault(
            Outcome.COMPILE_FAILED, "SOURCE must be a literal: C source, or a file beside it"
        )
    if "\n" in source:
        return f'#line {_line_of("SOURCE", tree)} "{path.name}"\n{source}'
    beside = (path.parent / source).resolve()
    if beside.parent != path.parent.resolve() or not beside.is_file():
        raise Fault(Outcome.COMPILE_FAILED, f"SOURCE names no file beside the module: {source}")
    return f'#line 1 "{beside.name}"\n{beside.read_text(errors="replace")}'


def _line_of(name: str, tree: ast.Module) -> int:
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else ()
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return node.value.lineno if isinstance(node, ast.Assign) else 1
    return 1


def _compile(found: compiler.Compiler, source: Path) -> str:
    """Preprocess, compile and link, each under the compiler's budget; return the messages."""
    flags = (*compiler.FLAGS, "-fPIC")
    steps = (
        (source, ".i", (*flags, "-E"), False, ()),
        (source.with_suffix(".i"), ".s", (*flags, "-S"), False, ()),
        (source.with_suffix(".s"), ".so", (), True, LINK),
    )
    log = ""
    for given, suffix, arguments, shared, link in steps:
        built = compiler.compile_c(
            found, given, source.with_suffix(suffix), flags=arguments, shared=shared, link=link
        )
        log += built.log.replace(f"{source.parent}/", "")
        if not built.ok:
            raise Fault(Outcome.COMPILE_FAILED, _first_error(log))
    return log[:LOG_CHARS]


def _first_error(log: str) -> str:
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"\berror\b|undefined reference", line)]
    chosen = (telling or lines or ["the compiler failed without a message"])[0]
    return re.sub(r"(/[^\s:]+)+/", "", chosen)[:REASON_CHARS]


def _freeze_module(
    path: Path, tree: ast.Module, flavour: str, interface: Interface, folder: Path, start: int
) -> Artefact:
    if breach := policy.check_reference(tree):
        raise Fault(Outcome.COMPILE_FAILED, f"{path.name}, {breach}")
    if breach := _breach(tree, flavour):
        raise Fault(Outcome.FORBIDDEN, f"{path.name}, {breach}")
    frozen = folder / path.name
    sha = _write_frozen(frozen, path.read_bytes())
    audit = ablation = profile = None
    if flavour == "numba":
        audit = _auditor(frozen, "audit", "audited", veiled(interface))
    elif flavour == "triton":
        audit = _auditor(frozen, "triton_audit", "denied")
        ablation = _auditor(frozen, "triton_audit", "ablated")
    if flavour in ("triton", "cuda"):
        profile = _auditor(frozen, "devices.profiled", "profiled")
    return Artefact(
        kind="module",
        path=frozen,
        sha=sha,
        compile_ns=time.monotonic_ns() - start,
        audit=audit,
        ablation=ablation,
        profile=profile,
    )


def _breach(tree: ast.Module, flavour: str) -> policy.Breach | None:
    if flavour == "numba":
        return policy.check_device_python(tree)
    if flavour in ("triton", "cuda"):
        return check_triton(tree, packages=("cupy",) if flavour == "cuda" else ())
    return None


_AUDITOR = '''"""Run {name} under an audit."""

from pathlib import Path

from atrex.judge.{module} import {function}

run, prepare = {function}(Path(__file__).with_name({name!r}), *{arguments!r})
'''


def _auditor(frozen: Path, module: str, function: str, *arguments: tuple[str, ...]) -> Path:
    """Write the module that runs a frozen candidate by a function of the judge's."""
    path = frozen.with_name(f"{function}_{frozen.name}")
    text = _AUDITOR.format(name=frozen.name, module=module, function=function, arguments=arguments)
    _write_frozen(path, text.encode())
    return path


def veiled(interface: Interface) -> tuple[str, ...]:
    """Name the arguments that a candidate may touch in its own kernels only.

    Floating-point inputs and every output; lengths, tables and other integers may steer the host.
    Where an operator has no floating-point input, its integers are the data.
    """
    tensors = interface.tensors
    data = [name for name in interface.inputs if name in tensors and tensors[name].dtype in FLOATS]
    if not data:
        data = [name for name in interface.inputs if name in tensors]
    return tuple(dict.fromkeys([*data, *interface.outputs]))


def _write_frozen(path: Path, content: bytes) -> str:
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return _freeze(path)


def _freeze(path: Path) -> str:
    path.chmod(0o500 if path.suffix == ".so" else 0o400)
    return hashlib.sha256(path.read_bytes()).hexdigest()
