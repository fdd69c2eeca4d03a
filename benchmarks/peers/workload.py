"""The input and output of every peer; standard library and numpy only, so that every environment can import it.

    python PEER.py JOB.json OUT.json

Import it first: `START` is taken before the peer's own imports. A round's seconds run from the end of the evaluation
before to the end of its own; those of the first round run from `START`, so they hold imports, loading and compiling.
"""

from __future__ import annotations

import time

START = time.perf_counter()

import json  # noqa: E402
import sys  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from functools import cached_property  # noqa: E402
from importlib.metadata import version  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import numpy as np  # noqa: E402

CLASSES = 10
TEST_BATCH = 2000


@dataclass(frozen=True)
class Job:
    """FedAvg with plain SGD: each round, the devices of its cohort do `units` passes, or batches, on their own data."""

    data: str
    rounds: int
    cohort: int
    units: int
    steps_per_unit: int  # 0: a unit is one pass over the device's data; 1: it is one batch
    batch_size: int
    lr: float
    workers: int
    seed: int
    model: str

    @classmethod
    def read(cls, path: str) -> Job:
        """Return the job in a JSON file."""
        return cls(**json.loads(Path(path).read_text()))

    @property
    def passes(self) -> int | None:
        """Passes over a device's data, if that is how its work is counted."""
        return None if self.steps_per_unit else self.units

    @property
    def steps(self) -> int | None:
        """Batches a device trains on, if that is how its work is counted."""
        return self.units * self.steps_per_unit or None

    @cached_property
    def arrays(self) -> Any:
        """The arrays of the data file, each read on first use."""
        return np.load(self.data)

    @cached_property
    def parts(self) -> list[np.ndarray]:
        """The rows of the training data that each device holds."""
        return np.split(self.arrays["part_rows"], self.arrays["part_ends"][:-1])

    @cached_property
    def cohorts(self) -> list[list[int]]:
        """The devices that take part in each round."""
        cohorts = self.arrays["cohorts"][: self.rounds]
        if cohorts.shape != (self.rounds, self.cohort):
            raise ValueError(f"cohorts: got {cohorts.shape}; the job is of {self.rounds} rounds of {self.cohort}")
        return cohorts.tolist()

    def only_mlp(self) -> None:
        """Refuse the models that only the bare loop trains."""
        if self.model != "mlp":
            raise ValueError(f"model: got {self.model!r}; this peer trains 'mlp'")


@dataclass
class Clock:
    """When each round's evaluation ended, and with what accuracy."""

    ends: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)

    def round_done(self, accuracy: float) -> None:
        """Note the time: the evaluation of a round has just ended."""
        self.accuracies.append(float(accuracy))  # first: JAX computes in the background, and `float` waits for it
        self.ends.append(time.perf_counter())

    def write(self, path: str, peer: str, packages: list[str], job: Job) -> None:
        """Write the measurements, once all rounds are done."""
        if len(self.ends) != job.rounds:
            raise RuntimeError(f"{peer}: {len(self.ends)} of {job.rounds} rounds were evaluated")
        seconds = np.diff([START, *self.ends]).tolist()
        out = {
            "peer": peer,
            "versions": {"python": sys.version.split()[0], **{name: version(name) for name in packages}},
            "rounds": [{"seconds": s, "accuracy": a} for s, a in zip(seconds, self.accuracies, strict=True)],
            "first_round_seconds": seconds[0],
        }
        Path(path).write_text(json.dumps(out, indent=1) + "\n")


def leave_this_folder() -> None:
    """Remove this folder from the import path: some files in it are named like the peers' packages."""
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
