"""Print what ingesting costs per GB of trace text, and against loading it with other tools.

    python tests/bench/ingest.py [TRACE] [--repeats 60] [--further 180] [--rounds 3] [--no-others]

The trace is repeated in the profiler's own layout, each repeat later in time and with numbers of
its own, and gzipped into a temporary folder: once with each repeat whole, once grouped by kind of
event as one long profiling window is. The facts must be the repeats times the original's, exactly.
Every run is a process of its own, import included; rounds alternate between the tools.
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

from isal import igzip

SAMPLE = Path(__file__).parent.parent.parent / "traces" / "synthetic_serving.json.gz"
NUMBERED = ("correlation", "External id", "Ev Idx", "Python id", "Python parent id")
PAUSE_NS = 1_000_000  # between two repeats
SLOT = re.compile(rb'"@([TN])(-?\d+)@"')
# the peak of a child that was forked from a large parent counts the parent's pages: ask for VmHWM
PEAK = """
import re
from pathlib import Path
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""
INGEST = """
import sys
from pathlib import Path
from atrex import registry
from atrex.trace import read_trace
found = read_trace(Path(sys.argv[1]), registry.operators())
assert found.lossless, found.warnings
print(found.facts.drop("trace").write_json())
"""
OTHERS = {
    "json.load": ("json", "import gzip, json, sys; json.load(gzip.open(sys.argv[1]))"),
    "orjson.loads": (
        "orjson",
        "import gzip, orjson, sys; orjson.loads(gzip.open(sys.argv[1]).read())",
    ),
    "HTA": (
        "hta",
        "import sys; from hta.common.trace_parser import parse_trace_file as parse; "
        "from hta.configs.parser_config import ParserConfig; "
        "parse(sys.argv[1], ParserConfig.get_default_cfg())",
    ),
    "TraceLens": (
        "TraceLens",
        "import sys; from TraceLens.util import DataLoader; DataLoader.load_data(sys.argv[1])",
    ),
}


def native(event: dict[str, Any]) -> bytes:
    """Write an event as the profiler does, with slots for its times and numbers."""
    shown = {key: value for key, value in event.items() if key not in ("ts", "dur", "args")}
    if event.get("ph") in ("s", "t", "f") and isinstance(event.get("id"), int):
        shown["id"] = f"@N{event['id']}@"
    lines = [json.dumps(shown)[1:-1]]
    times = {}
    if "ts" in event:
        times["ts"] = f"@T{int(Decimal(str(event['ts'])) * 1000)}@"
    line = json.dumps(times)[1:-1]
    if "dur" in event:
        line += f', "dur": {Decimal(str(event["dur"])):.3f}'
    lines += [line] if line else []
    if "args" in event:
        args = dict(event["args"])
        for key in NUMBERED:
            if isinstance(args.get(key), int) and args[key] > 0:  # 0 means none
                args[key] = f"@N{args[key]}@"
        lines.append(f'"args": {{\n      {json.dumps(args, default=float)[1:-1]}\n    }}')
    return ("  {\n    " + ",\n    ".join(lines) + "\n  }").encode()


def kind(event: dict[str, Any]) -> int:
    """Say where the profiler puts an event: operators, then Python frames, then the device."""
    category = str(event.get("cat", "")).lower()
    if category in ("cpu_op", "operator", "user_annotation"):
        return 0
    return 1 if category == "python_function" else 2


def repetition(events: list[dict[str, Any]]) -> list[Any]:
    """Return text and slots in turn; a slot is a pair of its kind and its number."""
    parts: list[Any] = SLOT.split(b",\n".join(map(native, events)))
    return [part for text, kind, number in zip(parts[::3], parts[1::3], parts[2::3], strict=False)
            for part in (text, (kind, int(number)))] + [parts[-1]]  # fmt: skip


def shifted(parts: list[Any], times_ns: int, numbers: int) -> bytes:
    """Fill the slots of one repeat."""
    filled = list(parts)
    filled[1::2] = [
        b"%d.%03d" % divmod(number + times_ns, 1000) if kind == b"T" else b"%d" % (number + numbers)
        for kind, number in parts[1::2]
    ]
    return b"".join(filled)


def repeated(trace: dict[str, Any], repeats: int, grouped: bool) -> Iterator[bytes]:
    """Yield the text of the repeated trace."""
    events: list[dict[str, Any]] = trace["traceEvents"]
    groups = [[event for event in events if kind(event) == each] for each in range(3)]
    templates = [repetition(group) for group in (groups if grouped else [events]) if group]
    slots = [slot for parts in templates for slot in parts[1::2]]
    starts = [number for kind, number in slots if kind == b"T" and number > 0]
    longest = max(int(Decimal(str(event.get("dur", 0))) * 1000) for event in events)
    span = max(starts) + longest - min(starts) + PAUSE_NS
    numbers = max((number for kind, number in slots if kind == b"N"), default=0) + 1
    head = {key: value for key, value in trace.items() if key != "traceEvents"}
    yield json.dumps(head, indent=2, default=float).encode()[:-2] + b',\n  "traceEvents": [\n'
    first = True
    for parts in templates:
        for repeat in range(repeats):
            yield b"" if first else b",\n"
            yield shifted(parts, repeat * span, repeat * numbers)
            first = False
    yield b"\n  ]\n}\n"


def build(path: Path, out: Path, repeats: int, grouped: bool) -> int:
    """Write the repeated trace, gzipped; return the bytes of its text."""
    data = path.read_bytes()
    text = gzip.decompress(data) if data.startswith(b"\x1f\x8b") else data
    with igzip.open(out, "wb", compresslevel=2) as file:
        return sum(file.write(part) for part in repeated(
            json.loads(text, parse_float=Decimal), repeats, grouped
        ))  # fmt: skip


def measure(code: str, path: Path) -> tuple[float, float, str]:
    """Run code on a trace; return CPU seconds, peak MB and its output."""
    process = subprocess.Popen(
        [sys.executable, "-c", code + PEAK, path], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    *output, peak = process.stdout.read().splitlines()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        sys.exit(f"the measured process ended with status {status}")
    return usage.ru_utime + usage.ru_stime, int(peak) * 1024 / 1e6, "\n".join(output)


def compare(once: str, many: str, repeats: int) -> None:
    """Raise unless the facts are the repeats times the original's."""
    sums = ("calls", "kernels", "gpu_ns")
    expected = [
        {key: value * repeats if key in sums else value for key, value in row.items()}
        for row in json.loads(once)
    ]
    assert json.loads(many) == expected, "the facts are not those of the repeats"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", nargs="?", type=Path, default=SAMPLE)
    parser.add_argument("--repeats", type=int, default=60)
    parser.add_argument("--further", type=int, default=0, help="repeats of a second, larger file")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--no-others", action="store_true", help="leave the comparison out")
    options = parser.parse_args()
    others = {} if options.no_others else {
        name: code for name, (module, code) in OTHERS.items() if importlib.util.find_spec(module)
    }  # fmt: skip
    once = measure(INGEST, options.trace)[2]
    for grouped in (False, True):
        layout = "grouped by kind" if grouped else "repeats one after another"
        print(f"{options.trace.name}, {layout}:")
        sizes = [(options.repeats, others)] + [(options.further, {})] * bool(options.further)
        peaks = []
        for repeats, tools in sizes:
            with tempfile.TemporaryDirectory() as folder:
                big = Path(folder) / "big.json.gz"
                gb = build(options.trace, big, repeats, grouped) / 1e9
                seconds, peak = report(big, gb, once, repeats, options.rounds, tools)
            peaks.append((gb, peak, seconds))
        if options.further:
            (gb, peak, seconds), (more_gb, more_peak, more_seconds) = peaks
            print(
                f"  a further GB: {(more_seconds - seconds) / (more_gb - gb):.2f} CPU s, "
                f"{(more_peak - peak) / (more_gb - gb):.0f} MB"
            )


def report(
    big: Path, gb: float, once: str, repeats: int, rounds: int, others: dict[str, str]
) -> tuple[float, float]:
    """Measure one file in rounds, print, and return the ingest's median seconds and peak MB."""
    seconds: dict[str, list[float]] = {}
    peaks: dict[str, list[float]] = {}
    for _ in range(rounds):
        for name, code in {"ingest": INGEST, **others}.items():
            used, peak, output = measure(code, big)
            seconds.setdefault(name, []).append(used)
            peaks.setdefault(name, []).append(peak)
            if name == "ingest":
                compare(once, output, repeats)
    size = big.stat().st_size / 1e6
    print(f"  {repeats} repeats, {gb:.2f} GB of text, {size:.0f} MB gzipped")
    mine, memory = statistics.median(seconds["ingest"]), max(peaks["ingest"])
    for name, used in seconds.items():
        each, peak = statistics.median(used), max(peaks[name])
        ratio = "" if name == "ingest" else (
            f"; {each / mine:.1f} times the CPU, {peak / memory:.1f} times the memory"
        )  # fmt: skip
        print(f"  {name}: {each / gb:.2f} CPU s per GB, {peak:.0f} MB peak{ratio}")
    return mine, memory


if __name__ == "__main__":
    main()
