"""Private completing: a device completes its own update, and the aggregator needs the sum of updates only.

The aggregator sends two numbers with the weights: an exponent q, and how long a completed update may be. A device that
ran out of time multiplies its update by (all work / work done)^q before it sends it. Beside the update it reports two
numbers: how long the update was before, and what it was multiplied by. So updates can be summed where the aggregator
does not see them (secure aggregation), or be clipped and given noise on the way (differential privacy).

q is that of last round's law:

- `feedback`: q <- clip(q + STEP * cos(step_t, step_(t-1)), 0, 1), with the steps that the method took: functions of
  the sums. It is hypergradient descent as in feedback.py, with the whole step in place of the part that completing
  made of it, which no sum shows. Where one step goes on in the direction of the last one, q was too small.
- `growth`: the slope of log length on log work, of what devices report.
- `linear`: 1.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedlga.core.completion.digest import UpdateDigest, summarise
from fedlga.core.completion.feedback import STEP, measure_cosine
from fedlga.core.completion.growth import Growth
from fedlga.core.completion.scales import clamp, pack_numbers, read_numbers
from fedlga.core.method import effective_steps

if TYPE_CHECKING:
    from fedlga.core.types import Assignment, Memory, Update, Vector

EXPONENT, GROWTH, USUAL, STEP_BEFORE = "exponent", "growth", "usual", "step"  # in the aggregator's memory
LAW = frozenset({EXPONENT, GROWTH, USUAL, STEP_BEFORE})


@dataclass(frozen=True)
class Instruction:
    """What a device is told to complete its own update with."""

    exponent: float
    longest: float | None = None  # a completed update is at most this long; None: nothing is known yet

    def find_scale(self, steps: int, steps_asked: int, length: float, momentum: float = 0.0) -> float:
        """Return what an update of this length, by so many of the steps that were asked for, is multiplied by."""
        if not 0 < steps < steps_asked:
            return 1.0
        done, asked = (effective_steps(n, momentum=momentum) for n in (steps, steps_asked))
        scale = (asked / done) ** self.exponent
        if self.longest is not None and scale * length > self.longest:
            scale = max(1.0, self.longest / length)
        return scale


def make_instruction(memory: Memory, scale: str, times_usual: float) -> Instruction:
    """Return what devices are told; before anything is known, updates stay as they are."""
    (exponent,) = (1.0,) if scale == "linear" else read_numbers(memory, EXPONENT, 1)
    (usual,) = read_numbers(memory, USUAL, 1)
    return Instruction(exponent, times_usual * usual if usual > 0 else None)


def scale_own(assignment: Assignment, steps: int, length: float) -> float:
    """Return what a device multiplies its own update of this length by."""
    if assignment.exponent is None:
        return 1.0
    told = Instruction(assignment.exponent, assignment.longest)
    return told.find_scale(steps, assignment.steps_asked, length, assignment.momentum)


def learn_private(
    memory: Memory, scale: str, step: Vector, updates: Sequence[Update], fading: float, carry: float
) -> Memory:
    """Return what the next round's instruction needs: of this round's step, and of the numbers that devices reported.

    A server optimiser with momentum repeats the share `carry` of a step, so the step before counts with it.
    """
    lengths = {u.device: UpdateDigest(u.length or 0.0) for u in updates}
    finished = [u.length for u in updates if u.finished and u.length]
    remembered = {USUAL: pack_numbers(statistics.median(finished))} if finished else {}
    if scale == "growth":
        law = Growth(*read_numbers(memory, GROWTH, 2)[:2]).add_round(updates, lengths, fading)
        return {**remembered, GROWTH: pack_numbers(law.xy, law.xx), EXPONENT: pack_numbers(law.exponent)}
    if scale == "feedback":
        remembered |= _follow_steps(memory, step, updates, lengths, carry)
    return remembered


def _follow_steps(
    memory: Memory, step: Vector, updates: Sequence[Update], lengths: dict[int, UpdateDigest], carry: float
) -> dict[str, Vector]:
    if EXPONENT not in memory:  # it starts when the first straggler shows how updates grow with work
        if all(u.finished for u in updates):
            return {}
        q = Growth().add_round(updates, lengths, 1.0).exponent
        return {EXPONENT: pack_numbers(q)}
    (q,) = read_numbers(memory, EXPONENT, 1)
    sketch = summarise(step.contiguous()).sketch
    assert sketch is not None
    if STEP_BEFORE in memory:
        before = memory[STEP_BEFORE]
        q = clamp(q + STEP * measure_cosine(sketch, before))
        sketch = sketch + carry * before if carry > 0 else sketch
    return {EXPONENT: pack_numbers(q), STEP_BEFORE: sketch}
