"""What is known of a trace besides its file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from atrex.operator import Step
from atrex.trace.recording import Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What is known of a trace besides its file.

    Attributes:
        captures: Traces of the captures of its graphs.
        model: Sizes of the served model on one rank, by axis name.
        steps: Steps as the engine logged them, by number.
        notes: What lies beside the trace and could not be used, in sentences.
    """

    captures: Sequence[Recording] = ()
    model: Mapping[str, int | str] = field(default_factory=dict)
    steps: Mapping[int, Step] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


NOTHING = Context()
