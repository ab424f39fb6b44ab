"""Measure the peaks of a GPU: what copies, matrix products and multiply-adds attain there.

Random data throughout: matrix units draw less power, and clock higher, on zeros. The peak is the
fastest sample, as on the CPU (METHOD.md 1.3); clocks and throttling stand beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from atrex.judge.devices.accelerator import Accelerator, Telemetry
from atrex.judge.generator import CASES, Generator
from atrex.model import Peak
from atrex.registry import load_module
from atrex.stats import percentile

COPY_BYTES = 1 << 30
COPY_SHARE = 16  # of the memory at most one part in so many, for small devices
MATRIX = 8192  # rows and columns: 1.1 TFLOP, some milliseconds
CHAIN = 512  # multiply-adds of each element, enough to hide the loads
VECTOR_ELEMENTS = 1 << 22
SAMPLES, WARM_UP = 20, 5
# Pipes without a sample of their own run at the rate of one that holds their values exactly.
WIDENED = (
    ("fp32", "vector"),
    ("fp16", "bf16"),
    ("fp8_e4m3fn", "bf16"),
    ("fp8_e5m2", "fp8_e4m3fn"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Peaks of a device, and what held it down meanwhile.

    Attributes:
        telemetry: One reading after each pattern.
    """

    peaks: list[Peak]
    telemetry: tuple[Telemetry, ...]

    @property
    def throttled(self) -> tuple[str, ...]:
        """Reasons for lower clocks that were seen."""
        return tuple(dict.fromkeys(why for each in self.telemetry for why in each.throttled))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pattern:
    """Work to be timed: FLOP or bytes of one call."""

    pipe: str
    name: str
    work: int
    call: Callable[[], Any]


def measure_gpu_peaks(
    accelerator: Accelerator,
    *,
    matrix: int = MATRIX,
    vector_elements: int = VECTOR_ELEMENTS,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Time every pattern and return one peak per pipe.

    Args:
        accelerator: The device.
        matrix: Rows and columns of the products.
        vector_elements: Elements of the multiply-add chains.
        progress: Told after each pattern.
    """
    facts = accelerator.facts()
    copied = min(COPY_BYTES, facts.memory_bytes // COPY_SHARE)
    patterns = [
        *_copies(accelerator.device, copied // 2),
        *_products(accelerator.device, matrix),
        *_chains(accelerator.device, vector_elements),
    ]
    rates: dict[tuple[str, str], list[float]] = {}
    telemetry = []
    for done, pattern in enumerate(patterns):
        rates[pattern.pipe, pattern.name] = _rates(accelerator, pattern)
        telemetry.append(accelerator.telemetry())
        progress(done + 1, len(patterns))
    return Measured(peaks=_peaks(facts.name, rates), telemetry=tuple(telemetry))


def _rates(accelerator: Accelerator, pattern: _Pattern) -> list[float]:
    """Return the work per second of each sample."""
    rates = []
    for number in range(WARM_UP + SAMPLES):
        accelerator.spin()
        start = accelerator.mark()
        pattern.call()
        end = accelerator.mark()
        accelerator.synchronise()
        if number >= WARM_UP:
            rates.append(pattern.work / max(1, accelerator.elapsed_ns(start, end)) * 1e9)
    return rates


def _peaks(device: str, rates: dict[tuple[str, str], list[float]]) -> list[Peak]:
    date = datetime.now(UTC).date().isoformat()
    found: dict[str, Peak] = {}
    for (pipe, name), samples in rates.items():
        if pipe in found and max(samples) <= found[pipe].value:
            continue
        found[pipe] = Peak(
            device=device, pipe=pipe, kind="measured", value=max(samples),
            low=percentile(samples, 0.1), high=percentile(samples, 0.9), n=len(samples),
            source=name, date=date,
        )  # fmt: skip
    for pipe, route in WIDENED:
        if pipe not in found and route in found:
            best = found[route]
            found[pipe] = Peak(
                device=device, pipe=pipe, kind="measured", value=best.value, low=best.low,
                high=best.high, n=best.n, source=best.source, date=date,
            )  # fmt: skip
    return list(found.values())


def _copies(device: str, elements: int) -> Iterator[_Pattern]:
    import torch

    draw = Generator(b"peaks", CASES[0], device)
    a = draw.normal("a", (elements,), "bf16")
    b, out = a.flip(0), torch.empty_like(a)
    yield _Pattern(pipe="memory", name="copy", work=4 * elements, call=lambda: out.copy_(a))
    yield _Pattern(
        pipe="memory", name="add", work=6 * elements, call=lambda: torch.add(a, b, out=out)
    )


def _products(device: str, size: int) -> Iterator[_Pattern]:
    """Yield matrix products; fp8 where this build of torch has them for this device."""
    import torch

    draw = Generator(b"peaks", CASES[0], device)
    for pipe in ("bf16", "fp16"):
        a, b = (draw.normal(name, (size, size), pipe) for name in "ab")
        out = torch.empty_like(a)
        yield _product(pipe, size, partial(torch.mm, a, b, out=out))
    a, b = (draw.normal(name, (size, size), "fp8_e4m3fn", std=8.0) for name in "ab")
    one = torch.ones((), device=device)

    def scaled() -> Any:
        return torch._scaled_mm(a, b.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

    try:
        scaled()
    except RuntimeError:  # before sm_89, or a build without it
        return
    yield _product("fp8_e4m3fn", size, scaled)


def _product(pipe: str, size: int, call: Callable[[], Any]) -> _Pattern:
    return _Pattern(pipe=pipe, name=f"mm {pipe} {size}", work=2 * size**3, call=call)


def _chains(device: str, elements: int) -> Iterator[_Pattern]:
    kernel = load_module(Path(__file__).with_name("peaks_kernel.py"))
    draw = Generator(b"peaks", CASES[0], device)
    x = draw.uniform("x", (elements,), "fp32", low=0.5, high=1.0)
    yield _Pattern(
        pipe="vector",
        name="fp32 multiply-add chains",
        work=2 * CHAIN * kernel.CHAINS * elements,
        call=lambda: kernel.run(x, CHAIN),
    )
