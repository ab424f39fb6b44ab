"""Mixture of experts: each token's gated layers of its top_k experts, weighted and added up.

    middle[t, j] = silu(w1[e, :width] x[t]) * (w1[e, width:] x[t]),  e = topk_ids[t, j]
    out[t] = sum_j topk_w[t, j] * (w2[e] middle[t, j])

Only experts of this rank add to it: the ids of others are -1, and a token without a local expert is
zero. A token never names an expert twice. Rounding the intermediate and each expert's output to the
storage type is allowed, and adding them up in any order; there is no bias. The axis `ids` names the
load of the experts (see `Draw.routing`), which traces do not tell: "skewed" is taken for theirs.

Source: Shazeer, arXiv:2002.05202 (SwiGLU); Jiang et al., arXiv:2401.04088, section 2.1; call
signature of vLLM's `vllm::outplace_fused_experts`.
"""

from __future__ import annotations

import re

from atrex.model import UNKNOWN, Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("tokens", "hidden", "experts", "local_experts", "top_k", "expert_width", "ids")
KERNELS = re.compile(r"^_?fused_moe_kernel|\be2e_moe_kernel\b|^fmoe_(?!.*[Ff]p8)")
FUSED = (
    "vllm::outplace_fused_experts",
    "vllm::inplace_fused_experts",
    "vllm::rocm_aiter_fused_moe",
    "sglang::outplace_fused_experts",
    "sglang::inplace_fused_experts",
)
OTHER_ACTIVATIONS = ("gelu", "relu", "swiglu", "no_mul")  # parts of the names in concrete inputs


def inputs(w, draw):
    """x [tokens, hidden]; topk_w fp32, topk_ids int32 [tokens, top_k].

    Static: w1 [local_experts, 2 * expert_width, hidden], gate rows first; w2 [local_experts,
    hidden, expert_width].
    """
    tokens, hidden, experts, local, top_k, width, ids = (w.axes[name] for name in AXES)
    return {
        "x": draw.activation("x", (tokens, hidden), w.dtype),
        "w1": draw.weight("w1", (local, 2 * width, hidden), w.dtype, fan_in=hidden),
        "w2": draw.weight("w2", (local, hidden, width), w.dtype, fan_in=width),
        # unlike weights, as a softmax gives them, of which none may be left out
        "topk_w": draw.scale("topk_w", (tokens, top_k), typical=1 / top_k, decades=0.5),
        "topk_ids": draw.routing("topk_ids", tokens, experts, top_k, local=local, profile=ids),
    }


def outputs(w):
    """out [tokens, hidden], contiguous."""
    return {"out": TensorSpec(shape=(w.axes["tokens"], w.axes["hidden"]), dtype=w.dtype)}


def reference(x, w1, w2, topk_w, topk_ids):
    return {"out": _mixture(x, w1, w2, topk_w, topk_ids)}


def _mixture(x, w1, w2, topk_w, topk_ids):
    """Give each hit expert a batch of rows, filled up to the largest load with zeros."""
    import torch
    from torch.nn.functional import silu

    (tokens, hidden), top_k = x.shape, topk_ids.shape[1]
    flat = topk_ids.flatten()
    slots = flat.argsort(stable=True)[int((flat < 0).sum()) :]  # grouped by expert, -1 left out
    experts, batch, loads = flat[slots].unique_consecutive(return_inverse=True, return_counts=True)
    place = torch.arange(len(slots), device=x.device) - (loads.cumsum(0) - loads)[batch]
    rows = x.new_zeros(len(experts), int(loads.max()) if len(loads) else 0, hidden)
    rows[batch, place] = x[slots // top_k]
    gate, up = (rows @ w1[experts].mT).chunk(2, dim=-1)
    result = (silu(gate) * up) @ w2[experts].mT
    weighted = topk_w.new_zeros(tokens * top_k, hidden)
    weighted[slots] = result[batch, place] * topk_w.flatten()[slots, None]
    return weighted.reshape(tokens, top_k, hidden).sum(1).to(x.dtype)


def cost(w, inputs):
    ids = inputs["topk_ids"]
    local = ids[ids >= 0]
    routed, hit = len(local), len(local.unique())
    tokens, hidden, _, _, top_k, width, _ = (w.axes[name] for name in AXES)
    return Cost(
        flop={w.dtype: 6 * routed * hidden * width},
        read_bytes=2 * tokens * hidden + 6 * hit * hidden * width + (4 + 4) * tokens * top_k,
        write_bytes=2 * tokens * hidden,
    )


def match(call, step):
    # vllm::outplace_fused_experts(Tensor x, Tensor w1, Tensor w2, Tensor topk_w, Tensor topk_ids,
    #     ...), and the others alike; further inputs differ by version
    if call.name in FUSED:
        return _fused(call)
    if not (call.kernels and KERNELS.search(call.kernels[0])):
        return None
    # vllm::moe_forward(Tensor x, Tensor router_logits, ...): holds its weights itself
    if call.name in ("vllm::moe_forward", "vllm::moe_forward_shared"):
        (tokens, hidden), (_, experts) = call.dims[:2]
        unknown = [UNKNOWN] * 3  # how many experts are local, top_k and their width
        return _workload(tokens, hidden, experts, *unknown, "skewed", dtype=UNKNOWN)
    return None if call.name else _workload(*[UNKNOWN] * len(AXES), dtype=UNKNOWN)


def _fused(call):
    (tokens, hidden), (local, double, _), (_, _, width), _, (_, top_k) = call.dims[:5]
    further = range(5, len(call.dims))
    quantised = call.dtype(1) != call.dtype(0)
    ungated = double != 2 * width
    biased = any(call.dims[i] == (local, double) for i in further)
    if quantised or ungated or biased or _activates_otherwise(call):
        return None
    # a map of the model's experts to local ones, where these are but a part
    maps = [call.dims[i] for i in further if len(call.dims[i]) == 1 and call.dtype(i) == "int32"]
    experts = maps[0][0] if maps else local
    sizes = (tokens, hidden, experts, local, top_k, width)
    return _workload(*sizes, "skewed", dtype=call.dtype(0))


def _workload(*sizes, dtype):
    axes = dict(zip(AXES, sizes, strict=True))
    return Workload(operator="fused_moe", axes=axes, dtype=dtype)


def _activates_otherwise(call):
    return any(other in text.lower() for text in call.concrete for other in OTHER_ACTIVATIONS)


def eager(x, w1, w2, topk_w, topk_ids, prepared=None):
    return {"out": _mixture(x, w1, w2, topk_w, topk_ids)}


def eager_fp32(x, w1, w2, topk_w, topk_ids, prepared=None):
    out = _mixture(x.float(), w1.float(), w2.float(), topk_w, topk_ids)
    return {"out": out.to(x.dtype)}


def grouped(x, w1, w2, topk_w, topk_ids, prepared=None):
    """Multiply rows sorted by expert with torch's grouped product; sizes stay on the device."""
    import torch
    from torch.nn.functional import grouped_mm, silu

    (tokens, hidden), top_k, local = x.shape, topk_ids.shape[1], len(w1)
    flat = topk_ids.flatten().long()
    flat = flat.where(flat >= 0, local)  # others stand last, past the end of all groups
    slots = flat.argsort()
    loads = torch.zeros(local + 1, dtype=torch.int64, device=x.device)
    ends = loads.scatter_add(0, flat, torch.ones_like(flat)).cumsum(0)[:local].to(torch.int32)
    gate, up = grouped_mm(x[slots // top_k], w1.mT, offs=ends).chunk(2, dim=-1)
    result = grouped_mm(silu(gate) * up, w2.mT, offs=ends) * topk_w.flatten()[slots, None]
    weighted = torch.empty_like(result)
    weighted[slots] = result.where((flat < local)[slots, None], 0)
    return {"out": weighted.reshape(tokens, top_k, hidden).sum(1).to(x.dtype)}


DEFINITION = Operator(
    name="fused_moe",
    axes=AXES,
    inputs=inputs,
    static=("w1", "w2"),
    outputs=outputs,
    reference=reference,
    cost=cost,
    match=match,
    tolerance={"out": "MOE"},
    baselines=(
        Implementation(name="eager", run=eager),
        Implementation(name="eager_fp32", run=eager_fp32, dtypes=("bf16", "fp16")),
        Implementation(name="grouped", run=grouped, dtypes=("bf16",)),
        Implementation(name="compiled", run=grouped, compiled=True, dtypes=("bf16",)),
    ),
    small=(
        # rows scatter where few products make them up: a width of some 200 keeps them in the gate
        _workload(17, 128, 8, 8, 2, 256, "skewed", dtype="bf16"),
        # most experts are empty
        _workload(1, 256, 16, 16, 4, 200, "skewed", dtype="bf16"),
        # other ranks hold most experts, some tokens have none here
        _workload(24, 136, 16, 4, 4, 232, "skewed", dtype="bf16"),
        # more rows of one expert than a tile has
        _workload(40, 128, 4, 4, 2, 264, "hot", dtype="bf16"),
    ),
)
