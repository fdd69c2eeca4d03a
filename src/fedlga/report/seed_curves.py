"""Learning curves as numbers: one for each seed of each arm, the CSV file beside a figure, differences by seed.

curves.csv has a row for each arm, seed and evaluated round: arm, seed, round, what was spent by then (simulated
seconds, seconds that devices worked, megabytes sent), and the measures. Means and intervals are computed from it when a
figure is drawn: pairs of seeds, and runs that end before others, need each seed.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np

from fedlga.core.files import format_csv, write_atomically
from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.measures import value_of

CURVES = "curves.csv"
SPENT = ("simulated_seconds", "work_seconds", "megabytes")  # of a record, summed over the rounds so far
_WORDS = ("arm", "seed", "round")


@dataclass(frozen=True)
class SeedCurve:
    """What one run measured: the evaluated rounds, what was spent by then, and each measure (nan: not measured)."""

    rounds: Any
    spent: Mapping[str, Any]
    measures: Mapping[str, Any]

    def over(self, axis: str) -> Any:
        """Return the values of an axis: `rounds`, or something that was spent."""
        return self.rounds if axis == "rounds" else self.spent[axis]

    def measured(self, measure: str) -> tuple[Any, Any]:
        """Return the values of a measure, and where there are any."""
        values = self.measures.get(measure, np.full(len(self.rounds), np.nan))
        return values, ~np.isnan(values)


Curves = Mapping[str, Mapping[int, SeedCurve]]  # arm -> seed -> curve


def take_curve(records: Sequence[Record], measures: Sequence[str], spent: Sequence[str] = SPENT) -> SeedCurve:
    """Return what a run measured, in the rounds in which it measured anything of this."""
    values = {name: np.array([_number(value_of(r, name)) for r in records]) for name in measures}
    sums = {name: np.cumsum([getattr(r, name) for r in records]) for name in spent}
    rounds = np.array([r.round for r in records])
    taken = ~np.isnan(np.array([*values.values()])).all(0)
    return SeedCurve(rounds[taken], {n: s[taken] for n, s in sums.items()}, {n: v[taken] for n, v in values.items()})


def _number(value: float | None) -> float:
    return float("nan") if value is None else value


def align_seeds(curves: Iterable[SeedCurve], measure: str, axis: str = "rounds") -> tuple[Any, Any]:
    """Return where all seeds have a measure (the mean over seeds of an axis), and its values: a row for each seed."""
    curves = list(curves)
    common = reduce(np.intersect1d, [curve.rounds[curve.measured(measure)[1]] for curve in curves])
    kept = [np.isin(curve.rounds, common) for curve in curves]
    x = np.array([curve.over(axis)[k] for curve, k in zip(curves, kept, strict=True)]).mean(0)
    return x, np.array([curve.measured(measure)[0][k] for curve, k in zip(curves, kept, strict=True)])


def pair_seeds(
    curves: Mapping[int, SeedCurve], first: Mapping[int, SeedCurve], measure: str, axis: str
) -> tuple[Any, Any]:
    """Return how much higher a measure is than the first arm's, seed by seed: where, and a row for each common seed.

    Arms are evaluated at different times: it is taken where the first arm was, between an arm's own evaluations on a
    straight line, and as far as all runs have both a beginning and an end.
    """
    seeds = [seed for seed in first if seed in curves]
    if not seeds:
        return np.array([]), np.empty((0, 0))
    pairs = [(_known(curves[seed], measure, axis), _known(first[seed], measure, axis)) for seed in seeds]
    ends = [x for pair in pairs for x, _ in pair]
    if not all(len(x) for x in ends):
        return np.array([]), np.empty((len(seeds), 0))
    where, _ = align_seeds([first[seed] for seed in seeds], measure, axis)
    where = where[(where >= max(x[0] for x in ends)) & (where <= min(x[-1] for x in ends))]
    gaps: list[Any] = [np.interp(where, *one) - np.interp(where, *other) for one, other in pairs]
    return where, np.array(gaps)


def _known(curve: SeedCurve, measure: str, axis: str) -> tuple[Any, Any]:
    values, known = curve.measured(measure)
    return curve.over(axis)[known], values[known]


def write_curves(file: Path, runs: Mapping[str, Mapping[int, Sequence[Record]]], measures: Sequence[str]) -> Curves:
    """Write the curves of all arms, by seed, and return them as they can be read from the file.

    A measure that no run has is left out.
    """
    rows: list[dict[str, Any]] = []
    every = [r for by_seed in runs.values() for records in by_seed.values() for r in records]
    known = [name for name in measures if any(value_of(r, name) is not None for r in every)]
    for arm, by_seed in runs.items():
        for seed, records in by_seed.items():
            curve = take_curve(records, known)
            for at, number in enumerate(curve.rounds):
                numbers = {name: values[at] for name, values in {**curve.spent, **curve.measures}.items()}
                texts = {name: "" if np.isnan(value) else f"{value:.7g}" for name, value in numbers.items()}
                rows.append({"arm": arm, "seed": seed, "round": int(number), **texts})
    write_atomically(file, format_csv(rows))
    return read_curves(file)


def read_curves(file: Path) -> Curves:
    """Return the curves of a file, by arm and by seed, in its order."""
    try:
        with file.open(newline="", encoding="utf-8") as lines:
            rows = list(csv.DictReader(lines))
        together: dict[str, dict[int, list[dict[str, str]]]] = {}
        for row in rows:
            together.setdefault(row["arm"], {}).setdefault(int(row["seed"]), []).append(row)
        return {arm: {s: _parse(part) for s, part in by_seed.items()} for arm, by_seed in together.items()}
    except (OSError, UnicodeDecodeError, KeyError, TypeError, ValueError) as error:
        raise BadInput(f"{str(file)!r} cannot be read as learning curves ({error!r})") from error


def _parse(rows: Sequence[Mapping[str, str]]) -> SeedCurve:
    numbers = {
        name: np.array([float(row[name] or "nan") for row in rows]) for name in rows[0] if name not in ("arm", "seed")
    }
    measures = {name: values for name, values in numbers.items() if name not in (*_WORDS, *SPENT)}
    return SeedCurve(numbers["round"].astype(int), {name: numbers[name] for name in SPENT}, measures)
