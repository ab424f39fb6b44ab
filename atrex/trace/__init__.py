"""From a profiler trace to facts: operators, axes, calls and GPU time."""

from atrex.trace.files import trace_files
from atrex.trace.ingest import Ingested, check, read_trace, understand
from atrex.trace.intake import IngestReport, Reading, ingest

__all__ = [
    "IngestReport",
    "Ingested",
    "Reading",
    "check",
    "ingest",
    "read_trace",
    "trace_files",
    "understand",
]
