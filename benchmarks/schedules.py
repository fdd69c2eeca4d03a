"""Every answer to slow devices that people use, each at its best setting, in simulated time: the decision guide.

    .venv/bin/python benchmarks/schedules.py                  every regime, in order; continues what was interrupted
    .venv/bin/python benchmarks/schedules.py fleet phones     these regimes
    .venv/bin/python benchmarks/schedules.py --list           the regimes, with the command of each

Seven answers (wait, drop, keep, complete, over-selection, buffered, buffered with complete) with three methods. All
have the same simulated time. The rate and how many devices work at a time (the cohort, or for a buffer those at work)
are searched for all of them in the same way; answers with settings of their own (over-selection's factor, the buffer,
FedProx's mu) get further trials for these. Among the phones, the number at work is the same for all. Settings are
chosen on two seeds, by the accuracy over the last fifth of the time, and shown on others: ten, or five where runs take
longest. With five, no difference between two of twenty arms is beyond chance by an exact test.
"""

from __future__ import annotations

from pathlib import Path

from tuned import Regime, run_study

from fedlga.core.types import Record
from fedlga.experiments.records import read_records
from fedlga.experiments.tune import TuningPlan, held_out_plan
from fedlga.report.figures import (
    collect_curve,
    describe_seeds,
    draw_with_interval,
    open_figure,
    put_legend_outside,
    use_percent,
)
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

LINES = {  # arms of FedAvg, by what they are: name and style
    ("wait", "rounds"): ("wait", policy_style("wait")),
    ("drop", "rounds"): ("drop", policy_style("drop")),
    ("keep", "rounds"): ("keep", policy_style("keep")),
    ("complete", "rounds"): ("complete", policy_style("complete")),
    ("wait", "over-selection"): ("over-selection", ("#7f7f7f", "-.")),
    ("wait", "buffered"): ("buffered", ("#984ea3", "-")),
    ("complete", "buffered"): ("buffered, complete", ("#984ea3", "--")),
}
AXES = {"simulated_seconds": "simulated seconds", "work_seconds": "device seconds", "megabytes": "megabytes sent"}


def draw(name: str, work: Path, out: Path) -> None:
    """Draw accuracy over time, over what it cost the devices, and over traffic: FedAvg with every answer."""
    plan = held_out_plan(TuningPlan.load(work / name), work / name)
    runs: dict[tuple[str, str], list[list[Record]]] = {}
    for arm, experiment, folder in plan.runs(work / name / "held-out"):
        if arm.method == "fedavg":
            kind = arm.policy, experiment.schedule
            runs.setdefault(kind, []).append(read_records(folder))
    files = [out / name / f"{name}.png", out / name / f"{name}.svg"]
    note = describe_seeds("FedAvg, every answer at its best setting", [len(each) for each in runs.values()])
    with open_figure(files, columns=3, width=10.0, height=2.9, note=note) as panels:
        for panel, (axis, title) in zip(panels[0], AXES.items(), strict=True):
            for kind, (label, style) in LINES.items():
                x, values = collect_curve(runs[kind], "accuracy", axis)
                draw_with_interval(panel, x, values, style, label)
            panel.set_xlabel(title)
            panel.set_ylim(bottom=0)
            use_percent(panel.yaxis)
        panels[0][0].set_title("test accuracy", loc="left")
        put_legend_outside(panels[0][0])


if __name__ == "__main__":
    run_study(REGIMES, __doc__, Path("tunings/schedules"), OUT, draw)
