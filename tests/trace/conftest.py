"""A fluent builder of tiny traces, and the folder of real captures."""

import gzip
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
CAPTURES = ROOT.parent / "shared" / "traces"

US = 1000  # ns


def microseconds(ns):
    """Times as profilers print them; a float would lose digits."""
    return f"@{ns // 1000}.{ns % 1000:03d}@"


class TraceBuilder:
    """Writes events of one thread that launches to one stream, in call order."""

    def __init__(self, tmp_path):
        self.events = []
        self.keys = {}
        self._folder = tmp_path
        self._time = 10 * US
        self._correlation = 0

    def range(self, category, name, dur, args=None, **more):
        self.events.append({
            "ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1,
            "ts": microseconds(self._time), "dur": microseconds(dur), "args": args or {}, **more,
        })  # fmt: skip

    def op(self, name, dims=(), types=(), concrete=(), dur=100 * US):
        """Open an operator around the kernels that follow, until `dur` is over or `close`."""
        args = {
            "Input Dims": list(dims),
            "Input type": list(types),
            "Concrete Inputs": list(concrete),
        }
        self.range("cpu_op", name, dur, args)
        self._time += US
        return self

    def step(self, text, dur=1000 * US):
        self.range("user_annotation", text, dur)
        self._time += US
        return self

    def close(self, dur=10_000 * US):
        """Move past everything that is open and no longer than `dur`."""
        self._time += dur
        return self

    def kernel(self, name="k", ns=5 * US, launch="cudaLaunchKernel", **args):
        """Launch a kernel; `launch=None` leaves the launch out, `same=True` repeats it."""
        if not args.pop("same", False):
            self._correlation += 1
            if launch:
                self.range("cuda_runtime", launch, US, {"correlation": self._correlation})
        category = args.pop("category", "kernel")
        args = {"device": 0, "stream": 7, "correlation": self._correlation, **args}
        self.events.append({
            "ph": "X", "cat": category, "name": name, "pid": 0, "tid": 7,
            "ts": microseconds(self._time + 500 * US), "dur": microseconds(ns), "args": args,
        })  # fmt: skip
        self._time += 2 * US
        return self

    def event(self, **event):
        self.events.append(event)
        return self

    def text(self, indent=None):
        text = json.dumps({**self.keys, "traceEvents": self.events}, indent=indent)
        return text.replace('"@', "").replace('@"', "")

    def write(self, name="trace.json", text=None):
        path = self._folder / name
        data = (self.text() if text is None else text).encode()
        path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
        return path


@pytest.fixture
def trace(tmp_path):
    return TraceBuilder(tmp_path)


@pytest.fixture
def captures():
    if not CAPTURES.is_dir():
        pytest.skip(f"no real captures at {CAPTURES}")
    return CAPTURES
