"""The law `trusted`: growth with work, as far as updates agree with what the same devices sent before.

|delta|^2 is a signal, growing like work^(2q), plus noise, growing like work. With a the signal's share,
the slope says 2p = 2q a + (1 - a), and the best multiple of what was sent is

    c = 1 + a ((all work / work done)^q - 1).

a is measured by agreement: when a device reports again, its new update shares the old one's signal but not its noise,
so the cosine between the two estimates a. It is squared, because what agrees between rounds need not last to the end of
this one (docs/approximation.md has the measurements), and below 0.1 it is taken as zero. Two things hold of a even
where no device ever comes back: a signal cannot grow faster than work, q <= 1, so a >= 2p - 1; and noise averages out,
so of an update of s steps at least 1 - 20 / s is taken as signal. One standard error of its fit is subtracted from p,
so that scatter is not taken for growth. Every one of these pulls c towards 1, which is doing nothing.

That much caution is right for one update. But what it holds back from updates with the same signal is missing every
time: over n of them the noise averages out and the bias does not, and the share that makes their sum best is
n a / (n a + 1 - a) instead of a. The unfinished reports of one device in a row have the same signal. So do all recent
unfinished reports, where devices agree with each other more than with themselves (Scaffold's controls remove each
device's own past from its update).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import torch

from fedlga.core.completion.digest import UpdateDigest, measure_length
from fedlga.core.completion.growth import Growth
from fedlga.core.completion.scales import Scales, clamp, pack_numbers, read_numbers, work_ratio
from fedlga.core.types import Update

if TYPE_CHECKING:
    from fedlga.core.types import Memory, Vector

MOST_DEVICES = 1024  # whose sketches are kept: those that reported last
NOISY_STEPS = 20  # an update of so few steps may be all noise
LEAST_SHARE = 0.1  # of signal: an update with less is not scaled
MORE_SHARED = 2.0  # devices share one signal if they agree with each other this much more than with themselves
LEAST_SHARED = 0.05  # and at least this much, which no noise reaches
DOUBT = 0.4  # two standard errors of one cosine with a device's last update: few returns prove nothing


def learn_trusted(
    memory: Memory, updates: Sequence[Update], digests: Mapping[int, UpdateDigest], fading: float
) -> Scales:
    """Return the scales of `trusted`: growth, as far as updates agree with what the same devices sent before."""
    law = Growth(*read_numbers(memory, "growth", 4)).add_round(updates, digests, fading)
    own, owns, across, acrosses, unfinished = (fading * value for value in read_numbers(memory, "agreement", 5))
    unfinished += sum(not u.finished for u in updates)
    reports = _unpack_reports(memory)
    streaks = {u.device: reports[u.device][1] if u.device in reports else 0 for u in updates}
    directions = {device: known for device, digest in digests.items() if (known := digest.direction) is not None}
    for u in updates:
        if (direction := directions.get(u.device)) is not None:
            last, _ = reports.pop(u.device, (None, 0))  # removed and added at the end: the order is by last report
            if last is not None:
                own, owns = own + float(torch.dot(last, direction)), owns + 1
            reports[u.device] = direction, 0 if u.finished else streaks[u.device] + 1
    if (k := len(directions)) > 1:
        # The squared length of the sum of k unit vectors is k plus twice the cosines of all pairs.
        together = measure_length(torch.stack(list(directions.values())).sum(0)) ** 2
        across, acrosses = across + (together - k) / (k - 1), acrosses + k

    slope = law.cautious
    agreed = clamp(own / owns) if owns > 0 else 0.0
    common = across / acrosses if acrosses > 0 else 0.0
    most = own / owns + DOUBT / math.sqrt(owns) if owns > 0 else math.inf
    shared = common > max(LEAST_SHARED, MORE_SHARED * most)

    def scale(u: Update) -> float:
        share = max(agreed**2, 1 - NOISY_STEPS / u.steps, 2 * slope - 1)
        if share < LEAST_SHARE:
            return 1.0
        exponent = clamp((2 * slope - (1 - share)) / (2 * share))
        n = max(1, streaks[u.device], unfinished if shared else 0)
        return 1 + n * share / (n * share + 1 - share) * (work_ratio(u) ** exponent - 1)

    remembered = {
        "growth": pack_numbers(law.xy, law.xx, law.yy, law.freedom),
        "agreement": pack_numbers(own, owns, across, acrosses, unfinished),
        **_pack_reports(list(reports.items())[-MOST_DEVICES:]),
    }
    return Scales(scale, remembered, growth=slope, agreement=agreed if owns > 0 else None)


# By device: the direction of its last update, and how many unfinished updates it sent in a row.
LastReports = dict[int, tuple["Vector", int]]


def _unpack_reports(memory: Memory) -> LastReports:
    if "heard" not in memory:
        return {}
    rows = cast("list[tuple[int, int]]", memory["heard"].tolist())  # pyright: ignore[reportUnknownMemberType]
    pairs = zip(rows, memory["sketches"].unbind(), strict=True)
    return {device: (direction, streak) for (device, streak), direction in pairs}


def _pack_reports(reports: Sequence[tuple[int, tuple[Vector, int]]]) -> Memory:
    if not reports:
        return {}
    streaks = torch.tensor([(device, streak) for device, (_, streak) in reports], dtype=torch.int64)
    return {"heard": streaks, "sketches": torch.stack([direction for _, (direction, _) in reports])}
