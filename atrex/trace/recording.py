"""What every reader makes of a file, whatever its format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from atrex.trace.timeline import Timeline

Progress = Callable[[int], None]  # called with the bytes read since the last call


@dataclass(slots=True, kw_only=True)
class Recording:
    """A trace as its reader left it.

    Attributes:
        format: ``"kineto"``, ``"nsys"``, ``"rocprofv3"`` or ``"xplane"``.
        trace: SHA-256 of the file as stored, first 16 hex digits.
        name: File name without its folder.
        gpu: Name of the device that ran the kernels, "" if the file does not tell.
        rank: Rank of the process in its job, None if the file does not tell.
        world_size: Processes of the job, None if the file does not tell.
        captured_tokens: Padded tokens that its graphs were captured for, if an index tells.
        synthetic: Whether the times are modelled, not measured.
        truncated: Whether the input ended early.
        damaged: Whether data were lost in the file's compressed form.
        skipped: Events left out before they reached the timeline, by reason.
        repaired: Events mended, by kind.
        notes: What the reader should know, in sentences.
    """

    format: str
    trace: str
    name: str
    timeline: Timeline = field(default_factory=Timeline)
    gpu: str = ""
    rank: int | None = None
    world_size: int | None = None
    captured_tokens: int | None = None
    synthetic: bool = False
    truncated: bool = False
    damaged: bool = False
    skipped: Counter[str] = field(default_factory=Counter)
    repaired: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    @property
    def dropped(self) -> Counter[str]:
        """Everything left out, by reason."""
        return self.skipped + self.timeline.dropped

    @property
    def lossless(self) -> bool:
        """Whether every kernel of the recording was read."""
        lost = self.timeline.lost_kernels + self.skipped["malformed kernel"]
        return not (self.truncated or self.damaged or lost)
