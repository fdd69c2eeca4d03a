"""All items, by name."""

from __future__ import annotations

from fedlga.paper.items.audit import ApproximationError
from fedlga.paper.items.bars import BestAccuracy, Runtime
from fedlga.paper.items.base import Item
from fedlga.paper.items.curves import Accuracy, Loss
from fedlga.paper.items.sweeps import AccuracyOver, RoundsOver, vary, vary_tau_max
from fedlga.paper.items.time import Time

FEWEST = "FedLGA reaches the target in the fewest rounds"
ITEMS: dict[str, Item] = {
    item.name: item
    for item in (
        Accuracy(
            "accuracy",
            "Test accuracy over rounds",
            FEWEST,
            says_of={
                "fashion-mnist": f"{FEWEST}: 1.2 to 1.9 times as fast as the others",
                "cifar-10": f"{FEWEST}: 1.2 to 1.6 times as fast as the others",
                "cifar-100": f"{FEWEST}: 1.1 to 1.9 times as fast as the others",
            },
        ),
        Loss(
            "loss",
            "Training loss over rounds",
            "FedLGA ends with the lowest training loss",
            says_of={"cifar-10": "FedLGA ends with the second-lowest training loss, and falls the fastest"},
            second_on=("cifar-10",),
        ),
        BestAccuracy(
            "best",
            "Best accuracy",
            "FedLGA reaches the best accuracy of the six",
            says_of={
                "cifar-10": "FedLGA reaches the best accuracy of the six, 64.44 %: 0.4 % (FedDyn) to 5.7 % (FedAvg) "
                "more than the others"
            },
        ),
        Runtime(
            "runtime",
            "Running time",
            "FedLGA is third in seconds a round (behind FedAvg and FedNova) and first in seconds to the target",
        ),
        RoundsOver(
            "tau-max",
            "Rounds to the target over tau_max",
            "FedLGA needs the fewest rounds at every tau_max, and fewer if slow devices may stop later (small tau_max)",
            axis="tau_max / E",
            short="tau_max/E",
            changes=vary_tau_max,
            trend_of_all=False,
        ),
        AccuracyOver(
            "devices",
            "Test accuracy over the number of devices",
            "FedLGA learns faster and ends higher with more devices",
            ("fedlga", "fedavg"),
            claimed_of=("cifar-10", "cifar-100"),
            axis="devices N",
            short="N",
            changes=vary("devices", lambda setting: setting.devices),
        ),
        AccuracyOver(
            "cohort",
            "Test accuracy over the cohort",
            "FedLGA learns faster and ends higher with larger cohorts",
            ("fedlga", "fedavg"),
            claimed_of=("cifar-10", "cifar-100"),
            axis="cohort K",
            short="K",
            changes=vary("cohort", lambda setting: setting.cohorts),
            says_of={
                "cifar-100": "FedLGA learns faster and ends higher with larger cohorts: 78 rounds to 40 % at K = 25"
            },
        ),
        Accuracy(
            "scheme-i",
            "Test accuracy over rounds, devices drawn with replacement",
            "with scheme I (devices drawn with replacement), by which its theory and its FedAvg go, FedLGA reaches the "
            "target in the fewest rounds",
            changes={"sampling": "with-replacement"},
        ),
        Time(
            "time",
            "Accuracy over simulated time, by policy",
            "does completing save time against waiting, and accuracy against dropping and keeping?",
            ("fedavg",),
            ("wait", "drop", "keep", "complete"),
            ours=True,
        ),
        RoundsOver(
            "epochs",
            "Rounds to the target over local work",
            "more local work, fewer rounds, for every method; FedLGA needs the fewest at every E",
            axis="local work E",
            short="E",
            changes=vary("epochs", lambda setting: setting.epochs),
            rises=False,
        ),
        RoundsOver(
            "rho",
            "Rounds to the target over the share of slow devices",
            "more slow devices, more rounds, for every method; FedLGA needs the fewest at every rho, 0.1 among them",
            axis="share of slow devices rho",
            short="rho",
            changes=vary("rho", lambda setting: setting.rhos),
            similar={"fashion-mnist": 0.1, "cifar-10": 0.1},
            says_of=dict.fromkeys(
                ("fashion-mnist", "cifar-10"),
                "more slow devices, more rounds, for every method; at rho = 0.1 all methods are similar, above it "
                "FedLGA needs the fewest",
            ),
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
