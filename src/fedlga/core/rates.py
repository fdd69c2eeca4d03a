"""The local learning rate eta_l in each round."""

from __future__ import annotations

import math
from dataclasses import dataclass

SCHEDULES = ("constant", "exponential", "step", "cosine")


@dataclass(frozen=True)
class RateSchedule:
    """eta_l over the rounds of a run; `warmup` rounds of linear growth come before any of them."""

    lr: float
    name: str = "constant"
    decay: float = 0.0  # gamma. exponential: eta_l <- (1 - gamma) eta_l each round; step: every `every` rounds
    every: int = 1
    rounds: int = 1  # T: cosine ends at zero after it
    warmup: int = 0

    def rate(self, round: int) -> float:
        """Return eta_l after `round` rounds."""
        if round < self.warmup:
            return self.lr * ((round + 1) / self.warmup)  # exactly lr in the end
        round -= self.warmup
        if self.name == "exponential":
            return self.lr * (1 - self.decay) ** round
        if self.name == "step":
            return self.lr * (1 - self.decay) ** (round // self.every)
        if self.name == "cosine":
            return self.lr * 0.5 * (1 + math.cos(math.pi * round / max(self.rounds - self.warmup, 1)))
        return self.lr
