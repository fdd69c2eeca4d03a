"""What is run for each dataset: the experiment that all items vary, and the values that sweeps take."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedlga.core.settings import choose
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.regimes import REGIMES, THE_FIVE


@dataclass(frozen=True)
class Setting:
    """A dataset with the experiment that all its items vary."""

    name: str
    base: Experiment
    longest: int  # rounds after which a sweep gives up on the target
    note: str  # in what it is the paper's setting, and in what not
    exact: bool = True  # the paper's setting, as far as the paper states it
    epochs: Sequence[int] = (3, 5, 8)  # with E = 2 no device is slow: tau_max = E - 1 = 1
    rhos: Sequence[float] = (0.1, 0.5, 0.9)
    devices: Sequence[int] = (30, 50, 100)
    cohorts: Sequence[int] = (5, 10, 25)
    regimes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    own: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict[str, Mapping[str, Any]]
    )  # by method: its settings
    loss_points: int = 20  # how often the loss on all training data is computed in a run

    def cut(self, rounds: int) -> Setting:
        """Return the beginning of this setting: its first rounds, under a name of its own."""
        base, name = self.base.changed({"rounds": rounds}), f"{self.name}-{rounds}-rounds"
        note = f"only the first {rounds} of {self.base.rounds} rounds; {self.note}"
        return replace(self, name=name, base=base, longest=min(rounds, self.longest), note=note, exact=False)


EXAMPLES = {"fashion-mnist": 60_000, "cifar-10": 50_000, "cifar-100": 50_000, "digits": 1_438}
_OPEN = "eta_l is ours: the paper states none, nor what one unit of local work is"


TAU_SHARES = (0.2, 0.4, 0.6, 0.8)
TUNED_RATES: dict[str, dict[str, float]] = {"cifar-10": {}, "cifar-100": {"feddyn": 0.03}}
# eta_l of methods whose best, in results/cifar, is not the preset's: a test compares them


def _audit_regimes(rounds: Mapping[str, int]) -> dict[str, dict[str, Any]]:
    """Return the audit's regimes, with so many rounds for batches and for passes."""
    return {name: {**REGIMES[name], "rounds": rounds[name.split(",")[0]]} for name in THE_FIVE}


def _make_batches(dataset: str) -> Setting:
    """Return the paper's setting for CIFAR with one batch a unit of work, each method at its own rate."""
    base = preset({"cifar-10": "cifar10-batches", "cifar-100": "cifar100-batches"}[dataset])
    own = {method: {"lr": lr} for method, lr in TUNED_RATES[dataset].items()}
    note = (
        "the paper's model, data, partition, fleet and augmentation, but one unit of work = one batch (Eq. 2 to the "
        f"letter) in place of an epoch, a hundredth of the local work; rates chosen on another seed: eta_l {base.lr:g}"
        + "".join(f", {method} {lr:g}" for method, lr in TUNED_RATES[dataset].items())
        + f"; {base.rounds} rounds"
    )
    return Setting(f"{dataset}-batches", base, base.rounds, note, exact=False, own=own, loss_points=4)


def make_setting(dataset: str, *, small: bool = False, batches: bool = False, quick: bool = False) -> Setting:
    """Return what is run for a dataset: the paper's setting; one of batches or smaller; or a quick try of all items."""
    known = ("fashion-mnist", "cifar-10", "cifar-100", "digits")
    choose("--dataset", dataset, known)
    if dataset == "digits":
        base = preset("digits").changed({"rounds": 6, "devices": 20, "backend": "pool"})
        cut: dict[str, Any] = {"epochs": (3, 5), "rhos": (0.1, 0.5), "devices": (10, 20), "cohorts": (3, 5)}
        return Setting("digits", base, 8, "not in the paper: small data to try the command on", exact=False, **cut)
    if dataset == "fashion-mnist":
        if quick:
            base = preset("paper").changed({"rounds": 40, "lr": 0.003, "evaluate_every": 2})
            cut: dict[str, Any] = {"epochs": (3, 5, 8)}
            note = f"a quick try: eta_l 0.003 and 40 rounds, 80 to the target; {_OPEN}"
            few = _audit_regimes({"batch": 20, "epoch": 2})
            return Setting("fashion-mnist-quick", base, 80, note, exact=False, **cut, regimes=few)
        note = f"the paper's setting, one unit of work = one batch, eta_l 0.00075; {_OPEN}"
        return Setting("fashion-mnist", preset("paper"), 400, note, regimes=_audit_regimes({"batch": 150, "epoch": 20}))
    exact = preset({"cifar-10": "cifar10", "cifar-100": "cifar100"}[dataset])
    if batches:
        return _make_batches(dataset)
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
    return Setting(
        f"{dataset}-{'quick' if quick else 'small'}",
        base,
        20 if quick else 200,
        note,
        exact=False,
        loss_points=4,
        **few,
    )
