"""Record traces of a running server, with a log beside each of what a trace cannot show.

    recorder = Recorder("traces", model=hf_config, every=1000, steps=4)
    with recorder.step(q_lens=query_lens, kv_lens=context_lens):  # around each forward
        model.forward(...)
    recorder.close()

`torch.profiler` runs for a few steps out of many. Context lengths, expert token counts, the model's
configuration and the captured batch sizes go into `NAME.steps.jsonl` beside `NAME.json.gz`; each
line has its step's number, and so has the annotation around the step's forward in the trace, which
is how a reader joins them.

The decision behind it: a recorder may cost a little and may fail, but it never breaks the server.
Between windows a step costs one comparison and no call to torch. Whatever goes wrong inside, a full
disk or a profiler that does not start, is warned of once, and the recorder switches itself off. One
recorder per process; `step` is called by the thread that runs the forward.
"""

from __future__ import annotations

import gzip
import json
import logging
import math
import shutil
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Literal, Protocol

from atrex.errors import UsageError

SCHEMA = "atrex.steps/1"
PART = ".part"  # what is being written; no reader takes it for a trace or a log
COMPRESSION = 3  # zlib level: 8 times faster than the default 9 for 4 bytes in place of 3

# Fields of a Hugging Face configuration that fix shapes.
MODEL_FIELDS = (
    "model_type", "hidden_size", "intermediate_size", "moe_intermediate_size",
    "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "vocab_size",
    "num_experts", "num_local_experts", "n_routed_experts", "num_experts_per_tok",
    "sliding_window", "kv_lora_rank", "q_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim",
    "v_head_dim", "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim",
    "linear_value_head_dim", "linear_conv_kernel_dim",
)  # fmt: skip

Phase = Literal["prefill", "decode", "mixed"]
NOTHING: AbstractContextManager[None] = nullcontext()
LOG = logging.getLogger(__name__)


class Tracer(Protocol):
    """What the recorder asks of a profiler; tests put a fake in its place."""

    def ranks(self) -> tuple[int, int]:
        """Return this process's rank and the number of ranks."""

    def busy(self) -> bool:
        """Whether someone else profiles this thread now."""

    def start(self, warmup: int, steps: int) -> None:
        """Begin a window of `warmup` discarded and `steps` recorded steps."""

    def annotate(self, text: str) -> AbstractContextManager[object]:
        """Return a context that puts an annotation into the trace."""

    def step(self) -> None:
        """End one step of the window."""

    def fetch(self, tensor: Any) -> Any:
        """Begin to copy a tensor from its device; what is returned may be read after `stop`."""

    def stop(self) -> None:
        """End the window and wait until the device has done its work."""

    def export(self, path: Path) -> None:
        """Write the window's events as JSON and forget them."""


class TorchTracer:
    """`torch.profiler` on the CPU and, where there is one, the CUDA or HIP device."""

    def __init__(self, *, with_stack: bool = False) -> None:
        self._with_stack = with_stack
        self._profile: Any = None

    def ranks(self) -> tuple[int, int]:
        """Return rank and world size of `torch.distributed`, (0, 1) without it."""
        from torch import distributed

        if distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size()
        return 0, 1

    def busy(self) -> bool:
        """Whether the server's own profiler is on."""
        import torch

        return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]

    def start(self, warmup: int, steps: int) -> None:
        """Begin a window; the first one loads the profiler's libraries."""
        import torch
        from torch.profiler import ProfilerActivity, profile, schedule

        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profile = profile(
            activities=activities,
            schedule=schedule(wait=0, warmup=warmup, active=steps, repeat=1),
            record_shapes=True,
            with_stack=self._with_stack,
        )
        self._profile.start()

    def annotate(self, text: str) -> AbstractContextManager[object]:
        """Return `record_function(text)`."""
        from torch.profiler import record_function

        return record_function(text)

    def step(self) -> None:
        """Advance the profiler's schedule."""
        self._profile.step()

    def fetch(self, tensor: Any) -> Any:
        """Copy into page-locked memory in stream order, without waiting for the device."""
        import torch

        host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
        return host.copy_(tensor, non_blocking=True)

    def stop(self) -> None:
        """Stop and wait for the device, so that kernels and copies are complete."""
        import torch

        if self._profile is not None:
            self._profile.stop()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    def export(self, path: Path) -> None:
        """Write the Chrome trace."""
        self._profile.export_chrome_trace(str(path))
        self._profile = None


@dataclass(slots=True)
class Window:
    """A profiling window under way.

    Attributes:
        stem: Name of its files without the endings.
        first: Number of its first recorded step.
        last: Number of its last one.
        began_s: When it began, in seconds of the recorder's clock.
        log: The log being written.
        header: First line of the log.
        lines: Lines of the recorded steps; values still on the device are `Later`.
    """

    stem: str
    first: int
    last: int
    began_s: float
    log: IO[str]
    header: dict[str, Any]
    lines: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Later:
    """A host copy under way; its numbers can be read once the window has ended."""

    copy: Any


class Recorder:
    """Profile a few steps out of many and log their lengths.

    The recorded steps of a window begin at a multiple of `every`, after `warmup` steps that the
    profiler discards. Traces are named `rank-0.step-1000.json.gz` by rank and first recorded step;
    a name that is taken gets a number. A trace and its log appear together once both are complete,
    so a killed process loses the window under way and leaves files ending in `.part`.

    Every rank decides for itself; where one is enough, make the recorder on that one only.

    Args:
        folder: Where traces go; made when the first window begins.
        model: Hugging Face configuration or a mapping like it; the fields of `MODEL_FIELDS` and the
            name of the quantisation are logged.
        every: Steps from one window's first recorded step to the next one's.
        steps: Recorded steps of a window.
        warmup: Steps before them in which the profiler runs and discards.
        most: Traces to write before the recorder switches itself off.
        share: At most this fraction of time is spent in windows; one that would begin too early
            is left out. 1.0 never leaves one out.
        graph_batch_sizes: Batch sizes for which graphs were captured.
        tensor_parallel_size: Ranks that share one layer.
        page_size: Tokens per page of the KV cache.
        ranks: Rank and number of ranks; by default `torch.distributed` is asked.
        with_stack: Record Python stacks, which makes windows dearer.
        tracer: Profiler to use instead of `torch.profiler`.
        clock: Seconds since any moment.

    Raises:
        UsageError: The numbers make no schedule.
    """

    def __init__(
        self,
        folder: str | Path,
        *,
        model: object = None,
        every: int = 1000,
        steps: int = 4,
        warmup: int = 1,
        most: int = 100,
        share: float = 0.01,
        graph_batch_sizes: Iterable[int] = (),
        tensor_parallel_size: int | None = None,
        page_size: int | None = None,
        ranks: tuple[int, int] | None = None,
        with_stack: bool = False,
        tracer: Tracer | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if steps < 1 or warmup < 0 or every < warmup + steps or not 0 < share <= 1:
            raise UsageError(
                f"no schedule: every={every}, warmup={warmup}, steps={steps}, share={share}",
                remedy="Let every be at least warmup + steps, steps at least 1, 0 < share <= 1.",
            )
        sizes = {"tensor_parallel_size": tensor_parallel_size, "page_size": page_size}
        self._folder = Path(folder)
        self._model = model_fields(model) | {k: v for k, v in sizes.items() if v is not None}
        self._graph_batch_sizes = sorted(graph_batch_sizes)
        self._every, self._steps, self._warmup, self._most = every, steps, warmup, most
        self._share = share
        self._ranks = ranks
        self._tracer: Tracer = tracer or TorchTracer(with_stack=with_stack)
        self._clock = clock
        self._number = -1  # of the step under way
        self._due: float = every - warmup  # steps before it take the short way out
        self._window: Window | None = None
        self._rest_until_s = -math.inf
        self._publisher: threading.Thread | None = None
        self._off = False  # set by either thread, never taken back
        self.traces = 0

    @property
    def on(self) -> bool:
        """Whether another window will come."""
        return not self._off

    @property
    def recording(self) -> bool:
        """Whether the step under way is recorded."""
        return self._window is not None and self._number >= self._window.first

    def step(
        self,
        *,
        q_lens: Any = None,
        kv_lens: Any = None,
        padded_tokens: Any = None,
        expert_tokens: Any = None,
        phase: Phase | None = None,
    ) -> AbstractContextManager[None]:
        """Return the context of one forward.

        Every value may be a callable that returns it, called in recorded steps only. Tensors on a
        device are copied without waiting, once per recorded step, in the order of the current
        stream: the values are those at the begin of the forward even if the buffer is used again.

        Args:
            q_lens: Query tokens of each sequence of the batch: list, array or tensor.
            kv_lens: Tokens that each sequence attends to, the new ones included.
            padded_tokens: Tokens that the forward really computes, if a graph pads the batch.
            expert_tokens: Tokens per expert, or a mapping from layers to them; a callable is
                called after the forward. See `expert_counts`.
            phase: By default, sequences with one query decode and the others prefill. Say it where
                that is wrong: with speculative decoding, for example.
        """
        self._number += 1
        if self._number < self._due:
            return NOTHING
        try:
            if self._window is None and not self._begin():
                return NOTHING
        except Exception as error:  # a recorder never breaks its server
            self._switch_off(error)
            return NOTHING
        given = {"phase": phase, "q_lens": q_lens, "kv_lens": kv_lens}
        return _Step(self, given | {"padded_tokens": padded_tokens}, expert_tokens)

    def close(self) -> None:
        """Drop a window under way, finish what is being written, switch off."""
        self._off = True
        self._abandon()
        self.wait()

    def wait(self) -> None:
        """Wait until the trace of the last window is complete."""
        if self._publisher is not None:
            self._publisher.join()

    def _begin(self) -> bool:
        """Begin a window, or leave it out if the profiler is in use or it would cost too much."""
        if self._off:
            self._due = math.inf
            return False
        publishing = self._publisher is not None and self._publisher.is_alive()
        if publishing or self._clock() < self._rest_until_s or self._tracer.busy():
            self._due += self._every
            return False
        rank, world_size = self._ranks = self._ranks or self._tracer.ranks()
        first = self._number + self._warmup
        self._folder.mkdir(parents=True, exist_ok=True)
        stem, log = claim(self._folder, f"rank-{rank}.step-{first}")
        header = {
            "schema": SCHEMA,
            "trace": f"{stem}.json.gz",
            "rank": rank,
            "world_size": world_size,
            "model": self._model,
            "graph_batch_sizes": self._graph_batch_sizes,
        }
        last = first + self._steps - 1
        self._window = Window(stem, first, last, self._clock(), log, header)
        self._tracer.start(self._warmup, self._steps)
        return True

    def _enter(self, given: dict[str, Any]) -> AbstractContextManager[object] | None:
        """Log the step that begins and return its open annotation, None in warm-up."""
        window = self._window
        if window is None or self._number < window.first:
            return None
        values = {name: self._read(value) for name, value in given.items()}
        window.lines.append({"step": self._number} | values)
        annotation = self._tracer.annotate(f"atrex_step[{self._number}]")
        annotation.__enter__()
        return annotation

    def _leave(self, expert_tokens: Any, *, failed: bool) -> None:
        """Complete the step's line, advance the profiler, and end the window after its last."""
        window = self._window
        if window is None:
            return
        if self._number >= window.first:
            if failed:
                window.lines.pop()  # of a forward that raised, nothing is known
            elif expert_tokens is not None:
                window.lines[-1]["expert_tokens"] = self._experts(expert_tokens)
        self._tracer.step()
        if self._number >= window.last:
            self._finish(window)

    def _read(self, value: Any) -> Any:
        """Call what is callable and begin to copy what is on a device."""
        if callable(value):
            value = value()
        if getattr(getattr(value, "device", None), "type", "cpu") == "cpu":  # numpy: no `type`
            return numbers(value)
        return Later(self._tracer.fetch(value))

    def _experts(self, counts: Any) -> dict[str, Any]:
        counts = counts() if callable(counts) else counts
        layers = counts if isinstance(counts, Mapping) else {"all": counts}
        return {str(layer): self._read(of_layer) for layer, of_layer in layers.items()}

    def _finish(self, window: Window) -> None:
        """End the window: the events are written here, compressed in the background."""
        raw = self._folder / f"{window.stem}.json{PART}"
        self._tracer.stop()
        self._tracer.export(raw)
        for line in (window.header, *map(complete, window.lines)):
            window.log.write(json.dumps(line, separators=(",", ":")) + "\n")
        window.log.close()
        self._window = None
        self._due = window.first + self._every - self._warmup
        ended_s = self._clock()
        self._rest_until_s = ended_s + (ended_s - window.began_s) * (1 / self._share - 1)
        self._publisher = threading.Thread(
            target=self._publish, args=(window.stem, raw), name="atrex.record", daemon=True
        )
        self._publisher.start()

    def _publish(self, stem: str, raw: Path) -> None:
        """Compress the trace, then give log and trace their names, the trace last."""
        trace, log = self._folder / f"{stem}.json.gz", self._folder / f"{stem}.steps.jsonl"
        part = trace.with_name(trace.name + PART)
        try:
            with raw.open("rb") as plain, gzip.open(part, "wb", COMPRESSION) as packed:
                shutil.copyfileobj(plain, packed, 1 << 20)
            raw.unlink()
            log.with_name(log.name + PART).rename(log)
            part.rename(trace)
            self.traces += 1
            self._off |= self.traces >= self._most
        except Exception as error:
            self._switch_off(error)
            self._discard(stem)

    def _switch_off(self, error: Exception) -> None:
        """Warn of the failure and do nothing from now on."""
        LOG.warning("atrex.record switches itself off: %s: %s", type(error).__name__, error)
        self._off = True
        self._abandon()

    def _abandon(self) -> None:
        """Stop the profiler and remove what the window under way wrote."""
        window, self._window = self._window, None
        if window is None:
            return
        with suppress(Exception):  # it may be the profiler that failed
            self._tracer.stop()
        with suppress(OSError):  # closing flushes, and the disk may be full
            window.log.close()
        self._discard(window.stem)

    def _discard(self, stem: str) -> None:
        """Remove the unfinished files of a window."""
        for ending in (".json", ".json.gz", ".steps.jsonl"):
            with suppress(OSError):
                (self._folder / (stem + ending + PART)).unlink(missing_ok=True)


class _Step:
    """The context of one step of a window; it lets the forward's own exceptions pass."""

    def __init__(self, recorder: Recorder, given: dict[str, Any], expert_tokens: Any) -> None:
        self._recorder = recorder
        self._given = given
        self._expert_tokens = expert_tokens
        self._annotation: AbstractContextManager[object] | None = None

    def __enter__(self) -> None:
        try:
            self._annotation = self._recorder._enter(self._given)
        except Exception as error:
            self._recorder._switch_off(error)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if self._annotation is not None:
                self._annotation.__exit__(None, None, None)
            self._recorder._leave(self._expert_tokens, failed=kind is not None)
        except Exception as failure:
            self._recorder._switch_off(failure)


def expert_counts(ids: Any, experts: int) -> Callable[[], Any]:
    """Return a callable that counts how many tokens each expert got.

    Nothing is computed before the call, and counting does not wait for the device: a histogram of
    data-dependent size would. Ids outside the experts count for none; engines mark padding so.

    Args:
        ids: Tensor of expert ids `[tokens, choices]`, on any device.
        experts: Number of experts.
    """

    def count_tokens() -> Any:
        bins = ids.long().flatten().clamp(-1, experts) + 1  # first and last bin: outside
        counts = bins.new_zeros(experts + 2).scatter_add_(0, bins, bins.new_ones(bins.shape))
        return counts[1 : experts + 1]

    return count_tokens


def model_fields(config: object) -> dict[str, int | float | str]:
    """Return the fields of a model's configuration that fix shapes, and its quantisation.

    Of a configuration for several modalities, the text model's part counts.
    """
    config = member(config, "text_config") or config
    found = {name: member(config, name) for name in MODEL_FIELDS}
    found["quantization"] = member(member(config, "quantization_config"), "quant_method")
    return {
        name: str(value) if isinstance(value, str) else value
        for name, value in found.items()
        if isinstance(value, int | float | str) and not isinstance(value, bool)
    }


def member(config: object, name: str) -> Any:
    """Return a field of a mapping or an object, None if there is none."""
    return config.get(name) if isinstance(config, Mapping) else getattr(config, name, None)


def claim(folder: Path, name: str) -> tuple[str, IO[str]]:
    """Return a name that no trace in the folder has, and its log, opened for writing.

    Processes of one rank may share a folder: after a restart, or with data parallelism. Whoever
    creates the log's temporary file owns the name; the finished log is looked for afterwards,
    since its owner may just have renamed it.
    """
    for turn in count(1):
        stem = name if turn == 1 else f"{name}.{turn}"
        part = folder / f"{stem}.steps.jsonl{PART}"
        try:
            log = part.open("x", encoding="utf-8")
        except FileExistsError:
            continue
        if not (folder / f"{stem}.steps.jsonl").exists():
            return stem, log
        log.close()
        part.unlink()
    raise AssertionError("count() ends")


def complete(line: dict[str, Any]) -> dict[str, Any]:
    """Put numbers in place of host copies and say the phase if the lengths do."""
    line = {name: _completed(value) for name, value in line.items()}
    if line["phase"] is None and line["q_lens"]:
        line["phase"] = phase_of(line["q_lens"])
    return line


def _completed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _completed(inner) for name, inner in value.items()}
    return numbers(value.copy) if isinstance(value, Later) else value


def phase_of(q_lens: Sequence[int]) -> Phase:
    """Return what a batch does: sequences with one query decode, the others prefill."""
    decoding = [length == 1 for length in q_lens]
    if all(decoding):
        return "decode"
    return "mixed" if any(decoding) else "prefill"


def numbers(value: Any) -> Any:
    """Return plain Python numbers of an array, a tensor or a sequence; str and None stay."""
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, list | tuple):
        return [numbers(item) for item in value]
    return value
