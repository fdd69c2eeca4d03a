"""Sweeps over one setting: rounds to the target, or learning curves."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

import numpy as np

from fedlga.experiments.statistics import Estimate
from fedlga.paper.claims import Claim, about_as_many_rounds, fewer_rounds, find_fedlga, lower
from fedlga.paper.items.base import BASE, Item, Point
from fedlga.paper.settings import TAU_SHARES, Setting
from fedlga.report.figures import open_figure, put_legend_outside
from fedlga.report.learning_curves import CurvePanel, draw_curves
from fedlga.report.style import METHOD_MARKERS, METHOD_NAMES, method_style, value_style

if TYPE_CHECKING:
    from fedlga.paper.runs import ItemRuns


@dataclass(frozen=True, kw_only=True)
class Sweep(Item):
    """What the paper varies; the paper's default is one of the values."""

    axis: str  # what is varied
    short: str  # the same in a word
    changes: Callable[[Setting], Mapping[float, Mapping[str, Any]]]  # of the experiment, for each value

    @abstractmethod
    def limits(self, setting: Setting) -> Mapping[str, Any]:
        """Return how long runs go that are not of the paper's default."""

    def points(self, setting: Setting) -> list[Point]:  # noqa: D102
        return [self._point(setting, value, changes) for value, changes in self.changes(setting).items()]

    def _point(self, setting: Setting, value: float, changes: Mapping[str, Any]) -> Point:
        if setting.base.changed(changes).resolved() == setting.base.resolved():
            return Point(BASE, value, {})
        return Point(f"{self.name}-{value:g}", value, {**changes, **self.limits(setting)})

    def label(self, point: Point) -> dict[str, str]:  # noqa: D102
        return {self.axis: f"{point.value:g}"}


@final
@dataclass(frozen=True, kw_only=True)
class RoundsOver(Sweep):
    """Rounds to the target over what is varied."""

    rises: bool = True  # the paper says that larger values need more rounds
    trend_of_all: bool = True  # it says so of every method; else of FedLGA alone
    similar: Mapping[str, float] = field(default_factory=dict[str, float])
    # By data set: the value at which the paper finds all methods similar. At all others it has FedLGA ahead.

    def limits(self, setting: Setting) -> Mapping[str, Any]:  # noqa: D102
        return {"rounds": setting.longest, "stop_at_target": True}

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {"rounds to target": runs.rounds_text(point, method, policy), **runs.printed(point, method)}

    def claims(self, runs: ItemRuns) -> list[Claim]:
        """Return whether the sweep goes the way the paper says, and whether FedLGA is ahead, or level, at a value."""
        fedlga, others = find_fedlga(runs.kinds)
        first, last = runs.points[0], runs.points[-1]
        low, high = (first, last) if self.rises else (last, first)
        claims: list[Claim] = []
        for kind in runs.kinds:
            text = f"{METHOD_NAMES[kind[0]]} needs fewer rounds at {self.short} {low.value:g} than at {high.value:g}"
            judged = kind == fedlga or self.trend_of_all
            claims.append(Claim(text, fewer_rounds(runs, kind, kind, low, high), judged=judged))
        level_at = self.similar.get(runs.setting.base.dataset)
        for point in runs.points:
            where = f"at {self.short} {point.value:g}, FedLGA"
            for o in others:
                name = METHOD_NAMES[o[0]]
                if level := point.value == level_at:
                    claims.append(
                        Claim(f"{where} and {name} differ by less than a tenth of FedLGA's rounds",
                              about_as_many_rounds(runs, fedlga, o, point))
                    )  # fmt: skip
                difference = fewer_rounds(runs, fedlga, o, point, point)
                claims.append(Claim(f"{where} needs fewer rounds than {name}", difference, judged=not level))
        return claims

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:
        """Draw rounds to the target, each value at its place; an open marker: some seeds never reached the target."""
        late = any(row["rounds_to_target"] is None for row in runs.rows)
        note = runs.describe(shaded=False) + ("; open: not all seeds reached the target" if late else "")
        with open_figure(files, height=2.9, note=note) as ((panel,),):
            positions = [float(point.value) for point in runs.points]
            step = 0.012 * (max(positions) - min(positions))
            for index, (method, policy) in enumerate(runs.kinds):
                colour, dashes = method_style(method)
                aside = step * (index - (len(runs.kinds) - 1) / 2)  # so that intervals do not hide each other
                x, y, errors, open_x, open_y = list[float](), list[float](), list[float](), list[float](), list[float]()
                for position, point in zip((p + aside for p in positions), runs.points, strict=True):
                    values = list(runs.values("rounds_to_target", method, policy, point).values())
                    estimate = Estimate.of(values)
                    if estimate.mean is not None:
                        x, y, errors = [*x, position], [*y, estimate.mean], [*errors, estimate.half or 0.0]
                    elif values:
                        at_least = [runs.limit(point) if v is None else v for v in values]
                        open_x, open_y = [*open_x, position], [*open_y, float(np.mean(at_least))]
                style = {"color": colour, "marker": METHOD_MARKERS[method]}
                label = METHOD_NAMES[method]
                panel.errorbar(x, y, errors, linestyle=dashes, ms=3.5, lw=1.2, capsize=2, label=label, **style)
                panel.plot(open_x, open_y, ms=4.5, mfc="white", linestyle="", **style)
            panel.set_xticks(positions, [f"{position:g}" for position in positions])
            panel.set(xlabel=self.axis, ylabel=f"rounds to {runs.setting.base.target:.0%}")
            panel.set_ylim(bottom=0)
            put_legend_outside(panel)


@final
@dataclass(frozen=True, kw_only=True)
class AccuracyOver(Sweep):
    """Learning curves, one for each value, all of the same length: in rounds and in accuracy, more is better."""

    curves: ClassVar[Sequence[str]] = ("accuracy",)

    def limits(self, setting: Setting) -> Mapping[str, Any]:  # noqa: D102
        return {}

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {
            "rounds to target": runs.rounds_text(point, method, policy),
            "best accuracy": runs.text("best_accuracy", point, method, policy),
            **runs.printed(point, method),
        }

    def claims(self, runs: ItemRuns) -> list[Claim]:
        """Return whether the largest value needs fewer rounds than the smallest, and gets higher; FedLGA's counts."""
        fedlga, _ = find_fedlga(runs.kinds)
        small, large = runs.points[0], runs.points[-1]
        claims: list[Claim] = []
        for kind in runs.kinds:
            name, judged = METHOD_NAMES[kind[0]], kind == fedlga and self.is_claimed(runs.setting)
            text = f"{name} needs fewer rounds at {self.short} {large.value:g} than at {small.value:g}"
            claims.append(Claim(text, fewer_rounds(runs, kind, kind, large, small), judged=judged))
            text = f"{name}'s best accuracy is lower at {self.short} {small.value:g} than at {large.value:g}"
            worse = lower(runs, "best_accuracy", kind, kind, small, large)
            claims.append(Claim(text, worse, "+.2%", judged=judged))
        return claims

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:
        """Draw a panel for each method, with a line for each value."""
        panels = [
            CurvePanel(
                "accuracy",
                "rounds",
                {
                    runs.arm(point, method, policy): (f"{self.short} = {point.value:g}", value_style(index))
                    for index, point in enumerate(runs.points)
                },
                f"{METHOD_NAMES[method]}: test accuracy",
                runs.setting.base.target,
                fit=True,
            )
            for method, policy in runs.kinds
        ]
        draw_curves(runs.curves, files, [panels], subject=runs.setting.name, width=3.6 * len(panels), differences=False)


def vary(field: str, values: Callable[[Setting], Sequence[float]]) -> Callable[[Setting], dict[float, dict[str, Any]]]:
    """Return the changes of a sweep over one setting of the experiment."""
    return lambda setting: {value: {field: value} for value in values(setting)}


def vary_tau_max(setting: Setting) -> dict[float, dict[str, Any]]:
    """Return the changes of the sweep over tau_max / E."""
    return {share: {"tau_max": max(1, round(share * setting.base.epochs))} for share in TAU_SHARES}
