"""Over-selection: ask more devices than needed, and take the first.

Bonawitz et al., Towards Federated Learning at Scale: System Design, MLSys 2019, sections 2.2 and 9: 130 % of the
devices are selected, to make up for those that drop out, and for stragglers, which are ended when enough have reported.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, final

from fedlga.core.schedules.base import (
    Plan,
    Schedule,
    counts,
    cut_off,
    find_present,
    last_report,
    select_devices,
    start_jobs,
)
from fedlga.core.settings import BadInput, setting
from fedlga.core.types import ServerState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fedlga.core.round import Federation


@final
@dataclass(frozen=True)
class OverSelection(Schedule):
    """A factor more devices than the cohort are asked, and the first to finish count; what the others did is wasted."""

    factor: float = setting(1.3, "devices that are asked for each one of the cohort", least=1, most=100)

    policies = ("wait", "drop")
    is_real = True

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        if experiment["sampling"] != "without-replacement":
            raise BadInput("sampling: got 'with-replacement' with schedule 'over-selection'; it takes each device once")
        asked = count_asked(settings["factor"], experiment["cohort"])
        if asked > experiment["devices"]:
            raise BadInput(
                f"factor: got {settings['factor']:g}, which asks {asked} devices; there are {experiment['devices']}"
            )
        return dict(settings)

    def plan(self, federation: Federation, state: ServerState) -> Plan:  # noqa: D102
        f = federation
        present, clock = find_present(f, state.clock)
        selected = select_devices(f, state.round, present, count_asked(self.factor, f.cohort))
        started = start_jobs(f, state.round, list(selected), clock)
        if f.fleet.real:
            jobs = [job for job, _ in started]
            return Plan(jobs, jobs, clock, 0.0, enough=f.cohort)  # a real clock says how long it takes
        # The order in which they report; sorting keeps the order of selection for those that report together.
        first = sorted((job for job, _ in started if counts(f, job)), key=lambda job: job.ends)[: f.cohort]
        enough = len(first) == f.cohort
        lasts = first[-1].lasts if enough else last_report(f, started)
        end = clock + lasts
        taken = {job.device for job in first}
        ended = [job if job.device in taken else cut_off(job, effort, end) for job, effort in started]
        return Plan(ended, [job for job in ended if job.device in taken], end, clock - state.clock + lasts)


def count_asked(factor: float, cohort: int) -> int:
    """Return how many devices are asked for a cohort."""
    return math.ceil(factor * cohort - 1e-9)
