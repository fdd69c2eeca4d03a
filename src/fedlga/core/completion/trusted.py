"""By how much a straggler's update falls short: the scales that `complete` multiplies it by.

Given only what devices send (delta, steps), the approximation of FedLGA is always a multiple of delta: see
methods/fedlga.py. What remains is to choose the number. Two laws are learned from the updates themselves, over
everyone who reported, older rounds fading:

**growth**: updates grow like work^p. p is the slope of log|delta| on log work, centred in each round, and the scale is
(all work / work done)^p. Where steps are mostly noise it overshoots: noise grows too, but what a device would have
added is not in the direction it had gone.

**trusted**: |delta|^2 is a signal, growing like work^(2q), plus noise, growing like work. With a the signal's share,
the slope says 2p = 2q a + (1 - a), and the best multiple of what was sent is

    c = 1 + a ((all work / work done)^q - 1).

a is measured by agreement: when a device reports again, its new update shares the old one's signal but not its noise,
so the cosine between the two estimates a. It is squared, because what agrees between rounds need not last to the end of
this one (docs/approximation.md has the measurements), and under a tenth it is taken for none. Two things hold of a even
where no device ever comes back: a signal cannot grow faster than work, q <= 1, so a >= 2p - 1; and noise averages out,
so of an update of s steps at least 1 - 20 / s is taken for signal. From p one standard error of its fit is taken off,
so that scatter is not taken for growth. Everything pulls c towards 1, which is doing nothing.

That much caution is right for one update. But what it holds back from updates with the same signal is missing every
time: over n of them the noise averages out and the bias does not, and the share that makes their sum best is
n a / (n a + 1 - a) in place of a. The unfinished reports of one device in a row have the same signal; and so have,
where devices agree with each other more than with themselves (Scaffold's controls take each device's own past out of
its update), all unfinished reports of late.

To compare updates across rounds the aggregator keeps of each a sketch of 4096 numbers: sums of its parameters with
random signs. Inner products of sketches are those of the updates, give or take 1/64 of their lengths.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, cast

import numpy as np
import torch

from .kernels import looked
from .methods.base import effective_steps
from .types import Update

if TYPE_CHECKING:
    from .types import Memory, Vector

SKETCH = 4096  # numbers kept of an update
LOOKED_AT = 1024  # rows of so many parameters at a time: smaller blocks cost more in calls than they save
LARGE, LOOKERS = 1 << 22, 2  # an update of so many parameters is looked at beside others, by so many threads
DEVICES = 1024  # whose sketches are kept: those heard of last
NOISY_STEPS = 20  # an update of so few steps may be all noise
LEAST_SHARE = 0.1  # of signal: an update with less is left alone
MORE_SHARED = 2.0  # times as much agreement with each other as with themselves: devices have one signal
LEAST_SHARED = 0.05  # and at least this much, which no noise reaches
DOUBT = 0.4  # two standard errors of one cosine with a device's last update: few returns prove nothing


@dataclass(frozen=True)
class Scales:
    """The outcome: a scale for each straggler, what to remember, and what the record should say."""

    of: Callable[[Update], float]
    memory: Memory  # what the next round should know
    growth: float | None = None
    agreement: float | None = None


@dataclass(frozen=True)
class Growth:
    """Faded sums of the regression of y = log|delta| on x = log work, both centred in their round."""

    xy: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    freedom: float = 0.0  # points, less one a round for the centring

    def seen(self, updates: Sequence[Update], looks: Mapping[int, Look], fading: float) -> Growth:
        """After another round with updates of these sizes; older rounds count `fading` times what they did."""
        points = [(math.log(work(u, u.steps)), math.log(size)) for u in updates if (size := looks[u.device].size) > 0]
        if not points:
            return self
        x, y = (np.array(values) - np.mean(values) for values in zip(*points, strict=True))
        return Growth(
            fading * self.xy + float(x @ y),
            fading * self.xx + float(x @ x),
            fading * self.yy + float(y @ y),
            fading * self.freedom + len(points) - 1,
        )

    @property
    def exponent(self) -> float:
        """p: 1 where updates grow like work, 0 where more work moves nothing, or nothing is known yet."""
        return _clamp(self.xy / self.xx) if self.xx > 0 else 0.0

    @property
    def cautious(self) -> float:
        """p less one standard error of its fit."""
        if self.xx <= 0 or self.freedom <= 1:
            return 0.0
        slope = self.xy / self.xx
        scatter = max(self.yy - slope * self.xy, 0.0) / (self.freedom - 1)
        return _clamp(slope - math.sqrt(scatter / self.xx))


def growth(memory: Memory, updates: Sequence[Update], looks: Mapping[int, Look], fading: float) -> Scales:
    """The growth law alone."""
    law = Growth(*_numbers(memory, "growth", 4)).seen(updates, looks, fading)
    kept = {"growth": _vector(law.xy, law.xx, law.yy, law.freedom)}
    return Scales(lambda u: ratio(u) ** law.exponent, kept, growth=law.exponent)


def trusted(memory: Memory, updates: Sequence[Update], looks: Mapping[int, Look], fading: float) -> Scales:
    """Growth, as far as updates agree with what the same devices sent before."""
    law = Growth(*_numbers(memory, "growth", 4)).seen(updates, looks, fading)
    own, owns, across, acrosses, unfinished = (fading * value for value in _numbers(memory, "agreement", 5))
    unfinished += sum(not u.finished for u in updates)
    heard = _heard(memory)
    streaks = {u.device: heard[u.device][1] if u.device in heard else 0 for u in updates}
    directions = {device: way for device, seen in looks.items() if (way := seen.direction) is not None}
    for u in updates:
        if (way := directions.get(u.device)) is not None:
            last, _ = heard.pop(u.device, (None, 0))  # taken out and put at the end: the order is that of last hearing
            if last is not None:
                own, owns = own + float(torch.dot(last, way)), owns + 1
            heard[u.device] = way, 0 if u.finished else streaks[u.device] + 1
    if (k := len(directions)) > 1:
        together = length(torch.stack(list(directions.values())).sum(0)) ** 2  # k, and twice the cosines of all pairs
        across, acrosses = across + (together - k) / (k - 1), acrosses + k

    slope = law.cautious
    agreed = _clamp(own / owns) if owns > 0 else 0.0
    common = across / acrosses if acrosses > 0 else 0.0
    most = own / owns + DOUBT / math.sqrt(owns) if owns > 0 else math.inf
    shared = common > max(LEAST_SHARED, MORE_SHARED * most)

    def scale(u: Update) -> float:
        share = max(agreed**2, 1 - NOISY_STEPS / u.steps, 2 * slope - 1)
        if share < LEAST_SHARE:
            return 1.0
        exponent = _clamp((2 * slope - (1 - share)) / (2 * share))
        n = max(1, streaks[u.device], unfinished if shared else 0)
        return 1 + n * share / (n * share + 1 - share) * (ratio(u) ** exponent - 1)

    kept = {
        "growth": _vector(law.xy, law.xx, law.yy, law.freedom),
        "agreement": _vector(own, owns, across, acrosses, unfinished),
        **_remembered(list(heard.items())[-DEVICES:]),
    }
    return Scales(scale, kept, growth=slope, agreement=agreed if owns > 0 else None)


Heard = dict[int, tuple["Vector", int]]  # by device: where its last update pointed, and unfinished ones in a row


def _heard(memory: Memory) -> Heard:
    if "heard" not in memory:
        return {}
    reports = cast("list[tuple[int, int]]", memory["heard"].tolist())  # pyright: ignore[reportUnknownMemberType]
    return {device: (way, streak) for (device, streak), way in zip(reports, memory["sketches"].unbind(), strict=True)}


def _remembered(reports: Sequence[tuple[int, tuple[Vector, int]]]) -> Memory:
    if not reports:
        return {}
    streaks = torch.tensor([(device, streak) for device, (_, streak) in reports], dtype=torch.int64)
    return {"heard": streaks, "sketches": torch.stack([way for _, (way, _) in reports])}


def ratio(update: Update) -> float:
    """All the work over the work done."""
    return work(update, update.steps_asked) / work(update, update.steps)


def work(update: Update, steps: int) -> float:
    """Steps, or what they amount to under momentum, where a late start is slow and doubling steps does more."""
    return effective_steps(steps, momentum=update.momentum)


@dataclass(frozen=True)
class Look:
    """All that is ever looked at of an update: its length (0 if it holds anything but numbers), and its sketch."""

    size: float
    sketch: Vector | None = None

    @property
    def direction(self) -> Vector | None:
        """The sketch at length 1; None for an update that points nowhere."""
        size = 0.0 if self.sketch is None or self.size == 0 else length(self.sketch)
        return self.sketch / size if self.sketch is not None and size > 0 else None


def looked_at(arriving: Iterable[Update], *, sketched: bool) -> tuple[list[Update], dict[int, Look]]:
    """The updates, and a look at each: when it comes, while others are still at work.

    Large ones are looked at beside each other: it is reading that takes the time, and two cores read faster than one.
    """
    updates: list[Update] = []
    looks: dict[int, Look] = {}
    with ThreadPoolExecutor(LOOKERS) as lookers:
        looking: dict[int, Future[Look]] = {}
        for u in arriving:
            updates.append(u)
            if len(u.delta) < LARGE:
                looks[u.device] = look(u.delta, sketched=sketched)
            else:
                looking[u.device] = lookers.submit(look, u.delta, sketched=sketched)
    return updates, looks | {device: seen.result() for device, seen in looking.items()}


def look(delta: Vector, *, sketched: bool = True) -> Look:
    """The length and the sketch of an update; without a compiler, in blocks still near for the second thing asked.

    The sketch is 4096 sums of parameters with random signs: parameter j goes to sum j mod 4096.
    """
    if len(delta) <= SKETCH:
        return Look(length(delta), delta.clone() if sketched else None)
    rows = len(delta) // SKETCH
    signs = _signs(rows)
    table, rest = delta[: rows * SKETCH].view(rows, SKETCH), delta[rows * SKETCH :]
    sums = torch.zeros(SKETCH)
    square = looked(table, signs, sums)
    if square is None:
        square = 0.0
        for start in range(0, rows, LOOKED_AT):
            block = table[start : start + LOOKED_AT]
            square += float(torch.dot(block.view(-1), block.view(-1)))
            sums.addmv_(block.t(), signs[start : start + len(block)])
    square += float(torch.dot(rest, rest))
    sums[: len(rest)] += signs[rows] * rest
    size = math.sqrt(square) if math.isfinite(square) else 0.0
    return Look(size, sums if sketched else None)


@lru_cache(maxsize=1)
def _signs(rows: int) -> Vector:
    """The same for every update of a size, of course: of different ones no two sketches could be compared."""
    return torch.from_numpy(np.random.default_rng(rows).choice(np.array([-1.0, 1.0], np.float32), rows + 1))


def length(vector: Vector) -> float:
    """|vector|; 0 for one that holds anything but numbers, so that it enters no law."""
    size = math.sqrt(float(torch.dot(vector, vector)))
    return size if math.isfinite(size) else 0.0


def _clamp(value: float) -> float:
    return min(max(value, 0.0), 1.0)


def _numbers(memory: Memory, name: str, count: int) -> list[float]:
    return [float(value) for value in memory[name]] if name in memory else [0.0] * count


def _vector(*values: float) -> Vector:
    return torch.tensor(values, dtype=torch.float64)
