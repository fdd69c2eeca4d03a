"""The round: the paper's Algorithm 2 with any method and any answer to stragglers.

schedule (who works when, and how far each gets) -> assignments -> backend -> updates -> aggregator -> state -> record
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from fedlga.core.aggregator import Aggregator
from fedlga.core.backend import Backend, Scores
from fedlga.core.fleet import Fleet
from fedlga.core.method import Method
from fedlga.core.policies.base import Policy
from fedlga.core.process import one_thread
from fedlga.core.quarantine import WithoutResting, find_resting, judge
from fedlga.core.rates import RateSchedule
from fedlga.core.schedules.base import Plan, Schedule, counts
from fedlga.core.schedules.rounds import Rounds
from fedlga.core.settings import Stopped
from fedlga.core.types import Assignment, Contribution, Job, Metrics, Record, ServerState, Update, Weights

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
    schedule: Schedule = field(default_factory=Rounds)
    measure_objective: Callable[[Vector, Vector | None], tuple[float, float | None]] | None = None
    # What evaluated rounds also record: f on the training data, and |grad f|^2 if that is asked for. None: nothing.
    ahead: dict[tuple[int, int], Update] = field(default_factory=dict[tuple[int, int], Update])
    # Updates that were computed before their step, by round and device: nothing is lost if they are.

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
    """Run one round, to the aggregator's next step. The weights are evaluated every `evaluate_every` rounds, and after
    the last one.
    """
    started, resting = time.perf_counter(), find_resting(state)
    f = replace(federation, backend=WithoutResting(federation.backend, resting)) if resting else federation
    plan = f.schedule.plan(f, state)
    meanwhile = Meanwhile()
    running = run_jobs(f, state, plan, meanwhile)
    arriving = (weigh_update(f, u, state.round - job.round, plan) for job, u in running)
    aggregation = f.aggregator.aggregate(replace(state, round=state.round + 1), arriving, audit=f.audit)
    decision, used = aggregation.decision, aggregation.used
    updates = [c.update for c in aggregation.received]
    if plan.refill is not None:
        busy, jobs = set(f.backend.at_work()), [*plan.ended, *meanwhile.started]
        going, over = ([job for job in jobs if (job.device in busy) is still] for still in (True, False))
        over = [replace(job, steps=meanwhile.too_old.get(job.device, job.steps)) for job in over]
        counting = [job for job in over if job.device not in meanwhile.too_old]
        thrown_away = len(meanwhile.too_old)
        plan = replace(plan, ended=over, counting=counting, at_work=going, thrown_away=thrown_away)
    before, state = state, carry_on(aggregation.state, state, plan)

    ended = observe(plan, updates)
    refused = aggregation.refused
    if len(refused) > f.aggregator.rule.most_refused * len(updates):
        device, why = next(iter(refused.items()))
        raise Stopped(
            f"round {state.round}: {len(refused)} of {len(updates)} updates were left out as wrong, more than "
            f"most_refused = {f.aggregator.rule.most_refused:g} allows; device {device}: {why}"
        )
    finite = all_finite(state.w) and (state.buffers is None or all_finite(state.buffers))
    diverged = aggregation.diverged or not finite
    due = state.round % f.evaluate_every == 0 or last or diverged
    metrics = f.evaluate(f.backend.score(state.w, state.buffers)) if due else dict.fromkeys(f.metrics)
    elapsed, incidents = time.perf_counter() - started, f.backend.take_incidents()
    notes = [decision.note or (None if used else explain_nothing_used(ended)), incidents.note]
    if (odd := [name for name, value in metrics.items() if value is not None and not math.isfinite(value)]) and not (
        diverged
    ):
        notes.append(f"{odd[0]} is {metrics[odd[0]]}, and not a finite number")
        metrics = {name: None if name in odd else value for name, value in metrics.items()}
    if diverged:
        what = "the weights are no longer finite numbers" if not finite else "no update holds finite numbers any more"
        notes[0] = f"{what}: the run stops here"
    objective, squared_gradient = None, None
    if due and not diverged and f.measure_objective is not None:  # not part of what the round took
        objective, squared_gradient = f.measure_objective(state.w, state.buffers)
    planned = {job.device: job for job in plan.ended}
    all_refused = {**incidents.refused, **refused}
    rule, went_in = f.aggregator.rule, [c.update.device for c in used]
    strikes = judge(state, all_refused, went_in, after=rule.quarantine_after, rounds=rule.quarantine)
    state = replace(state, memory={**state.memory, **strikes}) if strikes else state
    return state, Record(
        round=state.round,
        metrics=metrics,
        train_loss=sum(u.train_loss for u in updates) / len(updates) if updates else None,
        seconds=elapsed,
        simulated_seconds=elapsed if f.fleet.real else plan.seconds,
        lr=f.rates.rate(before.round),
        devices=[job.device for job in ended],
        steps=[job.steps for job in ended],
        steps_asked=[job.steps_asked for job in ended],
        slow=[job.device for job in ended if planned[job.device].slow or 0 < job.steps < job.steps_asked],
        absent=[job.device for job in ended if job.steps == 0],
        used=went_in,
        scales={c.update.device: scale for c in used if (scale := c.scale * c.update.scaled) != 1},
        growth=decision.growth,
        agreement=decision.agreement,
        clipped=dict(decision.clipped),
        bounded={**aggregation.bounded},
        late=incidents.late,
        duplicates=incidents.duplicates,
        ignored=incidents.ignored,
        refused=all_refused,
        resting=sorted(resting),
        **count_costs(f, before, plan, ended, updates, used),
        audit=aggregation.audit,
        train_objective=objective,
        squared_gradient=squared_gradient,
        diverged=diverged,
        note="; ".join(filter(None, notes)) or None,
    )


@dataclass
class Meanwhile:
    """What real devices did in the middle of a step that no plan could know."""

    started: list[Job] = field(default_factory=list[Job])
    too_old: dict[int, int] = field(default_factory=dict[int, int])  # devices that sent something too old: their steps


def run_jobs(f: Federation, state: ServerState, plan: Plan, meanwhile: Meanwhile) -> Iterator[tuple[Job, Update]]:
    """Yield the jobs that count with their updates, in the order of the plan.

    Where a step leaves cores idle, work is computed ahead: what devices at work began from is known, and their updates
    do not depend on anything else. It is kept for the step that needs it.
    """
    if plan.refill is not None:
        yield from run_real_jobs(f, state, plan, meanwhile)
        return
    needed = {(job.round, job.device) for job in (*plan.counting, *plan.at_work)}
    for unused in set(f.ahead) - needed:  # it became too old
        del f.ahead[unused]
    todo = [job for job in plan.counting if (job.round, job.device) not in f.ahead]
    waiting = [job for job in plan.at_work if counts(f, job) and (job.round, job.device) not in f.ahead]
    early = sorted(waiting, key=lambda job: job.ends)[: -len(todo) % f.backend.parallel]
    jobs = {job.device: job for job in plan.counting}
    assignments = [assign(f, state, job) for job in (*todo, *early)]
    running = iter(f.backend.run(assignments) if plan.enough is None else f.backend.run_first(assignments, plan.enough))
    if len(todo) == len(plan.counting) and not early:
        yield from ((jobs[update.device], update) for update in running)
        return
    for job in plan.counting:
        yield job, f.ahead.pop((job.round, job.device), None) or next(running)
    for job, update in zip(early, running, strict=True):
        f.ahead[job.round, job.device] = update.copied()


def run_real_jobs(f: Federation, state: ServerState, plan: Plan, meanwhile: Meanwhile) -> Iterator[tuple[Job, Update]]:
    """Yield the jobs of real devices with their updates, as they come, until there are enough."""
    assert plan.refill is not None
    assert plan.enough is not None
    refill, jobs, at_work = plan.refill, {job.device: job for job in plan.ended}, set(f.backend.at_work())
    too_old = set(jobs) - {job.device for job in plan.counting}

    def start_more(idle: Sequence[int], still_at_work: int) -> list[Assignment]:
        """Let devices start that have not worked on these weights: their work would be the same again."""
        started = refill([device for device in idle if device not in jobs], still_at_work)
        jobs.update((job.device, job) for job in started)
        meanwhile.started.extend(started)
        return [assign(f, state, job) for job in started]

    new = [assign(f, state, job) for job in plan.counting if job.device not in at_work]
    for update in f.backend.run_buffered(new, plan.enough, start_more, too_old):
        if update.device in too_old:
            meanwhile.too_old[update.device] = update.steps
        else:
            yield jobs[update.device], update


def carry_on(after: ServerState, before: ServerState, plan: Plan) -> ServerState:
    """Return the state after a step with who is still at work, and what they began from."""
    needed = {job.round for job in plan.at_work}
    known = {**before.earlier, before.round: Weights(before.w, before.buffers)}
    return replace(
        after,
        clock=plan.clock,
        jobs=tuple(plan.at_work),
        earlier={round: weights for round, weights in known.items() if round in needed},
    )


def assign(f: Federation, state: ServerState, job: Job) -> Assignment:
    """Return what is sent to one device when its work starts."""
    start = state.earlier.get(job.round) or Weights(state.w, state.buffers)
    instruction = f.policy.instruct(state)
    return Assignment(
        round=job.round,
        device=job.device,
        w=start.w,
        steps=job.steps,
        steps_asked=job.steps_asked,
        lr=f.rates.rate(job.round),
        momentum=f.momentum,
        seed=f.seed,
        broadcast={name: state.memory[name] for name in f.aggregator.method.sends if name in state.memory},
        buffers=start.buffers,
        audit=f.audit,
        seconds=f.fleet.workload.deadline if f.fleet.real and not f.policy.waits else None,
        exponent=None if instruction is None else instruction.exponent,
        longest=None if instruction is None else instruction.longest,
    )


def weigh_update(f: Federation, update: Update, staleness: int, plan: Plan) -> Contribution:
    """Put an update's weight in this step's mean, and its device's share of the federation, around it."""
    discount = f.schedule.discount(staleness)
    weight = plan.times.get(update.device, 1) * discount
    if f.by_examples:
        weight, share = weight * update.examples, update.examples / f.all_examples
    else:
        share = 1 / len(f.examples)
    return Contribution(update, weight=float(weight), share=share, discount=discount, staleness=staleness)


def observe(plan: Plan, updates: Sequence[Update]) -> list[Job]:
    """Return the jobs with what the devices really did: for those that were to send something, that, or nothing."""
    asked, sent = {job.device for job in plan.counting}, {u.device: u.steps for u in updates}
    return [replace(job, steps=sent.get(job.device, 0)) if job.device in asked else job for job in plan.ended]


def count_costs(
    f: Federation,
    state: ServerState,
    plan: Plan,
    ended: Sequence[Job],
    updates: Sequence[Update],
    used: Sequence[Contribution],
) -> dict[str, Any]:
    """Return what a step cost the devices, as fields of its record; `ended` are the jobs as they really ended."""
    down, up = count_bytes(f.aggregator.method, len(state.w), 0 if state.buffers is None else len(state.buffers))
    went_in = {c.update.device for c in used}
    wasted = [job for job in ended if job.steps > 0 and job.device not in went_in]
    if f.fleet.real:
        seconds = {u.device: u.seconds for u in updates if u.seconds is not None}
    else:
        seconds = {job.device: job.lasts for job in ended if not job.lost}
    return {
        "device_seconds": seconds,
        "staleness": {c.update.device: c.staleness for c in used if c.staleness},
        "wasted": [job.device for job in wasted],
        "steps_wasted": sum(job.steps for job in wasted),
        "bytes_down": down * len(ended),
        "bytes_up": up * (len(updates) + plan.thrown_away),
    }


def count_bytes(method: type[Method] | Method, weights: int, buffers: int) -> tuple[int, int]:
    """Return the bytes of an assignment and of an update: their vectors, in float32."""
    return 4 * (weights * (1 + len(method.sends)) + buffers), 4 * (weights * (1 + len(method.uploads)) + buffers)


def explain_nothing_used(ended: Sequence[Job]) -> str:
    """Return why there was nothing to aggregate."""
    worked = any(job.steps > 0 and not job.lost for job in ended)
    return f"nobody {'finished' if worked else 'reported'}: the model stays as it was"


def all_finite(w: Vector) -> bool:
    """Return whether all weights are finite. A finite sum proves it; the sum of huge finite weights may overflow."""
    return math.isfinite(float(w.sum())) or bool(torch.isfinite(w).all())
