"""Where results live: append-only run files, immutable parts, and a database built from them.

Importing this needs neither Polars nor DuckDB, because runs are also written on machines that
have only the judge.
"""

from atrex.store.files import stamp as new_run_id
from atrex.store.folder import Store
from atrex.store.runs import Journal, RunWriter

__all__ = ["Journal", "RunWriter", "Store", "new_run_id"]
