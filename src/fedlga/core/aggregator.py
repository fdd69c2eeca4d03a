"""The server's half of a round: from updates as sent to the next state. Simulations and Flower strategies share it.

updates -> policy (how each counts) -> aggregation rule (sums) -> method (direction) -> server optimiser (step)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from fedlga.core.aggregation.base import AggregationRule, bound_lengths
from fedlga.core.aggregation.mean import Mean
from fedlga.core.audit import measure_round
from fedlga.core.completion.digest import DigestReader
from fedlga.core.guard import Guard
from fedlga.core.method import Method, WeightedSum, WeightedVector, recall
from fedlga.core.optimizers.base import ServerOptimizer
from fedlga.core.optimizers.sgd import Sgd
from fedlga.core.policies.base import Decision, Policy, Treatment
from fedlga.core.types import Contribution, ServerState

if TYPE_CHECKING:
    from fedlga.core.types import Vector


BUFFERS = "buffers"  # the name of their sum, beside those of the method


@dataclass(frozen=True)
class Aggregation:
    """What became of a round's updates. The contributions are kept without their vectors."""

    state: ServerState
    decision: Decision
    received: Sequence[Contribution]
    used: Sequence[Contribution]
    bounded: dict[int, float] = field(default_factory=dict[int, float])  # devices: what shortened their update
    audit: dict[str, Any] | None = None
    refused: dict[int, str] = field(default_factory=dict[int, str])  # devices whose update was not believed, and why
    diverged: bool = False  # no update was finite


@dataclass(frozen=True)
class Aggregator:
    """Method, policy, aggregation rule and server optimiser: all that decides what becomes of updates."""

    method: Method
    policy: Policy
    rule: AggregationRule = field(default_factory=Mean)
    optimizer: ServerOptimizer = field(default_factory=Sgd)

    def __post_init__(self) -> None:
        object.__setattr__(self, "policy", self.policy.with_carry(self.optimizer.carry))

    def aggregate(self, state: ServerState, arriving: Iterable[Contribution], *, audit: bool = False) -> Aggregation:
        """Return the state after these updates; it is the old one if none of them is used.

        Updates are summed as they arrive, and one is held at a time, unless something needs them all at once. From the
        first on that is to be compared with the others, they are held and summed at the end, in the same order; so are
        those of a first round, in which nothing is known to judge them by before all are there.
        """
        if audit or self.policy.needs_all or self.rule.needs_all:
            return self._aggregate_held(state, arriving, audit=audit)
        sums, guard = _RunningSums(self, state), self._make_guard(state)
        received, held, used = list[Contribution](), list[Contribution](), list[Contribution]()

        def add(believed: Contribution) -> None:
            decision = self.policy.decide(state, [believed.update], {})
            for chosen in _apply(decision, [believed]):
                sums.add(chosen)
                used.append(chosen.without_vectors())

        for together in [list(arriving)] if guard.is_new else ([c] for c in arriving):
            received += [c.without_vectors() for c in together]
            for believed in guard.admit(together):
                if guard.suspects:
                    held.append(believed)
                else:
                    add(believed)
        if held:
            for believed in guard.compare(held, self.weigh, sums.added(), len(used)):
                add(believed)
        state = replace(state, memory={**state.memory, **guard.memory()})
        after = self._step(state, sums.result(), used) if used else state
        instruction = self.policy.instruct(state)
        decision = Decision({}, growth=None if instruction is None else instruction.exponent)
        return Aggregation(after, decision, received, used, refused=guard.refused, diverged=guard.has_diverged())

    def _aggregate_held(self, state: ServerState, arriving: Iterable[Contribution], *, audit: bool) -> Aggregation:
        received, guard = list[Contribution](), self._make_guard(state)
        with DigestReader(sketches=self.policy.needs_all and self.policy.needs_sketches) as reader:
            for c in arriving:
                received.append(c)
                if self.policy.needs_all:  # read now, while other devices still work
                    reader.add(c.update.device, c.update.delta)
            digests = reader.result()
        # A digest's length is 0 if it is not finite in float32: then it is measured here.
        believed = guard.admit(received, {device: d.length for device, d in digests.items() if d.length > 0})
        believed = guard.compare(believed, self.weigh)
        digests = {device: digest for device, digest in digests.items() if device not in guard.refused}
        decision = self.policy.decide(state, [c.update for c in believed], digests)
        used, bounded = guard.shorten(_apply(decision, believed))
        measured = measure_round(received, used) if audit else None
        state = replace(state, memory={**state.memory, **decision.memory, **guard.memory()})
        noted, noted_used = ([c.without_vectors() for c in contributions] for contributions in (received, used))
        if used:
            sums, shortened = self._sum_all(state, used)
            bounded = {**bounded, **shortened}
            state = self._step(state, sums, noted_used)
        return Aggregation(state, decision, noted, noted_used, bounded, measured, guard.refused, guard.has_diverged())

    def _make_guard(self, state: ServerState) -> Guard:
        open_to_see = self.policy.instruct(state) is None  # private completing is for updates under masks
        return Guard(self.rule.outlier_bound, state, compares=open_to_see)

    def _sum_all(
        self, state: ServerState, used: Sequence[Contribution]
    ) -> tuple[dict[str, WeightedSum], dict[int, float]]:
        """Return every sum that the method asks for, and the devices whose vectors were shortened."""
        weighed = [self.weigh(c) for c in used]
        sums: dict[str, WeightedSum] = {}
        bounded: dict[int, float] = {}
        for name in weighed[0]:
            vectors = [terms[name] for terms in weighed]
            if self.rule.length_bound > 0 and name != BUFFERS:  # those are no update: they have no length
                vectors, factors = bound_lengths(vectors, self.rule.length_bound)
                for c, factor in zip(used, factors, strict=True):
                    if factor < 1:
                        bounded[c.update.device] = min(factor, bounded.get(c.update.device, 1.0))
            total = self.rule.sum(vectors, self.starting_value(state, name))
            sums[name] = WeightedSum(total, sum(v.weight for v in vectors))
        return sums, bounded

    def weigh(self, contribution: Contribution) -> dict[str, WeightedVector]:
        """Return the contribution's part of each sum: those of the method, and the mean of the model's buffers.

        Buffers, such as BatchNorm's statistics, are averaged by weight as they are: no method, completion or server
        optimiser moves them.
        """
        c = contribution
        own = {} if c.update.buffers is None else {BUFFERS: WeightedVector(c.update.buffers, c.weight, c.weight)}
        return {**self.method.weigh(c), **own}

    def starting_value(self, state: ServerState, name: str) -> Vector | None:
        """Return what a sum is added to: the server's memory, if the method accumulates it; else None, for zero."""
        return recall(state.memory, name, state.w) if name in self.method.accumulates else None

    def _step(self, state: ServerState, sums: dict[str, WeightedSum], used: Sequence[Contribution]) -> ServerState:
        if BUFFERS in sums:
            state = replace(state, buffers=sums.pop(BUFFERS).mean())
        accumulated = {name: sums[name].total for name in self.method.accumulates}
        direction = self.method.direction(state, sums, used)
        learned = self.policy.learn(state, direction.terms, [c.update for c in used])
        if (damping := _damping(used)) != 1:
            direction = replace(direction, terms=[term * damping for term in direction.terms])
        w, remembered = self.optimizer.step(state.w, direction.terms, state.memory)
        return replace(state, w=w, memory={**state.memory, **accumulated, **direction.memory, **remembered, **learned})


def _damping(used: Sequence[Contribution]) -> float:
    """Return what staleness leaves of a step: FedBuff divides by the number of updates, not by their discounts."""
    if all(c.discount == 1 for c in used):
        return 1.0
    return sum(c.weight for c in used) / sum(c.weight / c.discount for c in used)


def _apply(decision: Decision, contributions: Sequence[Contribution]) -> list[Contribution]:
    """Return the contributions that the policy uses, with its scales."""

    def treat(c: Contribution, treatment: Treatment) -> Contribution:
        return replace(c, scale=treatment.scale, completed=treatment.completed)

    pairs = [(c, decision.treatments.get(c.update.device)) for c in contributions]
    return [treat(c, treatment) for c, treatment in pairs if treatment is not None]


class _RunningSums:
    """The sums of a rule that streams: each update is added when it arrives, and need not be kept."""

    def __init__(self, aggregator: Aggregator, state: ServerState) -> None:
        self._aggregator, self._state = aggregator, state
        self._totals: dict[str, Vector] = {}
        self._weights: dict[str, float] = {}

    def add(self, contribution: Contribution) -> None:
        for name, v in self._aggregator.weigh(contribution).items():
            self._totals[name] = self._add(name, v)
            self._weights[name] = self._weights.get(name, 0.0) + v.weight

    def _add(self, name: str, v: WeightedVector) -> Vector:
        if name in self._totals:
            return self._totals[name].add_(v.vector, alpha=v.coefficient)
        start = self._aggregator.starting_value(self._state, name)
        return torch.mul(v.vector, v.coefficient) if start is None else start.add(v.vector, alpha=v.coefficient)

    def added(self) -> dict[str, Vector]:
        """Return what the updates added to each sum so far."""
        starts = {name: self._aggregator.starting_value(self._state, name) for name in self._totals}
        pairs = ((name, total, starts[name]) for name, total in self._totals.items())
        return {name: total.clone() if start is None else total - start for name, total, start in pairs}

    def result(self) -> dict[str, WeightedSum]:
        return {name: WeightedSum(total, self._weights[name]) for name, total in self._totals.items()}
