"""What a schedule is: it says who works when, on which weights, and whose work makes the aggregator's next step.

How long devices take does not depend on what they learn. So a schedule plans a whole step ahead in simulated time, and
only then is anything computed, on as many cores as there are.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

from fedlga.core.fleet import Effort
from fedlga.core.randomness import Stream, generator
from fedlga.core.types import Job, ServerState

if TYPE_CHECKING:
    from fedlga.core.round import Federation


@dataclass(frozen=True)
class Plan:
    """What happens until the aggregator's next step."""

    ended: Sequence[Job]  # all work that ends until then, whatever becomes of it
    counting: Sequence[Job]  # the work among it whose updates go to the policy, in the order of aggregation
    clock: float  # simulated seconds since the run began, at the step
    seconds: float  # since the last step: kept apart from the clock, whose last digits depend on how long a run is
    times: Mapping[int, int] = field(default_factory=dict[int, int])  # how often a device was drawn, if not once
    at_work: Sequence[Job] = ()  # who goes on working after the step
    enough: int | None = None  # real devices, whose times nobody knows: the first so many reports count; None: all
    thrown_away: int = 0  # updates that were sent, and are too old to be used
    refill: Callable[[Sequence[int], int], Sequence[Job]] | None = None
    # Real devices that go on working after the step, and report to a later one: given who is idle in the middle of the
    # step, and how many work, it returns who starts now. None: all end with the step.


@dataclass(frozen=True)
class Schedule(ABC):
    """A frozen dataclass of settings, as stateless as a method: who is at work is in ServerState."""

    policies: ClassVar[tuple[str, ...]] = ()  # the only policies that it goes with; empty: any
    is_stale: ClassVar[bool] = False  # updates may come from weights of earlier steps
    is_real: ClassVar[bool] = False  # real devices can be run by it

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings with open defaults filled in; BadInput if they do not fit the rest of the experiment."""
        return dict(settings)

    @abstractmethod
    def plan(self, federation: Federation, state: ServerState) -> Plan:
        """Return what happens until the next step; the same for the same state."""

    def discount(self, staleness: int) -> float:
        """Return what an update counts that began so many steps ago, relative to a fresh one."""
        return 1.0

    def most_updates(self, cohort: int) -> int:
        """Return how many updates a step may have."""
        return cohort


def find_present(f: Federation, clock: float) -> tuple[Sequence[int], float]:
    """Return the devices that can be selected, and from when: if nobody is there, when the next one comes."""
    connected = f.backend.present()
    present = f.fleet.present(clock)
    if present is None:
        return connected, clock
    if not len(present):
        clock = f.fleet.next_arrival(clock)
        present = f.fleet.present(clock) or ()
    return (present if len(connected) == f.fleet.workload.devices else sorted({*present} & {*connected})), clock


def select_devices(f: Federation, round: int, present: Sequence[int], size: int, *draw: int) -> Counter[int]:
    """Return some of the devices that are there, and how often each was drawn (once, unless with replacement).

    `draw` numbers the draws of a round, if it has several.
    """
    size = (size if f.replacement else min(size, len(present))) if len(present) else 0
    if not size:
        return Counter()
    rng = generator(f.seed, Stream.SAMPLE, round, *draw)
    return Counter(present[int(index)] for index in rng.choice(len(present), size=size, replace=f.replacement))


def start_jobs(f: Federation, round: int, devices: Sequence[int], clock: float) -> list[tuple[Job, Effort]]:
    """Return the work of devices that start now, with what each can do.

    A device ends when it has finished, or at the deadline, unless the aggregator waits for it. One that leaves before
    that is lost.
    """
    if f.fleet.draws_together and len(devices) < f.fleet.workload.devices and f.schedule.is_stale:
        everyone = f.fleet.draw(round, range(f.fleet.workload.devices))  # those who start later have theirs drawn too
        efforts = [everyone[device] for device in devices]
    else:
        efforts = f.fleet.draw(round, devices)
    return [(make_job(f, round, effort, clock), effort) for effort in efforts]


def make_job(f: Federation, round: int, effort: Effort, clock: float) -> Job:
    """Return the work of one device that starts now."""
    lasts = effort.seconds if f.policy.waits else min(effort.seconds, f.fleet.workload.deadline)
    if not math.isfinite(lasts):  # it never answers
        lasts = f.fleet.workload.deadline
    leaves = f.fleet.leaves(effort.device, clock)
    lost = effort.lost or leaves < lasts
    return Job(
        device=effort.device,
        round=round,
        steps=0 if lost else effort.steps_asked if f.policy.waits else effort.steps,
        steps_asked=effort.steps_asked,
        started=clock,
        lasts=min(lasts, leaves),
        lost=lost,
        slow=effort.slow,
    )


def counts(f: Federation, job: Job) -> bool:
    """Return whether a job's work has to be simulated: the device will send something, and it will be used."""
    if job.lost:
        return False
    return f.policy.waits or (job.steps > 0 and (f.policy.uses_unfinished or not job.slow))


def cut_off(job: Job, effort: Effort, clock: float) -> Job:
    """Return a job that the aggregator ends before its time: the steps done so far are for nothing."""
    done = 0 if job.lost else min(job.steps_asked, effort.steps_after(clock - job.started))
    return replace(job, steps=done, lasts=min(job.lasts, clock - job.started))


def last_report(f: Federation, started: Sequence[tuple[Job, Effort]]) -> float:
    """Return how long the aggregator waits if all who can report do."""
    return f.fleet.seconds([e.as_lost() if job.lost else e for job, e in started], waits=f.policy.waits)
