"""Router of a mixture of experts: the top_k largest softmax scores of each token, and their ids.

    score[t, e] = exp(logits[t, e]) / sum_e exp(logits[t, e])
    topk_ids[t] = the top_k experts of largest score, descending, none twice
    topk_w[t, j] = score[t, topk_ids[t, j]], over their sum if renormalise is 1

Of equal scores any may be taken, and scores below 1e-30 count as equal: fp32 loses what lies
further below the largest. Grouped and sigmoid routers are other operators.

Source: Shazeer et al., arXiv:1701.06538, section 2.1; call signature of vLLM's
`_moe_C::topk_softmax`.
"""

from __future__ import annotations

from atrex.model import UNKNOWN, Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("tokens", "experts", "top_k", "renormalise")
FLOOR = 1e-30  # scores and weights below are as good as this
SHIFT = 72.0  # of a token's logits either way, which takes them to +-80; a softmax does not feel it
FLAGS = {"True": 1, "true": 1, "1": 1, "False": 0, "false": 0, "0": 0}  # how traces print a bool


def inputs(w, draw):
    """logits [tokens, experts]: N(0, 4), experts of unlike popularity, tokens shifted as a whole.

    top_k and renormalise are attributes.
    """
    tokens, experts = w.axes["tokens"], w.axes["experts"]
    noise = draw.normal("logits", (tokens, experts), w.dtype, std=2.0)
    popularity = draw.normal("popularity", (experts,), "fp32", std=0.5)
    shift = draw.uniform("shift", (tokens, 1), "fp32", low=-SHIFT, high=SHIFT)
    return {
        "logits": noise + (popularity + shift).to(noise.dtype),
        "top_k": w.axes["top_k"],
        "renormalise": w.axes["renormalise"],
    }


def outputs(w):
    """topk_w fp32, topk_ids int32 [tokens, top_k], contiguous."""
    shape = (w.axes["tokens"], w.axes["top_k"])
    return {
        "topk_w": TensorSpec(shape=shape, dtype="fp32"),
        "topk_ids": TensorSpec(shape=shape, dtype="int32"),
    }


def reference(logits, top_k, renormalise):
    weights, ids = logits.softmax(-1).topk(top_k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return {"topk_w": weights, "topk_ids": ids}


def canonical(inputs, outputs):
    """Replace ids by their scores; those of impossible and of repeated ids are NaN."""
    scores, ids = inputs["logits"].softmax(-1), outputs["topk_ids"].long()
    experts = scores.shape[-1]
    impossible = (ids < 0) | (ids >= experts)
    repeated = (ids[:, :, None] == ids[:, None, :]).sum(-1) > 1
    chosen = _floored(scores.gather(-1, ids.clamp(0, experts - 1)))
    return {
        "topk_w": _floored(outputs["topk_w"].double()),
        "scores": chosen.masked_fill(impossible | repeated, float("nan")),
    }


def _floored(values):
    return values.masked_fill(values.abs() < FLOOR, FLOOR)


def cost(w, inputs):
    tokens, experts, top_k = (w.axes[name] for name in AXES[:3])
    item = 4 if w.dtype == "fp32" else 2
    return Cost(
        flop={"vector": tokens * (4 * experts - 1)},  # subtract, exp, add, divide
        read_bytes=item * tokens * experts,
        write_bytes=(4 + 4) * tokens * top_k,
    )


def match(call, step):
    # _moe_C::topk_softmax(Tensor! topk_w, Tensor! topk_ids, Tensor! token_expert_indices,
    #                      Tensor logits, bool renormalise, Tensor? bias); older ones end at logits
    if call.name in (
        "_moe_C::topk_softmax",
        "aiter::topk_softmax",
        "vllm::rocm_aiter_topk_softmax",
    ):
        return None if _given(call, 5) else _gating(call, logits=3)
    # sgl_kernel::topk_softmax(Tensor! topk_w, Tensor! topk_ids, Tensor logits, bool renormalise,
    #                          float softcapping, Tensor? correction_bias)
    if call.name == "sgl_kernel::topk_softmax":
        capped = call.scalar(4) not in ("0", UNKNOWN)
        return None if capped or _given(call, 5) else _gating(call, logits=2)
    # TopK(Tensor logits, int top_k, bool apply_softmax, ...): of the chosen, which renormalises
    if call.name == "TopK" and FLAGS.get(_text(call, 2)) == 1:
        tokens, experts = call.dims[0]
        return _workload(tokens, experts, int(call.concrete[1]), 1, call.dtype(0))
    return None


def _given(call, index):
    """Whether an optional tensor was passed."""
    return index < len(call.dims) and bool(call.dims[index])


def _text(call, index):
    return call.concrete[index] if index < len(call.concrete) else ""


def _gating(call, logits):
    """Read the sizes; the flag stands behind the logits, and an operator without one has it off."""
    tokens, experts = call.dims[logits]
    flag = FLAGS.get(_text(call, logits + 1), UNKNOWN) if logits + 1 < len(call.dims) else 0
    return _workload(tokens, experts, call.dims[0][1], flag, call.dtype(logits))


def _workload(tokens, experts, top_k, renormalise, dtype):
    axes = dict(zip(AXES, (tokens, experts, top_k, renormalise), strict=True))
    return Workload(operator="moe_topk_gating_softmax", axes=axes, dtype=dtype)


def eager(logits, top_k, renormalise, prepared=None):
    import torch

    scores = logits.softmax(-1, dtype=torch.float32)
    weights, ids = scores.topk(top_k, dim=-1)
    if renormalise:
        weights = weights / weights.sum(-1, keepdim=True)
    return {"topk_w": weights, "topk_ids": ids.to(torch.int32)}


DEFINITION = Operator(
    name="moe_topk_gating_softmax",
    axes=AXES,
    inputs=inputs,
    outputs=outputs,
    reference=reference,
    cost=cost,
    match=match,
    canonical=canonical,
    tolerance={"topk_w": "PROB", "scores": "CHOICE"},
    baselines=(
        Implementation(name="eager", run=eager),
        Implementation(name="compiled", run=eager, compiled=True),
    ),
    small=(
        _workload(5, 160, 8, 1, "fp32"),
        _workload(1, 512, 10, 1, "fp32"),
        _workload(6, 8, 2, 0, "fp32"),
        _workload(33, 128, 8, 1, "bf16"),
        _workload(9, 256, 8, 0, "bf16"),
    ),
)
