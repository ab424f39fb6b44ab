"""Rows written into a pool in place, and the order in which they were taken, which is left open.

pool[slots[r]] = x[r]; order holds 0 to rows - 1 in any order.
"""

from atrex.model import Cost, Workload
from atrex.operator import Implementation, Operator, TensorSpec

AXES = ("rows", "slots", "width")


def inputs(w, draw):
    """x [rows, width]; pool [slots, width], in place; slots int64 [rows], distinct."""
    rows, slots, width = w.axes.values()
    return {
        "x": draw.normal("x", (rows, width), w.dtype),
        "pool": draw.normal("pool", (slots, width), w.dtype),
        "slots": draw.permutation("slots", slots)[:rows].contiguous(),
    }


def outputs(w):
    """pool [slots, width]; order int32 [rows]."""
    rows, slots, width = w.axes.values()
    return {
        "pool": TensorSpec(shape=(slots, width), dtype=w.dtype),
        "order": TensorSpec(shape=(rows,), dtype="int32"),
    }


def reference(x, pool, slots):
    import torch

    pool = pool.clone()
    pool[slots] = x
    return {"pool": pool, "order": torch.arange(len(x))}


def canonical(inputs, outputs):
    return {"pool": outputs["pool"], "taken": outputs["order"].sort().values}


def cost(w, inputs):
    rows, _, width = w.axes.values()
    return Cost(flop={}, read_bytes=rows * (2 * width + 8), write_bytes=2 * rows * width + 4 * rows)


def eager(x, pool, slots, prepared=None):
    import torch

    pool[slots] = x
    return {"pool": pool, "order": torch.arange(len(x), dtype=torch.int32).flip(0)}


DEFINITION = Operator(
    name="scatter_rows",
    axes=AXES,
    inputs=inputs,
    outputs=outputs,
    reference=reference,
    canonical=canonical,
    cost=cost,
    match=lambda call, step: None,
    tolerance={"pool": "EXACT", "taken": "EXACT"},
    baselines=(Implementation(name="eager", run=eager),),
    small=(
        Workload(operator="scatter_rows", axes={"rows": 5, "slots": 9, "width": 7}, dtype="bf16"),
    ),
)
