"""The four answers to a device that did not finish: wait, drop, keep, complete.

A policy says two things: how long the aggregator waits, and what it makes of the updates it then has. It knows
nothing of the method that averages them, so every policy goes with every method.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

from .settings import BadInput, checked, choose, setting
from .types import Server, Update

if TYPE_CHECKING:
    from .types import Memory


@dataclass(frozen=True)
class Answer:
    """What a policy made of a round's updates."""

    updates: Sequence[Update]
    memory: Memory | None = None  # what the policy remembers, to be merged into Server.memory
    growth: float | None = None
    note: str | None = None


class Policy(ABC):
    """One answer to stragglers; a frozen dataclass like a method, and as stateless."""

    waits: ClassVar[bool] = False  # until the slowest is done, or to the deadline
    uses_unfinished: ClassVar[bool] = True  # False: no need to simulate work that is thrown away

    @abstractmethod
    def answer(self, server: Server, updates: Sequence[Update]) -> Answer:
        """What goes on to the method."""


@final
@dataclass(frozen=True)
class Wait(Policy):
    """The round lasts until the slowest is done: best model, longest rounds."""

    waits = True

    def answer(self, server: Server, updates: Sequence[Update]) -> Answer:  # noqa: D102
        return Answer(updates)


@final
@dataclass(frozen=True)
class Drop(Policy):
    """Unfinished work is thrown away, as if the device had not been asked."""

    uses_unfinished = False

    def answer(self, server: Server, updates: Sequence[Update]) -> Answer:  # noqa: D102
        finished = [u for u in updates if u.finished]
        return Answer(finished, note=None if finished else "nobody finished: the model stays as it was")


@final
@dataclass(frozen=True)
class Keep(Policy):
    """Whatever came is averaged as it is."""

    def answer(self, server: Server, updates: Sequence[Update]) -> Answer:  # noqa: D102
        return Answer(updates)


@final
@dataclass(frozen=True)
class Complete(Policy):
    """The aggregator approximates the update a slow device would have sent: see methods/fedlga.py."""

    scale: str | float = setting("growth", "a straggler's update times: growth, printed, or a number", above=0)
    fading: float = setting(0.95, "growth: what a round counts after another one", least=0, most=1)

    def __post_init__(self) -> None:
        if isinstance(self.scale, str) and self.scale not in ("growth", "printed"):
            raise BadInput(f"complete.scale: got {self.scale!r}; it takes growth, printed or a number above 0")

    def answer(self, server: Server, updates: Sequence[Update]) -> Answer:  # noqa: D102
        import torch

        from .methods.base import mean_delta
        from .methods.fedlga import Growth, printed_scale

        known = server.memory.get("growth")
        law = Growth() if known is None else Growth(float(known[0]), float(known[1]))
        law = law.seen(updates, self.fading)
        memory = {"growth": torch.tensor([law.xy, law.xx], dtype=torch.float64)} if self.scale == "growth" else None
        exponent = law.exponent if self.scale == "growth" else None

        complete = [u for u in updates if u.finished]
        if not complete and updates:
            # There is no w_hat to approximate towards (the paper's K_2 is empty): leave what came as it came.
            note = "no complete device: updates kept as they came"
            return Answer(updates, memory, exponent, note)

        expected = None
        if self.scale == "printed" and len(complete) < len(updates):
            expected = mean_delta(replace(u, weight=1.0) for u in complete)

        def completed(u: Update) -> Update:
            if u.finished:
                return u
            if expected is not None:
                scale = printed_scale(u, expected)
            else:
                scale = law.scale(u) if self.scale == "growth" else float(self.scale)
            return replace(u, delta=u.delta * scale, scale=scale, steps=u.steps_asked)

        return Answer([completed(u) for u in updates], memory, exponent)


POLICIES: dict[str, type[Policy]] = {"wait": Wait, "drop": Drop, "keep": Keep, "complete": Complete}


def make_policy(name: str, options: dict[str, Any]) -> Policy:
    """A policy with its settings."""
    cls = POLICIES[choose("stragglers", name, POLICIES)]
    return cls(**checked(name, cls, options))
