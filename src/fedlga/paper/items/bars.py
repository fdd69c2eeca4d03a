"""One bar a method: best accuracy, running time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, final

from fedlga.experiments.statistics import Estimate
from fedlga.paper.claims import Claim, find_fedlga, known_values, lower, sooner
from fedlga.paper.items.base import Item, Point
from fedlga.report.figures import COLUMN_WIDTH, open_figure, use_percent
from fedlga.report.style import METHOD_COLOURS, METHOD_NAMES

if TYPE_CHECKING:
    from fedlga.paper.runs import ItemRuns

HATCHES = ("", "///", "...", "xxx", "\\\\\\", "---")


@final
@dataclass(frozen=True)
class BestAccuracy(Item):
    """The best accuracy that each method reaches."""

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {
            "rounds to target": runs.rounds_text(point, method, policy),
            "best accuracy": runs.text("best_accuracy", point, method, policy),
            "FedLGA's minus this, seed by seed": self._margin(runs, method, policy),
            **runs.printed(point, method),
        }

    def _margin(self, runs: ItemRuns, method: str, policy: str) -> str:
        """Return by how much FedLGA's best accuracy is higher, paired."""
        fedlga, _ = find_fedlga(runs.kinds)
        ours, own = (known_values(runs.values("best_accuracy", *kind)) for kind in (fedlga, (method, policy)))
        gaps = [ours[seed] - own[seed] for seed in own if seed in ours]
        return "" if (method, policy) == fedlga else Estimate.of(gaps).text("+.1%").replace("± +", "± ")

    def claims(self, runs: ItemRuns) -> list[Claim]:  # noqa: D102
        fedlga, others = find_fedlga(runs.kinds)
        text = "best accuracy is below FedLGA's"
        return [
            Claim(f"{METHOD_NAMES[o[0]]}'s {text}", lower(runs, "best_accuracy", o, fedlga), "+.2%") for o in others
        ]

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:  # noqa: D102
        with open_figure(files, height=2.7, note=runs.describe(shaded=False)) as ((panel,),):
            _draw_bars(panel, runs, "best_accuracy", "best accuracy", ".1%")
            use_percent(panel.yaxis)


@final
@dataclass(frozen=True)
class Runtime(Item):
    """Seconds a round, and seconds to the target."""

    clocks: ClassVar[Sequence[str]] = ("seconds",)

    def columns(self, runs: ItemRuns, point: Point, method: str, policy: str) -> dict[str, str]:  # noqa: D102
        return {
            "rounds to target": runs.rounds_text(point, method, policy),
            "seconds a round": runs.text("seconds_per_round", point, method, policy),
            "seconds to target": runs.text("seconds_to_target", point, method, policy),
            **runs.printed(point, method),
        }

    def claims(self, runs: ItemRuns) -> list[Claim]:  # noqa: D102
        fedlga, others = find_fedlga(runs.kinds)
        claims: list[Claim] = []
        for o in others:  # the paper says: third, after FedAvg and FedNova
            a, b = (o, fedlga) if o[0] in ("fedavg", "fednova") else (fedlga, o)
            text = f"a round of {METHOD_NAMES[a[0]]} takes fewer seconds than one of {METHOD_NAMES[b[0]]}"
            claims.append(Claim(text, lower(runs, "seconds_per_round", a, b), "+.4f"))
        for o in others:
            text = f"FedLGA takes fewer seconds to the target than {METHOD_NAMES[o[0]]}"
            claims.append(Claim(text, sooner(runs, "seconds", fedlga, o), "+.2f"))
        return claims

    def draw(self, runs: ItemRuns, files: Sequence[Path]) -> None:  # noqa: D102
        note, target = runs.describe(shaded=False), runs.setting.base.target
        with open_figure(files, columns=2, width=2 * COLUMN_WIDTH, height=2.7, note=note) as ((single, total),):
            _draw_bars(single, runs, "seconds_per_round", "seconds a round", ".3g")
            _draw_bars(total, runs, "seconds_to_target", f"seconds to {target:.0%}", ".3g")


def _draw_bars(panel: Any, runs: ItemRuns, measure: str, title: str, form: str) -> None:
    """Draw bars from zero, each with its value: those that look the same can be told apart."""
    for index, (method, policy) in enumerate(runs.kinds):
        estimate = Estimate.of(list(runs.values(measure, method, policy).values()))
        name = METHOD_NAMES[method]
        if estimate.mean is not None:
            style = {"color": METHOD_COLOURS[method], "hatch": HATCHES[index % len(HATCHES)], "edgecolor": "white"}
            panel.bar(name, estimate.mean, yerr=estimate.half, capsize=2, linewidth=0, **style)
            top, text = estimate.mean + (estimate.half or 0.0), f"{estimate.mean:{form}}"
        else:
            panel.bar(name, 0.0)
            top, text = 0.0, estimate.text()
        place = {"textcoords": "offset points", "xytext": (0, 2)}
        panel.annotate(text, (name, top), ha="center", va="bottom", fontsize=6, **place)
    panel.set_ylabel(title)
    panel.set_ylim(0, 1.06 * panel.get_ylim()[1])  # bars begin at zero, and there is room for the values
    panel.grid(visible=False, axis="x")
    panel.tick_params(axis="x", labelrotation=30)
