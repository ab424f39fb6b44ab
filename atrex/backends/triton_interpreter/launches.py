"""Launches in Triton's interpreter: one observer sees them, and tuning takes no clock.

Every launch ends in the plain kernel's `run`, whatever decorators stand above it, so that one place
sees them all.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from operator import index
from typing import Any

Grid = tuple[int, int, int]
# Called with the kernel (its Python function is `.fn`), the programs per dimension, and a function
# that performs the launch, which the callback may leave uncalled.
Callback = Callable[[Any, Grid, Callable[[], None]], None]

LOG = logging.getLogger(__name__)


class _Observer:
    """Whom to tell of launches, and what tuned kernels ran with."""

    callback: Callback | None = None
    configurations: dict[str, str]


_OBSERVER = _Observer()
_OBSERVER.configurations = {}


def on_launch(callback: Callback | None) -> None:
    """Hand every launch to `callback` from now on, in place of the one before; None: to nobody."""
    _OBSERVER.callback = callback


def chosen_configurations() -> Mapping[str, str]:
    """Return what each autotuned kernel ran with last, by the name of its function."""
    return dict(_OBSERVER.configurations)


def watch() -> None:
    """Let launches of interpreted kernels pass through this module."""
    import numpy as np
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.interpreter import (
        InterpretedFunction,
    )

    run, tune = InterpretedFunction.run, Autotuner.run

    def observed(kernel: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        if warmup:  # compiles only
            return
        programs = _programs(kernel, grid, args, keywords)

        def launch() -> None:
            with np.errstate(all="ignore"):  # a device divides by zero in silence
                run(kernel, *args, grid=programs, warmup=False, **keywords)

        if _OBSERVER.callback is None:
            launch()
        else:
            _OBSERVER.callback(kernel, programs, launch)

    def tuned(tuner: Any, *args: Any, **keywords: Any) -> None:
        tune(tuner, *args, **keywords)
        name, configuration = tuner.base_fn.__qualname__, str(tuner.best_config)
        LOG.info("%s runs with %s, untimed", name, configuration)
        _OBSERVER.configurations[name] = configuration

    InterpretedFunction.run = observed
    Autotuner.run = tuned
    # Equal times: of the configurations that pruning leaves, the first is taken, and none is timed.
    Autotuner._bench = lambda *_, **__: [0.0, 0.0, 0.0]


def _programs(kernel: Any, grid: Any, args: tuple[Any, ...], keywords: dict[str, Any]) -> Grid:
    """Return a grid's size; a function gets the arguments as a compiled launch passes them."""
    if callable(grid):
        defaults = {
            name: parameter.default
            for name, parameter in inspect.signature(kernel.fn).parameters.items()
            if parameter.default is not parameter.empty
        }
        grid = grid(defaults | dict(zip(kernel.arg_names, args, strict=False)) | keywords)
    x, y, z = (*map(index, grid), 1, 1, 1)[:3]
    return x, y, z
