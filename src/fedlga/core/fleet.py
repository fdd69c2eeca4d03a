"""Who is slow: how much of its work each selected device gets done in time, and how long all of it would take.

Nothing else in the package knows about speed. Every draw comes from (seed, round, device) alone, so all methods and
policies meet the same fleet.
"""

from __future__ import annotations

import csv
import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, final

import numpy as np

from .draws import Stream, generator
from .settings import BadInput


@dataclass(frozen=True)
class Effort:
    """What one device can do in one round."""

    device: int
    steps: int  # done by the deadline
    steps_asked: int
    seconds: float  # simulated, for all the steps asked
    lost: bool = False  # it never answers, however long one waits

    @property
    def slow(self) -> bool:
        """Whether its work is unfinished at the deadline."""
        return not self.lost and self.steps < self.steps_asked


@dataclass(frozen=True)
class Fleet(ABC):
    """All devices: `work` holds the steps each is asked for in a round (E units), `deadline` the seconds it has."""

    seed: int
    work: Sequence[int]
    epochs: int
    deadline: float
    dropout: float

    real: ClassVar[bool] = False  # devices are as slow as they are, and the deadline is in seconds of the clock

    @abstractmethod
    def effort(self, round: int, devices: Sequence[int]) -> list[Effort]:
        """What each of the selected devices would do, drop-outs aside."""

    def draw(self, round: int, devices: Sequence[int]) -> list[Effort]:
        """What each of the selected devices does in this round."""
        efforts = self.effort(round, devices)
        return [replace(e, steps=0, lost=True) if self._lost(round, e.device) else e for e in efforts]

    def _lost(self, round: int, device: int) -> bool:
        return self.dropout > 0 and generator(self.seed, Stream.DROPOUT, round, device).random() < self.dropout

    def seconds(self, efforts: Sequence[Effort], *, waits: bool) -> float:
        """What a round costs: the slowest when the aggregator waits for it, else the deadline.

        Nobody waits longer than needed: a round is over when all selected devices have reported.
        """
        slowest = max((e.seconds for e in efforts if not e.lost), default=self.deadline)
        if waits:
            return slowest
        return self.deadline if any(e.lost for e in efforts) else min(self.deadline, slowest)


@final
@dataclass(frozen=True)
class PaperFleet(Fleet):
    """The FedLGA paper's: a share rho of the selected is slow, with tau uniform in tau_min..tau_max.

    A device with tau does E_i = E - tau + 1 of E units by the deadline, so all E would take it E / E_i deadlines.
    """

    rho: float
    tau_min: int
    tau_max: int

    def effort(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        rng = generator(self.seed, Stream.FLEET, round)
        # rho * K need not be whole: round at random, so that the share is rho over many rounds.
        slow = int(self.rho * len(devices) + rng.random())
        tau = np.ones(len(devices), dtype=int)
        chosen = rng.permutation(len(devices))[:slow]
        tau[chosen] = rng.integers(self.tau_min, self.tau_max + 1, size=slow)
        done = self.epochs - tau + 1
        return [
            Effort(d, self.work[d] * int(e) // self.epochs, self.work[d], self.deadline * self.epochs / int(e))
            for d, e in zip(devices, done, strict=True)
        ]


@final
@dataclass(frozen=True)
class SpeedFleet(Fleet):
    """Each device has a speed, in SGD steps a second, for the whole run; how far it gets follows from the deadline."""

    speeds: Sequence[float]

    def effort(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        return [self._effort(d) for d in devices]

    def always_slow(self) -> list[int]:
        """The devices that never finish in time."""
        return [d for d in range(len(self.work)) if self._effort(d).slow]

    def _effort(self, device: int) -> Effort:
        asked, speed = self.work[device], self.speeds[device]
        return Effort(device, min(asked, _whole(self.deadline * speed)), asked, asked / speed)


@final
@dataclass(frozen=True)
class TraceFleet(Fleet):
    """A recording: `done[round, device]` is the share of its work a device got done, `lasted` its seconds for all.

    Whoever is not in the recording of a round finishes at the deadline.
    """

    done: dict[tuple[int, int], float]
    lasted: dict[tuple[int, int], float]

    def effort(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        return [self._effort((round, d), self.work[d]) for d in devices]

    def _effort(self, key: tuple[int, int], asked: int) -> Effort:
        done = self.done.get(key, 1.0)
        return Effort(key[1], _whole(asked * done), asked, self.lasted.get(key, self.deadline), lost=done == 0)


@final
@dataclass(frozen=True)
class RealFleet(Fleet):
    """Real devices: how far each gets by the deadline is not for us to say. All are asked for all their work."""

    real = True

    def effort(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        return [Effort(d, self.work[d], self.work[d], self.deadline) for d in devices]


def log_normal_speeds(seed: int, devices: int, median: float, sigma: float) -> list[float]:
    """Speeds whose logarithm is normal: half the fleet is slower than the median, a few much slower."""
    normal = generator(seed, Stream.SPEEDS).standard_normal(devices)
    return (median * np.exp(sigma * normal)).tolist()


def suggested_deadline(seconds: Sequence[float]) -> float:
    """What the device in the middle needs: half the fleet finishes, and tells how updates grow for the other half."""
    return float(np.median(seconds))


def speeds_by_class(
    held: Sequence[Sequence[bool]], slow_classes: Sequence[int], fast: float, slow: float
) -> list[float]:
    """Slowness that goes with the data: whoever holds one of `slow_classes` is slow."""
    return [slow if any(has[label] for label in slow_classes) else fast for has in held]


def read_trace(path: Path, *, seed: int, work: Sequence[int], epochs: int, deadline: float, dropout: float) -> Fleet:
    """A fleet from CSV: columns round (from 1), device (from 0), and epochs (done) or seconds (for all the work)."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(f"trace: cannot read {str(path)!r} ({_reason(error)})") from error
    if not rows:
        raise BadInput(f"trace: {str(path)!r} has no rows; it takes columns round, device, and epochs or seconds")
    columns = set(rows[0])
    measure = "epochs" if "epochs" in columns else "seconds"
    if missing := {"round", "device", measure} - columns:
        raise BadInput(
            f"trace: {str(path)!r} has no column {', '.join(sorted(missing))}; "
            "it takes round, device, and epochs or seconds"
        )
    done: dict[tuple[int, int], float] = {}
    lasted: dict[tuple[int, int], float] = {}
    for line, row in enumerate(rows, start=2):
        where = f"trace: line {line} of {str(path)!r}"
        try:
            key, value = (int(row["round"]) - 1, int(row["device"])), float(row[measure])
        except (TypeError, ValueError) as error:
            raise BadInput(f"{where}: round and device take whole numbers, {measure} a number") from error
        if not 0 <= key[1] < len(work):
            raise BadInput(f"{where}: there is no device {key[1]}; it takes 0 to {len(work) - 1}")
        if key[0] < 0 or not math.isfinite(value) or value < 0 or (measure == "seconds" and value == 0):
            raise BadInput(
                f"{where}: got round {key[0] + 1}, {measure} {value:g}; rounds count from 1, {measure} from 0"
            )
        if key in done:
            raise BadInput(f"{where}: round {key[0] + 1} and device {key[1]} stand there twice")
        if measure == "epochs" and value > epochs:
            raise BadInput(f"{where}: got epochs {value:g}; it takes at most the {epochs} that are asked for")
        done[key] = value / epochs if measure == "epochs" else min(1.0, deadline / value)
        lasted[key] = value if measure == "seconds" else (deadline / done[key] if done[key] > 0 else math.inf)
    return TraceFleet(seed, work, epochs, deadline, dropout, done, lasted)


def _whole(steps: float) -> int:
    """Whole steps; 2.9999999999 is 3 that went through a division."""
    return math.floor(steps + 1e-9)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
