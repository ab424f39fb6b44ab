"""Weigh operators by production GPU time, judge kernels on them, and keep the evidence.

The functions mirror the commands: they return records, never print and never exit. Importing the
package imports neither torch nor any heavy library.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import Any

try:
    __version__ = version("atrex")
except PackageNotFoundError:  # run from a source tree that is not installed
    __version__ = "0+source"

# The functions of atrex.api, loaded on first use. No module of the package has one of these names,
# or importing it would hide the function.
__all__ = [
    "build_shapes", "compile", "demo", "doctor", "ingest", "list_operators", "list_shapes",
    "new_operator", "peaks", "report", "sanitize", "score", "show_operator", "sql",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("atrex.api"), name)
    raise AttributeError(f"module 'atrex' has no attribute {name!r}")
