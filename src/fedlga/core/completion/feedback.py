"""The law `feedback`: an exponent that follows what completing did to the loss.

A straggler's scale is (all work / work done)^q. How far the weights moved in a round depends on q, and the next round
shows whether further would have been better: this is hypergradient descent (Baydin et al., Online Learning Rate
Adaptation with Hypergradient Descent, ICLR 2018) on q.

    D_t = sum over stragglers of scale_i ln(all work / work done)_i delta_i      the derivative of round t's step in q
    G_t = mean over devices of delta_i / work_i                                  the direction of descent, at the new w
    q  <- clip(q + STEP * cos(G_t, D_(t-1)), 0, 1)

With a server optimiser that has momentum (Adam's beta_1 too), a round's step repeats a share of the one before, and so
does its derivative: D_t <- D_t + share * D_(t-1).

If devices still want to go where completing pushed the weights, q was too small; if they turn back, it was too large.
G counts each device once and by its mean step, so a device that did more steps has no larger voice.

q starts at the exponent of the growth law: what the first round with a straggler says about how updates grow with work.
From then on only feedback moves it, by at most STEP a round, between 0 (updates as sent) and 1 (all the work over the
work done). Whatever a device sends, it cannot do more: in both means its vector counts as at most LONGEST times as long
as the round's median.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from fedlga.core.completion.digest import UpdateDigest
from fedlga.core.completion.growth import Growth
from fedlga.core.completion.scales import Scales, clamp, count_work, pack_numbers, read_numbers, work_ratio
from fedlga.core.types import Update

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

STEP = 0.02  # the most that q moves in a round
LONGEST = 3.0  # times the median length: what a vector counts for at most


def learn_feedback(
    memory: Memory, updates: Sequence[Update], digests: Mapping[int, UpdateDigest], carry: float = 0.0
) -> Scales:
    """Return the scales of `feedback`, for a server optimiser that repeats the share `carry` of a round's step."""
    known = [u for u in updates if digests[u.device].direction is not None]
    unfinished = [u for u in known if not u.finished]
    started = "exponent" in memory
    (q,) = read_numbers(memory, "exponent", 1)
    agreement = None
    if not started and unfinished:
        q = Growth().add_round(known, digests, 1.0).exponent
    elif known and len(memory.get("pushed", ())) > 0:
        descent = mean_bounded(known, digests, [1 / count_work(u, u.steps) for u in known])
        agreement = measure_cosine(descent, memory["pushed"])
        q = clamp(q + STEP * agreement)
    remembered: dict[str, Vector] = {}
    if started or unfinished:
        remembered["exponent"] = pack_numbers(q)
        applied = unfinished if any(u.finished for u in updates) else []  # otherwise nothing is completed
        factors = [work_ratio(u) ** q * math.log(work_ratio(u)) for u in applied]
        pushed = mean_bounded(applied, digests, factors)
        before = memory.get("pushed", torch.zeros(0, device="cpu"))
        if carry > 0 and len(before) > 0:
            pushed = carry * before + pushed if len(pushed) > 0 else carry * before
        remembered["pushed"] = pushed
    return Scales(lambda u: work_ratio(u) ** q, remembered, q if started or unfinished else None, agreement)


def mean_bounded(updates: Sequence[Update], digests: Mapping[int, UpdateDigest], factors: Sequence[float]) -> Vector:
    """Return the mean of factor * sketch; none counts as longer than LONGEST times the median. Of none: no numbers."""
    lengths = [f * digests[u.device].length for u, f in zip(updates, factors, strict=True)]
    most = LONGEST * statistics.median(lengths) if lengths else 0.0
    vectors = [
        direction * min(length, most)
        for u, length in zip(updates, lengths, strict=True)
        if (direction := digests[u.device].direction) is not None
    ]
    return torch.stack(vectors).mean(0) if vectors else torch.zeros(0, device="cpu")


def measure_cosine(a: Vector, b: Vector) -> float:
    """Return the cosine of the angle between two vectors; 0 if one of them is zero."""
    lengths = math.sqrt(float(torch.dot(a, a)) * float(torch.dot(b, b)))
    return min(max(float(torch.dot(a, b)) / lengths, -1.0), 1.0) if lengths > 0 else 0.0
