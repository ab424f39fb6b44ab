"""From a profiler trace to facts: operators, axes, calls and GPU time."""

from atrex.trace.ingest import Ingested, check, read_trace, understand
from atrex.trace.intake import IngestReport, ingest, trace_files

__all__ = ["IngestReport", "Ingested", "check", "ingest", "read_trace", "trace_files", "understand"]
