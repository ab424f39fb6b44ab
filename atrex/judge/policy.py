"""What a candidate's source and binary must not contain: the static policy.

Triage only: it answers at once and with a line number what the audit or the sandbox would find
later, and observed behaviour outranks it. Each rule is a function from text, syntax tree or ELF
file to the first breach, None if there is none.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

# What a C kernel may be linked with: C, mathematics, OpenMP and thread runtimes.
LIBRARIES = ("libc", "libm", "libmvec", "libgomp", "libpthread", "libgcc_s", "ld-linux")
CUDA_LIBRARIES = (*LIBRARIES, "libcudart", "libcuda", "libstdc++")
# Exact names, or prefixes where they end with *: loading code, starting processes, talking to other
# machines or processes, and making memory executable.
REFUSED_SYMBOLS = (
    "dlopen", "dlmopen", "dlsym", "dlvsym", "__libc_dlopen_mode", "__libc_dlsym", "system",
    "popen", "exec*", "fexecve", "fork", "vfork", "_Fork", "clone", "clone3", "posix_spawn*",
    "syscall", "ptrace", "process_vm_*", "socket", "socketpair", "connect", "bind", "accept*",
    "sendmsg", "kill", "killpg", "tgkill", "mmap", "mmap64", "mprotect", "pkey_mprotect", "mremap",
    "memfd_create", "shm_open", "shmget", "shmat",
)  # fmt: skip
# In assembly written by the candidate: data directives are pasted machine code, and instructions
# that enter the kernel go round the list of symbols.
REFUSED_ASSEMBLY = re.compile(
    r"\.(incbin|include|byte|2byte|4byte|8byte|short|hword|word|long|int|quad|octa|ascii|asciz"
    r"|string|fill|section|text|data|pushsection|globl|global)\b|\b(syscall|sysenter|svc)\b"
    r"|\bint\s+\$"
)

REFUSED_MODULES = (
    "_ctypes", "_thread", "asyncio", "builtins", "cffi", "code", "concurrent", "ctypes", "dis",
    "faulthandler", "gc", "importlib", "inspect", "llvmlite", "marshal", "mmap", "multiprocessing",
    "os", "pickle", "pkgutil", "posix", "ptrace", "pty", "resource", "runpy", "shutil", "signal",
    "site", "socket", "subprocess", "sys", "sysconfig", "threading", "traceback", "types",
    "weakref", "zipimport",
    "numba.core", "numba.cuda", "numba.experimental", "numba.extending", "numba.np", "numba.typed",
    "numpy.ctypeslib", "numpy.lib.format",
)  # fmt: skip
REFUSED_NAMES = (
    "__builtins__", "__import__", "__loader__", "__spec__", "breakpoint", "compile", "delattr",
    "eval", "exec", "getattr", "globals", "input", "locals", "memoryview", "open", "setattr",
    "vars",
)  # fmt: skip
# Names of NumPy and numba that reach raw memory, files or the interpreter.
REFUSED_ATTRIBUTES = (
    "carray", "cfunc", "ctypes", "ctypeslib", "data", "farray", "forceobj", "frombuffer",
    "fromfile", "getbuffer", "intrinsic", "load", "memmap", "objmode", "overload", "py_func",
    "save", "tofile",
)  # fmt: skip
ALLOWED_DUNDERS = ("__name__", "__doc__", "__file__")


@dataclass(frozen=True, slots=True)
class Breach:
    """What was found, and where (``"line 12"``, ``"symbol"``)."""

    what: str
    where: str

    def __str__(self) -> str:
        return f"{self.where}: {self.what}" if self.where else self.what


def _listed(name: str, listed: tuple[str, ...]) -> bool:
    return any(
        name.startswith(entry[:-1]) if entry.endswith("*") else name == entry for entry in listed
    )


def imports_of_object(path: Path) -> tuple[tuple[str, ...], tuple[str, ...], bool]:
    """Read an ELF shared object: its NEEDED libraries, undefined symbols, executable data.

    The last value tells whether a segment, or the stack, is both writable and executable.
    """
    from elftools.elf.dynamic import DynamicSection
    from elftools.elf.elffile import ELFFile
    from elftools.elf.sections import SymbolTableSection

    needed: list[str] = []
    undefined: list[str] = []
    with path.open("rb") as file:
        elf = ELFFile(file)
        for section in elf.iter_sections():
            if isinstance(section, DynamicSection):
                needed = [getattr(tag, "needed", "") for tag in section.iter_tags("DT_NEEDED")]
            elif isinstance(section, SymbolTableSection) and section.name == ".dynsym":
                undefined = [
                    symbol.name
                    for symbol in section.iter_symbols()
                    if symbol["st_shndx"] == "SHN_UNDEF" and symbol.name
                ]
        open_ended = any(segment["p_flags"] & 3 == 3 for segment in elf.iter_segments())
    return tuple(needed), tuple(undefined), open_ended


def check_object(
    path: Path, libraries: tuple[str, ...] = LIBRARIES
) -> tuple[tuple[str, ...], Breach | None]:
    """Check a built kernel; return the libraries it is linked with, and the first breach."""
    needed, undefined, writable_code = imports_of_object(path)
    for library in needed:
        if PurePosixPath(library).name.split(".so")[0].split("-x86")[0] not in libraries and (
            not library.startswith("ld-linux")
        ):
            return needed, Breach(f"links against {library}", "library")
    for symbol in undefined:
        if _listed(symbol, REFUSED_SYMBOLS):
            return needed, Breach(f"uses {symbol}", "symbol")
    if writable_code:
        return needed, Breach("has memory that is writable and executable", "segment")
    return needed, None


def check_includes(preprocessed: str, build: Path) -> Breach | None:
    """Check the files that a C source pulled in: the build folder's and the system's only.

    Line markers of the preprocessor tell them, so that macros hide nothing.
    """
    roots = (str(build.resolve()), "/usr/include", "/usr/lib", "/usr/local/include", "/opt")
    for name in dict.fromkeys(re.findall(r'^# \d+ "([^"<]+)"', preprocessed, re.MULTILINE)):
        path = str((build / name).resolve())
        if not path.startswith(roots) and "/ziglang/" not in path:
            return Breach("includes a file outside the build folder", PurePosixPath(name).name)
    return None


def check_assembly(assembly: str) -> Breach | None:
    """Check what the candidate wrote in assembly, which compilers mark by #APP and #NO_APP."""
    own = False
    for line in assembly.splitlines():
        if line.lstrip().startswith(("#APP", "# Begin ASM")):
            own = True
        elif line.lstrip().startswith(("#NO_APP", "# End ASM")):
            own = False
        elif own and (found := REFUSED_ASSEMBLY.search(line.split("#")[0])):
            return Breach(f"assembly with {found.group().strip()}", "asm")
    return None


def check_device_python(tree: ast.Module) -> Breach | None:
    """Check a candidate in a kernel language embedded in Python: no way round its kernels."""
    for node in ast.walk(tree):
        for what in _breaches(node):
            return Breach(what, f"line {getattr(node, 'lineno', 0)}")
    return None


def _breaches(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Import | ast.ImportFrom):
        for name in imported(node):
            if any(
                name == refused or name.startswith(f"{refused}.") for refused in REFUSED_MODULES
            ):
                yield f"imports {name}"
        for alias in node.names:
            if alias.name in REFUSED_ATTRIBUTES or alias.name == "*":
                yield f"imports {alias.name}"
    elif isinstance(node, ast.Name) and node.id in REFUSED_NAMES:
        yield f"uses {node.id}"
    elif isinstance(node, ast.Attribute | ast.Name):
        name = node.attr if isinstance(node, ast.Attribute) else node.id
        if name in REFUSED_ATTRIBUTES and isinstance(node, ast.Attribute):
            yield f"uses .{name}"
        elif name.startswith("__") and name not in ALLOWED_DUNDERS:
            yield f"uses {name}"
    elif isinstance(node, ast.keyword) and node.arg in ("forceobj", "looplift"):
        yield f"compiles with {node.arg}"


def check_reference(tree: ast.Module) -> Breach | None:
    """Check that a candidate leaves the reference and the judge alone.

    `atrex.backends.numba_types` alone is meant for candidates.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            for name in imported(node):
                allowed = "atrex.backends.numba_types"
                if name.split(".")[0] == "atrex" and not name.startswith(allowed):
                    return Breach(f"imports {name}", f"line {node.lineno}")
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and node.value.endswith("definition.py")
        ):
            return Breach("names a definition.py", f"line {node.lineno}")
    return None


def imported(node: ast.Import | ast.ImportFrom) -> list[str]:
    """Return the dotted paths that an import statement names."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [f"{node.module or ''}.{alias.name}".lstrip(".") for alias in node.names]
