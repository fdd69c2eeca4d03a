"""Learning curves: test accuracy, or training loss, over rounds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from fedlga.experiments.measures import is_percentage
from fedlga.paper.claims import Claim, fewer_rounds, find_fedlga, lower
from fedlga.paper.items.base import Item, Point
from fedlga.report.figures import (
    collect_curve,
    draw_remaining_seeds,
    draw_with_interval,
    fit_to_lines,
    mark_target,
    open_figure,
    put_legend_outside,
    use_percent,
)
from fedlga.report.style import METHOD_NAMES, method_style

if TYPE_CHECKING:
    from fedlga.paper.runs import ItemRuns


@final
@dataclass(frozen=True)
class Accuracy(Item):
    """Test accuracy over rounds, and the rounds to the target."""

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {
            "rounds to target": runs.rounds_text(point, method, policy),
            "best accuracy": runs.text("best_accuracy", point, method, policy),
            **runs.printed(point, method),
        }

    def claims(self, runs: ItemRuns) -> list[Claim]:  # noqa: D102
        fedlga, others = find_fedlga(runs.kinds)
        return [
            Claim(f"FedLGA needs fewer rounds than {METHOD_NAMES[o[0]]}", fewer_rounds(runs, fedlga, o)) for o in others
        ]

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:  # noqa: D102
        _draw_curves(runs, files, "accuracy", "test accuracy", runs.setting.base.target)


@final
@dataclass(frozen=True)
class Loss(Item):
    """Training loss over rounds."""

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {
            "rounds to target": runs.rounds_text(point, method, policy),
            "training loss at the end": runs.text("last_train_loss", point, method, policy),
            **runs.printed(point, method),
        }

    def claims(self, runs: ItemRuns) -> list[Claim]:  # noqa: D102
        fedlga, others = find_fedlga(runs.kinds)
        text = "FedLGA ends with a lower training loss than"
        return [
            Claim(f"{text} {METHOD_NAMES[o[0]]}", lower(runs, "last_train_loss", fedlga, o), "+.3f") for o in others
        ]

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:  # noqa: D102
        _draw_curves(runs, files, "train_loss", "training loss", None)


def _draw_curves(runs: ItemRuns, files: Sequence[Path], field: str, title: str, target: float | None) -> None:
    with open_figure(files, height=2.9, note=runs.describe()) as ((panel,),):
        for method, policy in runs.kinds:
            if records := runs.records(method, policy):
                x, values = collect_curve(records, field)
                draw_with_interval(panel, x, values, method_style(method), METHOD_NAMES[method])
                draw_remaining_seeds(panel, records, field, method_style(method)[0])
        fit_to_lines(panel)
        if target is not None:
            mark_target(panel, target, f"target {target:.0%}")
        if is_percentage(field):
            use_percent(panel.yaxis)
        panel.set(xlabel="rounds", ylabel=title)
        put_legend_outside(panel)
