"""What every schedule must hold."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from fedlga.contracts.base import expect
from fedlga.contracts.federation import SMALL, train
from fedlga.core.registry import find, names_of
from fedlga.core.round import Federation, carry_on
from fedlga.core.schedules.base import Plan
from fedlga.core.types import ServerState
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import Simulation, simulate

UNEQUAL = {"fleet": "speeds", "speed_median": 2.0, "deadline": 3.0, "dropout": 0.1, "cohort": 3}


def settings_for(name: str, **changes: Any) -> dict[str, Any]:
    """Return the settings of a federation of unequal devices with this schedule."""
    policies = find("schedule", name).policies or ("keep",)
    return {**UNEQUAL, "method": "fedavg", "stragglers": policies[0], "schedule": name, **changes}


def _open(name: str) -> AbstractContextManager[Simulation]:
    return simulate(preset("digits").changed({**SMALL, **settings_for(name), "backend": "serial"}))


def plan_steps(f: Federation, state: ServerState, count: int) -> list[tuple[ServerState, Plan]]:
    """Return the plans of some steps, without any training: the weights stay as they are."""
    plans: list[tuple[ServerState, Plan]] = []
    for _ in range(count):
        plan = f.schedule.plan(f, state)
        plans.append((state, plan))
        state = carry_on(ServerState(state.round + 1, state.w), state, plan)
    return plans


def counts_what_ended(name: str) -> None:
    """What counts has ended; nobody is at work twice, and nobody ends twice on the same weights."""
    with _open(name) as simulation:
        seen: set[tuple[int, int]] = set()
        for _, plan in plan_steps(simulation.federation, simulation.start, 20):
            devices = [job.device for job in plan.ended]
            expect(len(set(devices)) == len(devices), "a device ends twice in one step")
            at_work = [job.device for job in plan.at_work]
            expect(len(set(at_work)) == len(at_work), "a device is at work twice")
            expect({j.device for j in plan.counting} <= set(devices), "what counts has not ended")
            again = seen & {(job.round, job.device) for job in plan.ended}
            expect(not again, f"device {min((d for _, d in again), default=0)} works twice on the same weights")
            seen |= {(job.round, job.device) for job in plan.ended}


def goes_forward(name: str) -> None:
    """Simulated time never goes back, and nothing ends before it started."""
    with _open(name) as simulation:
        for state, plan in plan_steps(simulation.federation, simulation.start, 20):
            expect(plan.clock >= state.clock, f"the clock goes from {state.clock:g} to {plan.clock:g}")
            for job in (*plan.ended, *plan.at_work):
                expect(job.ends >= job.started, f"device {job.device} ends before it started")
                expect(job.round <= state.round, f"device {job.device} works on weights that do not exist yet")


def repeats(name: str) -> None:
    """The same state gives the same plan."""
    with _open(name) as simulation:
        first = plan_steps(simulation.federation, simulation.start, 6)
        second = plan_steps(simulation.federation, simulation.start, 6)
        expect([p for _, p in first] == [p for _, p in second], "it depends on what was asked before")


def trains_with_its_methods(name: str) -> None:
    """It trains with every method and policy that it takes, to finite weights."""
    cls = find("schedule", name)
    for method in names_of("method"):
        needed = find("method", method)
        if cls.is_stale and needed.needs_fresh:
            continue
        for policy in needed.policies or names_of("policy"):
            if cls.policies and policy not in cls.policies:
                continue
            state, _ = train(**settings_for(name, method=method, stragglers=policy))
            expect(torch.isfinite(state.w).all(), f"weights are not finite with {method} and {policy}")


CHECKS = [counts_what_ended, goes_forward, repeats, trains_with_its_methods]
