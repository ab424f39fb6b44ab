"""Print what `atrex.record` costs a forward loop: between windows, and with them.

    python tests/bench/record.py [--pairs 60]

A small decoder over a paged cache runs on one CPU thread, in blocks of steps with and without the
recorder, interleaved in random order. Ratios are of neighbouring blocks; the interval is that of
their median. Times are CPU time of the forward's thread, so that other load does not count. Three
recorders: one that never profiles, one that profiles 4 of every 1,000 steps whatever that takes,
and the default one, which leaves windows out to stay below its share of time. The rest is the cost
of one call between windows and that of one window: for how many unprofiled steps it holds the
forward's thread, and the size of its trace.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import platform
import tempfile
import time
from pathlib import Path
from random import Random

import torch

from atrex.record import Recorder
from atrex.stats import bca_median, median

LAYERS = 2
WIDTH = 128
SEQUENCES = 8
CONTEXT = 32
PAGE = 16
CALLS = 100_000
EVERY = 1000


class Decoder(torch.nn.Module):
    """Layers of attention over a paged cache and a feed-forward network, one token a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 3 * WIDTH) for _ in range(LAYERS))
        self.up = torch.nn.ModuleList(torch.nn.Linear(WIDTH, 2 * WIDTH) for _ in range(LAYERS))
        self.down = torch.nn.ModuleList(torch.nn.Linear(2 * WIDTH, WIDTH) for _ in range(LAYERS))
        pages = SEQUENCES * CONTEXT // PAGE
        self.keys = torch.randn(pages, PAGE, WIDTH)
        self.values = torch.randn(pages, PAGE, WIDTH)
        self.table = torch.randperm(pages).view(SEQUENCES, -1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for qkv, up, down in zip(self.qkv, self.up, self.down, strict=True):
            query, _, _ = qkv(x).split(WIDTH, dim=1)
            keys = self.keys[self.table].flatten(1, 2)
            scores = torch.einsum("sd,skd->sk", query, keys) / WIDTH**0.5
            x = x + torch.einsum(
                "sk,skd->sd", scores.softmax(1), self.values[self.table].flatten(1, 2)
            )
            x = torch.nn.functional.layer_norm(x + down(up(x).relu()), (WIDTH,))
        return x


def plain(model: Decoder, x: torch.Tensor, steps: int) -> float:
    """Return the CPU seconds of steps without a recorder."""
    begin = time.thread_time()
    for _ in range(steps):
        model(x)
    return time.thread_time() - begin


def recorded(recorder: Recorder, model: Decoder, x: torch.Tensor, steps: int) -> float:
    """Return the CPU seconds of steps with a recorder."""
    q_lens, kv_lens = [1] * SEQUENCES, torch.full((SEQUENCES,), CONTEXT)
    begin = time.thread_time()
    for _ in range(steps):
        with recorder.step(q_lens=q_lens, kv_lens=kv_lens, padded_tokens=SEQUENCES):
            model(x)
    return time.thread_time() - begin


def ratios(recorder: Recorder, model: Decoder, x: torch.Tensor, pairs: int, steps: int, seed: int):
    """Return the times of blocks with the recorder over those of their neighbours without."""
    random, found = Random(seed), []
    for _ in range(pairs):
        first = random.random() < 0.5
        before = plain(model, x, steps) if first else 0.0
        with_recorder = recorded(recorder, model, x, steps)
        found.append(with_recorder / (before or plain(model, x, steps)))
    return found


def call_ns(recorder: Recorder) -> float:
    """Return the cost of an empty step between windows, the loop itself taken off."""
    lens = [1] * SEQUENCES
    begin = time.thread_time_ns()
    for _ in range(CALLS):
        with recorder.step(q_lens=lens, kv_lens=lens):
            pass
    used = time.thread_time_ns() - begin
    begin = time.thread_time_ns()
    for _ in range(CALLS):
        pass
    return (used - (time.thread_time_ns() - begin)) / CALLS


def window_steps(folder: Path, model: Decoder, x: torch.Tensor, windows: int) -> list[float]:
    """Return what windows of 1 + 4 steps add to those steps, in steps without a recorder."""
    recorder = Recorder(folder, every=5, steps=4, share=1.0)
    recorded(recorder, model, x, 9)  # the first window loads the profiler
    recorder.wait()
    added = []
    for _ in range(windows):
        step_s = plain(model, x, 20) / 20
        added.append(recorded(recorder, model, x, 5) / step_s - 5)
        recorder.wait()
    recorder.close()
    return added


def show(name: str, values: list[float], unit: str = "") -> None:
    """Print a median with its interval."""
    found = bca_median(values, Random(0))
    print(f"{name}: {found.center:.4f} [{found.low:.4f}, {found.high:.4f}]{unit}, n {len(values)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=60, help="pairs of blocks of 1,000 steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model, x = Decoder().eval(), torch.randn(SEQUENCES, WIDTH)
    with (
        torch.inference_mode(),
        tempfile.TemporaryDirectory() as name,
        contextlib.ExitStack() as on,
    ):
        folder = Path(name)
        plain(model, x, 200)
        step_us = 1e6 * median([plain(model, x, 100) / 100 for _ in range(10)])
        print(
            f"{platform.machine()}, torch {torch.__version__}, one thread, {step_us:.0f} us a step"
        )
        never = Recorder(folder / "never", every=10**9)
        print(f"one call between windows: {median([call_ns(never) for _ in range(9)]):.0f} ns")
        short = ratios(never, model, x, 4 * options.pairs, EVERY // 10, seed=1)
        show("never profiling, ratio", short)
        for title, share in (("4 of 1,000 steps, share 1.0", 1.0), ("default", 0.01)):
            recorder = Recorder(folder / title, every=EVERY, share=share, most=10**6)
            on.callback(recorder.close)
            recorded(recorder, model, x, EVERY // 2)  # windows lie in the middle of blocks
            run = ratios(recorder, model, x, options.pairs, EVERY, seed=2)
            show(f"{title}, {recorder.traces} traces, ratio", run)
        added = window_steps(folder / "windows", model, x, options.pairs)
        show("one window adds", added, " steps")
        show("over 1,000 steps, ratio", [1 + steps / EVERY for steps in added])
        trace = next((folder / "windows").glob("*.json.gz"))
        events = gzip.decompress(trace.read_bytes()).count(b'"ph":')
        print(f"its trace: {events} events, {trace.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
