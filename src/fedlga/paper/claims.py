"""Claims that a paired test can show, and what the paper's claims come to here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fedlga.experiments.statistics import Difference, compare_closeness, compare_pairs

if TYPE_CHECKING:
    from fedlga.paper.items.base import Point
    from fedlga.paper.runs import ItemRuns

Kind = tuple[str, str]  # method and policy
ENOUGH_SEEDS = 5  # fewer can show nothing at the 5 % level
SIMILAR = 0.1  # share of the rounds by which methods may differ that the paper calls similar; it gives no number


@dataclass(frozen=True)
class Claim:
    """One sentence, tested here."""

    text: str
    difference: Difference | None  # None: there are no runs
    form: str = "+.1f"
    judged: bool = True  # the paper says so (for our own items: we ask); otherwise it is only reported

    def sentence(self) -> str:
        """Return what it says, and whether it holds here."""
        return f"{self.text}: {'no runs to tell' if self.difference is None else self.difference.text(self.form)}"


def fewer_rounds(
    runs: ItemRuns, a: Kind, b: Kind, point_a: Point | None = None, point_b: Point | None = None
) -> Difference | None:
    """Test whether A needs fewer rounds to the target than B, as far as both ran."""
    first, second = runs.values("rounds_to_target", *a, point_a), runs.values("rounds_to_target", *b, point_b)
    return compare_pairs(first, second, min(runs.limit(point_a), runs.limit(point_b)))


def about_as_many_rounds(runs: ItemRuns, a: Kind, b: Kind, point: Point) -> Difference | None:
    """Test whether A and B need similar numbers of rounds to the target."""
    first, second = (runs.values("rounds_to_target", *kind, point) for kind in (a, b))
    return compare_closeness(first, second, SIMILAR, runs.limit(point))


def sooner(runs: ItemRuns, clock: str, a: Kind, b: Kind) -> Difference | None:
    """Test whether A reaches the target sooner than B by this clock, as far as both ran."""
    first, second = (runs.values(f"{clock}_to_target", *kind) for kind in (a, b))
    ran_a, ran_b = (known_values(runs.values(clock, *kind)) for kind in (a, b))
    return compare_pairs(first, second, {seed: min(ran_a[seed], ran_b[seed]) for seed in ran_a if seed in ran_b})


def lower(
    runs: ItemRuns, measure: str, a: Kind, b: Kind, point_a: Point | None = None, point_b: Point | None = None
) -> Difference | None:
    """Test whether A is below B in a measure that every run has."""
    first, second = runs.values(measure, *a, point_a), runs.values(measure, *b, point_b)
    return compare_pairs(known_values(first), known_values(second))


def known_values(values: Mapping[int, float | None]) -> dict[int, float]:
    """Return the values that are there, by seed."""
    return {seed: value for seed, value in values.items() if value is not None}


def find_fedlga(kinds: Sequence[Kind]) -> tuple[Kind, list[Kind]]:
    """Return FedLGA (or the first, if it is not there), and the others."""
    fedlga = next((kind for kind in kinds if kind[0] == "fedlga"), kinds[0])
    return fedlga, [kind for kind in kinds if kind != fedlga]


def judge(claims: Sequence[Claim], seeds: int) -> str:
    """Return in a sentence whether what the paper says, or we ask, holds here."""
    judged = [claim.difference for claim in claims if claim.judged]
    tested = [difference for difference in judged if difference is not None]
    if claims and not judged:
        return "It is not claimed of this data set by the paper."
    if not tested:
        return "There are no runs to tell."
    shown, refuted = sum(d.shown for d in tested), sum(d.refuted for d in tested)
    missing, undecided = len(judged) - len(tested), len(tested) - shown - refuted
    parts = [f"{shown} of {len(judged)} parts hold"]
    parts += [f"of {refuted} the opposite holds"] if refuted else []
    parts += [f"{undecided} are not shown"] if undecided else []
    parts += [f"{missing} have no runs to tell"] if missing else []
    summary = ", ".join(parts)
    if shown == len(judged):
        return f"It holds here, in all {shown} of its parts." if shown > 1 else "It holds here."
    if refuted:
        return f"It does not hold here: {summary}."
    few = "; fewer than five seeds can show nothing" if seeds < ENOUGH_SEEDS else ""
    return f"It holds in part: {summary}{few}." if shown else f"It is not shown here: {summary}{few}."
