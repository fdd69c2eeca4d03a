"""The four answers to a device that did not finish: wait, drop, keep, complete.

A policy says two things: how long the aggregator waits, and what it makes of the updates it then has. It knows
nothing of the method that averages them, so every policy goes with every method.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, final

from .settings import BadInput, checked, choose, setting
from .types import Server, Update

if TYPE_CHECKING:
    from .completion import Look, Scales
    from .types import Memory


SCALES = ("trusted", "growth", "linear", "printed")


@dataclass(frozen=True)
class Answer:
    """What a policy made of a round's updates."""

    updates: Iterable[Update]  # may be a stream: whoever averages it goes through it once
    memory: Memory | None = None  # what the policy remembers, to be merged into Server.memory
    growth: float | None = None
    agreement: float | None = None
    clipped: Mapping[int, str] = field(default_factory=dict[int, str])
    note: str | None = None


class Policy(ABC):
    """One answer to stragglers; a frozen dataclass like a method, and as stateless."""

    waits: ClassVar[bool] = False  # until the slowest is done, or to the deadline
    uses_unfinished: ClassVar[bool] = True  # False: no need to simulate work that is thrown away

    @abstractmethod
    def answer(self, server: Server, updates: Iterable[Update]) -> Answer:
        """What goes on to the method; `updates` arrive one by one."""


@final
@dataclass(frozen=True)
class Wait(Policy):
    """The round lasts until the slowest is done: best model, longest rounds."""

    waits = True

    def answer(self, server: Server, updates: Iterable[Update]) -> Answer:  # noqa: D102
        return Answer(updates)


@final
@dataclass(frozen=True)
class Drop(Policy):
    """Unfinished work is thrown away, as if the device had not been asked."""

    uses_unfinished = False

    def answer(self, server: Server, updates: Iterable[Update]) -> Answer:  # noqa: D102
        return Answer(u for u in updates if u.finished)


@final
@dataclass(frozen=True)
class Keep(Policy):
    """Whatever came is averaged as it is."""

    def answer(self, server: Server, updates: Iterable[Update]) -> Answer:  # noqa: D102
        return Answer(updates)


@final
@dataclass(frozen=True)
class Complete(Policy):
    """The aggregator approximates the update a slow device would have sent: see completion.py."""

    scale: str | float = setting(
        "trusted", "a straggler's update times: trusted, growth, linear, printed, a number", above=0
    )
    fading: float = setting(0.95, "what a round counts in the laws of trusted and growth after another one", most=1)
    longest: float = setting(2.0, "a completed update is at most this times the longest complete one", above=0)

    def __post_init__(self) -> None:
        if isinstance(self.scale, str) and self.scale not in SCALES:
            raise BadInput(f"complete.scale: got {self.scale!r}; it takes {', '.join(SCALES)} or a number above 0")

    def answer(self, server: Server, updates: Iterable[Update]) -> Answer:  # noqa: D102
        from .completion import looked_at

        # Held: the scale of one is learned from all of them.
        updates, looks = looked_at(updates, sketched=self.scale == "trusted")
        complete = [u for u in updates if u.finished]
        sizes = {device: seen.size for device, seen in looks.items()}
        scales = self._scales(server, updates, complete, looks)
        learned = Answer(updates, scales.memory, scales.growth, scales.agreement)
        if not complete:
            # There is no w_hat to approximate towards (the paper's K_2 is empty): leave what came as it came.
            return replace(learned, note="no complete device: updates kept as they came" if updates else None)
        limit = self.longest * max(sizes[u.device] for u in complete)
        clipped: dict[int, str] = {}

        def completed(u: Update) -> Update:
            if u.finished:
                return u
            scale = scales.of(u)
            if self.scale != "printed":  # which is to the letter, wherever it leads
                scale, reason = held_back(scale, sizes[u.device], limit)
                clipped.update({u.device: reason} if reason else {})
            return replace(u, scale=scale, steps=u.steps_asked)

        return replace(learned, updates=[completed(u) for u in updates], clipped=clipped)

    def _scales(
        self, server: Server, updates: Sequence[Update], complete: Sequence[Update], looks: Mapping[int, Look]
    ) -> Scales:
        from .completion import Scales, growth, ratio, trusted
        from .methods.base import mean_delta
        from .methods.fedlga import printed_scale

        if self.scale == "trusted":
            return trusted(server.memory, updates, looks, self.fading)
        if self.scale == "growth":
            return growth(server.memory, updates, looks, self.fading)
        if self.scale == "printed":
            expected = mean_delta(replace(u, weight=1.0) for u in complete) if complete else None
            return Scales(lambda u: 1.0 if expected is None else printed_scale(u, expected), {})
        if self.scale == "linear":
            return Scales(ratio, {})
        number = float(self.scale)
        return Scales(lambda u: number, {})


def held_back(scale: float, size: float, limit: float) -> tuple[float, str | None]:
    """A scale that is a number and makes no update longer than `limit`; what is longer already stays as it was sent."""
    if not math.isfinite(scale) or size == 0:
        return 1.0, "not a number" if not math.isfinite(scale) else "nothing was sent"
    if scale > 1 and scale * size > limit:
        return max(1.0, limit / size), f"longer than {limit:.3g}"
    return scale, None


POLICIES: dict[str, type[Policy]] = {"wait": Wait, "drop": Drop, "keep": Keep, "complete": Complete}


def make_policy(name: str, options: dict[str, Any]) -> Policy:
    """A policy with its settings."""
    cls = POLICIES[choose("stragglers", name, POLICIES)]
    return cls(**checked(name, cls, options))
