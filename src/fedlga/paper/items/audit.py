"""How far completed updates are from the true ones: ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from fedlga.experiments.statistics import Estimate, compare_pairs
from fedlga.paper.claims import Claim, find_fedlga, known_values
from fedlga.paper.items.base import Item, Point
from fedlga.paper.settings import Setting
from fedlga.report.figures import open_figure, put_legend_outside

if TYPE_CHECKING:
    from fedlga.paper.runs import ItemRuns


REGIME = "one unit of work, eta_l"  # what the regimes are named by


@final
@dataclass(frozen=True)
class ApproximationError(Item):
    """The error of completed updates in the audit's regimes."""

    def points(self, setting: Setting) -> list[Point]:  # noqa: D102
        regimes = setting.regimes or {"base": {"rounds": setting.base.rounds}}
        return [
            Point("audit-" + _folder_name(regime), regime, {"audit": True, "evaluate_every": 10, **changes})
            for regime, changes in regimes.items()
        ]

    def label(self, point: Point) -> dict[str, str]:  # noqa: D102
        return {REGIME: str(point.value)}

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {
            "error": runs.text("approximation_error", point, method, policy),
            "best multiple": runs.text("best_scale_error", point, method, policy),
            "averaged update": runs.text("aggregate_error", point, method, policy),
        }

    def claims(self, runs: ItemRuns) -> list[Claim]:  # noqa: D102
        fedlga, _ = find_fedlga(runs.kinds)
        errors = {p.value: known_values(runs.values("approximation_error", *fedlga, p)) for p in runs.points}
        return [
            Claim(f"{regime}: the error is below 1", compare_pairs(values, dict.fromkeys(values, 1.0)), "+.3f")
            for regime, values in errors.items()
        ]

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:  # noqa: D102
        with open_figure(files, height=2.9, note=runs.describe(shaded=False)) as ((panel,),):
            method, policy = runs.kinds[0]
            for index, point in enumerate(runs.points):
                error, best = (
                    Estimate.of(list(runs.values(measure, method, policy, point).values()))
                    for measure in ("approximation_error", "best_scale_error")
                )
                if error.mean is None or best.mean is None:
                    continue
                labels = ("completed", "best possible multiple") if index == 0 else (None, None)
                panel.bar(index, error.mean, yerr=error.half, capsize=2, color="#D55E00", label=labels[0])
                panel.plot(index, best.mean, "D", color="#000000", ms=4, label=labels[1])
            panel.axhline(1, color="#444444", linewidth=0.8, label="as sent")
            panel.set_xticks(range(len(runs.points)), [str(p.value) for p in runs.points], rotation=25, ha="right")
            panel.set(xlabel=REGIME, ylabel="distance to the true updates", ylim=(0, max(1.15, panel.get_ylim()[1])))
            panel.grid(visible=False, axis="x")
            put_legend_outside(panel)


def _folder_name(regime: str) -> str:
    return regime.replace(", ", "-").replace(" ", "-").lower()
