"""The scores of a run, kept beside it once it is complete, because their intervals cost seconds.

The file is derived: it may be deleted, and is computed anew when the method of scoring changed.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from atrex import scoring
from atrex.errors import DataError, SetupError
from atrex.model import SCHEMA_VERSION, SCORE_VERSION, Record, Score
from atrex.store import files, runs

SCORES = "scores.json"


class ScoresPart(Record, frozen=True, kw_only=True):
    """Scores of a complete run, by the method of `score_version`."""

    schema_version: int = SCHEMA_VERSION
    score_version: int
    scores: tuple[Score, ...]


def scores(folder: Path) -> list[Score]:
    """Return a run's scores, one for each candidate; none where the catalogue has no GPU time."""
    run = runs.header(folder)
    if not any(shape.gpu_ns for shape in run.shapes):
        return []
    kept = _read(folder / SCORES)
    if kept is not None and run.status == "complete":
        return kept
    computed = scoring.score(run, runs.read(folder).attempts)
    if run.status == "complete":
        _keep(folder / SCORES, computed)
    return computed


def _read(path: Path) -> list[Score] | None:
    try:
        part = files.decode(path, ScoresPart)
    except (FileNotFoundError, DataError):
        return None
    return list(part.scores) if part.score_version == SCORE_VERSION else None


def _keep(path: Path, computed: list[Score]) -> None:
    part = ScoresPart(score_version=SCORE_VERSION, scores=tuple(computed))
    try:
        files.write_atomic(path, msgspec.json.encode(part))
    except SetupError:
        return  # a read-only store: computed again the next time
