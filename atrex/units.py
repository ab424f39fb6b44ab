"""Numbers as people read them; inside, times are nanoseconds and ratios fractions.

Three significant digits; a missing value is a dash, never a zero.
"""

from __future__ import annotations

from collections.abc import Callable

MISSING = "–"
_TIME = ((1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s"))
_DECIMAL = ((1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P"))
_BINARY = ((1.0, "B"), (2.0**10, "KiB"), (2.0**20, "MiB"), (2.0**30, "GiB"), (2.0**40, "TiB"))


def time(ns: float | None) -> str:
    """Write a time: ``12.3 µs``."""
    return MISSING if ns is None else _scaled(ns, _TIME)


def size(count: float | None) -> str:
    """Write a number of bytes in binary units: ``1.50 GiB``."""
    return MISSING if count is None else _scaled(count, _BINARY)


def rate(per_s: float | None, unit: str) -> str:
    """Write a rate in decimal units: ``rate(3.35e12, "B/s")`` is ``3.35 TB/s``."""
    if per_s is None:
        return MISSING
    steps = tuple((step, prefix + unit) for step, prefix in _DECIMAL)
    return _scaled(per_s, steps)


def percent(fraction: float | None) -> str:
    """Write a fraction: ``0.123`` is ``12.3 %``."""
    return MISSING if fraction is None else f"{fraction * 100:.1f} %"


def share(fraction: float | None) -> str:
    """Write S or a score, a number from 0 to 1: ``0.873``."""
    return MISSING if fraction is None else f"{fraction:.3f}"


def factor(ratio: float | None) -> str:
    """Write a speed-up: ``1.27×``."""
    return MISSING if ratio is None else f"{_significant(ratio)}×"


def interval(
    low: float | None, high: float | None, write: Callable[[float | None], str] = time
) -> str:
    """Write the bounds of an interval: ``[12.1 µs, 12.6 µs]``."""
    return MISSING if low is None or high is None else f"[{write(low)}, {write(high)}]"


def _scaled(value: float, steps: tuple[tuple[float, str], ...]) -> str:
    step, unit = steps[0]
    for larger, name in steps[1:]:
        if abs(value) >= larger * 0.9995:  # where three digits would round up to the next unit
            step, unit = larger, name
    if step == 1.0 and value == int(value):
        return f"{int(value)} {unit}".strip()
    return f"{_significant(value / step)} {unit}".strip()


def _significant(value: float) -> str:
    magnitude = abs(value)
    if magnitude >= 99.95:
        return f"{value:.0f}"
    if magnitude >= 9.995:
        return f"{value:.1f}"
    return f"{value:.2f}" if magnitude >= 0.0995 or magnitude == 0 else f"{value:.3f}"
