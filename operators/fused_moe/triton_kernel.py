"""fused_moe in Triton: queues of rows by expert, two grouped products, a sum over slots.

Bound by the bytes of w1 and w2 for few tokens, by the matrix units from some 300 rows an expert on.

- queue: each routed (token, slot) pair takes a place in its expert's queue by an atomic counter.
  Places differ between runs, results do not: no row's product depends on where in a tile it stands.
- gate_up: silu of the gate times up, while both are in registers;
- down: times the router's weight, rounded to bf16 for each slot;
- add: the slots of a token, in their order, without those of other ranks.

The host knows no loads, so grids have room for the worst split into tiles, and every program counts
for itself whose tile it has. Weights stand on the left of the products: one expert often has too
few rows to fill that side of a tensor core, which wants 64. Consecutive programs share `band` tiles
of rows and then walk along the weights, so that both stay in L2.

Valid for contiguous tensors of any size, where no token names an expert twice.
"""

import torch
import triton
import triton.language as tl

OPERATOR = "fused_moe"
BACKEND = "triton"
DTYPES = ("bf16",)
TUNABLES = {
    "tile_rows": (128, (32, 64, 128)),  # routed rows at most; experts with few take fewer
    "gate_columns": (64, (32, 64, 128)),  # of gate and of up each
    "down_columns": (128, (64, 128)),
    "tile_k": (64, (32, 64, 128)),
    "band": (8, (1, 4, 8, 16)),
    "num_stages": (3, (2, 3, 4, 5)),  # 4 of the largest tiles exceed the 64 KiB of gfx942
}
LEAST_ROWS = 16  # that a tensor core instruction takes on the right
QUEUE_BLOCK = 256
ADD_BLOCK = 1024


@triton.jit
def queue_kernel(topk_ids, loads, queues, tokens, slots, BLOCK: tl.constexpr):
    slot = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    expert = tl.load(topk_ids + slot, slot < slots, other=-1)
    local = expert >= 0
    place = tl.atomic_add(loads + expert, 1, local, sem="relaxed")
    tl.store(queues + expert.to(tl.int64) * tokens + place, slot, local)


@triton.jit
def tile_of(loads, local_experts, row_tiles, columns, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
            BAND: tl.constexpr, EXPERTS: tl.constexpr):  # fmt: skip
    """Expert, first row in its queue, rows of it from there and first column of this program."""
    column_tiles = tl.cdiv(columns, COLUMNS)
    first = tl.program_id(0) // (BAND * column_tiles) * BAND
    height = min(row_tiles - first, BAND)
    place = tl.program_id(0) % (BAND * column_tiles)
    tile, column = first + place % height, place // height * COLUMNS

    expert = tl.arange(0, EXPERTS)
    load = tl.load(loads + expert, expert < local_experts, other=0)
    ends = tl.cumsum(tl.cdiv(load, ROWS), 0)  # tiles of all experts up to each
    mine = tl.sum((ends <= tile).to(tl.int32))
    row = (tile - tl.max(tl.where(ends <= tile, ends, 0))) * ROWS
    rows = tl.sum(tl.where(expert == mine, load, 0)) - row  # negative behind the last tile
    return mine.to(tl.int64), row, rows, column


@triton.jit
def gate_up_kernel(
    x,
    w1,
    loads,
    queues,
    middle,
    tokens,
    hidden,
    width,
    top_k,
    local_experts,
    row_tiles,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE_K: tl.constexpr,
    BAND: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    expert, first_row, rows, first_column = tile_of(
        loads, local_experts, row_tiles, width, ROWS, COLUMNS, BAND, EXPERTS
    )
    if rows <= 0:
        return
    row, k = tl.arange(0, ROWS), tl.arange(0, TILE_K)[None, :]
    column = first_column + tl.arange(0, COLUMNS)
    in_row, in_column = row < rows, (column < width)[:, None]
    slot = tl.load(queues + expert * tokens + first_row + row, in_row, other=0).to(tl.int64)
    x_tile = x + (slot // top_k * hidden)[:, None] + k
    gate_tile = w1 + expert * 2 * width * hidden + column[:, None] * hidden + k
    up_tile = gate_tile + width * hidden

    gate = tl.zeros((COLUMNS, ROWS), tl.float32)
    up = tl.zeros((COLUMNS, ROWS), tl.float32)
    for start in range(0, hidden, TILE_K):
        in_k = k < hidden - start
        right = tl.trans(tl.load(x_tile + start, in_row[:, None] & in_k, other=0.0))
        gate = tl.dot(tl.load(gate_tile + start, in_column & in_k, other=0.0), right, gate)
        up = tl.dot(tl.load(up_tile + start, in_column & in_k, other=0.0), right, up)
    value = tl.trans(gate / (1.0 + tl.exp(-gate)) * up).to(middle.dtype.element_ty)
    target = middle + (slot * width)[:, None] + column[None, :]
    tl.store(target, value, in_row[:, None] & tl.trans(in_column))


@triton.jit
def down_kernel(
    middle,
    w2,
    topk_w,
    loads,
    queues,
    parts,
    tokens,
    hidden,
    width,
    local_experts,
    row_tiles,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    TILE_K: tl.constexpr,
    BAND: tl.constexpr,
    EXPERTS: tl.constexpr,
):
    expert, first_row, rows, first_column = tile_of(
        loads, local_experts, row_tiles, hidden, ROWS, COLUMNS, BAND, EXPERTS
    )
    if rows <= 0:
        return
    row, k = tl.arange(0, ROWS), tl.arange(0, TILE_K)[None, :]
    column = first_column + tl.arange(0, COLUMNS)
    in_row, in_column = row < rows, (column < hidden)[:, None]
    slot = tl.load(queues + expert * tokens + first_row + row, in_row, other=0).to(tl.int64)
    middle_tile = middle + (slot * width)[:, None] + k
    w2_tile = w2 + expert * hidden * width + column[:, None] * width + k

    total = tl.zeros((COLUMNS, ROWS), tl.float32)
    for start in range(0, width, TILE_K):
        in_k = k < width - start
        right = tl.trans(tl.load(middle_tile + start, in_row[:, None] & in_k, other=0.0))
        total = tl.dot(tl.load(w2_tile + start, in_column & in_k, other=0.0), right, total)
    weight = tl.load(topk_w + slot, in_row, other=0.0)[:, None]
    value = (tl.trans(total) * weight).to(parts.dtype.element_ty)
    target = parts + (slot * hidden)[:, None] + column[None, :]
    tl.store(target, value, in_row[:, None] & tl.trans(in_column))


@triton.jit
def add_kernel(parts, topk_ids, out, hidden, top_k, BLOCK: tl.constexpr):
    token = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < hidden
    total = tl.zeros((BLOCK,), tl.float32)
    for slot in range(top_k):
        here = token * top_k + slot
        local = tl.load(topk_ids + here) >= 0  # nobody wrote the parts of other ranks
        total += tl.load(parts + here * hidden + column, inside & local, other=0.0).to(tl.float32)
    tl.store(out + token * hidden + column, total.to(out.dtype.element_ty), inside)


def run(x, w1, w2, topk_w, topk_ids, out, prepared=None):
    """x, out [tokens, hidden]; w1, w2 by expert; topk_w, topk_ids [tokens, top_k]."""
    (tokens, hidden), top_k = x.shape, topk_ids.shape[1]
    (local_experts, _, width), slots = w2.shape, tokens * top_k
    loads = torch.zeros(local_experts, dtype=torch.int32, device=x.device)
    queues = torch.empty((local_experts, tokens), dtype=torch.int32, device=x.device)
    middle = torch.empty((slots, width), dtype=x.dtype, device=x.device)
    parts = torch.empty((slots, hidden), dtype=x.dtype, device=x.device)
    queue_kernel[(triton.cdiv(slots, QUEUE_BLOCK),)](
        topk_ids, loads, queues, tokens, slots, BLOCK=QUEUE_BLOCK
    )

    mean = triton.next_power_of_2(triton.cdiv(slots, local_experts))
    rows = max(LEAST_ROWS, min(mean, TUNABLES["tile_rows"][0]))
    # the most tiles that any loads make: every expert that has rows leaves one tile almost empty
    row_tiles = (slots + min(local_experts, slots) * (rows - 1)) // rows
    options = {
        "ROWS": rows,
        "TILE_K": TUNABLES["tile_k"][0],
        "BAND": TUNABLES["band"][0],
        "EXPERTS": triton.next_power_of_2(local_experts),
        "num_warps": 8 if rows > 64 else 4,
        "num_stages": TUNABLES["num_stages"][0],
    }
    columns = TUNABLES["gate_columns"][0]
    gate_up_kernel[(row_tiles * triton.cdiv(width, columns),)](
        x, w1, loads, queues, middle, tokens, hidden, width, top_k, local_experts, row_tiles,
        COLUMNS=columns, **options,
    )  # fmt: skip
    columns = TUNABLES["down_columns"][0]
    down_kernel[(row_tiles * triton.cdiv(hidden, columns),)](
        middle, w2, topk_w, loads, queues, parts, tokens, hidden, width, local_experts, row_tiles,
        COLUMNS=columns, **options,
    )  # fmt: skip
    block = min(ADD_BLOCK, triton.next_power_of_2(hidden))
    add_kernel[(tokens, triton.cdiv(hidden, block))](
        parts, topk_ids, out, hidden, top_k, BLOCK=block, num_warps=max(1, block // 256)
    )
