"""The round: the paper's Algorithm 2 with any method and any answer to stragglers.

select devices -> fleet (how far each gets) -> assignments -> backend -> updates -> aggregator -> new state -> record
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from fedlga.core.aggregator import Aggregator
from fedlga.core.backend import Backend, Scores
from fedlga.core.fleet import Effort, Fleet
from fedlga.core.policies.base import Policy
from fedlga.core.process import one_thread
from fedlga.core.randomness import Stream, generator
from fedlga.core.schedules import RateSchedule
from fedlga.core.types import Assignment, Contribution, Metrics, Record, ServerState, Update

if TYPE_CHECKING:
    from fedlga.core.types import Vector


@dataclass(frozen=True)
class Federation:
    """Everything that stays the same from round to round."""

    aggregator: Aggregator
    fleet: Fleet
    backend: Backend
    evaluate: Callable[[Scores], Metrics]  # what the backend's scores say of the weights
    metrics: Sequence[str]  # the names of all metrics that `evaluate` returns
    examples: Sequence[int]  # held by each device
    cohort: int  # K, selected in a round
    rates: RateSchedule  # eta_l in each round
    momentum: float
    seed: int
    replacement: bool  # select with replacement: the paper's scheme I
    by_examples: bool  # average by examples; otherwise uniformly
    evaluate_every: int = 1
    audit: bool = False

    @property
    def policy(self) -> Policy:
        """The answer to stragglers."""
        return self.aggregator.policy

    @property
    def all_examples(self) -> int:
        """The number of examples in the whole federation."""
        return sum(self.examples)


def run_rounds(federation: Federation, state: ServerState, until: int) -> Iterator[tuple[ServerState, Record]]:
    """Continue from `state` to round `until`, one round at a time. Stop early if the weights are no longer finite.

    While a round runs, torch uses one thread: sums then have the same last bit on every machine and backend. Between
    rounds, in the caller's loop, torch has the threads it had before.
    """
    while state.round < until:
        with one_thread():
            state, record = run_round(federation, state, last=state.round + 1 == until)
        yield state, record
        if record.diverged:
            return


def run_round(federation: Federation, state: ServerState, *, last: bool = False) -> tuple[ServerState, Record]:
    """Run one round. The weights are evaluated every `evaluate_every` rounds, and after the last one."""
    f, started = federation, time.perf_counter()
    selected = select_devices(f, state.round)
    efforts = f.fleet.draw(state.round, list(selected))
    assignments = [assign(f, state, e) for e in efforts if takes_part(f.policy, e)]

    arriving = (weigh_update(f, u, selected[u.device]) for u in f.backend.run(assignments))
    aggregation = f.aggregator.aggregate(replace(state, round=state.round + 1), arriving, audit=f.audit)
    decision, used, state = aggregation.decision, aggregation.used, aggregation.state
    updates = [c.update for c in aggregation.received]

    done = observe_efforts(efforts, assignments, updates)
    diverged = not all_finite(state.w) or (state.buffers is not None and not all_finite(state.buffers))
    due = state.round % f.evaluate_every == 0 or last or diverged
    metrics = f.evaluate(f.backend.score(state.w, state.buffers)) if due else dict.fromkeys(f.metrics)
    elapsed, incidents = time.perf_counter() - started, f.backend.take_incidents()
    notes = [decision.note or (None if used else explain_nothing_used(done)), incidents.note]
    if diverged:
        notes[0] = "the weights are no longer finite numbers: the run stops here"
    return state, Record(
        round=state.round,
        metrics=metrics,
        train_loss=sum(u.train_loss for u in updates) / len(updates) if updates else None,
        seconds=elapsed,
        simulated_seconds=elapsed if f.fleet.real else f.fleet.seconds(efforts, waits=f.policy.waits),
        lr=f.rates.rate(state.round - 1),
        devices=[e.device for e in done],
        steps=[e.steps for e in done],
        steps_asked=[e.steps_asked for e in done],
        slow=[e.device for e, o in zip(efforts, done, strict=True) if e.slow or 0 < o.steps < o.steps_asked],
        absent=[e.device for e in done if e.steps == 0],
        used=[c.update.device for c in used],
        scales={c.update.device: c.scale for c in used if c.scale != 1},
        growth=decision.growth,
        agreement=decision.agreement,
        clipped=dict(decision.clipped),
        bounded=aggregation.bounded,
        late=incidents.late,
        refused=incidents.refused,
        device_seconds={u.device: u.seconds for u in updates if f.fleet.real and u.seconds is not None},
        audit=aggregation.audit,
        diverged=diverged,
        note="; ".join(filter(None, notes)) or None,
    )


def select_devices(f: Federation, round: int) -> Counter[int]:
    """Return the devices of this round, and how often each was drawn (once, unless drawn with replacement)."""
    present = f.backend.present()
    size = (f.cohort if f.replacement else min(f.cohort, len(present))) if len(present) else 0
    if not size:
        return Counter()
    rng = generator(f.seed, Stream.SAMPLE, round)
    return Counter(present[int(index)] for index in rng.choice(len(present), size=size, replace=f.replacement))


def takes_part(policy: Policy, effort: Effort) -> bool:
    """Return whether a device's work has to be simulated: it will send something, and it will be used."""
    if effort.lost:
        return False
    return policy.waits or (effort.steps > 0 and (policy.uses_unfinished or not effort.slow))


def assign(f: Federation, state: ServerState, effort: Effort) -> Assignment:
    """Return what is sent to one device."""
    return Assignment(
        round=state.round,
        device=effort.device,
        w=state.w,
        steps=effort.steps_asked if f.policy.waits else effort.steps,
        steps_asked=effort.steps_asked,
        lr=f.rates.rate(state.round),
        momentum=f.momentum,
        seed=f.seed,
        broadcast={name: state.memory[name] for name in f.aggregator.method.sends if name in state.memory},
        buffers=state.buffers,
        audit=f.audit,
        seconds=f.fleet.workload.deadline if f.fleet.real and not f.policy.waits else None,
    )


def weigh_update(f: Federation, update: Update, times: int) -> Contribution:
    """Put an update's weight in this round's mean, and its device's share of the federation, around it."""
    if f.by_examples:
        return Contribution(update, weight=times * update.examples, share=update.examples / f.all_examples)
    return Contribution(update, weight=float(times), share=1 / len(f.examples))


def observe_efforts(
    efforts: Sequence[Effort], assignments: Sequence[Assignment], updates: Sequence[Update]
) -> list[Effort]:
    """Return what the devices really did: for those with an assignment, what they sent, or nothing."""
    asked, sent = {a.device for a in assignments}, {u.device: u.steps for u in updates}
    return [replace(e, steps=sent.get(e.device, 0)) if e.device in asked else e for e in efforts]


def explain_nothing_used(efforts: Sequence[Effort]) -> str:
    """Return why there was nothing to aggregate."""
    worked = any(e.steps > 0 and not e.lost for e in efforts)
    return f"nobody {'finished' if worked else 'reported'}: the model stays as it was"


def all_finite(w: Vector) -> bool:
    """Return whether all weights are finite. A finite sum proves it; the sum of huge finite weights may overflow."""
    return math.isfinite(float(w.sum())) or bool(torch.isfinite(w).all())
