"""Write the events of a kineto trace anew, from what is allowed alone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

from atrex.trace.events import Malformed, decode_list, nanoseconds
from atrex.trace.neutral import OTHER, clean_annotation, clean_name, is_known

NOTHING = Raw(b"")
FIRST_PROCESS = 1000  # processes are numbered from here, above the devices
CACHED = 1 << 16  # distinct values; serving repeats itself

# categories of any vintage, in small letters, to what is written
CATEGORIES: Mapping[str, str] = {
    "kernel": "kernel",
    "gpu_memcpy": "gpu_memcpy", "memcpy": "gpu_memcpy",
    "gpu_memset": "gpu_memset", "memset": "gpu_memset",
    "cuda_runtime": "cuda_runtime", "runtime": "cuda_runtime",
    "cuda_driver": "cuda_driver",
    "cpu_op": "cpu_op", "operator": "cpu_op",
    "user_annotation": "user_annotation",
}  # fmt: skip
ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


class _Event(msgspec.Struct, gc=False):
    """Any event, its values still as text."""

    cat: Raw = NOTHING
    ph: Raw = NOTHING
    name: str = ""
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: Raw = NOTHING


class _Nameless(msgspec.Struct, gc=False):
    """An event whose name is no text."""

    cat: Raw = NOTHING
    ph: Raw = NOTHING


_DECODE_EVENTS = msgspec.json.Decoder(list[_Event])
_DECODE_EVENT = msgspec.json.Decoder(_Event)
_DECODE_NAMELESS = msgspec.json.Decoder(_Nameless)
_DECODE_ARGUMENTS = msgspec.json.Decoder(dict[str, Raw])
_DECODE_INTEGER = msgspec.json.Decoder(int | None, strict=False)


def decode_all(text: bytes) -> list[Any]:
    """Decode a JSON array of events of any category.

    Raises:
        Malformed: The text is no JSON array.
    """
    return decode_list(text, _DECODE_EVENTS, decode_any)


def decode_any(text: bytes | Raw) -> Any:
    """Decode one event of any category.

    Raises:
        Malformed: The text is no JSON value.
    """
    for decoder in (_DECODE_EVENT, _DECODE_NAMELESS):
        try:
            return decoder.decode(text)
        except msgspec.ValidationError:
            continue
        except (msgspec.DecodeError, RecursionError) as error:
            raise Malformed(error) from error
    return _Nameless()


class _Unusable(ValueError):
    """A value that has to be a number and is none."""


class Rewriter:
    """Writes events anew and counts what it leaves out.

    Attributes:
        read: Events read.
        written: Events written, by category.
        removed: Events left out, by category.
        arguments: Arguments of written events left out, by name.
        replaced: Texts replaced, by kind.
        lost: Events that could not be used, by reason.
    """

    def __init__(self) -> None:
        self.read = 0
        self.written: Counter[str] = Counter()
        self.removed: Counter[str] = Counter()
        self.arguments: Counter[str] = Counter()
        self.replaced: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        self._categories: dict[bytes, str] = {}
        self._annotations: dict[str, str] = {}
        self._places = _Places()

    def events(self, events: Sequence[_Event | _Nameless]) -> Iterator[bytes]:
        """Yield the text of every event that is kept."""
        self.read += len(events)
        for event in events:
            category = self._category(event)
            if category not in WRITTEN:
                self.removed[category] += 1
                continue
            try:
                if isinstance(event, _Nameless):
                    raise _Unusable
                text = self._text(event, category)
            except _Unusable:
                self.lost[f"{category} with unusable values"] += 1
            except ValueError:
                self.lost[f"{category} without valid time"] += 1
            else:
                self.written[category] += 1
                yield text

    def rows(self) -> Iterator[bytes]:
        """Yield the events that name the rows a viewer shows."""
        yield from self._places.names()

    def _category(self, event: _Event | _Nameless) -> str:
        key = bytes(event.cat)
        found = self._categories.get(key)
        if found is None:
            text = _plain(event.cat)
            found = self._categories[key] = CATEGORIES.get(text.lower(), text)
        if not found:
            return "metadata" if bytes(event.ph) == b'"M"' else "no category"
        return found

    def _text(self, event: _Event, category: str) -> bytes:
        start = nanoseconds(event.ts)
        duration = _duration(event, category, start)
        arguments = self._arguments(event, category)
        if category in ON_DEVICE:
            stream = arguments.get("stream", b"null")
            pid, tid = self._places.on_device(event.pid, event.tid if stream == b"null" else stream)
        else:
            pid, tid = self._places.on_thread(event.pid, event.tid)
        args = b", ".join(b"%b: %b" % (_json(name), text) for name, text in arguments.items())
        return (
            b'{"ph": "X", "cat": "%b", "name": %b, "pid": %b, "tid": %b, "ts": %b, "dur": %b%b}'
            % (
                category.encode(),
                self._name(event.name, category),
                pid,
                tid,
                _microseconds(start),
                _microseconds(duration),
                b', "args": {%b}' % args if args else b"",
            )
        )

    def _name(self, name: str, category: str) -> bytes:
        if category == "user_annotation":
            kept = clean_annotation(name)
            if kept is None:
                kept = self._annotations.setdefault(
                    name, f"annotation {len(self._annotations) + 1}"
                )
            if kept != name:
                self.replaced["annotation"] += 1
            return _json(kept)
        return self._count(_clean_name(name))

    def _arguments(self, event: _Event, category: str) -> dict[str, bytes]:
        if not event.args or bytes(event.args) == b"null":
            return {}
        try:
            given = _DECODE_ARGUMENTS.decode(event.args)
        except msgspec.DecodeError as error:
            raise _Unusable from error
        allowed = ARGUMENTS[category]
        kept = {}
        for name, raw in given.items():
            if name in allowed:
                kept[name] = self._count(allowed[name](bytes(raw)))
            else:
                self.arguments[name] += 1
        return kept

    def _count(self, cleaned: tuple[bytes, tuple[str, ...]]) -> bytes:
        text, kinds = cleaned
        if kinds:
            self.replaced.update(kinds)
        return text


class _Places:
    """Numbers processes and threads in the order of their appearance; devices keep their numbers.

    A rank that a merger wrote in front of a process stays there, as a number.
    """

    def __init__(self) -> None:
        self._ranks: dict[str, int] = {}
        self._processes: dict[tuple[bool, str], bytes] = {}
        self._threads: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}
        self._streams: dict[tuple[bytes, bytes], tuple[bytes, bytes]] = {}

    def on_device(self, pid: Raw, stream: bytes | Raw) -> tuple[bytes, bytes]:
        """Return the process and thread of a kernel or copy: its device and stream."""
        key = bytes(pid), bytes(stream)
        found = self._streams.get(key)
        if found is None:
            number = re.search(rb"\d{1,18}", key[1])  # the oldest traces say "stream 7"
            row = number[0] if number else b"0"
            found = self._streams[key] = self._process(pid, on_device=True), row
        return found

    def on_thread(self, pid: Raw, tid: Raw) -> tuple[bytes, bytes]:
        """Return the process and thread of what ran on the CPU."""
        key = bytes(pid), bytes(tid)
        found = self._threads.get(key)
        if found is None:
            thread = b"%d" % (len(self._threads) + 1)
            found = self._threads[key] = self._process(pid, on_device=False), thread
        return found

    def _process(self, pid: Raw, *, on_device: bool) -> bytes:
        text = _plain(pid)
        key = on_device, text
        if key not in self._processes:
            merged = re.fullmatch(r"(\[.*\])(.*)", text, re.DOTALL)
            rank, own = merged.groups() if merged else ("", text)
            own = own.strip()
            if not (on_device and own.isascii() and own.isdigit() and int(own) < FIRST_PROCESS):
                own = str(FIRST_PROCESS + len(self._processes))
            if merged:
                own = f'"[{self._ranks.setdefault(rank, len(self._ranks))}] {own}"'
            self._processes[key] = own.encode()
        return self._processes[key]

    def names(self) -> Iterator[bytes]:
        """Yield events that name the processes and threads."""
        for number, ((on_device, _), pid) in enumerate(self._processes.items()):
            label = pid.decode().strip('"')
            name = f"GPU {label}" if on_device else f"process {number}"
            yield _metadata("process_name", pid, b"0", name)
        for kind, places in (("stream", self._streams), ("thread", self._threads)):
            for pid, tid in dict.fromkeys(places.values()):
                yield _metadata("thread_name", pid, tid, f"{kind} {tid.decode()}")


def _metadata(kind: str, pid: bytes, tid: bytes, name: str) -> bytes:
    return b'{"ph": "M", "name": "%b", "pid": %b, "tid": %b, "args": {"name": %b}}' % (
        kind.encode(), pid, tid, _json(name)
    )  # fmt: skip


def _duration(event: _Event, category: str, start: int) -> int:
    """Return an event's duration in ns; ValueError where a trace's reader would refuse it."""
    if not event.dur and category.startswith("cuda"):
        return 0
    duration = nanoseconds(event.dur)
    if category in ON_DEVICE and (duration < 0 or start == duration == 0):
        raise ValueError(f"no time: {event.ts!r}, {event.dur!r}")
    return duration


def _microseconds(ns: int) -> bytes:
    """Write ns as microseconds; a float would lose digits."""
    whole, rest = divmod(abs(ns), 1000)
    return b"%b%d.%03d" % (b"-" if ns < 0 else b"", whole, rest)


def _plain(raw: Raw) -> str:
    """Return a JSON string's text, and any other value as it is written."""
    text = bytes(raw).decode(errors="replace")
    try:
        return str(msgspec.json.decode(text)) if text.startswith('"') else text
    except msgspec.DecodeError:
        return text


def _json(value: Any) -> bytes:
    return msgspec.json.encode(value)


@lru_cache(CACHED)
def _clean_name(name: str) -> tuple[bytes, tuple[str, ...]]:
    cleaned, kinds = clean_name(name)
    return _json(cleaned), kinds


@lru_cache(CACHED)
def _clean_kernel(raw: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Clean the name of the kernel that a launch names."""
    try:
        return _clean_name(msgspec.json.decode(raw.decode(errors="replace"), type=str))
    except msgspec.DecodeError as error:
        raise _Unusable from error


@lru_cache(CACHED)
def _clean_values(raw: bytes) -> tuple[bytes, tuple[str, ...]]:
    """Replace what is neither a number nor a known word; as recorded if nothing is."""
    try:
        value = msgspec.json.decode(raw.decode(errors="replace"))
    except (msgspec.DecodeError, RecursionError):
        return _json(None), ("value",)
    kinds: list[str] = []
    cleaned = _known(value, kinds)
    return (_json(cleaned) if kinds else raw), tuple(kinds)


def _known(value: Any, kinds: list[str]) -> Any:
    if isinstance(value, list):
        return [_known(each, kinds) for each in value]
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if isinstance(value, str) and is_known(value):
        return value
    kinds.append("value")
    return OTHER


def _integer(raw: bytes) -> tuple[bytes, tuple[str, ...]]:
    try:
        return _json(_DECODE_INTEGER.decode(raw)), ()
    except msgspec.DecodeError as error:
        raise _Unusable from error


# what is written of the arguments of each category, and how
Cleaner = Callable[[bytes], tuple[bytes, tuple[str, ...]]]
_LAUNCH: dict[str, Cleaner] = {
    "correlation": _integer, "kernel": _clean_kernel, "grid": _clean_values, "block": _clean_values,
}  # fmt: skip
_WORK: dict[str, Cleaner] = {
    **dict.fromkeys(("correlation", "device", "stream", "graph node id"), _integer),
    **dict.fromkeys(
        ("grid", "block", "shared memory", "graph id", "bytes", "Collective name", "dtype",
         "In msg nelems", "Out msg nelems", "Group size"),
        _clean_values,
    ),
}  # fmt: skip
_OPERATOR: dict[str, Cleaner] = dict.fromkeys(
    ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"), _clean_values
)
ARGUMENTS: Mapping[str, Mapping[str, Cleaner]] = {
    **dict.fromkeys(ON_DEVICE, _WORK),
    "cuda_runtime": _LAUNCH,
    "cuda_driver": _LAUNCH,
    "cpu_op": _OPERATOR,
    "user_annotation": {},
}
WRITTEN = frozenset(CATEGORIES.values())
