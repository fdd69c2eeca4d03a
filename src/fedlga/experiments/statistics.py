"""Statistics over a few seeds: means with 95 % intervals, and paired tests.

Runs that never reached their target are *censored*: all that is known is that they need more rounds than they had. A
mean over the others would be too low, so there is none. A difference is taken as far as both runs went.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

CONFIDENCE = 0.95
FEWEST = 3  # values that have an interval: that of two is wider than what it says
LEVEL = 0.05  # a claim is shown if chance alone gives such a difference, or a larger one, less often than this


@dataclass(frozen=True)
class Estimate:
    """A mean over seeds, with the half-width of its 95 % interval (Student's t); None where it has none."""

    mean: float | None
    half: float | None
    count: int
    censored: int = 0

    @classmethod
    def of(cls, values: Sequence[float | None]) -> Estimate:
        """Return the mean of the values; None stands for a censored one, and then there is no mean."""
        known = [value for value in values if value is not None]
        censored = len(values) - len(known)
        if not known or censored:
            return cls(None, None, len(values), censored)
        return cls(statistics.fmean(known), half_interval(known), len(values))

    def text(self, form: str = ".0f", limit: float | None = None) -> str:
        """Return text such as '109 ± 9'; for censored runs, how many seeds reached the target within the limit."""
        if self.count == 0:
            return "-"
        if self.mean is None:
            within = "" if limit is None else f" within {limit:.0f}"
            return f"{self.count - self.censored} of {self.count}{within}"
        return f"{self.mean:{form}}" + ("" if self.half is None else f" ± {format_half(self.half, form)}")


def find_leaders(estimates: Mapping[str, Estimate], *, lower: bool) -> list[str]:
    """Return who may be the best, in order: the best mean, and all whose 95 % intervals overlap its interval.

    One name alone is ahead of all others. Empty, if there is a mean without an interval (of fewer than three seeds):
    then nothing can be said.
    """
    known = {name: (e.mean, e.half) for name, e in estimates.items() if e.mean is not None}
    bounds = {name: (mean - half, mean + half) for name, (mean, half) in known.items() if half is not None}
    if not known or len(bounds) < len(known):
        return []
    ranked = sorted(known, key=lambda name: known[name][0] if lower else -known[name][0])
    low, high = bounds[ranked[0]]
    return [name for name in ranked if bounds[name][0] <= high and bounds[name][1] >= low]


def format_half(half: float, form: str) -> str:
    """Return half of an interval as text, in the form of its mean; two digits if the form has no fixed places."""
    return f"{half:.2g}" if form.endswith("g") else f"{half:{form}}"


@dataclass(frozen=True)
class Difference:
    """A minus B, seed by seed, and how likely it is by chance that A is as far below B, or further."""

    mean: float
    half: float | None
    p: float
    count: int
    censored: int = 0

    reverse: float = 1.0  # the same chance for B below A

    @property
    def shown(self) -> bool:
        """Whether A is below B, beyond chance."""
        return self.p < LEVEL

    @property
    def refuted(self) -> bool:
        """Whether A is above B, beyond chance."""
        return self.reverse < LEVEL

    @property
    def verdict(self) -> str:
        """The result in a word or two."""
        return "holds" if self.shown else "the opposite holds" if self.refuted else "not shown"

    def text(self, form: str = "+.1f") -> str:
        """Return text such as 'holds (-18.8, 95 % interval -25.1 to -12.5, p = 0.03, 5 seeds)'."""
        between = ""
        if self.half is not None:
            between = f", 95 % interval {self.mean - self.half:{form}} to {self.mean + self.half:{form}}"
        p = self.reverse if self.refuted else self.p
        late = f", {self.censored} not in time" if self.censored else ""
        seeds = f"{self.count} seed{'s' if self.count != 1 else ''}"
        return f"{self.verdict} ({self.mean:{form}}{between}, p = {p:.2g}, {seeds}{late})"


def compare_pairs(
    a: Mapping[int, float | None],
    b: Mapping[int, float | None],
    limit: float | Mapping[int, float] = math.inf,
) -> Difference | None:
    """Test whether A is below B on the same seeds: exact, one-sided, by flipping the signs of paired differences.

    It assumes nothing about the distribution. Its p-value is at least 1 / 2^seeds: five seeds can show a claim at 0.05
    (1/32 = 0.03), four cannot. `limit`, or each seed's, is how far both runs went: a censored value, or one above the
    limit, counts as the limit in the mean. In the test, a seed on which only one of the two reached the target counts
    as much as the largest difference.
    """
    seeds = [seed for seed in a if seed in b]
    if not seeds:
        return None
    gaps, only_a, only_b, censored = list[float](), list[bool](), list[bool](), 0
    for seed in seeds:
        most = limit[seed] if isinstance(limit, Mapping) else limit
        late = [value is None or value > most for value in (a[seed], b[seed])]
        assert math.isfinite(most) or None not in (a[seed], b[seed]), "censored values need a limit"
        x, y = (most if value is None else min(value, most) for value in (a[seed], b[seed]))
        gaps.append(x - y)
        only_a.append(late[1] and not late[0])
        only_b.append(late[0] and not late[1])
        censored += sum(late)
    largest = max(abs(gap) for gap in gaps)
    return Difference(
        mean=statistics.fmean(gaps),
        half=half_interval(gaps),
        p=_by_chance([largest if other else gap for gap, other in zip(gaps, only_b, strict=True)]),
        count=len(gaps),
        censored=censored,
        reverse=_by_chance([largest if other else -gap for gap, other in zip(gaps, only_a, strict=True)]),
    )


def compare_closeness(
    a: Mapping[int, float | None], b: Mapping[int, float | None], share: float, limit: float
) -> Difference | None:
    """Test whether A and B differ by less than a share of A, on the same seeds: two one-sided tests; both must hold.

    `shown` is that they are close, `refuted` that one is below the other by more than that. `mean` is A minus B.
    """
    plain = compare_pairs(a, b, limit)
    if plain is None:
        return None
    room = {seed: share * (limit if value is None else value) for seed, value in a.items()}
    sides = [compare_pairs(x, _raise_by(y, room), limit * (1 + share)) for x, y in ((a, b), (b, a))]
    tests = [side for side in sides if side is not None]
    return replace(plain, p=max(test.p for test in tests), reverse=min(test.reverse for test in tests))


def _raise_by(values: Mapping[int, float | None], room: Mapping[int, float]) -> dict[int, float | None]:
    return {seed: None if value is None else value + room[seed] for seed, value in values.items() if seed in room}


def half_interval(values: Sequence[float]) -> float | None:
    """Return half the width of the mean's 95 % interval; None for fewer than three values."""
    count = len(values)
    return t_quantile(count) * statistics.stdev(values) / count**0.5 if count >= FEWEST else None


def t_quantile(count: int) -> float:
    """Return half the width of the 95 % interval of a mean of so many values, in standard errors."""
    return float(_stats().t.ppf((1 + CONFIDENCE) / 2, count - 1))


def _by_chance(gaps: Sequence[float]) -> float:
    """Return how often a sum of these gaps with random signs is as low as theirs."""
    if len(gaps) == 1:
        return 0.5 if gaps[0] < 0 else 1.0
    # Of all 2^seeds flips; if there are more than 9999, of 9999 random ones, always the same.
    flips = {"permutation_type": "samples", "alternative": "less", "rng": 0, "vectorized": True}
    return float(_stats().permutation_test((list(gaps),), _sum_axis, **flips).pvalue)


def _sum_axis(values: Any, axis: int) -> Any:
    return values.sum(axis=axis)


def _stats() -> Any:
    """Return scipy.stats: it has no types, and takes a moment to import."""
    from scipy import stats  # pyright: ignore[reportMissingTypeStubs]

    return stats


def correct_for_many(values: Sequence[float | None]) -> list[float | None]:
    """Return p-values corrected for being many, by Holm's method (1979); None stands for no test.

    The smallest is multiplied by the number of tests, the next by one less, and so on; none becomes smaller than the
    one before it. The chance of one false finding among all tests is then at most the level.
    """
    order = sorted((p, index) for index, p in enumerate(values) if p is not None)
    corrected: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, index) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        corrected[index] = highest
    return corrected
