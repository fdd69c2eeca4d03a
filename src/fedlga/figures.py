"""Figures of a comparison. The same colour and dashes are the same policy everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .types import Record

# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes for those who print in grey.
POLICY_COLOURS = {"wait": "#0072B2", "drop": "#999999", "keep": "#E69F00", "complete": "#D55E00"}
POLICY_DASHES: dict[str, Any] = {
    "wait": (0, (6, 2)),
    "drop": (0, (1, 1.5)),
    "keep": (0, (4, 1.5, 1, 1.5)),
    "complete": "-",
}
MOST_METHODS = 6  # panels in a figure

Curves = Mapping[tuple[str, str], Sequence[Sequence[Record]]]  # method and policy -> a run's records for each seed


def accuracy_over_time(curves: Curves, target: float, files: Sequence[Path]) -> None:
    """Accuracy over simulated seconds, a line a policy, a row of panels a method; shaded is one standard deviation.

    Where some devices are always slow, a second column shows the accuracy on data like theirs.
    """
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    methods = list(dict.fromkeys(method for method, _ in curves))[:MOST_METHODS]
    slow = any(r.accuracy_slow is not None for runs in curves.values() for records in runs for r in records)
    measures = {"accuracy": "test accuracy", **({"accuracy_slow": "on the slow devices' data"} if slow else {})}
    figure, axes = plt.subplots(
        len(methods),
        len(measures),
        figsize=(3.6 * len(measures) + 0.4, 2.4 * len(methods) + 0.3),
        squeeze=False,
        sharex="row",
        layout="constrained",
    )
    for row, method in enumerate(methods):
        for column, (measure, title) in enumerate(measures.items()):
            panel = axes[row][column]
            for (name, policy), runs in curves.items():
                if name == method and runs:
                    seconds, mean, spread = _averaged(runs, measure)
                    colour, dashes = POLICY_COLOURS[policy], POLICY_DASHES[policy]
                    panel.plot(seconds, mean, color=colour, linestyle=dashes, linewidth=1.6, label=policy)
                    panel.fill_between(seconds, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
            panel.axhline(target, color="#444444", linewidth=0.6)
            panel.set_title(f"{method}: {title}" if len(methods) > 1 else title, fontsize=9, loc="left")
            panel.set_xlabel("simulated seconds", fontsize=8)
            panel.set_ylim(0, 1)
            panel.tick_params(labelsize=8)
            panel.grid(visible=True, color="#dddddd", linewidth=0.5)
    axes[0][0].legend(fontsize=8, loc="lower right", frameon=False)
    for file in files:
        figure.savefig(file, dpi=160)
    plt.close(figure)


def _averaged(runs: Sequence[Sequence[Record]], measure: str) -> tuple[Any, Any, Any]:
    """Mean seconds so far, mean and deviation of a measure, round by round, as far as every seed got."""
    shortest = min(len(records) for records in runs)
    evaluated = [i for i in range(shortest) if getattr(runs[0][i], measure) is not None]
    spent = np.array([np.cumsum([r.simulated_seconds for r in records[:shortest]]) for records in runs]).mean(0)
    values = np.array([[getattr(records[i], measure) for i in evaluated] for records in runs], dtype=float)
    return spent[evaluated], values.mean(0), values.std(0)
