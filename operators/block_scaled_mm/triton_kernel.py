"""block_scaled_mm in Triton: an fp8 product for each group of 128, scaled and added up in fp32.

Bound by the fp8 matrix units from some 300 rows on, by the bytes of w below. Hence:

- each group's product starts at zero and is added to an fp32 sum, so that the 14 bits in which
  Hopper adds up fp8 products span 128 of them at most (DeepSeek-V3, arXiv:2412.19437, 3.3.2);
- tensor cores want 64 rows on the left, which one token cannot fill and w always does: for few
  rows the transposed product is taken, and turned back in registers;
- few rows give too few tiles to draw on all of the memory's bandwidth: then k is split over
  programs, whose sums a second kernel adds up in a fixed order;
- consecutive programs share `band` tiles of w, which stay in L2.

Valid for contiguous tensors of any size. e4m3fn compiles for CUDA GPUs from sm_89 on (on gfx942 its
operands are widened to fp16), e4m3fnuz for gfx942 alone.
"""

import torch
import triton
import triton.language as tl

OPERATOR = "block_scaled_mm"
BACKEND = "triton"
DTYPES = ("fp8_e4m3fn", "fp8_e4m3fnuz")
TUNABLES = {
    "tile_rows": (128, (64, 128)),  # of out, for many rows
    "tile_columns": (128, (64, 128)),  # divides 128, so that a tile lies under one scale of w
    "few_rows": (64, (16, 32, 64)),  # up to here one tile holds all rows and `few_columns`
    "few_columns": (64, (32, 64, 128)),
    "programs": (264, (132, 264, 528)),  # aimed at by splitting k: two for each SM of an H200
    "groups_each": (4, (2, 4, 8)),  # at least, when k is split: fewer do not fill the pipeline
    "band": (8, (1, 4, 8, 16)),
    "num_stages": (3, (2, 3, 4, 5)),  # 4 of the largest tiles exceed the 64 KiB of gfx942
}
GROUP = 128  # elements of k under one scale, and rows of w
LEFT_ROWS = 64  # that one tensor core instruction of Hopper takes on the left
SUM_BLOCK = 1024


@triton.jit
def tile_start(
    rows, n_out, TILE_ROWS: tl.constexpr, TILE_COLUMNS: tl.constexpr, BAND: tl.constexpr
):
    """First row and column of this program's tile: a band of columns, row by row, then the next."""
    row_tiles, column_tiles = tl.cdiv(rows, TILE_ROWS), tl.cdiv(n_out, TILE_COLUMNS)
    first = tl.program_id(0) // (BAND * row_tiles) * BAND
    width = min(column_tiles - first, BAND)
    place = tl.program_id(0) % (BAND * row_tiles)
    first_row, first_column = place // width * TILE_ROWS, (first + place % width) * TILE_COLUMNS
    return first_row.to(tl.int64), first_column.to(tl.int64)


@triton.jit
def block_scaled_mm_kernel(
    a,
    a_scale,
    w,
    w_scale,
    out,
    rows,
    n_out,
    k_in,
    groups,
    groups_each,
    TILE_ROWS: tl.constexpr,
    TILE_COLUMNS: tl.constexpr,
    GROUP: tl.constexpr,
    BAND: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
):
    first_row, first_column = tile_start(rows, n_out, TILE_ROWS, TILE_COLUMNS, BAND)
    row, column = tl.arange(0, TILE_ROWS), tl.arange(0, TILE_COLUMNS)
    in_row, in_column = row < rows - first_row, column < n_out - first_column
    k = tl.arange(0, GROUP)[None, :]
    # first_row and first_column are 64 bits wide, offsets within a tile fit 32
    a_tile = a + first_row * k_in + row[:, None] * k_in + k
    w_tile = w + first_column * k_in + column[:, None] * k_in + k
    a_scales = a_scale + first_row * groups + row * groups
    w_scales = w_scale + first_column // GROUP * groups

    total = tl.zeros((TILE_ROWS, TILE_COLUMNS), tl.float32)
    first_group = tl.program_id(1) * groups_each
    for group in range(first_group, min(first_group + groups_each, groups)):
        in_k = k < k_in - group * GROUP
        tokens = tl.load(a_tile + group * GROUP, in_row[:, None] & in_k, other=0.0)
        weights = tl.load(w_tile + group * GROUP, in_column[:, None] & in_k, other=0.0)
        if WEIGHTS_LEFT:
            product = tl.trans(tl.dot(weights, tl.trans(tokens)))
        else:
            product = tl.dot(tokens, tl.trans(weights))
        scale = tl.load(a_scales + group, in_row, other=0.0) * tl.load(w_scales + group)
        total += product * scale[:, None]

    part = out + tl.program_id(1).to(tl.int64) * rows * n_out  # out itself unless k is split
    tile = part + first_row * n_out + first_column + row[:, None] * n_out + column[None, :]
    tl.store(tile, total.to(out.dtype.element_ty), in_row[:, None] & in_column[None, :])


@triton.jit
def add_parts_kernel(parts, out, parts_count, elements, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = index < elements
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(parts_count):
        total += tl.load(parts + part * elements + index, inside, other=0.0)
    tl.store(out + index, total.to(out.dtype.element_ty), inside)


def run(a, a_scale, w, w_scale, out, prepared=None):
    """a [rows, k_in], a_scale [rows, groups], w [n_out, k_in], w_scale [blocks, groups]."""
    (rows, n_out), (_, k_in), (_, groups) = out.shape, a.shape, a_scale.shape
    few = rows <= TUNABLES["few_rows"][0]
    tile_rows = max(16, triton.next_power_of_2(rows)) if few else TUNABLES["tile_rows"][0]
    tile_columns = TUNABLES["few_columns" if few else "tile_columns"][0]
    tiles = triton.cdiv(rows, tile_rows) * triton.cdiv(n_out, tile_columns)
    splits = min(TUNABLES["programs"][0] // tiles, groups // TUNABLES["groups_each"][0])
    groups_each = triton.cdiv(groups, max(1, splits))
    splits = triton.cdiv(groups, groups_each)
    parts = out
    if splits > 1:
        parts = torch.empty((splits, rows, n_out), dtype=torch.float32, device=out.device)
    block_scaled_mm_kernel[(tiles, splits)](
        a,
        a_scale,
        w,
        w_scale,
        parts,
        rows,
        n_out,
        k_in,
        groups,
        groups_each,
        TILE_ROWS=tile_rows,
        TILE_COLUMNS=tile_columns,
        GROUP=GROUP,
        BAND=TUNABLES["band"][0],
        WEIGHTS_LEFT=tile_rows < LEFT_ROWS,
        num_warps=8 if tile_rows * tile_columns > 64 * 64 else 4,
        num_stages=TUNABLES["num_stages"][0],
    )
    if splits > 1:
        blocks = triton.cdiv(out.numel(), SUM_BLOCK)
        add_parts_kernel[(blocks,)](parts, out, splits, out.numel(), BLOCK=SUM_BLOCK)
