"""What the judge and a worker that compiles tell each other, in files of one folder.

The worker writes as it goes, since the next launch may end it; a launch that is being compiled
stands in a file of its own, so that a crash has a name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from atrex.model import CompiledLaunch, Record, Workload
from atrex.operator import TensorSpec

JOBS = "jobs.msgpack"
MESSAGES = "messages.txt"  # what compilers printed about the last launch


class Job(Record, frozen=True, kw_only=True):
    """One workload's arguments; in-place tensors stand in both maps.

    Attributes:
        inputs: Tensors and attributes by name.
        outputs: Destinations by name.
        static: Inputs that `prepare` takes.
    """

    workload: Workload
    inputs: dict[str, TensorSpec | int | float | str]
    outputs: dict[str, TensorSpec]
    static: tuple[str, ...]


class Notes:
    """Writes down what became of a job's launches.

    Attributes:
        folder: Where.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @contextlib.contextmanager
    def of(self, number: int, workload: Workload, target: str) -> Iterator[None]:
        """Take notes of one job."""
        self._number = number
        self._blank = CompiledLaunch(workload=workload, target=target)
        self._launches: list[CompiledLaunch] = []
        self._rounds: list[int] = []  # of tuning, for each launch
        self._round = 0
        self._save()
        yield
        won = {
            tuned
            for tuned, launch in zip(self._rounds, self._launches, strict=True)
            if launch.autotuned and launch.ok
        }
        for index, (tuned, launch) in enumerate(zip(self._rounds, self._launches, strict=True)):
            passed_over = launch.autotuned and not launch.ok and tuned in won
            self._launches[index] = msgspec.structs.replace(launch, passed_over=passed_over)
        self._save()

    def blank(self, **known: Any) -> CompiledLaunch:
        """Return a launch of this job."""
        return msgspec.structs.replace(self._blank, **known)

    def begin(self, launch: CompiledLaunch) -> None:
        """Note what is being compiled."""
        pending_of(self.folder, self._number).write_bytes(msgspec.msgpack.encode(launch))

    def add(self, launch: CompiledLaunch) -> None:
        """Note what became of a launch; one that repeats an earlier one is no news."""
        self._round += not launch.autotuned  # a launch proper ends a round of tuning
        if not any(_same(launch, known) for known in self._launches):
            self._launches.append(launch)
            self._rounds.append(self._round)
            self._save()
        pending_of(self.folder, self._number).unlink(missing_ok=True)

    def _save(self) -> None:
        path = launches_of(self.folder, self._number)
        path.write_bytes(msgspec.msgpack.encode(self._launches))


def _same(launch: CompiledLaunch, other: CompiledLaunch) -> bool:
    """Whether two launches differ in nothing but who made them, the host code or an autotuner."""
    return msgspec.structs.replace(launch, autotuned=other.autotuned) == other


def launches_of(folder: Path, number: int) -> Path:
    """Return the file of a job's launches."""
    return folder / f"{number}.launches"


def pending_of(folder: Path, number: int) -> Path:
    """Return the file of a job's launch that is being compiled."""
    return folder / f"{number}.pending"
