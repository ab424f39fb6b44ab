"""The kineto events that matter, as typed structs, and how their JSON text is decoded.

The category is the tag of a union, so the decoder skips an event that does not matter (nine of
ten are Python frames) without making anything of it. Times stay text until they are integers:
a double holds no nanosecond of an absolute time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Union

import msgspec
from msgspec import Raw

NOTHING = Raw(b"")
LATEST_NS = 1 << 62  # a column holds the sum of two of them; since 1970, until 2116
LONGEST_NS = 1 << 50  # thirteen days: no kernel, and thousands of them still add up in 64 bits
DIGITS = 20  # of whole microseconds; a decimal of more is not even made an integer


class KernelArgs(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={"shared_memory": "shared memory", "graph_node": "graph node id"},
):
    """What a kernel or copy says about its launch and place."""

    correlation: int | None = None
    device: int | None = None
    stream: int | None = None
    grid: Raw = NOTHING
    block: Raw = NOTHING
    shared_memory: Raw = NOTHING
    graph_node: int | None = None


class LaunchArgs(msgspec.Struct, frozen=True, gc=False):
    """What a runtime or driver call says about the work it launched; only ROCm names the kernel."""

    correlation: int | None = None
    kernel: str = ""
    grid: Raw = NOTHING
    block: Raw = NOTHING


class OpArgs(
    msgspec.Struct,
    frozen=True,
    gc=False,
    rename={
        "dims": "Input Dims",
        "types": "Input type",
        "strides": "Input Strides",
        "concrete": "Concrete Inputs",
    },
):
    """What a CPU operator says about its inputs, still as JSON text."""

    dims: Raw = NOTHING
    types: Raw = NOTHING
    strides: Raw = NOTHING
    concrete: Raw = NOTHING


class Kernel(msgspec.Struct, gc=False):
    """A device kernel."""

    name: str = ""
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: KernelArgs = KernelArgs()


class Copy(msgspec.Struct, gc=False):
    """A device copy or fill."""

    name: str = ""
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: KernelArgs = KernelArgs()


class Launch(msgspec.Struct, gc=False):
    """A runtime or driver call."""

    name: str = ""
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: LaunchArgs = LaunchArgs()


class Op(msgspec.Struct, gc=False):
    """A CPU operator."""

    name: str = ""
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING
    args: OpArgs = OpArgs()


class Annotation(msgspec.Struct, gc=False):
    """A range that the program named."""

    name: str = ""
    pid: Raw = NOTHING
    tid: Raw = NOTHING
    ts: Raw = NOTHING
    dur: Raw = NOTHING


class Ignored(msgspec.Struct, gc=False):
    """An event that carries nothing we use."""


class Unusable(msgspec.Struct, gc=False):
    """An event of a category that matters, with a value that cannot be used."""

    kernel: bool
    dur: Raw = NOTHING


# Spellings of 2020-22 (Kernel, Runtime, ...) beside today's; compared without case where unknown.
CATEGORIES: dict[str, type[Any]] = {
    "kernel": Kernel,
    "Kernel": Kernel,
    "gpu_memcpy": Copy,
    "gpu_memset": Copy,
    "Memcpy": Copy,
    "Memset": Copy,
    "cuda_runtime": Launch,
    "cuda_driver": Launch,
    "Runtime": Launch,
    "cpu_op": Op,
    "Operator": Op,
    "user_annotation": Annotation,
    "python_function": Ignored,
    "ac2g": Ignored,
    "async_gpu": Ignored,
    "async_cpu_to_gpu": Ignored,
    "fwdbwd": Ignored,
    "gpu_user_annotation": Ignored,
    "overhead": Ignored,
    "cuda_sync": Ignored,
    "cuda_event": Ignored,
    "Trace": Ignored,
    "cpu_instant_event": Ignored,
    "cuda_profiler_range": Ignored,
    "mtia_runtime": Ignored,
    "mtia_ccp_events": Ignored,
    "mtia_workloadd": Ignored,
}
BY_LOWER_CASE = {name.lower(): kind for name, kind in CATEGORIES.items()}
TAGGED = {
    name: msgspec.defstruct(
        f"{kind.__name__}_{name}", [], bases=(kind,), tag=name, tag_field="cat", gc=False
    )
    for name, kind in CATEGORIES.items()
}
KIND = {tagged: CATEGORIES[name] for name, tagged in TAGGED.items()}
KIND |= {kind: kind for kind in CATEGORIES.values()}

_tagged: Any = Union[tuple(TAGGED.values())]  # noqa: UP007 (the members are data)
_DECODE_MANY = msgspec.json.Decoder(list[_tagged])
_DECODE_TEXTS = msgspec.json.Decoder(list[Raw])


class _Category(msgspec.Struct, gc=False):
    cat: str | None = None


class _Duration(msgspec.Struct, gc=False):
    dur: Raw = NOTHING


_DECODE_CATEGORY = msgspec.json.Decoder(_Category)
_DECODE_DURATION = msgspec.json.Decoder(_Duration)
_LOOSE = {kind: msgspec.json.Decoder(kind, strict=False) for kind in set(CATEGORIES.values())}


class Malformed(ValueError):
    """Text that is no JSON value.

    Attributes:
        at: Byte at which the decoder gave up, None if it does not say.
        trailing: Whether a complete value was followed by something else.
        cut: Whether the text ended inside a value.
    """

    def __init__(self, error: msgspec.DecodeError | RecursionError) -> None:
        super().__init__(str(error))
        found = re.search(r"\(byte (\d+)\)$", str(error))
        self.at = int(found[1]) if found else None
        self.cut = "truncated" in str(error)
        self.trailing = "trailing characters" in str(error)


def decode_events(text: bytes) -> list[Any]:
    """Decode a JSON array of events.

    Raises:
        Malformed: The text is no JSON array.
    """
    return decode_list(text, _DECODE_MANY, decode_event)


def decode_list(
    text: bytes, many: msgspec.json.Decoder[Any], one: Callable[[bytes | Raw], Any]
) -> list[Any]:
    """Decode a JSON array by `many`; element by element where it meets what it does not know.

    Raises:
        Malformed: The text is no JSON array.
    """
    try:
        try:
            events: list[Any] = many.decode(text)
        except msgspec.ValidationError:
            events = [one(raw) for raw in _DECODE_TEXTS.decode(text)]
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(error) from error
    return events


def decode_event(text: bytes | Raw) -> Any:
    """Decode one event of any category, loosely: "7" is 7.

    Raises:
        Malformed: The text is no JSON value.
    """
    kind: type[Any] = Ignored
    try:
        kind = BY_LOWER_CASE.get((_DECODE_CATEGORY.decode(text).cat or "").lower(), Ignored)
        return _LOOSE[kind].decode(text)
    except msgspec.ValidationError:
        return _unusable(text, kind)
    except (msgspec.DecodeError, RecursionError) as error:
        raise Malformed(error) from error


def _unusable(text: bytes | Raw, kind: type[Any]) -> Unusable:
    try:
        return Unusable(kernel=kind is Kernel, dur=_DECODE_DURATION.decode(text).dur)
    except msgspec.ValidationError:  # no object
        return Unusable(kernel=False)


def nanoseconds(text: Raw | bytes) -> int:
    """Convert microseconds as decimal text to integer nanoseconds, exactly.

    Digits beyond the nanosecond are cut. Raises ValueError where the text is no finite number, or
    more than 64 bits can hold.
    """
    digits = bytes(text)
    if digits[-4:-3] == b".":  # three decimals, as profilers write them
        try:
            ns = int(digits.replace(b".", b""))
        except ValueError:
            ns = _from_decimal(digits)
    else:
        ns = _from_decimal(digits)
    if -LATEST_NS < ns < LATEST_NS:
        return ns
    raise ValueError(f"no time: {digits!r}")


def _from_decimal(digits: bytes) -> int:
    try:
        number = Decimal(digits.strip(b'"').decode())
        return int(number * 1000) if number.adjusted() < DIGITS else LATEST_NS
    except (ArithmeticError, ValueError) as error:
        raise ValueError(f"no time: {digits!r}") from error
