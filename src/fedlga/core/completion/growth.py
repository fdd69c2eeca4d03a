"""The growth law: updates grow like work^p.

p is the slope of log|delta| on log work, centred in each round, over all devices that reported, with older rounds
fading. The scale is (all work / work done)^p. Where steps are mostly noise it overshoots: noise grows too, but the
steps that a device would have added do not point in the direction it had gone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from fedlga.core.completion.digest import UpdateDigest
from fedlga.core.completion.scales import Scales, clamp, count_work, pack_numbers, read_numbers, work_ratio
from fedlga.core.types import Update

if TYPE_CHECKING:
    from fedlga.core.types import Memory


@dataclass(frozen=True)
class Growth:
    """Faded sums of the regression of y = log|delta| on x = log work, both centred in their round."""

    xy: float = 0.0
    xx: float = 0.0

    def add_round(self, updates: Sequence[Update], digests: Mapping[int, UpdateDigest], fading: float) -> Growth:
        """Return the sums after another round; older rounds count `fading` times what they did."""
        lengths = {u.device: digests[u.device].length for u in updates}
        moved = [u for u in updates if lengths[u.device] > 0]
        points = [(math.log(count_work(u, u.steps)), math.log(lengths[u.device])) for u in moved]
        if not points:
            return self
        x, y = (np.array(values) - np.mean(values) for values in zip(*points, strict=True))
        return Growth(
            fading * self.xy + float(x @ y),
            fading * self.xx + float(x @ x),
        )

    @property
    def exponent(self) -> float:
        """p: 1 where updates grow like work, 0 where more work moves nothing, or nothing is known yet."""
        return clamp(self.xy / self.xx) if self.xx > 0 else 0.0


def learn_growth(
    memory: Memory, updates: Sequence[Update], digests: Mapping[int, UpdateDigest], fading: float
) -> Scales:
    """Return the scales of the growth law."""
    law = Growth(*read_numbers(memory, "growth", 2)[:2]).add_round(updates, digests, fading)
    remembered = {"growth": pack_numbers(law.xy, law.xx)}
    return Scales(lambda u: work_ratio(u) ** law.exponent, remembered, growth=law.exponent)
