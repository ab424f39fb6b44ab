"""Print what ingesting costs per GB of trace text, and against loading it with `json`.

    python tests/bench/ingest.py [TRACE] [--gb 1.0]

The trace is repeated to the wanted size, each repeat later in time and with correlations of its
own, and gzipped into a temporary file. Facts must be the repeats times the original's. Processes
are measured from outside: CPU seconds, import included, and peak memory.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
from decimal import Decimal
from pathlib import Path

SAMPLE = Path(__file__).parent.parent.parent / "traces" / "synthetic_serving.json.gz"
INGEST = """
import sys
from pathlib import Path
from atrex import registry
from atrex.trace import read_trace
found = read_trace(Path(sys.argv[1]), registry.operators())
print(found.summary.gpu_ns)
"""
LOAD = """
import gzip, json, sys
events = json.load(gzip.open(sys.argv[1]))["traceEvents"]
print(sum(event.get("cat") == "kernel" for event in events))
"""
NUMBERS = re.compile(r'"@([TC])(-?\d+)@"')


def template(event: dict) -> list[str | tuple[str, int]]:
    """Return the event's text, with its start time and its correlation taken out."""
    if "ts" in event:
        event["ts"] = f"@T{int(Decimal(str(event['ts'])) * 1000)}@"
    if "dur" in event:
        event["dur"] = float(event["dur"])
    args = event.get("args")
    if isinstance(args, dict):
        for key in ("correlation", "External id"):
            if isinstance(args.get(key), int):
                args[key] = f"@C{args[key]}@"
    parts = NUMBERS.split(json.dumps(event, default=float))
    pairs = [(kind, int(number)) for kind, number in zip(parts[1::3], parts[2::3], strict=True)]
    return [part for text, pair in zip(parts[::3], [*pairs, None], strict=True)
            for part in (text, pair) if part is not None]  # fmt: skip


def repeat(path: Path, out: Path, size: float) -> tuple[int, int]:
    """Write the trace as often as `size` bytes of text take; return repeats and bytes."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    trace = json.loads(text, parse_float=Decimal)
    templates = [template(event) for event in trace["traceEvents"]]
    numbers = [part for parts in templates for part in parts if isinstance(part, tuple)]
    times = [number for kind, number in numbers if kind == "T" and number > 0]
    span = max(times) - min(times) + 60_000_000_000
    step = max((number for kind, number in numbers if kind == "C"), default=0) + 1
    written, repeats = 0, 0
    with gzip.open(out, "wt", compresslevel=1) as file:
        written += file.write('{"schemaVersion": 1, "traceEvents": [\n')
        while written < size:
            shift = {"T": repeats * span, "C": repeats * step}
            texts = ("".join(_text(part, shift) for part in parts) for parts in templates)
            written += file.write((",\n" if repeats else "") + ",\n".join(texts))
            repeats += 1
        written += file.write("\n]}\n")
    return repeats, written


def _text(part: str | tuple[str, int], shift: dict[str, int]) -> str:
    if isinstance(part, str):
        return part
    kind, number = part
    number += shift[kind]
    return str(number) if kind == "C" else f"{number // 1000}.{number % 1000:03d}"


def measure(code: str, path: Path) -> tuple[float, int, str]:
    """Run code on a trace; return CPU seconds, peak bytes and its output."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        sys.exit(f"the measured process ended with status {status}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output.strip()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, default=SAMPLE)
    parser.add_argument("--gb", type=float, default=1.0, help="text to generate, in 1e9 bytes")
    parser.add_argument("--no-json", action="store_true", help="leave the comparison out")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        big = Path(folder) / "big.json.gz"
        repeats, size = repeat(options.trace, big, options.gb * 1e9)
        gb = size / 1e9
        _, _, once = measure(INGEST, options.trace)
        seconds, peak, total = measure(INGEST, big)
        assert int(total) == repeats * int(once), "kernel time is not that of the repeats"
        print(f"{repeats} repeats, {gb:.2f} GB of text, {big.stat().st_size / 1e6:.0f} MB gzipped")
        print(f"ingest: {seconds / gb:.2f} CPU s per GB, {peak / 1e6:.0f} MB peak")
        if not options.no_json:
            loading, memory, _ = measure(LOAD, big)
            print(
                f"json.load alone: {loading / gb:.2f} CPU s per GB, {memory / 1e6:.0f} MB peak; "
                f"{loading / seconds:.1f} times the CPU, {memory / peak:.1f} times the memory"
            )


if __name__ == "__main__":
    main()
