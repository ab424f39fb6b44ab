"""Cut a stream of JSON text into windows of whole events and decode each window.

Only one window is in memory. A cut is a guess, the text between two events; a decode that
succeeds confirms it, since a cut inside a string or a nested object leaves broken JSON. A window
that is malformed is taken apart event by event: an event is mended where the defect is a known
one, and otherwise skipped and counted. The slow path costs only the bad window.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from atrex.errors import DataError, NotATrace
from atrex.trace.events import Malformed, decode_event, decode_events, nanoseconds
from atrex.trace.source import Source

WINDOW_BYTES = 1 << 17  # a few of them fit a second-level cache; results do not depend on it
HEAD_BYTES = 64 << 20  # a trace whose events start later than this is taken for something else
TAIL_BYTES = 4 << 20  # keys after the events; the largest seen is 1 KiB
EVENT_BYTES = 64 << 20  # text without a border between two events that is given up
CUTS = 8  # guesses before a window, or an event, counts as malformed

ARRAY_START = re.compile(rb'"traceEvents"\s*:\s*\[')
BORDER = re.compile(rb'\}\s*(?:,\s*)?(?=\{\s*"[^"\\\x00-\x1f]{1,40}"\s*:)')
EVENT_START = re.compile(rb'\{\s*"')
ARRAY_END = re.compile(rb'\]\s*(?:\}|,\s*"|\0|\Z)')
BETWEEN = re.compile(rb"[,\s]*")
KERNEL = re.compile(rb'"cat"\s*:\s*"kernel"', re.IGNORECASE)
KERNEL_BYTES = 64  # no more of a piece is needed to see a kernel that begins in it
DURATION = re.compile(rb'"dur"\s*:\s*"?(\d+(?:\.\d+)?)')
ESCAPE = re.compile(
    rb'\\(?:["\\/bfnrt]|u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}'
    rb"|u(?![dD][89a-fA-F])[0-9a-fA-F]{4})|\\"
)
STRING = rb'"(?:[^"\\]|\\.)*"'
NOT_A_NUMBER = re.compile(
    STRING + rb"|(?<=[:\[,\s])(?:[-+]?(?:inf|infinity|nan)|N/A)(?=\s*[,}\]])",
    re.IGNORECASE | re.DOTALL,
)
CONTROL = re.compile(rb"[\x00-\x1f]")
STRINGS = re.compile(STRING, re.DOTALL)
BROKEN_KEY = re.compile(rb'([{,]\s*)([A-Za-z_][\w ]*"\s*:)')  # tid": 0
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"


class Windows:
    """The events of a trace, window by window.

    Attributes:
        head: Text before the array of events, b"" for a bare array.
        tail: Text after it.
        truncated: Whether the text ended before the array did.
        skipped: Events left out, by reason.
        repaired: Events mended, by kind.
        first: Offset of the first defect of each kind, left out or mended, in plain bytes.
        lost_ns: Kernel time of the kernels among the events left out, as far as it can be read.
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
        self.first: dict[str, int] = {}
        self.lost_ns = 0
        self._many = many
        self._one = one
        self._source = source
        self._window_bytes = window_bytes
        self._ended = False
        self._offset = 0  # of the buffer, in plain bytes

    def __iter__(self) -> Iterator[list[Any]]:
        """Yield lists of decoded events.

        Raises:
            DataError: The text is no kineto trace.
        """
        pieces = self._source.pieces()
        buffer = self._find_array(pieces)
        read, size, wanted = [buffer], len(buffer), self._window_bytes
        for piece in pieces:
            read.append(piece)
            size += len(piece)
            if size < wanted:
                continue
            buffer = b"".join(read)
            while len(buffer) >= self._window_bytes and not self._ended:
                events, used = self._front(buffer)
                if not used:
                    break
                yield events
                buffer, self._offset = buffer[used:], self._offset + used
            if self._ended:
                self._after(buffer, pieces)
                return
            if len(buffer) > EVENT_BYTES:
                self._skip(buffer, 0)
                buffer, self._offset = b"", self._offset + len(buffer)
            # an event larger than the window: read on, and less and less often
            wanted = 2 * len(buffer) if len(buffer) >= self._window_bytes else self._window_bytes
            read, size = [buffer], len(buffer)
        buffer = b"".join(read)
        events, used = self._last(buffer)
        yield events
        self._offset += used
        self._after(buffer[used:], pieces)

    def _find_array(self, pieces: Iterator[bytes]) -> bytes:
        """Read up to the array of events; return what was read of it."""
        text = bytearray()
        marked = 0
        for piece in pieces:
            known = len(text)
            text += piece
            if not known and text.startswith(BYTE_ORDER_MARK):
                marked = len(BYTE_ORDER_MARK)
                self._repair("byte-order mark", 0)
                del text[:marked]
            start = bytes(text[:256]).lstrip(SPACE)
            if start.startswith(b"["):
                begin = text.index(b"[") + 1
            elif found := ARRAY_START.search(text, max(0, known - 256)):
                begin = found.end()
                self.head = bytes(text[: found.start()])
            elif len(text) > HEAD_BYTES or (start and not start.startswith(b"{")):
                break
            else:
                continue
            self._offset = marked + begin
            return bytes(text[begin:])
        raise refusal(bytes(text), self._source)

    def _front(self, buffer: bytes) -> tuple[list[Any], int]:
        """Decode the whole events at the front; return them and the bytes they took."""
        found = False
        for tried, (end, start) in enumerate(_cuts(buffer)):
            found = True
            text = b"".join((b"[", memoryview(buffer)[:end], b"]"))
            try:
                return self._many(text), start
            except Malformed as error:
                closed = self._close(buffer, text, error)
                if closed:
                    return closed
                if tried == CUTS or (error.at is not None and error.at < len(text) - 2):
                    break
        return self._slowly(buffer) if found else ([], 0)

    def _close(self, buffer: bytes, text: bytes, error: Malformed) -> tuple[list[Any], int] | None:
        """Decode up to the bracket that ends the array, if the error says that it was met."""
        if not error.trailing or error.at is None:
            return None
        bracket = text.rindex(b"]", 0, error.at)  # an index into "[" + buffer
        if not ARRAY_END.match(text, bracket):
            return None
        try:
            events = self._many(text[: bracket + 1])
        except Malformed:
            return None
        self._ended = True
        return events, bracket

    def _last(self, buffer: bytes) -> tuple[list[Any], int]:
        """Decode what is left when the text ends: the last events, the bracket, other keys."""
        text = b"[" + buffer
        try:
            events = self._many(text)
        except Malformed as error:
            return self._close(buffer, text, error) or self._slowly(buffer, last=True)
        self._ended = True
        return events, len(buffer)

    def _slowly(self, buffer: bytes, *, last: bool = False) -> tuple[list[Any], int]:
        """Decode event by event; mend or skip what is malformed. Return as `_front` does.

        An event counts as malformed only when no text from its start to one of the next borders
        is JSON, since a name may look like a border. Until these are read, it is left for later.
        """
        borders = [(found.start() + 1, found.end()) for found in BORDER.finditer(buffer)]
        borders.reverse()  # the next one is the last
        events: list[Any] = []
        at = 0
        while True:
            at = self._past_commas(buffer, at)
            if at == len(buffer):
                break
            if buffer[at : at + 1] == b"]":
                ending = ARRAY_END.match(buffer, at)
                if ending and not last and ending.end() == len(buffer):
                    return events, at  # what follows will tell
                if ending:
                    self._ended = True
                    return events, at
                self._repair("stray bracket", at)
                at += 1
                continue
            while borders and borders[-1][0] <= at:
                borders.pop()
            ends = [end for end, _ in borders[: -CUTS - 1 : -1]]
            if len(ends) < CUTS and not last and len(buffer) <= EVENT_BYTES:
                return events, at
            if not ends:  # the last event, which may end with the array
                ends = [end.start() for end in ARRAY_END.finditer(buffer, at)][:CUTS]
                ends.append(len(buffer))
            event, used = self._event(buffer, at, ends)
            if used:
                events.append(event)
                at += used
                continue
            if last and not borders and _is_cut(buffer[at:]):
                at = len(buffer)
                break
            start = borders[-1][1] if borders else self._resume(buffer, at)
            self._skip(buffer[at:start], at)
            at = start
        self.truncated = last and not self._ended
        return events, at

    def _past_commas(self, buffer: bytes, at: int) -> int:
        """Return where the next event, or the bracket, is; count commas that are too many."""
        between = BETWEEN.match(buffer, at)
        assert between is not None  # it matches nothing at all, too
        end = between.end()
        if between[0].count(b",") > 1 or (b"," in between[0] and buffer[end : end + 1] == b"]"):
            self._repair("stray comma", at)
        return end

    def _resume(self, buffer: bytes, at: int) -> int:
        """Return where an event may start after the one at `at`, the end of the buffer if none."""
        found = EVENT_START.search(buffer, at + 1)
        return found.start() if found else len(buffer)

    def _event(self, buffer: bytes, at: int, ends: list[int]) -> tuple[Any, int]:
        """Decode the event at `at`, mended if need be; return it and its bytes, 0 if it cannot be.

        A border may be missing, so that more follows the event before the first of its `ends`.
        """
        for end in ends:
            text = buffer[at:end]
            try:
                return self._one(text), len(text)
            except Malformed as error:
                if error.trailing and error.at is not None:
                    # `at` is behind the first byte too many
                    used = text.rfind(b"}", 0, error.at - 1) + 1
                    with suppress(Malformed):
                        return self._one(text[:used]), used
            for mended, kind in (mend(text), mend_keys(text)):
                if kind:
                    try:
                        event = self._one(mended)
                    except Malformed:
                        continue
                    self._repair(kind, at)
                    return event, len(text)
        return None, 0

    def _repair(self, kind: str, at: int) -> None:
        self.repaired[kind] += 1
        self.first.setdefault(kind, self._offset + at)

    def _skip(self, text: bytes, at: int) -> None:
        """Count text that is left out: each kernel in it, or else one event."""
        kernels = len(KERNEL.findall(text))
        kind = "malformed kernel" if kernels else "malformed event"
        self.skipped[kind] += kernels or 1
        self.first.setdefault(kind, self._offset + at)
        if kernels:
            self.lost_ns += sum(nanoseconds(found[1]) for found in DURATION.finditer(text))

    def _after(self, text: bytes, pieces: Iterator[bytes]) -> None:
        """Keep the text after the array; events there, as of a second trace, are lost."""
        kept = [text.removeprefix(b"]")] if self._ended else []
        size, carried = len(text), text
        for piece in pieces:
            if size < TAIL_BYTES:
                kept.append(piece)
            size += len(piece)
            self._lose_after(carried[:-KERNEL_BYTES], size)
            carried = carried[-KERNEL_BYTES:] + piece
        self._lose_after(carried, size)
        self.tail = b"".join(kept)

    def _lose_after(self, text: bytes, size: int) -> None:
        if KERNEL.search(text):
            self._skip(text, size - len(text))


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
    """Mend the known defects of one event's text and name the first one found, "" if none."""
    kinds = []
    try:
        text.decode()
    except UnicodeDecodeError:
        text = text.decode(errors="replace").encode()
        kinds.append("invalid UTF-8")
    mended = ESCAPE.sub(lambda found: found[0] if len(found[0]) > 1 else b"\\\\", text)
    if mended != text:
        kinds.append("lone backslash")
    numbers = NOT_A_NUMBER.sub(
        lambda found: found[0] if found[0].startswith(b'"') else b"null", mended
    )
    if numbers != mended:
        kinds.append("value that is no number")
    escaped = STRINGS.sub(
        lambda found: CONTROL.sub(lambda control: b"\\u%04x" % control[0][0], found[0]), numbers
    )
    if escaped != numbers:
        kinds.append("raw control character")
    return escaped, kinds[0] if kinds else ""


def mend_keys(text: bytes) -> tuple[bytes, str]:
    """Give keys the quote in front that they lack, and mend what else is known; as `mend`."""
    mended = BROKEN_KEY.sub(rb'\1"\2', text)
    return mend(mended)[0], "broken key" if mended != text else ""


# what else people pass by mistake: a byte pattern near the start, and what it says
FOREIGN = (
    (b"rocprofiler-sdk-tool", "this is rocprofv3 JSON", "This version reads kineto JSON only."),
    (b"SQLite format 3", "this is a SQLite database (Nsight Systems export?)",
     "This version reads kineto JSON only."),
    (b'"nodes"', "this is a PyTorch execution graph, not a profiler trace",
     "Export the profiler's trace instead: torch.profiler.profile(...).export_chrome_trace(path)."),
)  # fmt: skip
TABLE = re.compile(rb'[^{}\[\]\r\n]*\w"?,"?\w[^{}\[\]\r\n]*\r?\n')  # a line of names and commas


def refusal(text: bytes, source: Source) -> DataError:
    """Say what a file without trace events is, as far as its beginning tells."""
    for pattern, what, remedy in FOREIGN:
        if pattern in text[:1_000_000]:
            return NotATrace(what, where=source.path.name, remedy=remedy)
    if source.truncated or source.damage:
        what = source.damage or "the file ends before the first event"
        return DataError(what, where=source.path.name, remedy="Copy or record the trace again.")
    if text.lstrip(SPACE).startswith(b"{"):
        kind = "JSON without traceEvents"
    else:
        kind = "a table of comma-separated values" if TABLE.match(text) else "no JSON"
    return NotATrace(
        f"not a profiler trace: {kind}",
        where=source.path.name,
        remedy="Pass the .json or .json.gz that torch.profiler's export_chrome_trace wrote.",
    )
