"""Accuracy over simulated time, by policy: ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, final

from fedlga.paper.claims import Claim, lower, sooner
from fedlga.paper.items.base import Item, Point
from fedlga.paper.settings import EXAMPLES, Setting
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
from fedlga.report.style import policy_style

if TYPE_CHECKING:
    from fedlga.paper.runs import ItemRuns


@final
@dataclass(frozen=True)
class Time(Item):
    """The policies compared in simulated seconds, with log-normal speeds and a deadline."""

    def points(self, setting: Setting) -> list[Point]:  # noqa: D102
        base = setting.base
        # The deadline is what a device of median speed, a step a second, needs for all its work.
        steps = base.steps_per_epoch or EXAMPLES[base.dataset] // base.devices // base.batch_size
        changes = {
            "fleet": "speeds",
            "deadline": float(base.epochs * steps),
            "rounds": min(150, base.rounds),
            "evaluate_every": max(3, base.evaluate_every),
        }
        return [Point("speeds", "speeds", changes)]

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {
            "rounds to target": runs.rounds_text(point, method, policy),
            "best accuracy": runs.text("best_accuracy", point, method, policy),
            "simulated seconds to target": runs.text("simulated_seconds_to_target", point, method, policy),
            "accuracy at the end": runs.text("last_accuracy", point, method, policy),
        }

    def claims(self, runs: ItemRuns) -> list[Claim]:  # noqa: D102
        completed, claims = (self.methods[0], "complete"), list[Claim]()
        for other in (kind for kind in runs.kinds if kind != completed):
            text = f"completing takes fewer simulated seconds to the target than to {other[1]}"
            claims.append(Claim(text, sooner(runs, "simulated_seconds", completed, other), "+.0f"))
            if other[1] != "wait":
                text = f"to {other[1]} ends with less accuracy than completing"
                claims.append(Claim(text, lower(runs, "last_accuracy", other, completed), "+.2%"))
        return claims

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:  # noqa: D102
        with open_figure(files, height=2.7, note=runs.describe()) as ((panel,),):
            for method, policy in runs.kinds:
                if records := runs.records(method, policy):
                    x, values = collect_curve(records, "accuracy", "simulated_seconds")
                    draw_with_interval(panel, x, values, policy_style(policy), policy)
                    draw_remaining_seeds(panel, records, "accuracy", policy_style(policy)[0], "simulated_seconds")
            fit_to_lines(panel)
            target = runs.setting.base.target
            if target is not None:
                mark_target(panel, target, f"target {target:.0%}")
            use_percent(panel.yaxis)
            panel.set(xlabel="simulated seconds", ylabel="test accuracy")
            put_legend_outside(panel)
