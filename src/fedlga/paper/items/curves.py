"""Learning curves: test accuracy, or the loss on all training data, over rounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from fedlga.experiments.statistics import Estimate
from fedlga.paper.claims import Claim, fewer_rounds, find_fedlga, lower
from fedlga.paper.items.base import BASE_POINT, Item, Point
from fedlga.paper.settings import Setting
from fedlga.report.learning_curves import CurvePanel, draw_curves
from fedlga.report.style import METHOD_NAMES, method_style

if TYPE_CHECKING:
    from fedlga.paper.runs import ItemRuns


@final
@dataclass(frozen=True)
class Accuracy(Item):
    """Test accuracy over rounds, and the rounds to the target."""

    curves: ClassVar[Sequence[str]] = ("accuracy",)

    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])  # of the paper's defaults

    def points(self, setting: Setting) -> list[Point]:  # noqa: D102
        return [Point(self.name, "", self.changes)] if self.changes else [BASE_POINT]

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
        _draw(runs, files, "accuracy", "test accuracy", runs.setting.base.target)


@final
@dataclass(frozen=True)
class Loss(Item):
    """f(w), the loss of the joint model on all training data, over rounds."""

    curves: ClassVar[Sequence[str]] = ("train_objective",)

    second_on: Sequence[str] = ()  # data sets on which the paper itself has FedLGA second

    def points(self, setting: Setting) -> list[Point]:
        """Return runs of their own: f(w) takes longer to compute than a round, so it is not computed in every one."""
        changes = {"record": "objective", "evaluate_every": max(1, setting.base.rounds // setting.loss_points)}
        return [Point(self.name, "", changes)]

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {
            "f(w) at the end": runs.text("final_train_objective", point, method, policy),
            "mean loss of batches at the end": runs.text("last_train_loss", point, method, policy),
        }

    def claims(self, runs: ItemRuns) -> list[Claim]:
        """Return that FedLGA ends below each other method; where the paper has it second, below all but one of them."""
        fedlga, others = find_fedlga(runs.kinds)
        ends = {o: Estimate.of(list(runs.values("final_train_objective", *o).values())).mean for o in others}
        first = None
        if runs.setting.base.dataset in self.second_on:
            first = min(others, key=lambda o: float("inf") if (end := ends[o]) is None else end)
        text = "FedLGA ends with a lower loss on the training data than"
        return [
            Claim(
                f"{text} {METHOD_NAMES[o[0]]}",
                lower(runs, "final_train_objective", fedlga, o),
                "+.3f",
                judged=o != first,
            )
            for o in others
        ]

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:  # noqa: D102
        _draw(runs, files, "train_objective", "f(w): loss on all training data", None)


def _draw(runs: ItemRuns, files: Sequence[Path], measure: str, title: str, target: float | None) -> None:
    lines = {
        runs.arm(runs.points[0], method, policy): (METHOD_NAMES[method], method_style(method))
        for method, policy in runs.kinds
    }
    panel = CurvePanel(measure, "rounds", lines, title, target, fit=True)
    draw_curves(runs.curves, files, [[panel]], subject=runs.setting.name)
