"""Look at this machine as atrex sees it: what fits, what is missing, and what to do about it.

Every line was tried here, not read from a list: the sandbox by starting a worker, the compiler by
asking it. A finding is `missing` only where atrex cannot judge without it.
"""

from __future__ import annotations

import importlib.util
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path
from typing import Literal

from atrex import hardware
from atrex.model import Record

# Extras whose packages are optional: what is lost without them.
OPTIONAL = {
    "kernels": "kernels cannot be judged",
    "dashboard": "`atrex dashboard` does not start",
    "gpu": "CuPy kernels are not judged",
}
# torch and triton minor versions that belong together; others often import and then fail.
PAIRS = {"2.13": "3.7", "2.14": "3.8", "2.15": "3.9"}
# Requirements name only lower bounds: "polars>=1.30", "torch>=2.8; extra == 'kernels'".
_REQUIREMENT = re.compile(r"([\w.-]+)>=([\d.]+)(?:.*extra == [\"'](\w+)[\"'])?")
LANDLOCK_VERSION = 444  # system call landlock_create_ruleset, x86-64 and aarch64 alike


class Finding(Record, frozen=True, kw_only=True):
    """One fact about this machine.

    Attributes:
        topic: ``"python"``, ``"packages"``, ``"compilers"``, ``"sandbox"`` or ``"devices"``.
        name: What was looked at.
        state: ``"ok"``; ``"warning"``: something is lost; ``"missing"``: nothing can be judged.
        found: What is there.
        remedy: What to do, unless it is ok.
    """

    topic: str
    name: str
    state: Literal["ok", "warning", "missing"]
    found: str
    remedy: str = ""


def examine() -> list[Finding]:
    """Look at everything, in some two seconds."""
    parts: tuple[Callable[[], Iterator[Finding]], ...] = (
        _python, _packages, _pair, _compilers, _sandbox, _devices
    )  # fmt: skip
    return [finding for part in parts for finding in part()]


def _python() -> Iterator[Finding]:
    version = platform.python_version()
    fits = (3, 11) <= sys.version_info[:2] <= (3, 13)
    yield Finding(
        topic="python",
        name="Python",
        state="ok" if fits else "warning",
        found=version,
        remedy="" if fits else "Use Python 3.11 to 3.13.",
    )


def _packages() -> Iterator[Finding]:
    try:
        required = requires("atrex") or []
    except PackageNotFoundError:
        yield Finding(
            topic="packages",
            name="atrex",
            state="warning",
            found="runs from a folder, not installed",
            remedy="Install it with pip to have its versions checked.",
        )
        return
    for text in required:
        found = _REQUIREMENT.match(text)
        if found is None or found[3] not in (None, *OPTIONAL):
            continue
        yield _package(found[1], found[2], found[3])


def _package(name: str, least: str, extra: str | None) -> Finding:
    version = hardware.installed(name)
    if version is not None and _parts(version) >= _parts(least):
        return Finding(topic="packages", name=name, state="ok", found=version)
    lost = f"{OPTIONAL[extra]}; " if extra else ""
    place = f"atrex[{extra}]" if extra else f"{name}>={least}"
    return Finding(
        topic="packages",
        name=name,
        state="missing" if extra is None or name == "torch" else "warning",
        found=f"{lost}not installed" if version is None else f"{version}, needs {least}",
        remedy=f"pip install '{place}'",
    )


def _pair() -> Iterator[Finding]:
    torch, triton = (hardware.installed(name) for name in ("torch", "triton"))
    if torch is None or triton is None:
        return
    expected = PAIRS.get(".".join(torch.split(".")[:2]))
    fits = expected is None or triton.startswith(f"{expected}.")
    yield Finding(
        topic="packages",
        name="torch with triton",
        state="ok" if fits else "warning",
        found=f"{torch} with {triton}" + (", not a pair that we know" if expected is None else ""),
        remedy=""
        if fits
        else f"torch {torch} goes with triton {expected}: "
        "pip install -c constraints.txt 'atrex[kernels]'",
    )


def _compilers() -> Iterator[Finding]:
    from atrex.backends import compiler

    found = compiler.find()
    yield Finding(
        topic="compilers",
        name="C",
        state="ok" if found else "missing",
        found=found.version if found else "none of $CC, cc, gcc, clang and ziglang answers",
        remedy="" if found else "Install gcc or clang, or `pip install ziglang`.",
    )
    nvcc = shutil.which("nvcc")
    yield Finding(
        topic="compilers",
        name="CUDA C++",
        state="ok" if nvcc else "warning",
        found="nvcc" if nvcc else "no nvcc: candidates in CUDA C++ are not built",
        remedy="" if nvcc else "Install the CUDA toolkit, if you write CUDA C++.",
    )
    spec = importlib.util.find_spec("triton")
    tools = Path(spec.origin).parent / "backends/nvidia/bin" if spec and spec.origin else None
    has = tools is not None and (tools / "nvdisasm").is_file()
    yield Finding(
        topic="compilers",
        name="Triton",
        state="ok" if has else "warning",
        found="ptxas and nvdisasm" if has else "no disassembler: `atrex compile` does not run",
        remedy="" if has else "pip install 'atrex[kernels]'",
    )


def _sandbox() -> Iterator[Finding]:
    tier = _achieved_tier()
    if isinstance(tier, str):
        yield Finding(
            topic="sandbox",
            name="tier",
            state="missing",
            found=tier,
            remedy="Workers need Linux, a C compiler and memfd_create.",
        )
        return
    yield Finding(
        topic="sandbox",
        name="tier",
        state="warning",
        found=f"{tier}: own process group, clean environment, limits; the kernel offers "
        + (", ".join(_offers()) or "nothing more"),
        remedy="Judge only code that you would run yourself.",
    )
    from atrex.judge.mapping import huge_pages

    fits = huge_pages()
    yield Finding(
        topic="sandbox",
        name="huge pages",
        state="ok" if fits else "warning",
        found="tensors lie in huge pages" if fits else "tensors lie in small pages",
        remedy="" if fits else "Cold times compare only with those of such hosts; Linux 6.1 helps.",
    )


def _achieved_tier() -> int | str:
    """Start a worker and read its tier from the kernel; a sentence if none starts."""
    from atrex.backends import compiler
    from atrex.errors import SetupError
    from atrex.judge import calibrate
    from atrex.judge.channel import Fault, Target
    from atrex.judge.launcher import Forkserver, build_runner

    try:
        found = compiler.require()
        with tempfile.TemporaryDirectory(prefix="atrex-") as scratch:
            runner = build_runner(found, Path(scratch) / "runner")
            kernel = calibrate.build(found, Path(scratch) / "kernel")
            server = Forkserver("native", runner=runner)
            try:
                target = Target(kind="native", path=str(kernel))
                with server.start(target, ()) as worker:
                    tier = worker.tier()
            finally:
                server.close()
    except (SetupError, Fault, OSError) as error:
        return f"no worker starts: {error}"
    return "a worker is not confined" if tier is None else tier


def _offers() -> list[str]:
    """Name the confinements of higher tiers that this kernel has."""
    import ctypes

    offers = []
    version = ctypes.CDLL(None).syscall(LANDLOCK_VERSION, None, 0, 1)
    if version > 0:
        offers.append(f"Landlock {version}")
    if Path("/proc/sys/kernel/seccomp/actions_avail").is_file():
        offers.append("seccomp")
    if Path("/proc/self/ns/user").exists():
        offers.append("namespaces")
    return offers


def _devices() -> Iterator[Finding]:
    llc = hardware.llc_bytes() >> 20
    free = hardware.available_bytes() >> 30
    yield Finding(
        topic="devices",
        name="CPU",
        state="ok" if hardware.cores() > 1 else "warning",
        found=f"{hardware.device_name()}, {llc} MiB last-level cache, {free} GiB free",
        remedy="" if hardware.cores() > 1 else "With one core the judge disturbs what it times.",
    )
    yield _nvidia()
    if Path("/dev/kfd").exists():
        yield Finding(
            topic="devices",
            name="AMD GPU",
            state="warning",
            found="present",
            remedy="Kernels are compiled for it (`atrex compile`), not judged on it yet.",
        )


def _nvidia() -> Finding:
    without = "Triton kernels are judged in the interpreter, without times."
    if importlib.util.find_spec("pynvml") is None:
        found = "nvidia-ml-py is not installed"
        return Finding(
            topic="devices", name="NVIDIA GPU", state="warning", found=found, remedy=without
        )
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return Finding(
            topic="devices",
            name="NVIDIA GPU",
            state="warning",
            found=f"none: {error}",
            remedy=without,
        )
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = ", ".join(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        driver = pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()
    return Finding(
        topic="devices", name="NVIDIA GPU", state="ok", found=f"{names}; driver {driver}"
    )


def _parts(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; "2.13.0+cpu" gives (2, 13, 0)."""
    return tuple(int(part) for part in re.findall(r"\d+", version.split("+")[0]))
