"""All items, by name."""

from __future__ import annotations

from fedlga.paper.items.audit import ApproximationError
from fedlga.paper.items.bars import BestAccuracy, Runtime
from fedlga.paper.items.base import Item
from fedlga.paper.items.curves import Accuracy, Loss
from fedlga.paper.items.sweeps import Sweep, vary, vary_tau_max
from fedlga.paper.items.time import Time

ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        Accuracy(
            "accuracy",
            "Test accuracy over rounds",
            "FedLGA reaches the target in the fewest rounds: 1.2 to 1.9 times as fast as the others on Fashion-MNIST",
        ),
        Loss("loss", "Training loss over rounds", "FedLGA ends with the lowest training loss"),
        BestAccuracy("best", "Best accuracy", "FedLGA reaches the best accuracy of the six"),
        Runtime(
            "runtime",
            "Running time",
            "FedLGA is third in seconds a round (behind FedAvg and FedNova) and first in seconds to the target",
        ),
        Sweep(
            "tau-max",
            "Rounds to the target over tau_max",
            "the later slow devices may stop (small tau_max), the fewer rounds FedLGA needs",
            ("fedlga",),
            axis="tau_max / E",
            short="tau_max/E",
            changes=vary_tau_max,
        ),
        Sweep(
            "devices",
            "Rounds to the target over the number of devices",
            "FedLGA learns faster and better with more devices",
            ("fedlga", "fedavg"),
            axis="devices N",
            short="N",
            changes=vary("devices", lambda setting: setting.devices),
            rises=False,
            fedlga_only=True,
        ),
        Sweep(
            "cohort",
            "Rounds to the target over the cohort",
            "FedLGA needs fewer rounds with larger cohorts",
            ("fedlga", "fedavg"),
            axis="cohort K",
            short="K",
            changes=vary("cohort", lambda setting: setting.cohorts),
            rises=False,
            fedlga_only=True,
        ),
        Time(
            "time",
            "Accuracy over simulated time, by policy",
            "does completing save time against waiting, and accuracy against dropping and keeping?",
            ("fedavg",),
            ("wait", "drop", "keep", "complete"),
            ours=True,
        ),
        Sweep(
            "epochs",
            "Rounds to the target over local work",
            "more local work, fewer rounds, for every method; FedLGA needs the fewest at every E",
            axis="local work E",
            short="E",
            changes=vary("epochs", lambda setting: setting.epochs),
            rises=False,
        ),
        Sweep(
            "rho",
            "Rounds to the target over the share of slow devices",
            "more slow devices, more rounds, for every method; FedLGA needs the fewest at every rho",
            axis="share of slow devices rho",
            short="rho",
            changes=vary("rho", lambda setting: setting.rhos),
        ),
        ApproximationError(
            "audit",
            "Approximation error",
            "how far are completed updates from those the devices would have sent? 1 is what doing nothing gives",
            ("fedlga",),
            ours=True,
        ),
    )
}
