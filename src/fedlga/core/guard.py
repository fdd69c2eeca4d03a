"""What is believed of an update: its vectors are numbers, and it is not far longer than is usual.

One that is long, but not too long for that, is believed unless it works against the others of its round, or its device
was refused twice before.

Usual is the median length of the last updates that came, of whoever: as long as most devices are honest, it is that of
an honest one. Only lengths are remembered, so an update can be judged when it arrives and need not be kept. Refused
updates count towards what is usual: if all become longer, the median follows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast, final

import torch

from fedlga.core.quarantine import find_offenders
from fedlga.core.types import Contribution, ServerState, Update

if TYPE_CHECKING:
    from fedlga.core.method import WeightedVector
    from fedlga.core.types import Memory, Vector

REMEMBERED = "guard."  # begins the names of the lengths in the aggregator's memory
LEAST_KNOWN = 5  # updates, before anything counts as usual
LONGEST = 1e12  # until then: sums of such numbers are still finite
MOST_KNOWN = 256
MOST_TIMES_EXAMPLES = 100.0  # the median: natural federations are unequal, so this only stops the absurd
MOST_TIMES_COMPLETED = 1.5  # the usual full work: a device that claims little work gains little by it
# Chosen by measurement: docs/reliability.md has what hostile and honest updates reach.
SUSPECT = 4.0  # times the usual length: such an update is compared with the others
MOST_AGAINST = 1.5  # usual lengths that it may go back along the way which the others go
LEAST_OTHERS = 5  # that are not suspect: fewer have no common direction
DELTA, EXAMPLES = "delta", "examples"

Lengths = dict[str, list[tuple[float, float]]]  # by name: lengths at a rate of 1, each with its steps


@final
class Guard:
    """The judge of one round's updates."""

    def __init__(self, bound: float, state: ServerState, *, compares: bool = True) -> None:
        """`bound`: an update longer than this times what is usual is refused; 0: lengths are not compared.

        `compares`: long updates are compared with the others. Of updates under masks that says nothing.
        """
        self._bound, self._compares = bound, compares
        self._offenders = find_offenders(state.memory)
        self._known: Lengths = {
            name.removeprefix(REMEMBERED): [
                (length, steps) for length, steps in cast("list[list[float]]", rows.tolist())
            ]
            for name, rows in state.memory.items()
            if name.startswith(REMEMBERED)
        }
        self._earlier: Lengths = {name: list(rows) for name, rows in self._known.items()}  # without this round's
        self._usual_lengths: dict[tuple[str, int, float, bool], float] = {}
        self.suspects: dict[int, dict[str, float]] = {}  # devices, and how long their vectors are, in usual lengths
        self._lengths: dict[int, dict[str, float]] = {}  # of this round's updates, by device
        self.refused: dict[int, str] = {}  # devices, and why
        self._not_finite = 0  # how many of them

    @property
    def is_new(self) -> bool:
        """Whether too little is known to judge an update when it comes: it has to be judged beside the others."""
        return self._bound > 0 and len(self._earlier.get(DELTA, [])) < LEAST_KNOWN

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
            times = {name: self._compare_length(name, length, update) for name, length in lengths.items()}
            long = {name: factor for name, factor in times.items() if factor > SUSPECT and self._compares}
            if long and update.device in self._offenders:
                (name, factor) = next(iter(long.items()))
                self.refused[update.device] = f"{_say_length(name, factor)}, and its device was refused before"
                return False
            if long:
                self.suspects[update.device] = long
        return True

    def compare(
        self,
        contributions: Sequence[Contribution],
        weigh: Callable[[Contribution], Mapping[str, WeightedVector]],
        before: Mapping[str, Vector] | None = None,
        count: int = 0,
    ) -> list[Contribution]:
        """Return the contributions without the suspects that work against the others.

        The others' direction is what they add to the method's sum of that name (`weigh`). `before` are the sums of
        `count` others that are no longer there; they are changed.
        """
        others = [c for c in contributions if c.update.device not in self.suspects]
        if not self.suspects or count + len(others) < LEAST_OTHERS:
            return list(contributions)
        sums = dict(before or {})
        for name in {name for names in self.suspects.values() for name in names}:
            for v in (weighed[name] for weighed in map(weigh, others) if name in weighed):
                sums[name] = sums.get(name, torch.zeros_like(v.vector)).add_(v.vector, alpha=v.coefficient)
        return [c for c in contributions if c.update.device not in self.suspects or self._goes_along(c, weigh(c), sums)]

    def _goes_along(self, c: Contribution, weighed: Mapping[str, WeightedVector], sums: Mapping[str, Vector]) -> bool:
        device = c.update.device
        for name, times in self.suspects[device].items():
            if name not in weighed or name not in sums:
                continue
            sign = math.copysign(1.0, weighed[name].coefficient)
            cosine = sign * find_cosine(weighed[name].vector, sums[name])
            if -cosine * times > MOST_AGAINST:
                self.refused[device] = (
                    f"{_say_length(name, times)}, and points against the others (cosine {cosine:.2f})"
                )
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
        """Return how long a vector of so many steps may be."""
        # An update is at most in proportion to its steps: whoever did more of them may be that much longer.
        usual = self._usual(name, steps, lr, self._known, least=1.0)
        return LONGEST if usual is None else self._bound * usual if usual > 0 else math.inf

    def _compare_length(self, name: str, length: float, update: Update) -> float:
        """Return how many usual lengths a vector is long; 0 if nothing is usual yet.

        An update of fewer steps is expected to be shorter in proportion. It may be longer than that, and often is; but
        if it is, it has to go along with the others. Usual is what was usual before this round: so it does not depend
        on the order in which updates arrive, nor on whether they are summed one by one or held. A new guard knows of
        no round before: then it is what is usual in this one, all of which is there.
        """
        least = 0.0 if name == DELTA else 1.0
        usual = self._usual(name, update.steps, update.lr, self._known if self.is_new else self._earlier, least=least)
        return length / usual if usual else 0.0

    def _usual(self, name: str, steps: int, lr: float, lengths: Lengths, *, least: float) -> float | None:
        """Return the usual length of a vector of so many steps, at this rate; None as long as too few are known.

        `least` is how much shorter fewer steps make it: in proportion (0), or not at all (1).
        """
        known = lengths.get(name, [])
        if len(known) < LEAST_KNOWN:
            return None
        key = name, steps, least, lengths is self._earlier
        if key not in self._usual_lengths:
            ratios = ((length, max(steps, 1) / max(done, 1.0)) for length, done in known[-MOST_KNOWN:])
            self._usual_lengths[key] = statistics.median(length * max(least, ratio) for length, ratio in ratios)
        return self._usual_lengths[key] * (lr or 1.0)

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


def _say_length(name: str, times: float) -> str:
    return f"{name} is {times:.3g} times as long as usual{' for its steps' if name == DELTA else ''}"


def true_length(vector: Vector) -> float:
    """Return |vector|, of whatever size its numbers are; infinity if one is not finite."""
    square = float(torch.dot(vector, vector))
    if not math.isfinite(square):  # huge numbers, whose squares float32 does not hold, or no numbers
        exact = vector.double()
        square = float(torch.dot(exact, exact))
    return math.sqrt(square) if math.isfinite(square) else math.inf


def find_cosine(one: Vector, other: Vector) -> float:
    """Return the cosine of two finite vectors, of whatever size their numbers are; 0 if one of them is zero."""
    lengths = true_length(one), true_length(other)
    product = float(torch.dot(one, other)) if 0 not in lengths else 0.0
    if not math.isfinite(product):
        product = float(torch.dot(one.double(), other.double()))
    return product / lengths[0] / lengths[1] if product else 0.0


def _is_finite(buffers: Vector | None) -> bool:
    return buffers is None or bool(torch.isfinite(buffers).all())
