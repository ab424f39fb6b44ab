"""Triton's interpreter with the numbers of compiled code, and with an eye on its launches.

As shipped (3.7 to 3.9) it truncates fp32 to bf16, computes with the bits of bf16, saturates no
8-bit float and ignores TF32, so that honest kernels fail in it and wrong ones pass. `install`
replaces those parts. What it still cannot show: races, since programs run one after another; what a
masked-off load without `other` holds, here 0; limits of shared memory and registers; fp8 dots that
accumulate in fewer bits. libdevice, inline assembly and Gluon do not run, as Triton says itself.
"""

from __future__ import annotations

import os

from atrex.backends.triton_interpreter.launches import (
    Callback,
    chosen_configurations,
    on_launch,
    watch,
)
from atrex.errors import SetupError

__all__ = ["Callback", "chosen_configurations", "install", "on_launch"]

OLDEST = (3, 7)  # older interpreters have other parts


def install() -> None:
    """Correct Triton's interpreter in this process, before any kernel runs; again is no harm.

    Raises:
        SetupError: Triton is missing, too old, or compiles in this process.
    """
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise SetupError(
            "Triton compiles in this process",
            remedy="Set TRITON_INTERPRET=1 in the environment before triton is imported.",
        )
    try:
        import triton
        from triton.runtime.interpreter import (
            InterpretedFunction,
        )
    except ImportError as error:
        raise SetupError(
            "triton cannot be imported", where=str(error), remedy="Install atrex[kernels]."
        ) from error
    if tuple(int(part) for part in triton.__version__.split(".")[:2]) < OLDEST:
        raise SetupError(
            f"the interpreter of triton {triton.__version__} is not known here",
            remedy="Install triton 3.7 or newer.",
        )
    if not isinstance(triton.language.zeros, InterpretedFunction):
        raise SetupError(
            "triton was imported before TRITON_INTERPRET was set",
            remedy="Set TRITON_INTERPRET=1 in the environment before triton is imported.",
        )
    from atrex.backends.triton_interpreter import builder

    if builder.correct():
        watch()
