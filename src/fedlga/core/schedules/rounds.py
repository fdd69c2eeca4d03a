"""Rounds: a cohort starts together, and the aggregator steps when its time is up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, final

from fedlga.core.schedules.base import Plan, Schedule, counts, find_present, last_report, select_devices, start_jobs
from fedlga.core.types import ServerState

if TYPE_CHECKING:
    from fedlga.core.round import Federation


@final
@dataclass(frozen=True)
class Rounds(Schedule):
    """All selected devices start together; the policy says how long the aggregator waits."""

    is_real = True

    def plan(self, federation: Federation, state: ServerState) -> Plan:  # noqa: D102
        f = federation
        present, clock = find_present(f, state.clock)
        selected = select_devices(f, state.round, present, f.cohort)
        started = start_jobs(f, state.round, list(selected), clock)
        jobs = [job for job, _ in started]
        lasts = last_report(f, started)
        return Plan(
            ended=jobs,
            counting=[job for job in jobs if counts(f, job)],
            clock=clock + lasts,
            seconds=clock - state.clock + lasts,
            times=selected,
        )
