"""Buffered: devices start and report whenever they can, and the aggregator steps when enough updates have come.

FedBuff: Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.

| paper | here |
|---|---|
| M_c (concurrency) | at_work |
| K (buffer) | buffer |
| tau_i (staleness) | the aggregator's steps between a device's start and the step that its update goes into |
| s(tau) = 1 / sqrt(1 + tau) | (1 + tau)^-staleness_power, which multiplies the update; the sum is divided by K |

Departures. With a policy that does not wait, a device reports what it has after the deadline, counted from its own
start; `complete` then completes it within the buffer. A device works at most once on each version of the weights: one
that has reported starts again after the next step. Devices that report at the same moment are heard one after the
other: when the buffer is full the aggregator steps, and free places are taken on the new weights, before the rest is
heard.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from fedlga.core.schedules.base import Plan, Schedule, counts, find_present, select_devices, start_jobs
from fedlga.core.settings import BadInput, setting
from fedlga.core.types import Job, ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fedlga.core.round import Federation


@final
@dataclass(frozen=True)
class Buffered(Schedule):
    """Some devices are always at work; the aggregator steps when so many updates have come, fresh or stale."""

    buffer: int = setting(0, "B, updates that make a step; 0: the cohort", least=0)
    at_work: int = setting(0, "C, devices at work at any time; 0: the cohort", least=0)
    staleness_power: float = setting(0.5, "a: an update that is s steps old counts (1 + s)^-a", least=0)
    staleness_limit: int | None = setting(None, "updates that are more steps old are thrown away; unset: none", least=0)

    is_stale = True
    is_real = True

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        if experiment["sampling"] != "without-replacement":
            raise BadInput("sampling: got 'with-replacement' with schedule 'buffered'; it takes each device once")
        if experiment["batch_norm"] == "device":
            raise BadInput("batch_norm: got 'device' with schedule 'buffered'; it takes average")
        for name in ("buffer", "at_work"):
            if settings[name] > experiment["devices"]:
                raise BadInput(
                    f"{name}: got {settings[name]}; it takes at most the {experiment['devices']} devices there are"
                )
        return {**settings, **{n: settings[n] or experiment["cohort"] for n in ("buffer", "at_work")}}

    def discount(self, staleness: int) -> float:  # noqa: D102
        return (1.0 + staleness) ** -self.staleness_power

    def most_updates(self, cohort: int) -> int:  # noqa: D102
        return self.buffer or cohort

    def plan(self, federation: Federation, state: ServerState) -> Plan:  # noqa: D102
        f, clock = federation, state.clock
        if f.fleet.real:
            return self._plan_real(f, state)
        working, ended, counting = list(state.jobs), list[Job](), list[Job]()
        draws = too_old = 0
        while True:
            clock = max(clock, self._start(f, state, clock, working, ended, draws))
            draws += 1
            if not working:  # everybody has had a turn: the aggregator steps with what it has
                return Plan(ended, counting, clock, clock - state.clock, thrown_away=too_old)
            clock = max(clock, self._next_event(f, clock, working))
            for job in [job for job in working if job.ends <= clock]:
                working.remove(job)
                ended.append(job)
                if counts(f, job):
                    if self._is_too_old(state, job):
                        too_old += 1
                    else:
                        counting.append(job)
                if len(counting) == self.most_updates(f.cohort):
                    seconds = clock - state.clock
                    return Plan(ended, counting, clock, seconds, at_work=working, thrown_away=too_old)

    def _next_event(self, f: Federation, clock: float, working: list[Job]) -> float:
        """Return when the next device reports; or comes, if there is work for it."""
        first = min(job.ends for job in working)
        if len(working) >= (self.at_work or f.cohort) or f.fleet.present(clock) is None:
            return first
        return min(first, f.fleet.next_arrival(clock))

    def _plan_real(self, f: Federation, state: ServerState) -> Plan:
        """Return who works on: real devices show when they end."""
        busy = set(f.backend.at_work())
        working = [job for job in state.jobs if job.device in busy]  # those of an aggregator that was killed are gone
        draws = itertools.count()

        def start(idle: Sequence[int], at_work: int) -> list[Job]:
            free = (self.at_work or f.cohort) - at_work
            if free <= 0 or not idle:
                return []
            draw = next(draws)
            chosen = select_devices(f, state.round, idle, free, *([draw] if draw else []))
            return [job for job, _ in start_jobs(f, state.round, list(chosen), state.clock)]

        full = len(working) >= (self.at_work or f.cohort)
        there = f.backend.idle() if busy else f.backend.present()  # only if nobody works, somebody has to be waited for
        idle = [] if full else [device for device in there if device not in busy]
        jobs = [*working, *start(idle, len(working))]
        counting = [job for job in jobs if not self._is_too_old(state, job)]
        return Plan(jobs, counting, state.clock, 0.0, enough=self.most_updates(f.cohort), refill=start)

    def _start(
        self, f: Federation, state: ServerState, clock: float, working: list[Job], ended: list[Job], draws: int
    ) -> float:
        """Let idle devices start, until enough are at work; return when that is, if everybody has to wait for it."""
        free = (self.at_work or f.cohort) - len(working)
        if free <= 0:
            return clock
        present, later = find_present(f, clock) if not working else (f.fleet.present(clock), clock)
        if present is None:
            present = f.backend.present()
        busy = {job.device for job in (*working, *ended)}
        idle = [device for device in present if device not in busy]
        chosen = select_devices(f, state.round, idle, free, *([draws] if draws else []))
        working += [job for job, _ in start_jobs(f, state.round, list(chosen), later)]
        return later

    def _is_too_old(self, state: ServerState, job: Job) -> bool:
        return self.staleness_limit is not None and state.round - job.round > self.staleness_limit
