"""A user's own classes: of each kind one with a setting of its own, and one that breaks its contract."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import final

import numpy as np
import torch
from torch import nn

from fedlga import (
    AggregationRule,
    Dataset,
    Decision,
    Direction,
    Effort,
    Fleet,
    Local,
    Method,
    Partition,
    Plan,
    Policy,
    Schedule,
    ServerOptimizer,
    Tracker,
    Treatment,
    setting,
)
from fedlga.core.schedules.base import counts, select_devices, start_jobs

# Good ones


@final
@dataclass(frozen=True)
class Pulled(Method):
    """FedProx by another name."""

    pull: float = setting(0.1, "how strongly devices are held back", least=0)

    def local(self, assignment, memory):
        return Local(pull=self.pull)

    def direction(self, state, sums, contributions):
        return Direction([sums["delta"].mean()])


@final
@dataclass(frozen=True)
class KeepHalf(Policy):
    """Unfinished work counts in part."""

    part: float = setting(0.5, "what an unfinished update is multiplied by", least=0, most=1)

    def decide(self, state, updates, digests):
        return Decision({u.device: Treatment(1.0 if u.finished else self.part) for u in updates})


@final
@dataclass(frozen=True)
class Clipped(AggregationRule):
    """The sum of updates whose parameters are clipped."""

    largest: float = setting(100.0, "no parameter of an update counts for more", above=0)

    def sum(self, vectors, start=None):
        total = torch.zeros_like(vectors[0].vector) if start is None else start.clone()
        for v in vectors:
            typical = v.vector * (v.coefficient / v.weight)
            total.add_(typical.clamp(-self.largest, self.largest), alpha=v.weight)
        return total


@final
@dataclass(frozen=True)
class Careful(ServerOptimizer):
    """Plain steps, none of them large."""

    largest_step: float = setting(10.0, "no parameter moves further in a round", above=0)

    def step(self, w, terms, memory):
        return w + (self.eta_g * sum(terms)).clamp(-self.largest_step, self.largest_step), {}


@final
@dataclass(frozen=True)
class Pairs(Schedule):
    """Two devices a step, one after the other."""

    def plan(self, federation, state):
        chosen = select_devices(federation, state.round, federation.backend.present(), 2)
        (first, _), (second, _) = start_jobs(federation, state.round, list(chosen), state.clock)
        ends = first.ends + second.ends - second.started
        jobs = [first, replace(second, started=first.ends)]
        return Plan(jobs, [job for job in jobs if counts(federation, job)], ends, ends - state.clock)


@dataclass(frozen=True)
class OddDevices(Fleet):
    """Devices with an odd number do a part of their work."""

    done: float = setting(0.5, "the part that they do", least=0, most=1)

    def efforts(self, round, devices):
        return [self._effort(device) for device in devices]

    def always_slow(self):
        return [device for device in range(self.workload.devices) if self._effort(device).slow]

    def _effort(self, device):
        asked = self.workload.steps[device]
        steps = int(asked * self.done) if device % 2 else asked
        return Effort(device, steps, asked, self.workload.deadline * asked / max(steps, 1), lost=steps == 0)


@final
@dataclass(frozen=True)
class Cards(Partition):
    """Shuffled, and dealt some at a time."""

    at_a_time: int = setting(1, "examples that a device gets before the next one's turn", least=1)

    def split(self, labels, classes, devices, rng):
        turn = np.arange(len(labels)) // self.at_a_time % devices
        order = rng.permutation(len(labels))
        return [np.sort(order[turn == device]) for device in range(devices)]


@final
@dataclass(frozen=True)
class Stripes(Dataset):
    """Each class has its own bright row, among noise."""

    title = "Stripes: 600 + 200 grey images of 8 x 8"
    classes = 8
    mean = (0.1705,)
    std = (0.2928,)

    noise: int = setting(32, "pixels are random below this", least=1, most=255)

    def read(self, folder):
        return self._make(600, 0), self._make(200, 1)

    def _make(self, count, seed):
        labels = np.arange(count) % self.classes
        images = np.random.default_rng(seed).integers(0, self.noise, (count, 1, 8, 8), np.uint8)
        images[np.arange(count), 0, labels] |= 224
        return images, labels


def linear(shape, classes):
    """Return one layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))


# Broken ones


@final
@dataclass(frozen=True)
class Counting(Method):
    """Broken: it remembers rounds in the class, not in the server's memory."""

    rounds = []  # noqa: RUF012

    def direction(self, state, sums, contributions):
        self.rounds.append(state.round)
        return Direction([sums["delta"].mean() / len(self.rounds)])


@final
@dataclass(frozen=True)
class ScalesAll(Policy):
    """Broken: finished work is scaled too."""

    def decide(self, state, updates, digests):
        return Decision({u.device: Treatment(u.steps_asked / u.steps + 0.5) for u in updates})


@final
@dataclass(frozen=True)
class InPlace(AggregationRule):
    """Broken: the sum is built in the first update."""

    def sum(self, vectors, start=None):
        total = vectors[0].vector.mul_(vectors[0].coefficient)
        for v in vectors[1:]:
            total.add_(v.vector, alpha=v.coefficient)
        return total if start is None else start + total


@final
@dataclass(frozen=True)
class HiddenVelocity(ServerOptimizer):
    """Broken: its velocity is in the object, not in the memory, so a resumed run would differ."""

    def step(self, w, terms, memory):
        velocity = sum(terms) + 0.5 * getattr(self, "_velocity", 0)
        object.__setattr__(self, "_velocity", velocity)
        return w + velocity, {}


NOT_A_FUNCTION = "a model"


@final
@dataclass(frozen=True)
class BackInTime(Schedule):
    """Broken: its clock counts down."""

    def plan(self, federation, state):
        return Plan([], [], 100.0 - state.round, 1.0)


@dataclass(frozen=True)
class OrderedDraws(Fleet):
    """Broken: one generator for all rounds, so a round depends on those that were asked for before."""

    def __post_init__(self):
        object.__setattr__(self, "_rng", np.random.default_rng(self.workload.seed))

    def efforts(self, round, devices):
        asked = self.workload.steps
        return [Effort(d, int(self._rng.integers(1, asked[d] + 1)), asked[d], self.workload.deadline) for d in devices]


@final
@dataclass(frozen=True)
class LosesTheRest(Partition):
    """Broken: what does not divide evenly is held by nobody."""

    def split(self, labels, classes, devices, rng):
        size = len(labels) // devices
        order = rng.permutation(len(labels))
        return [np.sort(order[device * size : (device + 1) * size]) for device in range(devices)]


@final
@dataclass(frozen=True)
class FromOne(Dataset):
    """Broken: its labels are counted from 1."""

    title = "Stripes, counted from 1"
    classes = 8
    mean = (0.1705,)
    std = (0.2928,)

    def read(self, folder):
        (train, train_labels), (test, test_labels) = Stripes().read(folder)
        return (train, train_labels + 1), (test, test_labels + 1)


def only_one_shape(shape, classes):
    """Return a model that was written for images of 8 x 8."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes))


@final
@dataclass(frozen=True)
class Misspelt(Fleet):
    """Broken: a plain mistake in the code."""

    def efforts(self, round, devices):
        return [Effort(d, self.workload.step[d], self.workload.steps[d], 1.0) for d in devices]


@final
@dataclass
class Lines(Tracker):
    """A tracker that writes a line a round."""

    file: str = setting("lines.txt", "name of the file in the run folder")
    every: int = setting(1, "rounds between lines", least=1)

    def start(self, run):
        self._file = run.folder / self.file
        self._lines = self._file.read_text().splitlines()[: run.round] if run.round else []

    def log(self, round, values):
        if round % self.every == 0:
            self._lines.append(f"{round} {len(values)}")

    def end(self, summary):
        self._file.write_text("\n".join([*self._lines, f"finished {summary['finished']}"]) + "\n")


@final
@dataclass
class WantsAccuracy(Tracker):
    """Broken: there is no accuracy in rounds without an evaluation."""

    def start(self, run):
        self.best = 0.0

    def log(self, round, values):
        self.best = max(self.best, values["accuracy"])

    def end(self, summary):
        pass


@final
@dataclass
class NotHere(Tracker):
    """A tracker whose server cannot be reached."""

    def start(self, run):
        raise ConnectionError("nobody answers")

    def log(self, round, values):
        pass

    def end(self, summary):
        pass
