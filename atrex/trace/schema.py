"""What the frames of an ingested trace hold."""

from __future__ import annotations

import polars as pl

# rungs of the shape ladder, best first; `capture`, `sibling` and `period` need more than one trace
RUNGS = ("op_exact", "capture", "sibling", "period", "grid", "name", "none")

FACTS = pl.Schema({
    "operator": pl.String,     # operator, class, or "unknown"
    "kind": pl.String,         # "operator", "class" or "unknown"
    "workload": pl.String,     # id by content; "" where an axis or the dtype is unknown
    "axes": pl.String,         # canonical JSON, names sorted
    "dtype": pl.String,        # "bf16", "bf16/fp8_e4m3fn", ..., "unknown"
    "trace": pl.String,        # TraceSummary.trace
    "phase": pl.String,        # prefill, decode, mixed, capture or other
    "calls": pl.Int64,         # operator calls
    "kernels": pl.Int64,       # kernels they own
    "gpu_ns": pl.Int64,        # sum of their durations
    "rung": pl.String,         # furthest down RUNGS that a call of the row needed
    "time_source": pl.String,  # "measured", or "modelled" for a synthetic trace
})  # fmt: skip

UNATTRIBUTED = pl.Schema({
    "trace": pl.String,     # TraceSummary.trace
    "kernel": pl.String,    # normalised kernel name
    "class": pl.String,     # class, or "unknown"
    "op": pl.String,        # innermost CPU operator around it whose dims are known, "" if none
    "dims": pl.String,      # its inputs as recorded, JSON text, "" if none
    "types": pl.String,
    "concrete": pl.String,
    "grid": pl.String,      # launch geometry as recorded, JSON text, "" if none
    "block": pl.String,
    "calls": pl.Int64,      # kernels of that name, operator and geometry
    "gpu_ns": pl.Int64,     # sum of their durations
})  # fmt: skip
