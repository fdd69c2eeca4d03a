"""Every answer to slow devices that people use, each at its best setting, in simulated time: the decision guide.

    .venv/bin/python benchmarks/schedules.py                  every regime, in order; continues what was interrupted
    .venv/bin/python benchmarks/schedules.py fleet phones     these regimes
    .venv/bin/python benchmarks/schedules.py --list           the regimes, with the command of each
    .venv/bin/python benchmarks/schedules.py --curves fleet   what the figure of a regime shows, at the settings that
                                                              were chosen (choice.toml); its tables stay as they are

Seven answers (wait, drop, keep, complete, over-selection, buffered, buffered with complete) with three methods. All
have the same simulated time. The rate and how many devices work at a time (the cohort, or for a buffer those at work)
are searched for all of them in the same way; answers with settings of their own (over-selection's factor, the buffer,
FedProx's mu) get further trials for these. Among the phones, the number at work is the same for all. Settings are
chosen on two seeds, by the accuracy over the last fifth of the time, and shown on others: ten, or five where runs take
longest. With five, no difference between two of twenty arms is beyond chance by an exact test.
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

from tuned import Regime, run_study

from fedlga.core.types import Record
from fedlga.experiments.arms import Arm
from fedlga.experiments.compare import Plan
from fedlga.experiments.config import Experiment
from fedlga.experiments.parallel import Job, RunPool
from fedlga.experiments.parsing import parse_seeds, parse_setting
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_records
from fedlga.experiments.tune import HELD_OUT, TuningPlan, held_out_plan
from fedlga.report.learning_curves import CurvePanel, draw_curves
from fedlga.report.seed_curves import CURVES, read_curves, write_curves
from fedlga.report.style import policy_style

OUT = Path(__file__).parents[1] / "results" / "schedules"
METHODS = ("fedavg", "fednova", "fedprox")
MOST_STEPS = 20000  # never reached: the time ends a run


def list_arms(every: int, long_every: int) -> list[str]:
    """Return the arms; those with longer steps are evaluated more often."""
    answers = [
        f"complete evaluate_every={every}",  # the one that the others are compared with
        f"keep evaluate_every={every}",
        f"drop evaluate_every={every}",
        f"wait evaluate_every={long_every}",
        f"wait schedule=over-selection evaluate_every={long_every}",
        f"wait schedule=buffered evaluate_every={every}",
        f"complete schedule=buffered evaluate_every={every}",
    ]
    return [f"{method} {answer}" for answer in answers for method in METHODS]


def make_regime(meaning: str, sets: list[str], at_work: str, buffer: str, every: int = 5, **more: object) -> Regime:
    """Return a regime with all answers; the same numbers of devices at work are tried for all of them."""
    grids = [f"cohort={at_work}", "fedprox.mu=0.1,1", "over-selection.factor=1.3,1.6", f"buffered.buffer={buffer}"]
    arms = list_arms(every, max(1, every // 5))
    settings: dict[str, object] = {"rates": "0.03,0.1", "held_out": "0-9", "waits": "", "rounds": MOST_STEPS, **more}
    return Regime(meaning, sets, arms=arms, grids=grids, **settings)  # type: ignore[arg-type]


FEW = {"at_work": "10,30", "buffer": "5,10"}
REGIMES = {
    "fleet": make_regime(
        "the same devices are always slow (1 of 5 batches), and four classes are only theirs", [], **FEW, limit=500.0
    ),
    "lognormal": make_regime(
        "log-normal speeds (deviation 1.2), Dirichlet 0.3",
        ["slow_classes=[]", "speed_sigma=1.2", "partition=dirichlet", "partition_alpha=0.3"],
        **FEW,
        limit=500.0,
    ),
    "phones": make_regime(
        "10,000 phones with a heavy tail (index 1.5) that come and go",
        ["tail=1.5"],
        at_work="50",  # of all answers; more is better for each of them, and costs more devices
        buffer="10,25",
        preset="phones",
        deadline=4.0,
        limit=400.0,
        held_out="0-4",
    ),
    "cifar-10": make_regime(
        "as fleet, on CIFAR-10 with the CNN",
        ["dataset=cifar-10", "model=cnn"],
        **FEW,
        every=10,
        target=0.25,
        limit=300.0,
        held_out="0-4",
    ),
}

LINES = {  # arms of FedAvg, by what they are: name and style. The first is the one that others are compared with.
    ("complete", "rounds"): ("complete", policy_style("complete")),
    ("keep", "rounds"): ("keep", policy_style("keep")),
    ("drop", "rounds"): ("drop", policy_style("drop")),
    ("wait", "rounds"): ("wait", policy_style("wait")),
    ("wait", "over-selection"): ("over-selection", ("#7f7f7f", "-.")),
    ("wait", "buffered"): ("buffered", ("#984ea3", "-")),
    ("complete", "buffered"): ("buffered, complete", ("#984ea3", "--")),
}
AXES = ("simulated_seconds", "work_seconds", "megabytes")


def collect(name: str, plan: Plan, work: Path, out: Path) -> None:
    """Write what the figure of a regime shows: FedAvg with every answer, on the held-out seeds."""
    runs: dict[str, dict[int, list[Record]]] = {}
    for arm, experiment, folder in plan.runs(work / name / HELD_OUT):
        if arm.method == "fedavg":
            runs.setdefault(LINES[arm.policy, experiment.schedule][0], {})[experiment.seed] = read_records(folder)
    write_curves(out / name / CURVES, runs, ["accuracy", "accuracy_slow"])


def draw(name: str, out: Path) -> None:
    """Draw accuracy over time, over what it cost the devices, and over traffic, from the curves of a regime."""
    lines, regime = {line[0]: line for line in LINES.values()}, REGIMES[name]
    learned = preset(regime.preset).changed(dict(parse_setting(text) for text in regime.sets)).subject
    draw_curves(
        read_curves(out / name / CURVES),
        [out / name / f"{name}.png", out / name / f"{name}.svg"],
        [[CurvePanel("accuracy", axis, lines, "test accuracy", regime.target) for axis in AXES]],
        subject=f"{learned}, FedAvg, every answer at its best setting",
        width=10.0,
    )


def collect_and_draw(name: str, work: Path, out: Path) -> None:
    """Write the curves of a regime whose runs are over, and draw them."""
    collect(name, held_out_plan(TuningPlan.load(work / name), work / name), work, out)
    draw(name, out)


def run_curves(name: str, work: Path, out: Path) -> None:
    """Run what the figure of a regime shows at the settings that were chosen, and draw it. What is there is kept."""
    choice = tomllib.loads((out / name / "choice.toml").read_text())
    arms = [Arm(a["method"], a["policy"], a["settings"]) for a in choice["arms"] if a["method"] == "fedavg"]
    base = Experiment.from_dict(choice["base"]).changed({"backend": "serial"})
    plan = Plan(base, {}, [], [], list(parse_seeds(REGIMES[name].held_out)), more_arms=arms)
    with RunPool() as pool:
        for outcome in pool.run([Job(e, folder) for _, e, folder in plan.runs(work / name / HELD_OUT)]):
            print(f"{outcome.job.folder}: {outcome.summary['final_accuracy']:.1%}", flush=True)
    collect(name, plan, work, out)
    draw(name, out)


if __name__ == "__main__":
    work = Path("tunings/schedules")
    if sys.argv[1:2] == ["--curves"]:
        for name in sys.argv[2:] or REGIMES:
            run_curves(name, work, OUT)
    else:
        run_study(REGIMES, __doc__, work, OUT, collect_and_draw)
