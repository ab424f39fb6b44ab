"""What vendors say of their devices: the rates and sizes that bound what a trace can show.

One file of `data/hardware` a device. Rates are dense and the highest that are printed, so that
nothing real exceeds them. Forms of a device that differ in a rate are devices of their own.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path

import msgspec

from atrex.errors import DataError
from atrex.model import Record
from atrex.registry import content

FOLDER = "hardware"
MEMORY = "memory"


class Device(Record, frozen=True, kw_only=True):
    """Datasheet figures of one device, as a program sees it.

    Attributes:
        name: Name with its form, e.g. ``"NVIDIA A100 PCIe 80 GB"``.
        match: Regular expressions; one matches the whole name that a trace gives.
        memory_bandwidth: Bytes/s of device memory.
        last_level_cache: Bytes of the cache before device memory.
        peaks: FLOP/s by pipe, named as in `Cost.flop`; ``"tf32"`` is for fp32 operands that are
            rounded on their way into the matrix units.
        source: Title and publisher of the documents.
        date: When they were read, ISO 8601.
    """

    name: str
    match: tuple[str, ...]
    memory_bandwidth: float
    last_level_cache: int
    peaks: dict[str, float]
    source: str
    date: str

    def __post_init__(self) -> None:
        for pattern in self.match:
            _compiled(pattern)
        rates = {"memory_bandwidth": self.memory_bandwidth, **self.peaks}
        for what, value in {**rates, "last_level_cache": self.last_level_cache}.items():
            if not value > 0:
                raise ValueError(f"{what} is {value}, not positive")

    def matches(self, name: str) -> bool:
        """Whether a name as a trace gives it is this device's."""
        return any(_compiled(pattern).fullmatch(name) for pattern in self.match)

    def peak(self, quantity: str) -> float | None:
        """Return bytes/s of ``"memory"`` or FLOP/s of a pipe; None if no document tells.

        Operands in fp32 may be rounded to tf32 on the way, which no trace shows.
        """
        if quantity == MEMORY:
            return self.memory_bandwidth
        pipes = ("fp32", "tf32") if quantity == "fp32" else (quantity,)
        return max((self.peaks[pipe] for pipe in pipes if pipe in self.peaks), default=None)


@cache
def known() -> tuple[Device, ...]:
    """Return every device with a file, by name of the file.

    Raises:
        DataError: A file is broken; names it and the field.
    """
    return tuple(read(path) for path in sorted((content("data") / FOLDER).glob("*.toml")))


def find(name: str) -> Device | None:
    """Return the device that a trace names, None if there is no file of it."""
    return next((device for device in known() if device.matches(name)), None)


def read(path: Path) -> Device:
    """Read the file of one device.

    Raises:
        DataError: It is broken; names the field.
    """
    try:
        return msgspec.convert(tomllib.loads(path.read_text()), Device)
    except (OSError, ValueError) as error:  # torn TOML and fields that do not fit are ValueErrors
        raise DataError(f"broken device file: {error}", where=str(path)) from error


@cache
def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"match {pattern!r}: {error}") from error
