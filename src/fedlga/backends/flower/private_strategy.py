"""FedLGA for Flower apps whose aggregator should need the sum of updates only: clients complete their own.

strategy = PrivateFedLGA(fraction_train=0.5)                      # clients have complete_own_mod among their mods
strategy = DifferentialPrivacyClientSideFixedClipping(strategy, noise_multiplier=..., clipping_norm=..., ...)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedlga.backends.flower.client_report import Work
from fedlga.backends.flower.messages import TOLERANCE, Refused
from fedlga.backends.flower.own_completion import EXPONENT, LENGTH, LONGEST, MOMENTUM, SCALED
from fedlga.backends.flower.strategies import FedLGA, flatten, select_floats
from fedlga.core.completion.private import LAW, Instruction
from fedlga.core.guard import LONGEST as MOST_LENGTH
from fedlga.core.settings import BadInput
from fedlga.core.types import Contribution, Update

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector


class PrivateFedLGA(FedLGA):
    """Averaging of updates that the clients completed themselves; they need `complete_own_mod`."""

    def __init__(self, *, server_optimizer: str = "sgd", options: dict[str, Any] | None = None, **named: Any) -> None:
        """Take what FedLGA takes. The aggregator's steps are compared, so the server optimiser is `sgd`."""
        if server_optimizer != "sgd":
            raise BadInput(f"server_optimizer: got {server_optimizer!r}; PrivateFedLGA takes sgd")
        super().__init__(options={**(options or {}), "private": True}, **named)
        self._told = Instruction(0.0)
        self._reported: list[Update] = []  # of the last round, without their vectors
        self._before: Vector | None = None  # the weights that the last round began from

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages to the nodes of this round, with what they complete their updates with."""
        self._learn(arrays)
        state = self._state
        told = None if state is None else self._aggregator.policy.instruct(state)
        self._told = told or Instruction(0.0)
        config[EXPONENT], config[MOMENTUM] = self._told.exponent, self._momentum
        if self._told.longest is not None:
            config[LONGEST] = self._told.longest
        return super().configure_train(server_round, arrays, config, grid)

    def _learn(self, arrays: ArrayRecord) -> None:
        """Learn from the weights as they are sent: if noise was added to them, it is in them."""
        w = flatten(select_floats(arrays))
        if self._state is not None and self._before is not None and self._reported:
            learned = self._aggregator.policy.learn(self._state, [w - self._before], self._reported)
            self._state = replace(self._state, memory={**self._state.memory, **learned})
        self._before, self._reported = w, []

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next weights. What this round says of completing is learned when they are sent."""
        before: Memory = {} if self._state is None else self._state.memory
        result = super().aggregate_train(server_round, replies)
        if self._state is not None:
            memory = {name: vector for name, vector in self._state.memory.items() if name not in LAW}
            memory |= {name: vector for name, vector in before.items() if name in LAW}
            self._state = replace(self._state, memory=memory)
        return result

    def _update(self, reply: Message) -> tuple[Update, Work]:
        update, work = super()._update(reply)
        numbers = next(iter(reply.content.metric_records.values()))
        scaled, length = (_read(numbers, name) for name in (SCALED, LENGTH))
        most = replace(self._told, longest=None).find_scale(work.steps, work.asked or 0, length, self._momentum)
        if not 0 <= length <= MOST_LENGTH or not 1 <= scaled <= most * (1 + TOLERANCE):
            raise Refused(f"it says {SCALED} {scaled:g} and {LENGTH} {length:g}")
        return replace(update, scaled=scaled, length=length), work

    def _weigh(self, update: Update, reply: Message, share: float) -> Contribution:
        self._reported.append(update.without_vectors())
        return super()._weigh(update, reply, share)


def _read(numbers: Mapping[str, Any], name: str) -> float:
    value = numbers.get(name)
    if value is None:
        raise Refused(f"its metrics have no {name}: its app needs complete_own_mod")
    if isinstance(value, list) or not np.isfinite(value):
        raise Refused(f"it says {name} {value}")
    return float(value)
