"""Who does a Triton candidate's work, seen from inside an audited worker: two-sided ablation.

`ablated` runs the candidate with its own launches left out: outputs that are right all the same
were made elsewhere. `denied` runs it with torch's compute operators refused: what is not right any
more was made by them. Host code keeps what a launch needs: allocation, views, plain copies and
constants.

An operator is seen twice: by a dispatch mode, which knows it by name and arguments, and by kernels
put in the place of torch's own, which also meet other threads and callers that left the mode. The
interpreter computes in NumPy, so that no launch is an excuse: a grid or a hook is host code.

This code shares the worker with the candidate: it sorts honest work from library work, it does not
stop an attack on the audit itself. The static policy refuses the usual tools of one.
"""

from __future__ import annotations

import struct
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from atrex.judge.tensors import write_bytes
from atrex.registry import load_module

REPORT = "audit_report"  # the output that the ledger goes to, beside the candidate's
REPORT_BYTES = 1024
COUNTS = struct.Struct("<QQQQ")  # launches of own and of other kernels, native operators, copies

# Allocation, constants and views: what they hold is no input's data, or not computed.
FREE = frozenset(
    f"aten::{name}" for name in (
        "empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided", "zeros",
        "zeros_like", "new_zeros", "zero_", "ones", "ones_like", "new_ones", "full", "full_like",
        "new_full", "fill_", "lift_fresh", "set_",
        "alias", "as_strided", "detach", "diagonal", "expand", "permute", "select", "slice",
        "split", "split_with_sizes", "squeeze", "t", "transpose", "unbind", "unfold", "unsqueeze",
        "view", "_reshape_alias", "_unsafe_view",
    )
)  # fmt: skip
COPIES = frozenset(("aten::copy_", "aten::clone", "aten::_to_copy"))  # unless they convert
# Where torch keeps kernels that run on this machine's CPU.
KEYS = ("CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "MkldnnCPU", "NestedTensorCPU")

Run = Callable[..., None]
Prepare = Callable[..., Any] | None


class Denied(RuntimeError):
    """A torch operator was called that computes."""


class Ledger:
    """What was seen during one call."""

    def __init__(self) -> None:
        self.launches: Counter[str] = Counter()
        self.native: Counter[str] = Counter()
        self.copies = 0
        self.launching = False

    def encode(self) -> bytes:
        """Pack the counts and the names of the native operators, most called first."""
        own, package = self.launches["own"], self.launches["package"]
        counts = COUNTS.pack(own, package, self.native.total(), self.copies)
        names = ", ".join(name for name, _ in self.native.most_common())
        return (counts + names.encode())[:REPORT_BYTES].ljust(REPORT_BYTES, b"\0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """A ledger as the judge reads it: worth no more than the worker that wrote it.

    Attributes:
        own, package: Launches of the candidate's kernels, and of others.
        native: Calls of operators that compute, outside launches.
        copies: Calls that move data only.
        names: The native operators, as far as they fit.
    """

    own: int
    package: int
    native: int
    copies: int
    names: str

    @classmethod
    def decode(cls, content: bytes) -> Report:
        """Read what `Ledger.encode` wrote."""
        own, package, native, copies = COUNTS.unpack_from(content)
        text = content[COUNTS.size :].rstrip(b"\0").decode("ascii", errors="replace")
        return cls(own=own, package=package, native=native, copies=copies, names=text)


def preload() -> None:
    """Take the costs of a first audit, a second of imports, where workers are forked from."""
    import torch

    sight = _Sight()
    with warnings.catch_warnings(action="ignore"), sight.everywhere(), sight.here():
        torch.empty(1)


def ablated(path: Path) -> tuple[Run, Prepare]:
    """Load a candidate whose own launches do nothing."""
    module = load_module(path)

    def launch(kernel: Any, grid: Any, proceed: Callable[[], None]) -> None:
        if not _owns(path, kernel):
            proceed()

    def run(**arguments: Any) -> None:
        with _launching(launch):
            module.run(**arguments)

    return run, getattr(module, "prepare", None)


def denied(path: Path) -> tuple[Run, Prepare]:
    """Load a candidate whose calls of native operators fail; `REPORT` tells of them."""
    module = load_module(path)
    sight = _Sight()

    def run(**arguments: Any) -> None:
        report = arguments.pop(REPORT)
        ledger = sight.ledger = Ledger()

        def launch(kernel: Any, grid: Any, proceed: Callable[[], None]) -> None:
            ledger.launches["own" if _owns(path, kernel) else "package"] += 1
            ledger.launching = True  # the interpreter hands its arguments over by copies
            proceed()
            ledger.launching = False

        try:
            with _launching(launch), sight.everywhere(), sight.here():
                module.run(**arguments)
        except Exception:
            if not ledger.native:  # otherwise the verdict is known, whatever became of the call
                raise
        write_bytes(report, ledger.encode())

    return run, getattr(module, "prepare", None)


@contextmanager
def _launching(launch: Callable[..., None]) -> Iterator[None]:
    """Let `launch` decide on every launch made inside."""
    from atrex.backends.triton_interpreter import on_launch

    on_launch(launch)
    try:
        yield
    finally:
        on_launch(None)


def _owns(path: Path, kernel: Any) -> bool:
    return bool(kernel.fn.__code__.co_filename == str(path))


class _Sight:
    """Sees the operators that are called, and refuses those that compute.

    Attributes:
        ledger: Of the call in hand.
    """

    def __init__(self) -> None:
        self.ledger = Ledger()

    def here(self) -> Any:
        """Return a dispatch mode that sees every operator of this thread."""
        from torch.utils import _python_dispatch

        sight = self
        mode: Any = _python_dispatch.TorchDispatchMode

        class Watch(mode):  # type: ignore[misc]
            def __torch_dispatch__(
                self, function: Any, types: Any, arguments: Any = (), keywords: Any = None
            ) -> Any:
                keywords = keywords or {}
                if function._can_decompose():  # arrives whole in inference mode only
                    with self:
                        return function.decompose(*arguments, **keywords)
                sight.enter(function.name().partition(".")[0], arguments, keywords)
                return function(*arguments, **keywords)

        return Watch()

    @contextmanager
    def everywhere(self) -> Iterator[None]:
        """Put kernels in the place of torch's own, which see the operators of all threads."""
        import torch

        library: Any = torch.library.Library
        libraries: dict[str, Any] = {}
        for name, key in _kernels():
            namespace, _, operator = name.partition("::")
            if namespace not in libraries:
                libraries[namespace] = library(namespace, "IMPL")
            libraries[namespace].impl(
                operator, self._stand_in(name), key, with_keyset=True, allow_override=True
            )
        try:
            yield
        finally:
            for replaced in libraries.values():
                replaced._destroy()

    def _stand_in(self, name: str) -> Callable[..., Any]:
        def refuse(keys: Any, *arguments: Any, **keywords: Any) -> Any:
            self.enter(name.partition(".")[0], arguments, keywords)

        return refuse

    def enter(self, name: str, arguments: Any, keywords: Any) -> None:
        """Note one call of an operator.

        Raises:
            Denied: It computes.
        """
        if name in FREE:
            return
        if name in COPIES and not _converts(name, arguments, keywords):
            self.ledger.copies += not self.ledger.launching
            return
        self.ledger.native[name] += 1
        raise Denied(f"{name} computes outside the candidate's kernels")


@cache
def _kernels() -> tuple[tuple[str, str], ...]:
    """Return the operators that compute and are built for a CPU, each with its dispatch key."""
    import torch

    return tuple(
        (name, key)
        for name in torch._C._dispatch_get_all_op_names()
        if name.partition(".")[0] not in FREE | COPIES
        for key in KEYS
        if torch._C._dispatch_has_kernel_for_dispatch_key(name, key)
    )


def _converts(name: str, arguments: Any, keywords: Any) -> bool:
    """Whether a copy changes the numbers' type, or spreads one over many."""
    if name == "aten::copy_":
        to, source = arguments[:2]
        return bool(to.dtype != source.dtype or to.numel() != source.numel())
    return keywords.get("dtype") not in (None, arguments[0].dtype)
