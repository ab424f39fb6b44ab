"""What a Triton candidate must not contain: the static policy of a language embedded in torch.

Host code may do what only the audit can judge, so torch calls pass here and end as `fallback`
there. Refused is what would get round the audit: other packages, raw memory, the dispatcher's own
tools, and anything but Triton's language inside a kernel, whose body the interpreter runs as
Python.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterator

from atrex.judge.policy import (
    ALLOWED_DUNDERS,
    REFUSED_MODULES,
    REFUSED_NAMES,
    Breach,
    imported,
)

# Host code prepares a launch: it needs torch for memory, and nothing that computes or reaches out.
IMPORTS = (
    "__future__", "collections", "contextlib", "dataclasses", "enum", "functools", "itertools",
    "math", "time", "torch", "triton", "typing", "warnings",
)  # fmt: skip
REFUSED_PATHS = (
    "torch.classes", "torch.compile", "torch.compiler", "torch.distributed",
    "torch.hub", "torch.jit", "torch.library", "torch.load", "torch.multiprocessing",
    "torch.overrides", "torch.package", "torch.profiler", "torch.save", "torch.serialization",
    "torch.testing", "torch.utils", "triton.backends", "triton.compiler", "triton.knobs",
    "triton.runtime.interpreter", "triton.runtime.jit",
)  # fmt: skip
# Names that hand out memory past the dispatcher, load code, or lead to other modules.
REFUSED_ATTRIBUTES = frozenset((
    "_C", "_dynamo", "_inductor", "_numpy", "_typed_storage", "apply_", "from_dlpack", "from_file",
    "from_numpy", "frombuffer", "interpreter", "load_library", "map2_", "map_", "np", "numpy",
    "set_", "storage", "to_dlpack", "tolist", "untyped_storage",
    *(name for name in REFUSED_MODULES if "." not in name),
))  # fmt: skip
KERNEL_BUILTINS = frozenset(
    ("float", "hasattr", "int", "isinstance", "len", "list", "max", "min", "print", "range")
)  # those that Triton compiles
REFUSED_IN_KERNELS = frozenset(("data", "fn", "handle", "src"))  # the interpreter's own objects
HANDED_ROUND = ("torch", "triton", "triton.language")  # modules that stand before a dot only


def check_triton(tree: ast.Module, packages: tuple[str, ...] = ()) -> Breach | None:
    """Check a Triton candidate: no way round its kernels, and no Python inside them.

    Args:
        tree: The candidate's module.
        packages: Kernel languages that it may import besides.
    """
    module = _Module(tree, packages)
    for node in ast.walk(tree):
        for what in module.breaches(node):
            return Breach(what, f"line {getattr(node, 'lineno', 0)}")
    return None


class _Module:
    """A candidate's syntax tree with the names that it binds.

    Attributes:
        aliases: Name to the dotted path that an import gives it.
        kernels: Names of the functions that Triton compiles.
        constants: Names of its `tl.constexpr` values.
    """

    def __init__(self, tree: ast.Module, packages: tuple[str, ...]) -> None:
        self._packages = (*IMPORTS, *packages)
        self.aliases = dict(_aliases(tree))
        functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
        self._kernels = [function for function in functions if self._compiled(function)]
        self.kernels = {function.name for function in self._kernels}
        self.constants = {name for node in tree.body for name in self._constexprs(node)}
        self._decorators = {
            id(part)
            for function in self._kernels
            for decorator in function.decorator_list
            for part in ast.walk(decorator)
        }
        self._roots = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        self._bound = _bound(tree) | self.aliases.keys()

    def breaches(self, node: ast.AST) -> Iterator[str]:
        """Yield what is wrong with one node."""
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from self._imports(node)
        elif isinstance(node, ast.Name):
            yield from self._name(node)
        elif isinstance(node, ast.Attribute):
            yield from self._attribute(node)
        elif isinstance(node, ast.FunctionDef) and node in self._kernels:
            yield from self._kernel(node)

    def path(self, node: ast.AST) -> str:
        """Return the dotted path of an imported thing, "" if the root was not imported."""
        if isinstance(node, ast.Attribute):
            root = self.path(node.value)
            return f"{root}.{node.attr}" if root else ""
        return self.aliases.get(node.id, "") if isinstance(node, ast.Name) else ""

    def _imports(self, node: ast.Import | ast.ImportFrom) -> Iterator[str]:
        for name in imported(node):
            if name.split(".")[0] not in self._packages or _refused(name) or name.endswith(".*"):
                yield f"imports {name}"

    def _name(self, node: ast.Name) -> Iterator[str]:
        name = node.id
        if name in REFUSED_NAMES or (name.startswith("__") and name not in ALLOWED_DUNDERS):
            yield f"uses {name}"
        elif name not in self._bound and not hasattr(builtins, name):
            # the interpreter adds its own modules to the candidate's names
            yield f"uses {name}, which it does not define"
        elif self.path(node) in HANDED_ROUND and id(node) not in self._roots:
            yield f"hands the module {self.path(node)} round"
        elif self.path(node) == "triton.jit" and id(node) not in self._decorators:
            yield "uses triton.jit other than as a decorator"

    def _attribute(self, node: ast.Attribute) -> Iterator[str]:
        name, path = node.attr, self.path(node)
        if name in REFUSED_ATTRIBUTES or (name.startswith("__") and name not in ALLOWED_DUNDERS):
            yield f"uses .{name}"
        elif path and _refused(path):
            yield f"uses {path}"
        elif path in HANDED_ROUND and id(node) not in self._roots:
            yield f"hands the module {path} round"
        elif path == "triton.jit" and id(node) not in self._decorators:
            yield "uses triton.jit other than as a decorator"

    def _kernel(self, function: ast.FunctionDef) -> Iterator[str]:
        """Yield what a kernel's body uses beside Triton's language and the file's own kernels."""
        if not all(isinstance(each, ast.Constant) for each in function.args.defaults):
            yield f"the kernel {function.name} has a default that is no literal"
        own = _bound(function) - {function.name}
        for node in [part for statement in function.body for part in ast.walk(statement)]:
            if isinstance(node, ast.Import | ast.ImportFrom | ast.Global | ast.Nonlocal):
                yield f"the kernel {function.name} has an {type(node).__name__.lower()} statement"
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                language = self.aliases.get(node.id, "").split(".")[0] == "triton"
                known = own | self.kernels | self.constants | KERNEL_BUILTINS
                if not language and node.id not in known:
                    yield f"the kernel {function.name} uses {node.id}, which is not Triton's"
            elif isinstance(node, ast.Attribute) and (
                node.attr in REFUSED_IN_KERNELS or node.attr.startswith("_")
            ):
                yield f"the kernel {function.name} uses .{node.attr}"

    def _compiled(self, function: ast.FunctionDef) -> bool:
        """Whether Triton compiles a function; a constexpr function runs while it does."""
        for decorator in function.decorator_list:
            named = decorator.func if isinstance(decorator, ast.Call) else decorator
            if self.path(named) in ("triton.jit", "triton.constexpr_function"):
                return True
        return False

    def _constexprs(self, node: ast.stmt) -> Iterator[str]:
        """Yield the names of `A = tl.constexpr(1)` and `A: tl.constexpr = 1`."""
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            targets, kind = node.targets, node.value.func
        elif isinstance(node, ast.AnnAssign):
            targets, kind = [node.target], node.annotation
        else:
            return
        if self.path(kind) == "triton.language.constexpr":
            yield from (target.id for target in targets if isinstance(target, ast.Name))


def _refused(path: str) -> bool:
    return any(path == each or path.startswith(f"{each}.") for each in REFUSED_PATHS) or bool(
        REFUSED_ATTRIBUTES & set(path.split(".")[1:])
    )


def _aliases(tree: ast.Module) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for each in node.names:
                root = each.name.split(".")[0]
                yield (each.asname, each.name) if each.asname else (root, root)
        elif isinstance(node, ast.ImportFrom):
            for each, name in zip(node.names, imported(node), strict=True):
                yield each.asname or each.name, name


def _bound(tree: ast.AST) -> set[str]:
    """Return every name that is assigned or defined somewhere below a node."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found.add(node.name)
    return found
