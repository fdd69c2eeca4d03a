"""Names, colours and dashes of methods and policies: the same in every figure."""

from __future__ import annotations

from typing import Any

# Okabe and Ito's colours, which colour-blind readers can tell apart; dashes and markers for prints in grey.
POLICY_COLOURS = {"wait": "#0072B2", "drop": "#999999", "keep": "#E69F00", "complete": "#D55E00"}
POLICY_DASHES: dict[str, Any] = {
    "wait": (0, (6, 2)),
    "drop": (0, (1, 1.5)),
    "keep": (0, (4, 1.5, 1, 1.5)),
    "complete": "-",
}
METHOD_COLOURS = {
    "fedlga": "#D55E00",
    "fedavg": "#0072B2",
    "fedprox": "#E69F00",
    "fednova": "#009E73",
    "scaffold": "#CC79A7",
    "feddyn": "#56B4E9",
}
METHOD_DASHES: dict[str, Any] = {
    "fedlga": "-",
    "fedavg": (0, (6, 2)),
    "fedprox": (0, (4, 1.5, 1, 1.5)),
    "fednova": (0, (1, 1.5)),
    "scaffold": (0, (8, 2, 1, 2, 1, 2)),
    "feddyn": (0, (3, 1.2)),
}
METHOD_MARKERS = {"fedlga": "o", "fedavg": "s", "fedprox": "D", "fednova": "^", "scaffold": "v", "feddyn": "P"}
METHOD_NAMES = {
    "fedlga": "FedLGA",
    "fedavg": "FedAvg",
    "fedprox": "FedProx",
    "fednova": "FedNova",
    "scaffold": "Scaffold",
    "feddyn": "FedDyn",
}
