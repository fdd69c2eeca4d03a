"""Completing against its rivals, each at its best setting, in every regime: the study behind the README's tables.

    .venv/bin/python benchmarks/tuned.py                  every regime, in order; continues what was interrupted
    .venv/bin/python benchmarks/tuned.py fleet dirichlet  these regimes
    .venv/bin/python benchmarks/tuned.py --list           the regimes, with the command of each

Each regime is one call of `fedlga tune`. The settings of every arm are chosen on two seeds, by the accuracy over the
last fifth of the simulated time, and shown on eight others. The default law of completing was chosen on seeds 101 and
102 of some of these regimes (docs/approximation.md): no seed here is one of them.
"""

from __future__ import annotations

import argparse
import csv
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fedlga.core.types import Record
from fedlga.experiments.measures import describe_machine
from fedlga.experiments.records import read_records
from fedlga.experiments.tune import TuningPlan, held_out_plan
from fedlga.report.learning_curves import CurvePanel, draw_curves
from fedlga.report.seed_curves import CURVES, read_curves, write_curves
from fedlga.report.style import method_style, policy_style

OUT = Path(__file__).parents[1] / "results" / "tuned"
TWO_SPEEDS = "speeds=[" + ",".join(["0.2", "1.0", "1.0", "0.2", "1.0"] * 10) + "]"  # 20 of 50 devices are slow

SCALES = ["fedavg complete", "fedavg complete scale=growth", "fedavg complete scale=linear"]
RIVALS = ["fedavg keep", "fednova keep", "fedavg keep server_optimizer=adam"]
MORE_RIVALS = ["fedprox keep", "fedavg keep server_optimizer=momentum", "fedavg drop"]
ADAM = ["adam.eta_g=0.003,0.01"]
MORE_GRIDS = ["fedprox.mu=0.1,1", "momentum.eta_g=0.1,1"]


@dataclass(frozen=True)
class Regime:
    """One setting of the study."""

    meaning: str
    sets: list[str] = field(default_factory=list[str])
    rates: str = "0.03,0.1"
    rounds: int = 100  # of policies that do not wait
    deadline: float = 5.0
    every: int = 5  # rounds between evaluations; waiting, whose rounds are longer, is evaluated more often
    wait_every: int = 1
    target: float = 0.75
    preset: str = "fleet"
    arms: list[str] = field(default_factory=lambda: [*SCALES, *RIVALS])
    grids: list[str] = field(default_factory=lambda: list(ADAM))
    waits: str = "fedavg"  # the method that is also run with `wait`; empty: none
    limit: float | None = None  # simulated seconds; None: of all rounds
    seeds: str = "200-201"
    held_out: str = "0-7"

    def command(self) -> list[str]:
        """Return the arguments of fedlga tune."""
        limit = self.limit or self.rounds * self.deadline
        sets = [f"time_limit={limit:g}", f"deadline={self.deadline:g}", f"evaluate_every={self.every}", *self.sets]
        arms = [*self.arms, *([f"{self.waits} wait evaluate_every={self.wait_every}"] if self.waits else [])]
        pairs = [("--set", text) for text in sets] + [("--arm", text) for text in arms]
        pairs += [("--grid", text) for text in [f"lr={self.rates}", *self.grids]]
        pairs += [("--seeds", self.seeds), ("--held-out", self.held_out)]
        start = ["tune", "--preset", self.preset, "--rounds", str(self.rounds), "--target", f"{self.target:g}"]
        return start + [word for pair in pairs for word in pair]


def method_arms(method: str) -> list[str]:
    """Return the arms that show completing with another method."""
    return [
        f"{method} complete",
        f"{method} complete scale=growth",
        f"{method} complete scale=linear",
        f"{method} keep",
    ]


FULL = {"arms": [*SCALES, *RIVALS, *MORE_RIVALS], "grids": [*ADAM, *MORE_GRIDS]}
WITH_ADAM = "server_optimizer=adam adam.eta_g=0.01"
REGIMES = {
    "fleet": Regime(
        "the same devices are always slow (1 of 5 batches), and four classes are only theirs",
        rates="0.01,0.03,0.1,0.3",
        **FULL,
    ),
    "optimizers": Regime(
        "as fleet, with server optimisers",
        arms=[f"fedavg {policy} server_optimizer={o}" for o in ("adam", "momentum") for policy in ("complete", "keep")],
        grids=["adam.eta_g=0.003,0.01", "momentum.eta_g=0.3,1"],
    ),
    "cifar-10": Regime(
        "as fleet, on CIFAR-10 with the CNN",
        ["dataset=cifar-10", "model=cnn"],
        rounds=60,
        every=6,
        target=0.25,
        arms=[
            *("fedavg complete", "fedavg keep", "fednova keep"),
            *(f"fedavg {policy} {WITH_ADAM}" for policy in ("complete", "keep")),
        ],
        grids=[],
        wait_every=2,
        held_out="0-4",
    ),
    "random": Regime(
        "other devices are slow in every round: half of them, 1 to 5 of 5 batches",
        ["fleet=paper", "rho=0.5", "tau_max=5"],
        preset="paper",
    ),
    "same-classes": Regime(
        "20 of 50 devices are always slow, no class is theirs alone", ["slow_classes=[]", TWO_SPEEDS]
    ),
    "dirichlet": Regime(
        "log-normal speeds (deviation 1.2), Dirichlet 0.3",
        ["slow_classes=[]", "speed_sigma=1.2", "partition=dirichlet", "partition_alpha=0.3"],
    ),
    "digits": Regime("as fleet, on digits", ["dataset=digits"], rates="0.1,0.3,1", every=2, target=0.9, **FULL),
    "scaffold": Regime("as fleet, with Scaffold", arms=method_arms("scaffold"), grids=[], waits="scaffold"),
    "feddyn": Regime("as fleet, with FedDyn", arms=method_arms("feddyn"), grids=[], waits="feddyn"),
    "few": Regime("as fleet, but one class is slow: about two of ten selected devices", ["slow_classes=[0]"]),
    "epochs": Regime(
        "as fleet, but one unit is a pass over the data",
        ["steps_per_epoch=0"],
        rounds=15,
        deadline=600,
        every=1,
        target=0.7,
        arms=["fedavg complete", "fedavg complete scale=growth", *RIVALS],
    ),
    "ratio-20": Regime("as fleet, but slow devices do 1 of 20 batches", ["epochs=20", "slow_speed=0.05"], deadline=20),
    "iid": Regime(
        "20 of 50 devices are always slow, every device holds all classes",
        ["slow_classes=[]", TWO_SPEEDS, "partition=iid"],
        target=0.8,
    ),
    "ratio-2": Regime("as fleet, but slow devices do 2 of 4 batches", ["epochs=4", "slow_speed=0.5"], deadline=4),
}


def run_regime(regimes: Mapping[str, Regime], name: str, work: Path, out: Path) -> None:
    """Run one regime, or what is missing of it, and keep its tables."""
    folder = work / name
    start = regimes[name].command()
    again = (folder / "tuning.toml").exists()
    command = ["tune", "--resume", str(folder)] if again else [*start, "--out", str(folder)]
    began = time.monotonic()
    subprocess.run([sys.executable, "-m", "fedlga", *command], check=True)  # noqa: S603
    spent = folder / "seconds.txt"
    before = float(spent.read_text()) if spent.exists() else 0.0
    spent.write_text(str(before + time.monotonic() - began))
    (out / name).mkdir(parents=True, exist_ok=True)
    for file in ("tuning.csv", "choice.toml", "held-out/paired.csv", "held-out/runs.csv"):
        shutil.copy(folder / file, out / name / Path(file).name)
    write_index(regimes, work, out)


FIGURE_ARMS = {  # arms of the regime `fleet` that its figure shows, by the start of their label
    "fedavg-complete-lr": "complete",
    "fedavg-keep-lr": "keep",
    "fednova-keep": "FedNova (keep)",
    "fedavg-keep-server_optimizer=adam": "FedAdam (keep)",
    "fedavg-wait": "wait",
    "fedavg-drop": "drop",
}
FIGURE_LINES = {
    "complete": policy_style("complete"),
    "keep": policy_style("keep"),
    "FedNova (keep)": method_style("fednova"),
    "FedAdam (keep)": ("#000000", "-."),  # grey is `drop`
    "wait": policy_style("wait"),
    "drop": policy_style("drop"),
}


def collect_fleet(work: Path, out: Path) -> None:
    """Write what the figure of the regime `fleet` shows: every arm at its best setting, on the held-out seeds."""
    plan = held_out_plan(TuningPlan.load(work / "fleet"), work / "fleet")
    runs: dict[str, dict[int, list[Record]]] = {}
    for arm, experiment, folder in plan.runs(work / "fleet" / "held-out"):
        name = next((name for start, name in FIGURE_ARMS.items() if arm.label.startswith(start)), None)
        if name is not None:
            runs.setdefault(name, {})[experiment.seed] = read_records(folder)
    write_curves(out / "fleet" / CURVES, runs, ["accuracy", "accuracy_slow"])


def draw_fleet(out: Path) -> None:
    """Draw accuracy over simulated time in the regime `fleet`, from its curves."""
    titles = {"accuracy": "test accuracy", "accuracy_slow": "on the slow devices' data"}
    lines = {name: (name, style) for name, style in FIGURE_LINES.items()}
    draw_curves(
        read_curves(out / "fleet" / CURVES),
        [out / "fleet" / "fleet.png", out / "fleet" / "fleet.svg"],
        [
            [
                CurvePanel(measure, "simulated_seconds", lines, title, target)
                for (measure, title), target in zip(titles.items(), (REGIMES["fleet"].target, None), strict=True)
            ]
        ],
        subject="Fashion-MNIST, every arm at its best rate",
        width=7.6,
    )


def write_index(regimes: Mapping[str, Regime], work: Path, out: Path) -> None:
    """Write regimes.csv: what each regime is, its command, and how long it took."""
    done = [name for name in regimes if (out / name / "paired.csv").exists()]
    old = (
        {row["regime"]: row for row in csv.DictReader((out / "regimes.csv").open())}
        if (out / "regimes.csv").exists()
        else {}
    )
    with (out / "regimes.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["regime", "meaning", "target", "minutes", "machine", "command"])
        for name in done:
            spent = work / name / "seconds.txt"
            regime, before = regimes[name], old.get(name, {})
            minutes, machine = before.get("minutes", ""), before.get("machine", "")
            if spent.exists():  # it was run here
                minutes, machine = f"{float(spent.read_text()) / 60:.0f}", describe_machine()
            command = "fedlga " + shlex.join(regime.command())
            writer.writerow([name, regime.meaning, regime.target, minutes, machine, command])


def run_study(
    regimes: Mapping[str, Regime], about: str | None, work: Path, out: Path, draw: Callable[[str, Path, Path], None]
) -> None:
    """Read the command line of a study, and run its regimes; `draw` is called after each."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("regimes", nargs="*", metavar="REGIME")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--work", type=Path, default=work, help="where the runs are kept")
    parser.add_argument("--out", type=Path, default=out, help="where the tables go")
    arguments = parser.parse_args()
    if unknown := [name for name in arguments.regimes if name not in regimes]:
        parser.error(f"there is no regime {unknown[0]!r}; there is: {', '.join(regimes)}")
    for name in arguments.regimes or regimes:
        if arguments.list:
            print(f"{name}: {regimes[name].meaning}\n  fedlga {shlex.join(regimes[name].command())}")
        else:
            print(f"== {name}: {regimes[name].meaning}", flush=True)
            run_regime(regimes, name, arguments.work, arguments.out)
            draw(name, arguments.work, arguments.out)


def draw_if_fleet(name: str, work: Path, out: Path) -> None:
    """Draw the figure of the README, which is of one regime."""
    if name == "fleet":
        collect_fleet(work, out)
        draw_fleet(out)


if __name__ == "__main__":
    run_study(REGIMES, __doc__, Path("tunings/tuned"), OUT, draw_if_fleet)
