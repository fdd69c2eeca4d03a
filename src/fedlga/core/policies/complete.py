"""Complete unfinished work: the FedLGA paper's idea. What the scales are is in `fedlga.core.completion`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, final

from fedlga.core.policies.base import AS_SENT, Decision, Policy, Treatment
from fedlga.core.settings import BadInput, setting
from fedlga.core.types import ServerState, Update

if TYPE_CHECKING:
    from fedlga.core.completion.digest import UpdateDigest
    from fedlga.core.completion.private import Instruction
    from fedlga.core.completion.scales import Scales
    from fedlga.core.types import Memory, Vector


SCALES = ("feedback", "growth", "linear", "printed")
PRIVATE_SCALES = ("feedback", "growth", "linear")  # what devices can follow without the others' updates
REMOVED_SCALES = {"trusted": "feedback"}  # of earlier versions, and what takes their place


@final
@dataclass(frozen=True)
class Complete(Policy):
    """The aggregator approximates the update that a slow device would have sent."""

    scale: str | float = setting(
        "feedback",
        "what a slow device's update is multiplied by: feedback, growth, linear, printed, or a number",
        above=0,
    )
    fading: float = setting(0.95, "scale growth: weight of each earlier round, relative to the round after it", most=1)
    longest: float = setting(2.0, "limit: a completed update is at most this times the longest complete one", above=0)

    private: bool = setting(False, "devices complete their own updates, and the aggregator needs their sum only")

    carry: float = 0.0  # of the server optimiser: the share of a round's step that the next round repeats

    def __post_init__(self) -> None:
        if self.scale in REMOVED_SCALES:
            raise BadInput(
                f"complete.scale: {self.scale!r} is no longer there (fedlga 0.1 had it); "
                f"in a new run {REMOVED_SCALES[str(self.scale)]!r} takes its place"
            )
        if isinstance(self.scale, str) and self.scale not in SCALES:
            raise BadInput(f"complete.scale: got {self.scale!r}; it takes {', '.join(SCALES)} or a number above 0")
        if self.private and self.scale not in PRIVATE_SCALES:
            raise BadInput(f"complete.scale: got {self.scale!r} with private; it takes {', '.join(PRIVATE_SCALES)}")

    @property
    def needs_all(self) -> bool:  # noqa: D102
        return not self.private

    @property
    def needs_sketches(self) -> bool:  # noqa: D102
        return self.scale == "feedback"

    def with_carry(self, carry: float) -> Complete:  # noqa: D102
        return replace(self, carry=carry)

    def instruct(self, state: ServerState) -> Instruction | None:  # noqa: D102
        from fedlga.core.completion.private import make_instruction

        return make_instruction(state.memory, str(self.scale), self.longest) if self.private else None

    def learn(self, state: ServerState, step: Sequence[Vector], updates: Sequence[Update]) -> Memory:  # noqa: D102
        from fedlga.core.completion.private import learn_private

        if not self.private:
            return {}
        whole = sum(step[1:], step[0])
        return learn_private(state.memory, str(self.scale), whole, updates, self.fading, self.carry)

    def decide(  # noqa: D102
        self, state: ServerState, updates: Sequence[Update], digests: Mapping[int, UpdateDigest]
    ) -> Decision:
        if self.private:
            return Decision({u.device: Treatment(completed=not u.finished) for u in updates})
        complete = [u for u in updates if u.finished]
        scales = self._scales(state, updates, complete, digests)
        as_sent = {u.device: AS_SENT for u in updates}
        learned = Decision(as_sent, scales.memory, scales.growth, scales.agreement)
        if not complete:
            # There is no w_hat to approximate towards (the paper's K_2 is empty), so the updates stay as they came.
            return replace(learned, note="no complete device: updates kept as they came" if updates else None)
        limit = self.longest * max(digests[u.device].length for u in complete)
        clipped: dict[int, str] = {}
        treatments: dict[int, Treatment] = {}
        for u in (u for u in updates if not u.finished):
            scale, reason = scales.of(u), None
            if self.scale != "printed":  # which is to the letter, wherever it leads
                scale, reason = limit_scale(scale, digests[u.device].length, limit)
            if reason is not None:
                clipped[u.device] = reason
            treatments[u.device] = Treatment(scale, completed=True)
        return replace(learned, treatments=as_sent | treatments, clipped=clipped)

    def _scales(
        self,
        state: ServerState,
        updates: Sequence[Update],
        complete: Sequence[Update],
        digests: Mapping[int, UpdateDigest],
    ) -> Scales:
        from fedlga.core.completion.feedback import learn_feedback
        from fedlga.core.completion.growth import learn_growth
        from fedlga.core.completion.printed import printed_scales
        from fedlga.core.completion.scales import Scales, work_ratio

        if self.scale == "feedback":
            return learn_feedback(state.memory, updates, digests, self.carry)
        if self.scale == "growth":
            return learn_growth(state.memory, updates, digests, self.fading)
        if self.scale == "printed":
            return printed_scales(complete)
        if self.scale == "linear":
            return Scales(work_ratio, {})
        number = float(self.scale)
        return Scales(lambda u: number, {})


def limit_scale(scale: float, length: float, limit: float) -> tuple[float, str | None]:
    """Return a finite scale that makes no update longer than `limit`, and why it was changed, if it was.

    An update that is already longer keeps its own length.
    """
    if not math.isfinite(scale) or length == 0:
        return 1.0, "not a number" if not math.isfinite(scale) else "nothing was sent"
    if scale > 1 and scale * length > limit:
        return max(1.0, limit / length), f"longer than {limit:.3g}"
    return scale, None
