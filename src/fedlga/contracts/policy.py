"""What every policy must hold."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from fedlga.contracts.base import expect
from fedlga.contracts.federation import train
from fedlga.core.completion.digest import summarise_all
from fedlga.core.policies.base import Decision, Policy
from fedlga.core.registry import create
from fedlga.core.types import ServerState, Update

STATE = ServerState(round=3, w=torch.zeros(6))


def make_update(device: int, steps: int, asked: int = 4) -> Update:
    """Return an update of a device that did so many steps."""
    delta = torch.full((6,), float(steps)) + torch.arange(6.0) * (device + 1)
    return Update(device, delta, 10, steps, asked, train_loss=1.0, uploads={}, lr=0.1, momentum=0.0)


MIXED = [make_update(0, 4), make_update(1, 1), make_update(5, 2), make_update(7, 4)]
ROUNDS = {"mixed": MIXED, "all finished": MIXED[::3], "none finished": MIXED[1:3], "no updates": []}


def decide(policy: Policy, updates: Sequence[Update]) -> Decision:
    """Let a policy decide as the aggregator does."""
    if not policy.needs_all:
        parts = [policy.decide(STATE, [u], {}) for u in updates]
        return Decision({device: t for part in parts for device, t in part.treatments.items()})
    digests = summarise_all(((u.device, u.delta) for u in updates), sketches=policy.needs_sketches)
    return policy.decide(STATE, updates, digests)


def decides_about_known_devices(name: str) -> None:
    """It decides about the devices that it was given, and no others, with finite scales."""
    for title, updates in ROUNDS.items():
        treatments = decide(create("policy", name), updates).treatments
        unknown = set(treatments) - {u.device for u in updates}
        expect(not unknown, f"{title}: it decides about device {min(unknown, default=None)}, which sent nothing")
        expect(all(math.isfinite(t.scale) for t in treatments.values()), f"{title}: a scale is not finite")


def leaves_finished_work_alone(name: str) -> None:
    """Finished work counts as it was sent."""
    treatments = decide(create("policy", name), MIXED).treatments
    for u in (u for u in MIXED if u.finished):
        expect(u.device in treatments, f"device {u.device} finished, and is left out")
        expect(treatments[u.device].scale == 1, f"device {u.device} finished, and is scaled")


def changes_no_update(name: str) -> None:
    """It does not change the updates."""
    before = [u.delta.clone() for u in MIXED]
    decide(create("policy", name), MIXED)
    expect(all(torch.equal(u.delta, b) for u, b in zip(MIXED, before, strict=True)), "an update was changed")


def repeats(name: str) -> None:
    """The same updates get the same decision."""
    first, second = (decide(create("policy", name), MIXED).treatments for _ in range(2))
    expect(first == second, "two decisions differ")


def remembers_only_what_is_kept(name: str) -> None:
    """It remembers, clips or notes something only if it declares `needs_all`: otherwise that would be lost."""
    policy: Policy = create("policy", name)
    for u in () if policy.needs_all else MIXED:
        decision = policy.decide(STATE, [u], {})
        kept = decision.memory or decision.clipped or decision.note or decision.growth or decision.agreement
        expect(not kept, "it decides more than treatments, and needs_all is False")


def trains(name: str) -> None:
    """It trains with FedAvg, Scaffold and FedDyn, to finite weights."""
    for method in ("fedavg", "scaffold", "feddyn"):
        state, _ = train(method=method, stragglers=name)
        expect(torch.isfinite(state.w).all(), f"weights are not finite with {method}")


CHECKS = [
    decides_about_known_devices,
    leaves_finished_work_alone,
    changes_no_update,
    repeats,
    remembers_only_what_is_kept,
    trains,
]
