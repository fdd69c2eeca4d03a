"""The paper's figures and tables: each item's settings, its claim, and the numbers the paper prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..experiment import Experiment, preset
from ..regimes import REGIMES, THE_FIVE
from ..settings import choose

SIX = ("fedlga", "fedavg", "fedprox", "fednova", "scaffold", "feddyn")
BASE = "base"  # the point that every item starts from: the paper's defaults


@dataclass(frozen=True)
class Setting:
    """A dataset with the experiment that all its items vary."""

    name: str
    base: Experiment
    longest: int  # rounds after which a sweep gives up on the target
    note: str  # in what it is the paper's, and in what not
    exact: bool = True  # the paper's, as far as it states it
    epochs: Sequence[int] = (3, 5, 8)  # with E = 2 nobody is slow: tau_max = E - 1 = 1
    rhos: Sequence[float] = (0.1, 0.5, 0.9)
    devices: Sequence[int] = (30, 50, 100)
    cohorts: Sequence[int] = (5, 10, 25)
    regimes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


EXAMPLES = {"fashion-mnist": 60_000, "cifar-10": 50_000, "cifar-100": 50_000, "digits": 1_438}
_OPEN = "eta_l is ours: the paper states none, nor what one unit of local work is"


def _five(rounds: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """The audit's regimes, of so many rounds for batches and for passes."""
    return {name: {**REGIMES[name], "rounds": rounds[name.split(",")[0]]} for name in THE_FIVE}


def setting(dataset: str, *, small: bool = False, quick: bool = False) -> Setting:
    """What is run for a dataset: the paper's setting; a smaller one; or a quick try of every item."""
    known = ("fashion-mnist", "cifar-10", "cifar-100", "digits")
    choose("--dataset", dataset, known)
    if dataset == "digits":
        base = preset("digits").changed({"rounds": 6, "devices": 20, "backend": "pool"})
        cut: dict[str, Any] = {"epochs": (3, 5), "rhos": (0.1, 0.5), "devices": (10, 20), "cohorts": (3, 5)}
        return Setting("digits", base, 8, "not of the paper: small data to try the command on", exact=False, **cut)
    if dataset == "fashion-mnist":
        if quick:
            base = preset("paper").changed({"rounds": 40, "lr": 0.003, "evaluate_every": 2})
            cut: dict[str, Any] = {"epochs": (3, 5, 8)}
            note = f"a quick try: eta_l 0.003 and 40 rounds, 80 to the target; {_OPEN}"
            few = _five({"batch": 20, "epoch": 2})
            return Setting("fashion-mnist-quick", base, 80, note, exact=False, **cut, regimes=few)
        note = f"the paper's setting, one unit of work = one batch, eta_l 0.00075; {_OPEN}"
        return Setting("fashion-mnist", preset("paper"), 400, note, regimes=_five({"batch": 150, "epoch": 20}))
    exact = preset({"cifar-10": "cifar10", "cifar-100": "cifar100"}[dataset])
    if not (small or quick):
        return Setting(dataset, exact, 800, f"the paper's setting with ResNet-20, one unit = one epoch; {_OPEN}")
    target, lr = {"cifar-10": (0.22, 0.01), "cifar-100": (0.04, 0.05)}[dataset]
    changes = {"model": "cnn", "augment": False, "steps_per_epoch": 1, "lr": lr, "rounds": 100, "target": target}
    base = exact.changed({**changes, "evaluate_every": 5, **({"rounds": 20} if quick else {})})
    note = (
        f"NOT the paper's setting: a CNN of two convolutions in place of ResNet-20, one unit of work = one batch in "
        f"place of an epoch, no augmentation, {base.rounds} rounds, eta_l {lr}, target {target:.0%}"
    )
    few: dict[str, Any] = {"epochs": (5, 8), "rhos": (0.1, 0.5, 0.9), "cohorts": (5, 10, 25)}
    return Setting(f"{dataset}-{'quick' if quick else 'small'}", base, 20 if quick else 200, note, exact=False, **few)


@dataclass(frozen=True)
class Point:
    """One setting of what an item varies."""

    name: str  # of its folder
    value: float | str  # on the axis
    changes: Mapping[str, Any]


@dataclass(frozen=True)
class Item:
    """One of the paper's figures or tables, or one of ours."""

    name: str
    title: str
    says: str  # the paper's claim, in our words; of ours, the question
    kind: str  # curves, bars, sweep, runtime, time or audit: how it is drawn
    methods: Sequence[str] = SIX
    policies: Sequence[str] = ()  # empty: each method's own
    axis: str = ""  # of a sweep
    short: str = ""  # what is varied, in a word
    measure: str = "accuracy"  # of curves


ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        Item(
            "accuracy",
            "Test accuracy over rounds",
            "FedLGA reaches the target in the fewest rounds: 1.2 to 1.9 times as fast as the others on Fashion-MNIST",
            "curves",
        ),
        Item(
            "loss",
            "Training loss over rounds",
            "FedLGA ends with the lowest training loss",
            "curves",
            measure="train_loss",
        ),
        Item("best", "Best accuracy", "FedLGA reaches the best accuracy of the six", "bars"),
        Item(
            "runtime",
            "Running time",
            "FedLGA is third in seconds a round (behind FedAvg and FedNova) and first in seconds to the target",
            "runtime",
        ),
        Item(
            "tau-max",
            "Rounds to the target over tau_max",
            "the later slow devices may stop (small tau_max), the fewer rounds FedLGA needs",
            "sweep",
            ("fedlga",),
            axis="tau_max / E",
            short="tau_max/E",
        ),
        Item(
            "devices",
            "Rounds to the target over the number of devices",
            "FedLGA learns faster and better with more devices",
            "sweep",
            ("fedlga", "fedavg"),
            axis="devices N",
            short="N",
        ),
        Item(
            "cohort",
            "Rounds to the target over the cohort",
            "FedLGA needs fewer rounds with larger cohorts",
            "sweep",
            ("fedlga", "fedavg"),
            axis="cohort K",
            short="K",
        ),
        Item(
            "time",
            "Accuracy over simulated time, by policy",
            "ours: does completing save time against waiting, and accuracy against dropping and keeping?",
            "time",
            ("fedavg",),
            ("wait", "drop", "keep", "complete"),
        ),
        Item(
            "epochs",
            "Rounds to the target over local work",
            "more local work, fewer rounds, for every method; FedLGA needs the fewest at every E",
            "sweep",
            axis="local work E",
            short="E",
        ),
        Item(
            "rho",
            "Rounds to the target over the share of slow devices",
            "more slow devices, more rounds, for every method; FedLGA needs the fewest at every rho",
            "sweep",
            axis="share of slow devices rho",
            short="rho",
        ),
        Item(
            "audit",
            "Approximation error",
            "ours: how far are completed updates from those the devices would have sent? 1 is what doing nothing gives",
            "audit",
            ("fedlga",),
            axis="one unit of work, eta_l",
        ),
    )
}

# The paper's own numbers, by item and dataset; a sweep's by method and point.
_ROUNDS = {
    "fashion-mnist": {"fedlga": 60, "fedavg": 116, "fedprox": 96, "fednova": 100, "scaffold": 72, "feddyn": 71},
    "cifar-10": {"fedlga": 220, "fedavg": 350, "fedprox": 293, "fednova": 334, "scaffold": 278, "feddyn": 254},
    "cifar-100": {"fedlga": 145, "fedavg": 277, "fedprox": 213, "fednova": 269, "scaffold": 185, "feddyn": 162},
}
_SECONDS = {  # a round, and to the target
    "fashion-mnist": {
        "fedlga": (9.4, 565.8),
        "fedavg": (8.9, 1032.4),
        "fedprox": (12.2, 1171.7),
        "fednova": (9.1, 910.0),
        "scaffold": (11.2, 806.7),
        "feddyn": (12.2, 869.3),
    },
    "cifar-10": {
        "fedlga": (12.1, 2668.6),
        "fedavg": (10.7, 3741.5),
        "fedprox": (13.4, 3932.1),
        "fednova": (10.9, 3640.6),
        "scaffold": (13.1, 3636.2),
        "feddyn": (12.8, 3251.2),
    },
    "cifar-100": {
        "fedlga": (11.8, 1711.0),
        "fedavg": (11.3, 3130.1),
        "fedprox": (12.9, 2747.7),
        "fednova": (11.6, 3120.4),
        "scaffold": (12.4, 2287.8),
        "feddyn": (12.7, 2057.4),
    },
}
_TAU = {"fashion-mnist": (29, 41, 54, 60), "cifar-10": (109, 157, 186, 220), "cifar-100": (122, 126, 140, 145)}
_PRINTED: dict[tuple[str, str, float], dict[str, int]] = {
    ("epochs", "fashion-mnist", 8): {"fedlga": 52, "fedavg": 104},
    ("cohort", "cifar-100", 25): {"fedlga": 78},
}
TAU_SHARES = (0.2, 0.4, 0.6, 0.8)


def papers_number(item: str, dataset: str, method: str, value: float | str | None = None) -> str:
    """What the paper prints in this place; '-' where it prints nothing one could read off."""
    dataset = dataset.removesuffix("-quick").removesuffix("-small")
    at_base = {"epochs": 5, "rho": 0.5, "devices": 50, "cohort": 10}.get(item)
    if item == "runtime":
        found = _SECONDS.get(dataset, {}).get(method)
        return "-" if found is None else f"{found[0]} a round, {found[1]:.0f} in all"
    if item == "best":
        return "64.44 %" if (dataset, method) == ("cifar-10", "fedlga") else "-"
    if item == "tau-max" and method == "fedlga" and dataset in _TAU and value in TAU_SHARES:
        return str(_TAU[dataset][TAU_SHARES.index(float(value))])
    if isinstance(value, float | int) and (found := _PRINTED.get((item, dataset, value))) is not None:
        return str(found.get(method, "-"))
    if item in ("accuracy", "tau-max") or (at_base is not None and value == at_base):
        return str(_ROUNDS.get(dataset, {}).get(method, "-"))
    return "-"
