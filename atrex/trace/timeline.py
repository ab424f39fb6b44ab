"""Keep what matters of a trace as machine-typed columns, with names and dims interned.

Half a million kernels as Python tuples take a quarter of a gigabyte; as columns, a tenth of it.
Serving repeats itself, so names, dims and launch geometries are few and stored once.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from msgspec import Raw

from atrex.trace.events import (
    KIND,
    Annotation,
    Copy,
    Kernel,
    Launch,
    Op,
    Unusable,
    nanoseconds,
)

NO_LAUNCH = -1
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
class Kernels:
    """One row per valid kernel; times in ns, correlation `NO_LAUNCH` if none is recorded."""

    name: array[int] = field(default_factory=column)
    start: array[int] = field(default_factory=column)
    duration: array[int] = field(default_factory=column)
    correlation: array[int] = field(default_factory=column)
    device: array[int] = field(default_factory=column)
    stream: array[int] = field(default_factory=column)
    geometry: array[int] = field(default_factory=column)

    def __len__(self) -> int:
        return len(self.name)


@dataclass(slots=True)
class Launches:
    """One row per runtime or driver call with a correlation."""

    name: array[int] = field(default_factory=column)
    time: array[int] = field(default_factory=column)
    thread: array[int] = field(default_factory=column)
    correlation: array[int] = field(default_factory=column)


@dataclass(slots=True)
class Ranges:
    """One row per range on a thread; `what` is the number of a signature or an annotation."""

    thread: array[int] = field(default_factory=column)
    start: array[int] = field(default_factory=column)
    end: array[int] = field(default_factory=column)
    what: array[int] = field(default_factory=column)


# an operator as recorded: name, dims, types, strides, concrete inputs, the last four as JSON text
Signature = tuple[str, bytes, bytes, bytes, bytes]


class Timeline:
    """Everything kept of one trace.

    Attributes:
        events: Events read, ignored ones included.
        dropped: Events and kernels left out, by reason.
        lost_kernels: Kernels among them.
        copies: Device copies and fills; copy_ns: their time, no part of kernel time.
    """

    def __init__(self) -> None:
        self.kernels = Kernels()
        self.launches = Launches()
        self.ops = Ranges()
        self.annotations = Ranges()
        self.names: Interner[str] = Interner()
        self.signatures: Interner[Signature] = Interner()
        self.geometries: Interner[tuple[bytes, bytes]] = Interner()
        self.threads: Interner[tuple[bytes, bytes]] = Interner()
        self.events = 0
        self.dropped: Counter[str] = Counter()
        self.lost_kernels = 0
        self.copies = 0
        self.copy_ns = 0
        adders: dict[type[Any], Callable[[Any], None]] = {
            Kernel: self._kernel,
            Copy: self._copy,
            Launch: self._launch,
            Op: self._op,
            Annotation: self._annotation,
            Unusable: self._unusable,
        }
        self._add = {form: adders[kind] for form, kind in KIND.items() if kind in adders}
        self._add[Unusable] = self._unusable

    def extend(self, events: Sequence[Any]) -> None:
        """Add one window's events."""
        self.events += len(events)
        adders = self._add
        for event in [event for event in events if type(event) in adders]:  # one of ten
            adders[type(event)](event)

    def _kernel(self, event: Kernel) -> None:
        args = event.args
        try:
            start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
        except ValueError:
            start = duration = 0
        if duration < 0 or (start == 0 and duration == 0):
            self._lose("kernel without valid time")
            return
        kernels = self.kernels
        kernels.name.append(self.names.id(event.name))
        kernels.start.append(start)
        kernels.duration.append(duration)
        kernels.correlation.append(args.correlation or NO_LAUNCH)  # 0 means none
        kernels.device.append(-1 if args.device is None else args.device)
        kernels.stream.append(args.stream or 0)
        kernels.geometry.append(self.geometries.id((bytes(args.grid), bytes(args.block))))

    def _copy(self, event: Copy) -> None:
        try:
            self.copy_ns += nanoseconds(event.dur)
        except ValueError:
            self.dropped["copy without valid time"] += 1
            return
        self.copies += 1

    def _launch(self, event: Launch) -> None:
        correlation = event.args.correlation
        if not correlation:
            return
        try:
            time = nanoseconds(event.ts)
        except ValueError:
            self.dropped["launch without valid time"] += 1
            return
        launches = self.launches
        launches.name.append(self.names.id(event.name))
        launches.time.append(time)
        launches.thread.append(self._thread(event.pid, event.tid))
        launches.correlation.append(correlation)

    def _op(self, event: Op) -> None:
        args = event.args
        signature = (
            event.name,
            bytes(args.dims),
            bytes(args.types),
            bytes(args.strides),
            bytes(args.concrete),
        )
        self._range(self.ops, event, self.signatures.id(signature))

    def _annotation(self, event: Annotation) -> None:
        self._range(self.annotations, event, self.names.id(event.name))

    def _range(self, ranges: Ranges, event: Op | Annotation, what: int) -> None:
        try:
            start, duration = nanoseconds(event.ts), nanoseconds(event.dur)
        except ValueError:
            self.dropped["operator or annotation without valid time"] += 1
            return
        ranges.thread.append(self._thread(event.pid, event.tid))
        ranges.start.append(start)
        ranges.end.append(start + duration)
        ranges.what.append(what)

    def _unusable(self, event: Unusable) -> None:
        if event.kernel:
            self._lose("kernel with unusable values")
        else:
            self.dropped["event with unusable values"] += 1

    def _lose(self, reason: str) -> None:
        self.dropped[reason] += 1
        self.lost_kernels += 1

    def _thread(self, pid: Raw, tid: Raw) -> int:
        return self.threads.id((bytes(pid), bytes(tid)))
