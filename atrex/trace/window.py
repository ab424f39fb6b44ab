"""Cut a stream of JSON text into windows of whole events and decode each window.

Only one window is in memory. A cut is a guess, the text between two events; a decode that
succeeds confirms it, since a cut inside a string or a nested object leaves broken JSON. A window
that is malformed is taken apart event by event, mended where the defect is a known one, and
otherwise the event is skipped and counted: the slow path costs only the bad window.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from atrex.errors import DataError
from atrex.trace.events import Malformed, decode_event, decode_events
from atrex.trace.source import Source

WINDOW_BYTES = 1 << 17  # a few of them fit a second-level cache; results do not depend on it
HEAD_BYTES = 64 << 20  # a trace whose events start later than this is taken for something else
TAIL_BYTES = 4 << 20  # keys after the events; the largest seen is 1 KiB
CUTS = 8  # guesses before a window counts as malformed

ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
EVENT_START = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|s|bp)"\s*:)')
ESCAPE = re.compile(rb'\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4})|\\')
NOT_A_NUMBER = re.compile(rb"(:\s*)(?:[-+]?(?:inf|infinity|nan)|N/A)(?=\s*[,}\]])", re.IGNORECASE)
CONTROL = re.compile(rb"[\x00-\x1f]")
STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
SPACE = b" \t\r\n"


class Windows:
    """The events of a trace, window by window.

    Attributes:
        head: Text before the array of events, b"" for a bare array.
        tail: Text after it.
        truncated: Whether the text ended before the array did.
        skipped: Events left out, by reason.
        repaired: Events mended, by kind.
        first_skipped: Offset of the first event left out, in plain bytes; None if none was.
    """

    def __init__(
        self,
        source: Source,
        window_bytes: int = WINDOW_BYTES,
        *,
        many: Callable[[bytes], list[Any]] = decode_events,
        one: Callable[[bytes], Any] = decode_event,
    ) -> None:
        """Decode arrays with `many` and single events with `one`; both raise `Malformed`."""
        self.head = b""
        self.tail = b""
        self.truncated = False
        self.skipped: Counter[str] = Counter()
        self.repaired: Counter[str] = Counter()
        self.first_skipped: int | None = None
        self._many = many
        self._one_event = one
        self._source = source
        self._window_bytes = window_bytes
        self._ended = False
        self._offset = 0

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield lists of decoded events.

        Raises:
            DataError: The text is no kineto trace.
        """
        pieces = self._source.pieces()
        buffer = self._find_array(pieces)
        for piece in pieces:
            buffer += piece
            while len(buffer) >= self._window_bytes and not self._ended:
                events, used = self._front(buffer)
                if not used:
                    break  # one event is larger than the window: read on
                yield events
                buffer, self._offset = buffer[used:], self._offset + used
            if self._ended:
                buffer = buffer[:TAIL_BYTES]
        if not self._ended:
            yield self._last(buffer)
        else:
            self.tail = buffer

    def _find_array(self, pieces: Iterator[bytes]) -> bytes:
        buffer = b""
        for piece in pieces:
            buffer += piece
            text = buffer.removeprefix(b"\xef\xbb\xbf").lstrip(SPACE)
            if text.startswith(b"["):
                self._offset = len(buffer) - len(text) + 1
                return text[1:]
            found = ARRAY_START.search(text)
            if found:
                self.head = text[: found.start()]
                self._offset = len(buffer) - len(text) + found.end()
                return text[found.end() :]
            if len(buffer) > HEAD_BYTES or (text and not text.startswith(b"{")):
                break
        raise refusal(buffer, self._source)

    def _front(self, buffer: bytes) -> tuple[list[Any], int]:
        """Decode the whole events at the front; return them and the bytes they took."""
        first_cut = 0
        for tried, (end, start) in enumerate(_cuts(buffer)):
            first_cut = first_cut or start
            text = b"".join((b"[", memoryview(buffer)[:end], b"]"))
            try:
                return self._many(text), start
            except Malformed as error:
                if error.trailing and error.at is not None:
                    return self._close(buffer, text.rindex(b"]", 0, error.at))
                inside = error.at is not None and error.at < len(text) - 2
                if inside or tried == CUTS:
                    break
        if not first_cut:
            return [], 0
        return self._slowly(buffer[:first_cut]), first_cut

    def _close(self, buffer: bytes, bracket: int) -> tuple[list[Any], int]:
        """Decode up to the bracket that ends the array (an index into "[" + buffer)."""
        self._ended = True
        return self._many(b"[" + buffer[:bracket]), bracket

    def _last(self, buffer: bytes) -> list[Any]:
        """Decode what is left when the text ends: the last events, the bracket, other keys."""
        text = b"[" + buffer
        try:
            events = self._many(text)
        except Malformed as error:
            if not (error.trailing and error.at is not None):
                return self._slowly(buffer, last=True)
            bracket = text.rindex(b"]", 0, error.at)
            events, used = self._close(buffer, bracket)
            self.tail = buffer[used:]
        self._ended = True
        return events

    def _slowly(self, buffer: bytes, *, last: bool = False) -> list[Any]:
        """Decode event by event; mend or skip what is malformed."""
        starts = [0, *(found.end() for found in EVENT_START.finditer(buffer)), len(buffer)]
        events: list[Any] = []
        for start, stop in pairwise(starts):
            text = buffer[start:stop].rstrip(b"," + SPACE)
            final = last and stop == len(buffer)
            if not text or (final and _is_cut(text)):
                continue
            event, used = self._one(text)
            rest = text[used:].lstrip(b"," + SPACE)
            if event is None:
                self._skip(text, self._offset + start)
            else:
                events.append(event)
            if rest.startswith(b"]"):
                self._ended, self.tail = True, rest[1:] + buffer[stop:]
                break
        self.truncated = last and not self._ended
        return events

    def _one(self, text: bytes) -> tuple[Any, int]:
        """Decode one event, mended if need be; return it, or None, and the bytes it took."""
        try:
            return self._one_event(text), len(text)
        except Malformed as error:
            if error.trailing and error.at is not None:
                end = text.rfind(b"}", 0, error.at) + 1
                return self._one_event(text[:end]), end
            mended, kind = mend(text)
        try:
            event = self._one_event(mended)
        except Malformed:
            return None, len(text)
        self.repaired[kind] += 1
        return event, len(text)

    def _skip(self, text: bytes, offset: int) -> None:
        kernel = re.search(rb'"cat"\s*:\s*"kernel"', text, re.IGNORECASE)
        self.skipped["malformed kernel" if kernel else "malformed event"] += 1
        if self.first_skipped is None:
            self.first_skipped = offset


def _cuts(buffer: bytes) -> Iterator[tuple[int, int]]:
    """Yield (end of an event, start of the next), last first, as the layout suggests them."""
    start = len(buffer)
    while (start := buffer.rfind(b"{", 0, start)) > 0:
        before = buffer[max(0, start - 256) : start].rstrip(SPACE)
        if before.endswith(b","):
            before = before[:-1].rstrip(SPACE)
            if before.endswith(b"}"):
                yield start - (min(start, 256) - len(before)), start


def _is_cut(text: bytes) -> bool:
    """Whether the end of the file cut an event off."""
    try:
        decode_event(text)
    except Malformed as error:
        return error.cut
    return False


def mend(text: bytes) -> tuple[bytes, str]:
    """Mend the known defects of one event's text and name the first one found."""
    kinds = []
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
        kinds.append("invalid UTF-8")
    mended = ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else b"\\\\", text)
    if mended != text:
        kinds.append("lone backslash")
    numbers = NOT_A_NUMBER.sub(rb"\1null", mended)
    if numbers != mended:
        kinds.append("value that is no number")
    escaped = STRING.sub(
        lambda found: CONTROL.sub(lambda control: b"\\u%04x" % control[0][0], found[0]), numbers
    )
    if escaped != numbers:
        kinds.append("raw control character")
    return escaped, kinds[0] if kinds else "other"


# what else people pass by mistake: a byte pattern near the start, and what it says
FOREIGN = (
    (b"rocprofiler-sdk-tool", "this is rocprofv3 JSON", "This version reads kineto JSON only."),
    (b"SQLite format 3", "this is a SQLite database (Nsight Systems export?)",
     "This version reads kineto JSON only."),
    (b'"nodes"', "this is a PyTorch execution graph, not a profiler trace",
     "Export the profiler's trace instead: torch.profiler.profile(...).export_chrome_trace(path)."),
)  # fmt: skip


def refusal(text: bytes, source: Source) -> DataError:
    """Say what a file without trace events is, as far as its beginning tells."""
    for pattern, what, remedy in FOREIGN:
        if pattern in text[:1_000_000]:
            return DataError(what, where=source.path.name, remedy=remedy)
    if source.truncated or source.damage:
        what = source.damage or "the file ends before the first event"
        return DataError(what, where=source.path.name, remedy="Copy or record the trace again.")
    kind = "JSON without traceEvents" if text.lstrip(SPACE).startswith(b"{") else "no JSON"
    return DataError(
        f"not a profiler trace: {kind}",
        where=source.path.name,
        remedy="Pass the .json or .json.gz that torch.profiler's export_chrome_trace wrote.",
    )
