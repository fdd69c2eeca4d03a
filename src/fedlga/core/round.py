"""The round: the paper's Algorithm 2 with any method and any answer to stragglers."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import torch

from .audit import measured
from .draws import Stream, generator
from .fleet import Effort, Fleet
from .methods.base import Method
from .stragglers import Policy
from .types import Backend, Evaluation, Record, Server, Task, Update

if TYPE_CHECKING:
    from .types import Vector


@dataclass
class Mishaps:
    """What went wrong on real devices since the last round."""

    late: list[int] = field(default_factory=list[int])
    refused: dict[int, str] = field(default_factory=dict[int, str])
    note: str | None = None


@dataclass(frozen=True)
class Federation:
    """Everything that stays the same from round to round."""

    method: Method
    policy: Policy
    fleet: Fleet
    backend: Backend
    evaluate: Callable[[Vector], Evaluation]
    examples: Sequence[int]  # held by each device
    cohort: int  # K, selected in a round
    lr: float
    lr_decay: float
    momentum: float
    seed: int
    replacement: bool  # select with replacement: the paper's scheme I
    by_examples: bool  # average by examples; otherwise uniformly
    evaluate_every: int = 1
    audit: bool = False
    present: Callable[[], Sequence[int]] | None = None  # real devices: those that are there; None: always all
    mishaps: Callable[[], Mishaps] = Mishaps

    @property
    def all_examples(self) -> int:
        """Of the whole federation."""
        return sum(self.examples)


def rounds(federation: Federation, server: Server, until: int) -> Iterator[tuple[Server, Record]]:
    """Go on from `server` to round `until`, one round at a time.

    It ends early when the weights are no longer numbers; the last record's note says so.
    """
    f = federation
    while server.round < until:
        started = time.perf_counter()
        drawn = select(f, server.round)
        efforts = f.fleet.draw(server.round, list(drawn))
        tasks = [task(f, server, e) for e in efforts if takes_part(f.policy, e)]

        # Streams: updates are averaged as they arrive, and held only by whoever needs them together.
        sent, used = list[Update](), list[Update]()
        arriving = noted((weighed(f, u, drawn[u.device]) for u in f.backend.run(tasks)), sent)
        whole = list(arriving) if f.audit else arriving
        answer = f.policy.answer(server, whole)
        chosen = list(answer.updates) if f.audit else answer.updates
        audit = measured(list(whole), list(chosen)) if f.audit else None
        server = replace(server, round=server.round + 1, memory={**server.memory, **(answer.memory or {})})
        server = aggregated(f, server, chosen, used)

        done = observed(efforts, tasks, sent)
        note = answer.note or (None if used else nothing_used(done))
        diverged = not all_finite(server.w)
        if diverged:
            note = "the weights are no longer finite numbers: the run stops here"
        due = server.round % f.evaluate_every == 0 or server.round == until or diverged
        found = f.evaluate(server.w) if due else Evaluation()
        elapsed, mishaps = time.perf_counter() - started, f.mishaps()
        note = "; ".join(filter(None, (note, mishaps.note))) or None
        yield (
            server,
            Record(
                round=server.round,
                accuracy=found.accuracy,
                loss=found.loss,
                accuracy_slow=found.accuracy_slow,
                accuracy_worst=found.accuracy_worst,
                train_loss=sum(u.train_loss for u in sent) / len(sent) if sent else None,
                seconds=elapsed,
                simulated_seconds=elapsed if f.fleet.real else f.fleet.seconds(efforts, waits=f.policy.waits),
                lr=rate(f, server.round - 1),
                devices=[e.device for e in done],
                steps=[e.steps for e in done],
                steps_asked=[e.steps_asked for e in done],
                slow=[e.device for e, o in zip(efforts, done, strict=True) if e.slow or 0 < o.steps < o.steps_asked],
                absent=[e.device for e in done if e.steps == 0],
                used=[u.device for u in used],
                scales={u.device: u.scale for u in used if u.scale != 1},
                growth=answer.growth,
                agreement=answer.agreement,
                clipped=dict(answer.clipped),
                late=mishaps.late,
                refused=mishaps.refused,
                device_seconds={u.device: u.seconds for u in sent if f.fleet.real and u.seconds is not None},
                audit=audit,
                note=note,
            ),
        )
        if diverged:
            return


def aggregated(f: Federation, server: Server, updates: Iterable[Update], used: list[Update]) -> Server:
    """What the method makes of the updates, if there are any; they are noted in `used`."""
    if isinstance(updates, list):
        used += [u.light() for u in updates]
        return f.method.aggregate(server, updates) if updates else server
    stream = noted(updates, used)
    first = next(stream, None)
    return server if first is None else f.method.aggregate(server, chain([first], stream))


def noted(updates: Iterable[Update], notes: list[Update]) -> Iterator[Update]:
    """The same updates, each noted as it passes."""
    for u in updates:
        notes.append(u.light())
        yield u


def all_finite(w: Vector) -> bool:
    """Whether weights are numbers. A sum is quick, and a finite one settles it; one of huge numbers may not be."""
    return math.isfinite(float(w.sum())) or bool(torch.isfinite(w).all())


def observed(efforts: Sequence[Effort], tasks: Sequence[Task], sent: Sequence[Update]) -> list[Effort]:
    """What the devices really did: a simulated one what was drawn for it, a real one what it sent, if it did."""
    asked, came = {t.device for t in tasks}, {u.device: u.steps for u in sent}
    return [replace(e, steps=came.get(e.device, 0)) if e.device in asked else e for e in efforts]


def nothing_used(efforts: Sequence[Effort]) -> str:
    """Why there was nothing to average."""
    worked = any(e.steps > 0 and not e.lost for e in efforts)
    return f"nobody {'finished' if worked else 'reported'}: the model stays as it was"


def select(f: Federation, round: int) -> Counter[int]:
    """The devices of this round, and how often each was drawn (once, unless drawn with replacement)."""
    rng = generator(f.seed, Stream.SAMPLE, round)
    devices = len(f.examples) if f.present is None else f.present()
    if not isinstance(devices, int):  # of real devices some may be away, or all
        size = (f.cohort if f.replacement else min(f.cohort, len(devices))) if devices else 0
        return Counter(int(d) for d in rng.choice(devices, size=size, replace=f.replacement)) if size else Counter()
    return Counter(int(d) for d in rng.choice(devices, size=f.cohort, replace=f.replacement))


def takes_part(policy: Policy, effort: Effort) -> bool:
    """Whether a device's work is worth simulating: it will send something, and it will be used."""
    if effort.lost:
        return False
    return policy.waits or (effort.steps > 0 and (policy.uses_unfinished or not effort.slow))


def task(f: Federation, server: Server, effort: Effort) -> Task:
    """What goes to one device."""
    return Task(
        round=server.round,
        device=effort.device,
        w=server.w,
        steps=effort.steps_asked if f.policy.waits else effort.steps,
        steps_asked=effort.steps_asked,
        lr=rate(f, server.round),
        momentum=f.momentum,
        seed=f.seed,
        shared={name: server.memory[name] for name in f.method.sends if name in server.memory},
        audit=f.audit,
        seconds=f.fleet.deadline if f.fleet.real and not f.policy.waits else None,
    )


def rate(f: Federation, round: int) -> float:
    """eta_l after `round` rounds of decay: eta_l <- (1 - gamma) eta_l."""
    return f.lr * (1 - f.lr_decay) ** round


def weighed(f: Federation, update: Update, times: int) -> Update:
    """An update with its weight in this round's mean and its device's share of the federation."""
    if f.by_examples:
        return replace(update, weight=times * update.examples, share=update.examples / f.all_examples)
    return replace(update, weight=float(times), share=1 / len(f.examples))
