"""Keep what matters of a trace as machine-typed columns, with names and dims interned.

Half a million kernels as Python tuples take a quarter of a gigabyte; as columns, a tenth of it.
Serving repeats itself, so names, dims and launch geometries are few and stored once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Generic, TypeVar

NO_LAUNCH = -1
NO_NODE = -1
Key = TypeVar("Key")


def column() -> array[int]:
    """Return an empty column of 64-bit integers."""
    return array("q")


class Interner(Generic[Key]):
    """Gives equal values the same small number."""

    def __init__(self) -> None:
        self.values: list[Key] = []
        self._ids: dict[Key, int] = {}

    def id(self, value: Key) -> int:
        """Return the number of a value, a new one the first time."""
        found = self._ids.get(value)
        if found is None:
            found = self._ids[value] = len(self.values)
            self.values.append(value)
        return found


@dataclass(slots=True)
class Work:
    """One row per piece of work on a device; times in ns, correlation `NO_LAUNCH` if none."""

    name: array[int] = field(default_factory=column)
    start: array[int] = field(default_factory=column)
    duration: array[int] = field(default_factory=column)
    correlation: array[int] = field(default_factory=column)
    device: array[int] = field(default_factory=column)
    stream: array[int] = field(default_factory=column)

    def __len__(self) -> int:
        return len(self.name)


@dataclass(slots=True)
class Kernels(Work):
    """One row per valid kernel.

    `process` tells ranks apart that share one file; `node` is the node of a graph.
    """

    geometry: array[int] = field(default_factory=column)
    process: array[int] = field(default_factory=column)
    node: array[int] = field(default_factory=column)


@dataclass(slots=True)
class Copies(Work):
    """One row per device copy or fill, which are no part of kernel time."""


@dataclass(slots=True)
class Launches:
    """One row per runtime or driver call with a correlation, or of a graph's capture.

    `kernel` is the name of the launched kernel, -1 where the profiler does not tell.
    """

    name: array[int] = field(default_factory=column)
    time: array[int] = field(default_factory=column)
    duration: array[int] = field(default_factory=column)
    thread: array[int] = field(default_factory=column)
    correlation: array[int] = field(default_factory=column)
    kernel: array[int] = field(default_factory=column)
    geometry: array[int] = field(default_factory=column)


@dataclass(slots=True)
class Ranges:
    """One row per range on a thread; `what` is the number of a signature or an annotation."""

    thread: array[int] = field(default_factory=column)
    start: array[int] = field(default_factory=column)
    end: array[int] = field(default_factory=column)
    what: array[int] = field(default_factory=column)


# an operator as recorded: name, dims, types, strides, concrete inputs, the last four as JSON text
Signature = tuple[str, bytes, bytes, bytes, bytes]
# grid, block, shared memory, as JSON text; b"" where not recorded
Geometry = tuple[bytes, bytes, bytes]


class Timeline:
    """Everything kept of one trace, whatever its format.

    Attributes:
        names: Names of kernels, launches and annotations.
        threads: (process, thread), as recorded; processes: processes of kernels.
        thread_grids: Launches whose kernels' grids count threads; all others count blocks.
        events: Events read, ignored ones included.
        dropped: Events and kernels left out, by reason.
        lost_kernels: Kernels among them; lost_ns: their time, as far as known.
    """

    def __init__(self) -> None:
        self.kernels = Kernels()
        self.copies = Copies()
        self.launches = Launches()
        self.ops = Ranges()
        self.annotations = Ranges()
        self.names: Interner[str] = Interner()
        self.signatures: Interner[Signature] = Interner()
        self.geometries: Interner[Geometry] = Interner()
        self.threads: Interner[tuple[bytes, bytes]] = Interner()
        self.processes: Interner[bytes] = Interner()
        self.thread_grids: frozenset[str] = frozenset()
        self.events = 0
        self.dropped: Counter[str] = Counter()
        self.lost_kernels = 0
        self.lost_ns = 0

    def lose(self, reason: str, kernels: int = 1, ns: int = 0) -> None:
        """Count kernels that could not be kept."""
        self.dropped[reason] += kernels
        self.lost_kernels += kernels
        self.lost_ns += ns
