"""What is believed of an update: its vectors are numbers, and it is not far longer than is usual.

Usual is the median length of the last updates that came, of whoever: as long as most devices are honest, it is that of
an honest one. Only lengths are remembered, so an update can be judged when it arrives and need not be kept. Refused
updates count towards what is usual: if all become longer, the median follows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast, final

import torch

from fedlga.core.types import Contribution, ServerState, Update

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

REMEMBERED = "guard."  # begins the names of the lengths in the aggregator's memory
LEAST_KNOWN = 5  # updates, before anything counts as usual
LONGEST = 1e12  # until then: sums of such numbers are still finite
MOST_KNOWN = 256
MOST_TIMES_EXAMPLES = 100.0  # the median: natural federations are unequal, so this only stops the absurd
MOST_TIMES_COMPLETED = 1.5  # the usual full work: a device that claims little work gains little by it
DELTA, EXAMPLES = "delta", "examples"


@final
class Guard:
    """The judge of one round's updates."""

    def __init__(self, bound: float, state: ServerState) -> None:
        """`bound`: an update longer than this times what is usual is refused; 0: lengths are not compared."""
        self._bound = bound
        self._known: dict[str, list[tuple[float, float]]] = {
            name.removeprefix(REMEMBERED): [
                (length, steps) for length, steps in cast("list[list[float]]", rows.tolist())
            ]
            for name, rows in state.memory.items()
            if name.startswith(REMEMBERED)
        }
        self._limits: dict[tuple[str, int], float] = {}
        self._lengths: dict[int, dict[str, float]] = {}  # of this round's updates, by device
        self.refused: dict[int, str] = {}  # devices, and why
        self._not_finite = 0  # how many of them

    def admit(
        self, contributions: Sequence[Contribution], known: Mapping[int, float] | None = None
    ) -> list[Contribution]:
        """Return the contributions that can be right; the reasons for the others are kept.

        `known` are lengths of devices' updates that were measured before.
        """
        for c in contributions:
            self._measure(c.update, (known or {}).get(c.update.device))
        return [c for c in contributions if self._judge(c.update)]

    def _measure(self, update: Update, known: float | None) -> None:
        lengths = {DELTA: true_length(update.delta) if known is None else known}
        lengths |= {name: true_length(vector) for name, vector in update.uploads.items()}
        self._lengths[update.device] = lengths
        for name, length in lengths.items() if self._bound else ():
            self._known.setdefault(name, []).append((length / (update.lr or 1.0), float(update.steps)))
        if self._bound:
            self._known.setdefault(EXAMPLES, []).append((float(update.examples), 1.0))

    def _judge(self, update: Update) -> bool:
        lengths = self._lengths[update.device]
        if not all(map(math.isfinite, lengths.values())) or not _is_finite(update.buffers):
            self.refused[update.device] = "its numbers are not finite"
            self._not_finite += 1
            return False
        if self._bound:
            if update.examples > MOST_TIMES_EXAMPLES / self._bound * self._limit(EXAMPLES, 1, 1.0):
                self.refused[update.device] = f"it claims {update.examples} examples, far more than is usual"
                return False
            for name, length in lengths.items():
                limit = self._limit(name, update.steps, update.lr)
                if length > limit:
                    self.refused[update.device] = f"{name} is {self._bound * length / limit:.3g} times as long as usual"
                    return False
        return True

    def shorten(self, used: Sequence[Contribution]) -> tuple[list[Contribution], dict[int, float]]:
        """Limit what completing made of updates to the usual length of full work; return what it took off."""
        bounded: dict[int, float] = {}
        kept: list[Contribution] = []
        for c in used:
            length = abs(c.scale) * self._lengths[c.update.device][DELTA]
            if c.scale != 1 and self._bound:
                usual = self._limit(DELTA, c.steps, c.update.lr) / self._bound
                limit = max(MOST_TIMES_COMPLETED * usual, self._lengths[c.update.device][DELTA])
                if length > limit:
                    bounded[c.update.device] = limit / length
            kept.append(replace(c, scale=c.scale * bounded.get(c.update.device, 1.0)))
        return kept, bounded

    def _limit(self, name: str, steps: int, lr: float) -> float:
        """Return how long a vector of so many steps may be; lengths are compared at a rate of 1."""
        known = self._known[name]
        if len(known) < LEAST_KNOWN:
            return LONGEST
        if (name, steps) not in self._limits:
            # An update is at most in proportion to its steps: whoever did more of them may be that much longer.
            usual = statistics.median(length * max(1.0, steps / max(done, 1.0)) for length, done in known[-MOST_KNOWN:])
            self._limits[name, steps] = self._bound * usual if usual > 0 else math.inf
        return self._limits[name, steps] * (lr or 1.0)

    def has_diverged(self) -> bool:
        """Return whether updates came, and none of them is finite."""
        return 0 < len(self._lengths) == self._not_finite

    def memory(self) -> Memory:
        """Return what the aggregator remembers for the next rounds."""
        kept = {name: rows[-MOST_KNOWN:] for name, rows in self._known.items()}
        return {
            f"{REMEMBERED}{name}": torch.tensor(rows, dtype=torch.float64, device="cpu")
            for name, rows in kept.items()
            if rows
        }


def true_length(vector: Vector) -> float:
    """Return |vector|, of whatever size its numbers are; infinity if one is not finite."""
    square = float(torch.dot(vector, vector))
    if not math.isfinite(square):  # huge numbers, whose squares float32 does not hold, or no numbers
        exact = vector.double()
        square = float(torch.dot(exact, exact))
    return math.sqrt(square) if math.isfinite(square) else math.inf


def _is_finite(buffers: Vector | None) -> bool:
    return buffers is None or bool(torch.isfinite(buffers).all())
