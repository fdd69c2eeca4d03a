"""Accuracy over simulated time, by policy: ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, final

from fedlga.paper.claims import Claim, lower, sooner
from fedlga.paper.items.base import Item, Point
from fedlga.paper.settings import EXAMPLES, Setting
from fedlga.report.learning_curves import CurvePanel, draw_curves
from fedlga.report.style import policy_style

if TYPE_CHECKING:
    from fedlga.paper.runs import ItemRuns


@final
@dataclass(frozen=True)
class Time(Item):
    """The policies compared in simulated seconds, with log-normal speeds and a deadline."""

    curves: ClassVar[Sequence[str]] = ("accuracy",)
    clocks: ClassVar[Sequence[str]] = ("simulated_seconds",)

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
        lines = {
            runs.arm(runs.points[0], method, policy): (policy, policy_style(policy)) for method, policy in runs.kinds
        }
        target = runs.setting.base.target
        panel = CurvePanel("accuracy", "simulated_seconds", lines, "test accuracy", target, fit=True)
        draw_curves(runs.curves, files, [[panel]], subject=runs.setting.name)
