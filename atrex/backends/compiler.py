"""Find a C compiler and run it under a time and memory budget.

The order is `$CC`, then cc, gcc, clang, then the `ziglang` wheel, so that a machine without a
system compiler needs one `pip install`.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from atrex.errors import SetupError

# The builder compiles for the machine it runs on. Contraction to fma is what a GPU compiler does
# too; reassociation (-ffast-math) changes results and stays the kernel author's choice. Wide
# vectors never cross a call between compilers here, so notes on their ABI say nothing.
FLAGS = (
    "-O3",
    "-march=native",
    "-std=gnu11",
    "-ffp-contract=fast",
    "-fopenmp-simd",
    "-Wall",
    "-Wno-psabi",
)
BUILD_SECONDS = 120  # integrity.md 1.6, proposed budget
BUILD_BYTES = 8 << 30  # address space of the compiler; a template bomb must not take the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiler:
    """A C compiler: the command to start it, and its version line."""

    command: tuple[str, ...]
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a compilation gave: success and the compiler's messages."""

    ok: bool
    log: str


@cache
def find() -> Compiler | None:
    """Return the first compiler that answers, None if there is none."""
    choices: list[tuple[str, ...]] = []
    if os.environ.get("CC"):
        choices.append(tuple(shlex.split(os.environ["CC"])))
    choices += [(name,) for name in ("cc", "gcc", "clang")]
    if importlib.util.find_spec("ziglang"):
        choices.append((sys.executable, "-m", "ziglang", "cc"))
    for command in choices:
        if shutil.which(command[0]) is None:
            continue
        try:
            answer = subprocess.run(
                [*command, "--version"], capture_output=True, text=True, timeout=30, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            continue
        if answer.returncode == 0 and answer.stdout:
            return Compiler(command=command, version=answer.stdout.splitlines()[0])
    return None


def require() -> Compiler:
    """Return the first compiler that answers.

    Raises:
        SetupError: There is none.
    """
    found = find()
    if found is None:
        raise SetupError("no C compiler", remedy="Install gcc or clang, or `pip install ziglang`.")
    return found


def compile_c(
    compiler: Compiler,
    source: Path,
    output: Path,
    *,
    flags: tuple[str, ...] = FLAGS,
    shared: bool = True,
    link: tuple[str, ...] = ("-lm",),
    seconds: float = BUILD_SECONDS,
) -> Built:
    """Compile one C file to a shared object, or to a program.

    The compiler runs in its own process group and with an empty environment but for PATH, so a
    hanging compilation is killed whole and no setting of the caller leaks into the artefact.
    """
    kind = ("-shared", "-fPIC") if shared else ()
    arguments = [*compiler.command, *flags, *kind, str(source), "-o", str(output), *link]
    process = subprocess.Popen(
        arguments,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=source.parent,
        env={"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"},
        start_new_session=True,
        preexec_fn=_limit,
    )
    try:
        log, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Built(ok=False, log=f"the compiler ran longer than {seconds:g} s")
    return Built(ok=process.returncode == 0, log=log.decode(errors="replace"))


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (BUILD_BYTES, BUILD_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
