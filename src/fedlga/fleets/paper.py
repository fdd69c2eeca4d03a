"""The FedLGA paper's fleet: every round another share of the selected devices is slow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np

from fedlga.core.fleet import Effort, Fleet
from fedlga.core.randomness import Stream, generator
from fedlga.core.settings import BadInput, setting


@final
@dataclass(frozen=True)
class PaperFleet(Fleet):
    """A share rho of the selected devices is slow, with tau uniform in tau_min..tau_max.

    A device with tau does E_i = E - tau + 1 of E units by the deadline, so all E would take it E / E_i deadlines.
    """

    draws_together = True

    rho: float = setting(0.5, "share of the selected devices that is slow", least=0, most=1)
    tau_min: int = setting(1, "a slow device does E - tau + 1 units, tau from tau_min", least=1)
    tau_max: int | None = setting(None, "to tau_max; unset: E - 1", least=1)

    @classmethod
    def resolve(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> dict[str, Any]:  # noqa: D102
        tau_min, tau_max, epochs = settings["tau_min"], settings["tau_max"], experiment["epochs"]
        if tau_max is not None and tau_max > epochs:
            raise BadInput(f"tau_max: got {tau_max}; it takes 1 to epochs, which is {epochs}")
        top = tau_max or max(1, epochs - 1)
        if tau_min > top:
            raise BadInput(f"tau_min: got {tau_min}; it takes 1 to tau_max, which is {top}")
        return {**settings, "tau_max": top}

    @classmethod
    def describe(cls, settings: Mapping[str, Any], experiment: Mapping[str, Any]) -> str:  # noqa: D102
        return f"{settings['rho']:.0%} slow"

    def efforts(self, round: int, devices: Sequence[int]) -> list[Effort]:  # noqa: D102
        steps, epochs, deadline = self.workload.steps, self.workload.epochs, self.workload.deadline
        rng = generator(self.workload.seed, Stream.FLEET, round)
        # rho * K need not be whole: round at random, so that the share is rho over many rounds.
        slow = int(self.rho * len(devices) + rng.random())
        tau = np.ones(len(devices), dtype=int)
        chosen = rng.permutation(len(devices))[:slow]
        top = self.tau_max or max(1, epochs - 1)
        tau[chosen] = rng.integers(self.tau_min, top + 1, size=slow)
        done = epochs - tau + 1
        return [
            Effort(d, steps[d] * int(e) // epochs, steps[d], deadline * epochs / int(e))
            for d, e in zip(devices, done, strict=True)
        ]
