"""Generate synthetic_serving.json.gz, a small trace of continuous batching in vLLM's form.

    python traces/make_synthetic.py

Structure is invented after real traces: six decoders served one after the other, each with fewer
layers than the model it resembles. Durations are modelled, not measured: a fixed cost plus the
longer of bytes over bandwidth and FLOP over rate. The key `atrex_synthetic` in the file says so,
and its facts carry the time source "modelled". The output is the same on every run.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FIXED_NS = 2_000  # launch and drain of a small kernel on a current data-centre GPU
BYTES_PER_NS = 4_000  # 4 TB/s
FLOP_PER_NS = 800_000  # 800 TFLOP/s of dense bf16
EPS = "9.9999999999999995e-07"  # how the profiler prints 1e-6
BF16, FP8, FLOAT = "c10::BFloat16", "c10::Float8_e4m3fn", "float"
INT, LONG, SCALAR = "int", "long int", "Scalar"
PAGE = 16

MARKER = {
    "made_by": "traces/make_synthetic.py",
    "durations": "modelled: 2 us + max(bytes / 4e12 per s, FLOP / 8e14 per s)",
    "structure": "invented after vLLM traces",
}


@dataclass(frozen=True)
class Model:
    """Sizes of a decoder; `layers` is what the trace holds, fewer than the real model's."""

    like: str
    hidden: int
    width: int
    heads: int
    kv_heads: int
    layers: int
    qk_norm: bool = False
    fp8: bool = False  # linear layers in fp8 with scales for blocks of 128
    experts: int = 0  # of a mixture instead of the dense layer; `width` is one expert's
    local_experts: int = 0  # that this rank holds
    top_k: int = 0
    head_dim: int = 128
    vocab: int = 32_000


@dataclass(frozen=True)
class Batch:
    """One engine step: prompts prefilled and sequences decoded, repeated `times`."""

    times: int
    prefill_tokens: int = 0
    prefills: int = 0
    decodes: int = 0
    kv_tokens: int = 0  # of the decoding sequences

    @property
    def tokens(self) -> int:
        """Query tokens of the step."""
        return self.prefill_tokens + self.decodes

    @property
    def annotation(self) -> str:
        """The step in vLLM's detailed form."""
        square = self.prefill_tokens**2 // max(self.prefills, 1)
        context = f"sq{self.prefill_tokens}sk{self.prefill_tokens}sqsq{square}sqsk{square}"
        kv = self.kv_tokens
        generation = f"sq{self.decodes}sk{kv}sqsq{self.decodes}sqsk{kv}"
        return (
            f"execute_{self.tokens}_context_{self.prefills}({context})"
            f"_generation_{self.decodes}({generation})"
        )


SESSIONS = (
    (
        Model("Qwen3-8B", 4096, 12288, 32, 8, layers=4, qk_norm=True),
        (
            Batch(times=1, prefill_tokens=2048, prefills=2),
            Batch(times=2, prefill_tokens=512, prefills=1, decodes=32, kv_tokens=32_000),
            Batch(times=8, decodes=64, kv_tokens=80_000),
            Batch(times=3, decodes=1, kv_tokens=1_500),
        ),
    ),
    (
        Model("a 2048-wide decoder", 2048, 6144, 16, 8, layers=3),
        (
            Batch(times=1, prefill_tokens=1024, prefills=4),
            Batch(times=6, decodes=16, kv_tokens=16_000),
        ),
    ),
    (
        Model("a 5120-wide decoder", 5120, 17408, 40, 8, layers=3),
        (
            Batch(times=1, prefill_tokens=512, prefills=1),
            Batch(times=6, decodes=32, kv_tokens=40_000),
        ),
    ),
    (
        Model("a 7168-wide decoder", 7168, 18432, 56, 8, layers=3),
        (
            Batch(times=1, prefill_tokens=256, prefills=1),
            Batch(times=6, decodes=8, kv_tokens=9_000),
        ),
    ),
    (
        Model(
            "Qwen3-30B-A3B, one of eight ranks",
            2048,
            768,
            32,
            4,
            layers=4,
            qk_norm=True,
            experts=128,
            local_experts=16,
            top_k=8,
        ),
        (
            Batch(times=1, prefill_tokens=1024, prefills=2),
            Batch(times=1, prefill_tokens=448, prefills=1, decodes=64, kv_tokens=60_000),
            Batch(times=8, decodes=32, kv_tokens=36_000),
            Batch(times=3, decodes=1, kv_tokens=2_000),
        ),
    ),
    (
        Model("Qwen3-32B in fp8, one of two ranks", 5120, 12800, 32, 4, layers=3, fp8=True),
        (
            Batch(times=1, prefill_tokens=512, prefills=1),
            Batch(times=8, decodes=64, kv_tokens=50_000),
            Batch(times=3, decodes=1, kv_tokens=1_200),
        ),
    ),
)


@dataclass
class Recorder:
    """Writes events: a CPU thread that launches, and one stream that runs behind it."""

    pid: int = 0
    cpu_ns: int = 1_000_000
    gpu_ns: int = 1_000_000
    correlation: int = 0
    events: list[dict[str, Any]] = field(default_factory=list)

    def op(
        self, name: str, dims: list[Any], types: list[str], concrete: list[str] | None = None
    ) -> Op:
        """Open a CPU operator; leave the `with` block to close it."""
        return Op(self, name, dims, types, concrete or [""] * len(dims))

    def kernel(self, name: str, grid: int, bytes: int, flop: int = 0) -> None:
        """Launch a kernel; its modelled time starts when the stream is free."""
        self.correlation += 1
        self.event("cuda_runtime", "cudaLaunchKernel", self.cpu_ns, 3_000,
                   {"correlation": self.correlation})  # fmt: skip
        self.cpu_ns += 4_000
        start = max(self.gpu_ns, self.cpu_ns + 1_000)
        duration = FIXED_NS + max(-(-bytes // BYTES_PER_NS), -(-flop // FLOP_PER_NS))
        self.events.append({
            "ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7,
            "ts": _microseconds(start), "dur": _microseconds(duration),
            "args": {"device": 0, "stream": 7, "correlation": self.correlation,
                     "grid": [grid, 1, 1], "block": [256, 1, 1]},
        })  # fmt: skip
        self.gpu_ns = start + duration

    def event(self, category: str, name: str, start: int, duration: int, args: Any) -> None:
        """Write an event of the CPU thread."""
        self.events.append({
            "ph": "X", "cat": category, "name": name, "pid": self.pid, "tid": self.pid,
            "ts": _microseconds(start), "dur": _microseconds(duration), "args": args,
        })  # fmt: skip


@dataclass
class Op:
    """A CPU operator that is open."""

    recorder: Recorder
    name: str
    dims: list[Any]
    types: list[str]
    concrete: list[str]
    start: int = 0

    def __enter__(self) -> None:
        self.start = self.recorder.cpu_ns
        self.recorder.cpu_ns += 1_000

    def __exit__(self, *error: object) -> None:
        self.recorder.cpu_ns += 1_000
        strides = [_strides(dims) for dims in self.dims]
        self.recorder.event(
            "cpu_op", self.name, self.start, self.recorder.cpu_ns - self.start,
            {"Input Dims": self.dims, "Input type": self.types, "Input Strides": strides,
             "Concrete Inputs": self.concrete},
        )  # fmt: skip


def _strides(dims: list[int]) -> list[int]:
    strides, step = [], 1
    for size in reversed(dims):
        strides.append(step)
        step *= size
    return strides[::-1]


def _microseconds(ns: int) -> str:
    """Print microseconds with three decimals; the quotes are taken off when the file is written."""
    return f"@{ns // 1000}.{ns % 1000:03d}@"


def serve(model: Model, batches: tuple[Batch, ...], recorder: Recorder) -> None:
    """Record a session of one model."""
    for batch in batches:
        for _ in range(batch.times):
            start = recorder.cpu_ns
            recorder.cpu_ns += 2_000
            step(model, batch, recorder)
            recorder.event("user_annotation", batch.annotation, start, recorder.cpu_ns - start, {})
            recorder.cpu_ns += 50_000


def step(model: Model, batch: Batch, recorder: Recorder) -> None:
    """Record one engine step: embedding, layers, final norm, head and sampling."""
    tokens, hidden = batch.tokens, model.hidden
    row_bytes = 2 * tokens * hidden
    with recorder.op("aten::embedding", [[model.vocab, hidden], [tokens]], [BF16, LONG]):
        recorder.kernel(
            "void at::native::vectorized_gather_kernel<16, long>(char*, char*, long*, int)",
            tokens, 2 * row_bytes,
        )  # fmt: skip
    for layer in range(model.layers):
        _norm(recorder, tokens, hidden, adds=layer > 0)
        _attention(model, batch, recorder)
        _norm(recorder, tokens, hidden, adds=True)
        if model.experts:
            _mixture(model, tokens, recorder)
        else:
            _dense(model, tokens, recorder)
    _norm(recorder, tokens, hidden, adds=True)
    sampled = batch.prefills + batch.decodes
    _linear(recorder, sampled, model.vocab, hidden)
    with recorder.op("aten::argmax", [[sampled, model.vocab], [], []], [BF16, SCALAR, SCALAR],
                     ["", "-1", "False"]):  # fmt: skip
        recorder.kernel(
            "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, "
            "at::native::ArgMaxOps<float>, unsigned int, long, 4, 4> >()",
            sampled, 2 * sampled * model.vocab,
        )  # fmt: skip


def _norm(recorder: Recorder, rows: int, width: int, *, adds: bool) -> None:
    matrix = [rows, width]
    types = [BF16, BF16, BF16, SCALAR]
    name = "_C::fused_add_rms_norm" if adds else "_C::rms_norm"
    kernel = "fused_add_rms_norm_kernel" if adds else "rms_norm_kernel"
    with recorder.op(name, [matrix, matrix, [width], []], types, ["", "", "", EPS]):
        recorder.kernel(
            f"void vllm::{kernel}<c10::BFloat16, 8>(c10::BFloat16*, c10::BFloat16 const*, float)",
            rows, (8 if adds else 4) * rows * width + 2 * width,
        )  # fmt: skip


def _linear(recorder: Recorder, rows: int, n_out: int, k_in: int) -> None:
    with recorder.op("aten::linear", [[rows, k_in], [n_out, k_in], []], [BF16, BF16, ""]):  # noqa: SIM117
        with recorder.op("aten::mm", [[rows, k_in], [k_in, n_out]], [BF16, BF16]):
            recorder.kernel(
                "nvjet_tst_128x128_64x4_2x1_v_bz_TNT", -(-rows // 128) * -(-n_out // 128),
                2 * (rows * k_in + n_out * k_in + rows * n_out), 2 * rows * n_out * k_in,
            )  # fmt: skip


def _projection(model: Model, recorder: Recorder, rows: int, n_out: int, k_in: int) -> None:
    """Record a linear layer of a block, in the model's storage type."""
    if not model.fp8:
        _linear(recorder, rows, n_out, k_in)
        return
    groups, blocks = -(-k_in // 128), -(-n_out // 128)
    scales = 4 * (rows + blocks) * groups
    with recorder.op(
        "vllm::triton_per_token_group_quant_fp8", [[rows, k_in], []], [BF16, SCALAR], ["", "128"]
    ):
        recorder.kernel("_per_token_group_quant_fp8", rows * groups, 3 * rows * k_in + scales)
    with recorder.op(
        "vllm::w8a8_triton_block_scaled_mm_func",
        [[rows, k_in], [n_out, k_in], [rows, groups], [blocks, groups], [], []],
        [FP8, FP8, FLOAT, FLOAT, "ScalarList", SCALAR], ["", "", "", "", "[128, 128]", "15"],
    ):  # fmt: skip
        recorder.kernel(
            "_w8a8_triton_block_scaled_mm", -(-rows // 64) * blocks,
            rows * k_in + n_out * k_in + scales + 2 * rows * n_out, rows * n_out * k_in,
        )  # fmt: skip


def _dense(model: Model, tokens: int, recorder: Recorder) -> None:
    _projection(model, recorder, tokens, 2 * model.width, model.hidden)
    with recorder.op(
        "_C::silu_and_mul", [[tokens, model.width], [tokens, 2 * model.width]], [BF16, BF16]
    ):
        recorder.kernel(
            "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel<c10::BFloat16>, "
            "true>(c10::BFloat16*, c10::BFloat16 const*, int)",
            tokens, 6 * tokens * model.width,
        )  # fmt: skip
    _projection(model, recorder, tokens, model.hidden, model.width)


def _mixture(model: Model, tokens: int, recorder: Recorder) -> None:
    """Record router, gating and experts; ids of experts of other ranks are -1."""
    hidden, width, top_k, local = model.hidden, model.width, model.top_k, model.local_experts
    _linear(recorder, tokens, model.experts, hidden)
    chosen, logits = [tokens, top_k], [tokens, model.experts]
    with recorder.op(
        "_moe_C::topk_softmax", [chosen, chosen, chosen, logits, []],
        [FLOAT, INT, INT, BF16, SCALAR], ["", "", "", "", "True"],
    ):  # fmt: skip
        recorder.kernel(
            "void vllm::moe::topkGating<8, 128, 4, 16, 32, int, __nv_bfloat16>(int)",
            tokens, 2 * tokens * model.experts + 8 * tokens * top_k,
        )  # fmt: skip
    routed = tokens * top_k * local // model.experts
    hit = min(local, routed)
    with recorder.op(
        "vllm::outplace_fused_experts",
        [[tokens, hidden], [local, 2 * width, hidden], [local, hidden, width], chosen, chosen, [],
         [model.experts]],
        [BF16, BF16, BF16, FLOAT, INT, SCALAR, INT], ["", "", "", "", "", "silu", ""],
    ):  # fmt: skip
        for n_out, k_in in ((2 * width, hidden), (hidden, width)):
            recorder.kernel(
                "fused_moe_kernel", max(1, -(-routed // 16)) * -(-n_out // 128),
                2 * (routed * (k_in + n_out) + hit * n_out * k_in), 2 * routed * n_out * k_in,
            )  # fmt: skip


def _attention(model: Model, batch: Batch, recorder: Recorder) -> None:
    tokens, heads, kv_heads, dim = batch.tokens, model.heads, model.kv_heads, model.head_dim
    q, kv = [tokens, heads, dim], [tokens, kv_heads, dim]
    q_width, kv_width = heads * dim, kv_heads * dim
    _projection(model, recorder, tokens, q_width + 2 * kv_width, model.hidden)
    if model.qk_norm:
        _norm(recorder, tokens * heads, dim, adds=False)
        _norm(recorder, tokens * kv_heads, dim, adds=False)
    with recorder.op(
        "_C::rotary_embedding",
        [[tokens], [tokens, q_width], [tokens, kv_width], [], [40_960, dim], []],
        [LONG, BF16, BF16, SCALAR, BF16, SCALAR], ["", "", "", str(dim), "", "True"],
    ):  # fmt: skip
        recorder.kernel(
            "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*, c10::BFloat16*)",
            tokens, 4 * tokens * (q_width + kv_width),
        )  # fmt: skip
    types = [BF16] * 4
    with recorder.op("vllm::unified_attention_with_output", [q, kv, kv, q], types):
        cache = [512, PAGE, kv_heads, dim]
        with recorder.op("_C_cache_ops::reshape_and_cache_flash",
                         [kv, kv, cache, cache, [tokens]], [*types, LONG]):  # fmt: skip
            recorder.kernel(
                "void vllm::reshape_and_cache_flash_kernel<__nv_bfloat16, __nv_bfloat16, "
                "(vllm::Fp8KVCacheDataType)0>(__nv_bfloat16 const*, long const*)",
                tokens, 8 * tokens * kv_width,
            )  # fmt: skip
        causal = batch.prefill_tokens**2 // max(2 * batch.prefills, 1)
        read = batch.prefill_tokens + batch.kv_tokens
        bounds = [batch.prefills + batch.decodes + 1]
        with recorder.op(
            "aiter::mha_batch_prefill",
            [q, cache, cache, bounds, bounds, [-(-read // PAGE)], *[[]] * 9],
            [BF16, BF16, BF16, INT, INT, INT, *[SCALAR] * 9],
            ["", "", "", "", "", "", "1024", "4096", "0.", "0.088388347648318447", "0.", "False",
             "True", "-1", "-1"],
        ):  # fmt: skip
            recorder.kernel(
                "FmhaBatchPrefillWithPagedKVCacheKernel", tokens,
                4 * tokens * q_width + 4 * read * kv_width,
                4 * q_width * (causal + batch.kv_tokens),
            )  # fmt: skip
    _projection(model, recorder, tokens, model.hidden, q_width)


def lines(recorders: list[Recorder]) -> Iterator[str]:
    """Yield the file's text, one event a line."""
    properties = {"id": 0, "name": "modelled GPU", "warpSize": 32}
    yield '{"schemaVersion": 1, "record_shapes": 1, '
    yield f'"atrex_synthetic": {json.dumps(MARKER)},\n'
    yield f'"deviceProperties": [{json.dumps(properties)}], "displayTimeUnit": "ns",\n'
    yield '"traceEvents": [\n'
    events = [event for recorder in recorders for event in recorder.events]
    texts = (json.dumps(event).replace('"@', "").replace('@"', "") for event in events)
    yield ",\n".join(texts)
    yield "\n]}\n"


def text() -> str:
    """Return the trace as JSON text."""
    recorders = []
    cpu_ns = 1_000_000
    for pid, (model, batches) in enumerate(SESSIONS, start=1):
        previous = recorders[-1] if recorders else Recorder()
        cpu_ns = max(previous.cpu_ns, previous.gpu_ns) + 1_000_000
        recorder = Recorder(pid=pid, cpu_ns=cpu_ns, gpu_ns=cpu_ns,
                            correlation=previous.correlation)  # fmt: skip
        serve(model, batches, recorder)
        recorders.append(recorder)
    return "".join(lines(recorders))


if __name__ == "__main__":
    out = Path(__file__).with_name("synthetic_serving.json.gz")
    out.write_bytes(gzip.compress(text().encode(), compresslevel=9, mtime=0))
