"""The search of one arm: what to run next, and what to choose. Functions of the scores alone."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fedlga.experiments.criteria import Criterion

MOST_WIDENINGS = 3  # times that a grid grows because the best point is at its edge

Point = tuple[tuple[str, Any], ...]  # settings with their values: (("lr", 0.03), ("mu", 0.1))
Grid = Mapping[str, Sequence[Any]]
Scores = Mapping[Point, Mapping[int, float]]  # by point and tuning seed; lower is better


def grid_points(grid: Grid) -> list[Point]:
    """Return all points of a grid."""
    return [tuple(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


@dataclass(frozen=True)
class Trial:
    """One run that the search asks for."""

    point: Point
    seed: int


@dataclass(frozen=True)
class SearchState:
    """How far the search of one arm is."""

    points: Sequence[Point]  # the grid, and what was added beyond its edges
    trials: Sequence[Trial]  # to run next; empty: the search is over
    best: Point | None  # the choice, when the search is over
    at_edge: Sequence[str]  # settings in which a neighbour of the best was not tried, such as one beyond the highest


def next_trials(
    grid: Grid,
    scores: Scores,
    seeds: Sequence[int],
    criterion: Criterion,
    widenings: int = MOST_WIDENINGS,
    fits: Callable[[Point], bool] = lambda point: True,
) -> SearchState:
    """Return what to run next, given the scores so far; when there is nothing left to run, the best point.

    `fits` says whether a point beyond the grid is within the limits of its settings.

    All points run on the first seed. After each seed, points that are more than the criterion's margin behind the best
    on the same seeds leave the race. When the rest have all seeds and neighbours of the best were not tried, as at an
    edge, these race against the rest. A point that has all seeds cannot leave any more: one that a neighbour beat on
    the first seed may be better over all of them.
    """
    points = grid_points(grid)
    entering, finalists = points, list[Point]()
    for widening in range(widenings + 1):
        racing = [*finalists, *entering]
        for done, seed in enumerate(seeds, start=1):
            if missing := [Trial(p, seed) for p in racing if seed not in scores.get(p, {})]:
                return SearchState(points, missing, None, [])
            costs = {p: statistics.fmean(scores[p][s] for s in seeds[:done]) for p in racing}
            limit = criterion.limit(costs.values(), criterion.margin)
            racing = [p for p in racing if p in finalists or costs[p] <= limit]
        finalists = racing
        chosen = choose(scores, finalists, seeds, criterion)
        beyond = {point: name for point, name in find_beyond(points, chosen).items() if fits(point)}
        if not beyond or widening == widenings:
            return SearchState(points, [], chosen, list(dict.fromkeys(beyond.values())))
        points, entering = [*points, *beyond], list(beyond)
    raise AssertionError("the last widening returns")


def choose(scores: Scores, racing: Sequence[Point], seeds: Sequence[int], criterion: Criterion) -> Point:
    """Return the best point: the least mean cost; among ties, the least spread over the seeds."""
    costs = {p: [scores[p][seed] for seed in seeds] for p in racing}
    means = {p: statistics.fmean(values) for p, values in costs.items()}
    limit = criterion.limit(means.values(), criterion.tie)
    tied = [p for p in racing if means[p] <= limit]

    def spread(p: Point) -> tuple[float, float]:
        return max(costs[p]) - min(costs[p]), means[p]

    return min(tied, key=spread)


def find_beyond(points: Sequence[Point], best: Point) -> dict[Point, str]:
    """Return the neighbours of the best point that were not tried, with the setting in which each differs from it.

    A neighbour has the next lower or next higher value of one setting. Beyond the lowest and the highest it is one
    step further: the ratio of the last two, because rates are tried on a logarithmic scale. A setting with one value,
    or with one that is not a positive number, has no next value.

    Of a grid, only points beyond its edges were not tried. Of a point that was added beyond an edge, others were not
    tried either: the best rate may be another one there.
    """
    beyond: dict[Point, str] = {}
    for index, (name, value) in enumerate(best):
        values: list[Any] = list({p[index][1] for p in points})
        if len(values) < 2 or not all(_is_positive(v) for v in values):  # noqa: PLR2004
            continue
        numbers = sorted(values)
        place, last = numbers.index(value), len(numbers) - 1
        below = numbers[place - 1] if place > 0 else _round_beyond(value, value * value / numbers[1])
        above = numbers[place + 1] if place < last else _round_beyond(value, value * value / numbers[-2])
        for next_value in (below, above):
            point = (*best[:index], (name, next_value), *best[index + 1 :])
            if point not in points:
                beyond[point] = name
    return beyond


def _round_beyond(value: float, further: float) -> float:
    """Return `further` with as few digits as leave it on its side of `value`: 1.6 as 2, but 1.21 as 1.2 beyond 1.1."""
    rounded = (float(f"{further:.{digits}g}") for digits in range(1, 17))
    return next((number for number in rounded if number != value and (number > value) == (further > value)), further)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
