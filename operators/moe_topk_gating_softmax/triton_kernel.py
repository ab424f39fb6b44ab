"""moe_topk_gating_softmax in Triton: a row in the registers of one warp, its largest taken in turn.

Bound by memory up to some 128 experts, then by the top_k passes over a row: each is a maximum, 5
exchanges within a warp. Logits are compared, not scores: an exponential rounds, and may bring two
of them to one value. The sum over all experts is left out where the weights are renormalised.

Rows share a program, so that none is spread over warps and every load is wide. Valid while a row
fits one block (experts <= 4096), for any row stride with contiguous rows, and finite logits.
"""

import triton
import triton.language as tl

OPERATOR = "moe_topk_gating_softmax"
BACKEND = "triton"
DTYPES = ("fp32", "bf16")
TUNABLES = {
    "tile": (1024, (512, 1024, 2048, 4096)),  # logits of a program
    "elements_per_thread": (8, (4, 8, 16)),
}


@triton.jit
def topk_gating_softmax_kernel(
    logits,
    topk_w,
    topk_ids,
    tokens,
    experts,
    top_k,
    stride,
    ROWS: tl.constexpr,
    EXPERTS: tl.constexpr,
    SLOTS: tl.constexpr,
    RENORMALISE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)[:, None]
    expert, slot = tl.arange(0, EXPERTS)[None, :], tl.arange(0, SLOTS)[None, :]
    inside = (row < tokens) & (expert < experts)
    left = tl.load(logits + row * stride + expert, inside, other=0.0).to(tl.float32)
    left = tl.where(expert < experts, left, float("-inf"))
    largest = tl.max(left, axis=1, keep_dims=True)
    weights = tl.exp(left - largest)  # of all experts, for their sum

    chosen = tl.full((ROWS, SLOTS), float("-inf"), tl.float32)
    ids = tl.zeros((ROWS, SLOTS), tl.int32)
    for j in range(top_k):
        value, index = tl.max(left, axis=1, return_indices=True, keep_dims=True)
        chosen = tl.where(slot == j, value, chosen)
        ids = tl.where(slot == j, index, ids)
        left = tl.where(expert == index, float("-inf"), left)

    chosen = tl.exp(chosen - largest)
    if RENORMALISE:
        total = tl.sum(chosen, axis=1, keep_dims=True)
    else:
        total = tl.sum(weights, axis=1, keep_dims=True)
    inside = (row < tokens) & (slot < top_k)
    tl.store(topk_w + row * top_k + slot, chosen / total, inside)
    tl.store(topk_ids + row * top_k + slot, ids, inside)


def run(logits, topk_w, topk_ids, top_k, renormalise, prepared=None):
    """logits [tokens, experts], topk_w, topk_ids [tokens, top_k]."""
    tokens, experts = logits.shape
    width = triton.next_power_of_2(experts)
    rows = max(1, TUNABLES["tile"][0] // width)
    warps = rows * width // (32 * TUNABLES["elements_per_thread"][0])
    topk_gating_softmax_kernel[(triton.cdiv(tokens, rows),)](
        logits,
        topk_w,
        topk_ids,
        tokens,
        experts,
        top_k,
        logits.stride(0),
        ROWS=rows,
        EXPERTS=width,
        SLOTS=triton.next_power_of_2(top_k),
        RENORMALISE=bool(renormalise),
        num_warps=max(1, min(8, warps, rows)),
    )
