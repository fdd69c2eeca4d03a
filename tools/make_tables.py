"""Write the tables of README.md and docs/ from the data in results/, and check that they are current.

    .venv/bin/python tools/make_tables.py             # rewrite every table (make tables)
    .venv/bin/python tools/make_tables.py --check     # change nothing; exit code 1 if a table is stale or made by hand

The pages of the paper's items in results/paper are written again first, from the rows of their runs: what the paper
claims and how it is tested may have been corrected since the runs were made.

A table stands between two comments, each on a line of its own:

    <!-- table rounds folder=policies -->

    | policy | rounds to the target | ...

    <!-- end table -->

The first names a function of this file and its arguments. To add a table, write a function with the decorator `table`
that reads files of results/ and returns a row for each line, as a dictionary from column titles to text. Its name, with
hyphens, is the table's name; its parameters are the table's arguments.

A number with ± is a mean over seeds and half of its 95 % interval (`Estimate`). Fewer than three seeds have no
interval. A page with such a table says so once, in the words of PLUS_MINUS. A table with numbers that is not generated
is an error, unless UNMEASURED lists it.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import inspect
import json
import math
import re
import statistics
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from markdown_it import MarkdownIt

from fedlga.core.files import write_atomically
from fedlga.experiments.measures import list_measures
from fedlga.experiments.statistics import Estimate
from fedlga.paper.printed import find_printed
from fedlga.paper.redraw import find_setting, list_judgeable, remake_page
from fedlga.report.seed_curves import read_curves
from fedlga.report.style import METHOD_NAMES
from fedlga.theory.theorems import Constants, Setting, find_bound

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "results"
PAGES = ("*.md", "docs/*.md", "docs/methods/*.md", "results/README.md", "examples/*/*.md")
PLUS_MINUS = "± is half of the 95 % interval of the mean over the seeds (Student's t)"

# Tables that hold digits but no measured numbers: their pages and header rows.
UNMEASURED = {
    ("docs/concepts.md", "| `fleet` | who is slow | settings |"),
    ("docs/flower.md", "| event | what happens | tested with |"),
    ("docs/flower.md", "| key | meaning | default |"),
    ("docs/reliability.md", "| what the node does | what happens | lost | test |"),
    ("docs/symbols.md", "| here | FedLGA | FedAvg | FedProx | FedNova | Scaffold | FedDyn |"),
    ("docs/symbols.md", "| here | FedLGA |"),
    ("docs/theory.md", "| measured | how |"),
    ("docs/theory.md", "| where | the statement | the derivation |"),
    ("results/README.md", "| folder | command |"),
}
TRANSCRIPTS = ("docs/tutorial.md", "docs/fleet-tutorial.md")  # their code blocks show what commands print

START = re.compile(r"^<!-- table (?P<call>.*\S) -->$")
END = "<!-- end table -->"

Row = dict[str, str]
Record = dict[str, str]  # a line of a CSV file
TABLES: dict[str, Callable[..., list[Row]]] = {}


class BadTable(Exception):
    """A table that cannot be made, in one line."""


def table(function: Callable[..., list[Row]]) -> Callable[..., list[Row]]:
    """Register a function that makes a table."""
    TABLES[function.__name__.replace("_", "-")] = function
    return function


# Reading and formatting


def read_csv(name: str) -> list[Record]:
    """Return the lines of a CSV file in results/."""
    file = RESULTS / name
    if not file.is_file():
        raise BadTable(f"there is no results/{name}")
    with file.open(encoding="utf-8", newline="") as lines:
        return list(csv.DictReader(lines))


def number(record: Record, name: str) -> float | None:
    """Return a value of a line; None if it is empty or not there."""
    text = record.get(name, "")
    return float(text) if text else None


def known(record: Record, name: str) -> float:
    """Return a value that must be there."""
    return float(record[name])


def show(values: Sequence[float | None], form: str) -> str:
    """Return the mean with its interval; if not all seeds have a value, how many have one."""
    return Estimate.of(values).text(form).replace("± +", "± ")  # of a difference, only the mean has a sign


def show_measure(runs: Iterable[Record], measure: str) -> str:
    """Return a measure of fedlga's summaries over these runs."""
    form = next(m.format for m in list_measures("accuracy") if m.name == measure)
    return show([number(run, measure) for run in runs], form)


def digits(value: float, figures: int = 2) -> str:
    """Return a positive number with so many significant figures, without an exponent."""
    rounded = float(f"{value:.{figures}g}")
    decimals = figures - 1 - math.floor(math.log10(rounded))
    return f"{rounded:,.{max(0, decimals)}f}"


def seconds(value: float, figures: int = 2) -> str:
    """Return a time in seconds, or in milliseconds if it is shorter than one."""
    return f"{digits(value, figures)} s" if value >= 1 else f"{digits(1000 * value, figures)} ms"


def count(value: float) -> str:
    """Return a number of parameters: 318010 is '0.3 million'."""
    million = 1_000_000
    return f"{digits(value / million, 1)} million" if value >= million / 10 else f"{value:,.0f}"


def distinct(values: Iterable[str]) -> list[str]:
    """Return values in their order, each once."""
    return list(dict.fromkeys(values))


# Comparisons of policies and methods: results/FOLDER/runs.csv


@dataclass(frozen=True)
class Arm:
    """The runs of one method with one policy and settings of its own."""

    method: str
    policy: str
    settings: str
    runs: list[Record]

    @property
    def label(self) -> Row:
        """The columns that say which arm a row is of."""
        name = METHOD_NAMES.get(self.method, self.method)
        return {"method": name, "policy": self.policy, "settings": self.settings}

    def by_seed(self, measure: str) -> dict[str, float | None]:
        """Return a measure of each run."""
        return {run["seed"]: number(run, measure) for run in self.runs}


def read_arms(folder: str, only: str = "") -> list[Arm]:
    """Return the arms of a comparison; `only` lists methods, or methods with a policy: fedavg,fednova-keep."""
    records = read_csv(f"{folder}/runs.csv")
    keys = list(dict.fromkeys((r["method"], r["stragglers"], r.get("settings") or "") for r in records))
    arms = [
        Arm(*key, [r for r in records if (r["method"], r["stragglers"], r.get("settings") or "") == key])
        for key in keys
    ]
    wanted = only.split(",") if only else []
    for name in wanted:
        if not any(name in (arm.method, f"{arm.method}-{arm.policy}") for arm in arms):
            raise BadTable(f"only={name}: results/{folder}/runs.csv has no such runs")
    return [arm for arm in arms if not wanted or {arm.method, f"{arm.method}-{arm.policy}"} & set(wanted)]


def show_gap(arm: Arm, other: Arm | None) -> str:
    """Return how many rounds more an arm needs than another, seed by seed."""
    if other is None or arm is other:
        return ""
    mine, theirs = arm.by_seed("rounds_to_target"), other.by_seed("rounds_to_target")
    gaps = [a - b for seed, a in mine.items() if a is not None and (b := theirs.get(seed)) is not None]
    return show(gaps, "+.1f") if len(gaps) == len(mine) == len(theirs) else "-"  # none if a run never got there


@table
def rounds(folder: str) -> list[Row]:
    """Rounds and simulated seconds to the target by policy, paired with waiting and with completing."""
    every = read_arms(folder)
    arms = {arm.policy: arm for arm in every}
    if len(arms) < len(every):
        raise BadTable(f"table rounds: results/{folder}/runs.csv has a policy with several methods or settings")
    return [
        {
            "policy": arm.policy,
            "rounds to the target": show_measure(arm.runs, "rounds_to_target"),
            "more than `wait`, seed by seed": show_gap(arm, arms.get("wait")),
            "more than `complete`, seed by seed": show_gap(arm, arms.get("complete")),
            "simulated seconds to it": show_measure(arm.runs, "simulated_seconds_to_target"),
        }
        for arm in arms.values()
    ]


# Arms at their best settings: results/tuned/REGIME/paired.csv, made by benchmarks/tuned.py

ACCURACY, SLOW, TIME = "closing_accuracy", "closing_accuracy_slow", "simulated_seconds_to_target"
OPTIMIZERS = {"adam": "FedAdam", "momentum": "FedAvgM"}
SCALE_NAMES = {"": "feedback", "growth": "growth", "linear": "linear", "trusted": "trusted"}


@dataclass(frozen=True)
class TunedArm:
    """One arm of a regime: its rows of paired.csv by measure."""

    method: str
    policy: str
    settings: dict[str, str]
    rows: dict[str, Record]

    @property
    def name(self) -> str:
        """The method as the literature calls it."""
        optimizer = self.settings.get("server_optimizer", "")
        if self.method == "fedavg" and optimizer:
            return OPTIMIZERS[optimizer]
        return METHOD_NAMES[self.method] + (f" with {optimizer}" if optimizer else "")

    @property
    def scale(self) -> str:
        """The law of completing; empty for other policies."""
        return SCALE_NAMES[self.settings.get("scale", "")] if self.policy == "complete" else ""

    def estimate(self, measure: str, form: str) -> str:
        """Return a mean with its interval; for the time to the target, how many seeds reached it if not all did."""
        row = self.rows.get(measure)
        if row is None:
            return ""
        mean, half = number(row, "mean"), number(row, "half")
        return Estimate(mean, half, int(row["seeds"]), int(row["censored"])).text(form)

    def lead(self, measure: str) -> str:
        """Return the first arm's lead over this one in points; bold: ahead beyond chance; italic: behind."""
        row = self.rows.get(measure)
        if row is None or not row["lead"]:
            return ""
        marks = {"ahead": "**", "behind": "*", "level": ""}[row["verdict"]]
        return f"{marks}{100 * known(row, 'lead'):+.1f}{marks}"


def read_tuned(regime: str, study: str = "tuned") -> list[TunedArm]:
    """Return the arms of a regime in their order; the first is the one that the others are compared with."""
    records = read_csv(f"{study}/{regime}/paired.csv")
    keys = list(dict.fromkeys((r["method"], r["stragglers"], r["settings"]) for r in records))
    arms: list[TunedArm] = []
    for key in keys:
        rows = {r["measure"]: r for r in records if (r["method"], r["stragglers"], r["settings"]) == key}
        settings = dict(word.split("=") for word in key[2].split())
        arms.append(TunedArm(key[0], key[1], {n: v for n, v in settings.items() if n != "evaluate_every"}, rows))
    return arms


def tuned_regimes() -> list[tuple[Record, list[TunedArm]]]:
    """Return the regimes that were run, with their arms."""
    return [(r, read_tuned(r["regime"])) for r in read_csv("tuned/regimes.csv")]


@table
def tuned(regime: str) -> list[Row]:
    """Every arm of a regime at its best setting, on held-out seeds, and the first arm's verdict against it."""
    rows: list[Row] = []
    for arm in read_tuned(regime):
        shown = ("lr", "mu", "eta_g", "lr_decay")
        settings = {n.rpartition(".")[2]: v for n, v in arm.settings.items()}
        verdicts = [arm.rows[m]["verdict"] for m in (ACCURACY, SLOW, TIME) if m in arm.rows]
        rows.append(
            {
                "method": arm.name,
                "policy": arm.policy + (f" ({arm.scale})" if arm.scale else ""),
                "chosen": ", ".join(f"{n} {v}" for n, v in settings.items() if n in shown),
                "accuracy": arm.estimate(ACCURACY, ".1%"),
                "slow devices' data": arm.estimate(SLOW, ".1%"),
                "seconds to the target": arm.estimate(TIME, ".0f"),
                "the first row is": ", ".join(verdicts) if any(verdicts) else "",
            }
        )
    return [{title: cell for title, cell in row.items() if any(r[title] for r in rows)} for row in rows]


SHORT_REGIMES = {  # what a regime is, in a few words
    "fleet": "`fleet`: the same devices are always slow and hold four classes alone",
    "scaffold": "`fleet`: the same devices are always slow and hold four classes alone",
    "feddyn": "`fleet`: the same devices are always slow and hold four classes alone",
    "cifar-10": "`fleet` on CIFAR-10",
    "digits": "`fleet` on digits",
    "epochs": "`fleet`, a unit is a pass over the data",
    "ratio-20": "`fleet`, slow devices do 1 of 20 batches",
    "random": "other devices are slow in every round",
    "same-classes": "always the same slow devices, no class is theirs alone",
    "dirichlet": "log-normal speeds, Dirichlet partition",
    "iid": "always the same slow devices, every device holds all classes",
}


@table
def method_tuned(method: str) -> list[Row]:
    """One method in every regime in which it was tuned, by policy; with plain server steps."""
    wanted = ("fedavg", "complete") if method == "fedlga" else (method, "")
    rows: list[Row] = []
    for regime, arms in tuned_regimes():
        if arms[0].settings.get("server_optimizer"):
            continue
        for arm in arms:
            other_law = arm.scale not in ("", "feedback")
            if arm.settings.get("server_optimizer") or other_law or arm.method != wanted[0]:
                continue
            if wanted[1] not in ("", arm.policy):
                continue
            settings = {n.rpartition(".")[2]: v for n, v in arm.settings.items()}
            rows.append(
                {
                    "fleet and data": SHORT_REGIMES[regime["regime"]],
                    "policy": arm.policy,
                    "chosen": ", ".join(f"{n} {settings[n]}" for n in ("lr", "mu") if n in settings),
                    "accuracy": arm.estimate(ACCURACY, ".1%"),
                    "slow devices' data": arm.estimate(SLOW, ".1%"),
                    "simulated seconds to the target": arm.estimate(TIME, ".0f"),
                }
            )
    return rows


@table
def tuned_leads() -> list[Row]:
    """Completing's lead over each rival by regime, in points: overall, and on the slow devices' data."""
    rivals = {
        "over `keep`": ("", "keep", ""),
        "over FedNova": ("fednova", "keep", ""),
        "over FedAdam": ("", "keep", "adam"),
        "over `wait`": ("", "wait", ""),
    }
    rows: list[Row] = []
    for regime, arms in tuned_regimes():
        first = arms[0]
        if first.settings.get("server_optimizer"):
            continue
        row = {"regime": regime["meaning"], "method": first.name, "accuracy": first.estimate(ACCURACY, ".1%")}
        for title, (method, policy, optimizer) in rivals.items():
            wanted = (method or first.method, policy, optimizer)
            found = [a for a in arms if (a.method, a.policy, a.settings.get("server_optimizer", "")) == wanted]
            leads = [found[0].lead(m) for m in (ACCURACY, SLOW)] if found else []
            row[title] = " / ".join(filter(None, leads))
        rows.append(row)
    return rows


@table
def tuned_times() -> list[Row]:
    """Simulated seconds to the target by regime, each arm at the setting with the best accuracy."""
    rows: list[Row] = []
    for regime, arms in tuned_regimes():
        first = arms[0]
        row = {"regime": regime["regime"], "target": f"{float(regime['target']):.0%}"}
        for policy, optimizer in (("complete", ""), ("keep", ""), ("wait", "")):
            wanted = (first.method, policy, optimizer, "feedback" if policy == "complete" else "")
            found = [a for a in arms if (a.method, a.policy, a.settings.get("server_optimizer", ""), a.scale) == wanted]
            row[f"`{policy}`"] = found[0].estimate(TIME, ".0f") if found else ""
        for title, wanted in (("FedNova", ("fednova", "")), ("FedAdam", ("fedavg", "adam"))):
            found = [
                a for a in arms if (a.method, a.settings.get("server_optimizer", "")) == wanted and a.policy == "keep"
            ]
            row[title] = found[0].estimate(TIME, ".0f") if found else ""
        if row["`complete`"]:
            rows.append(row)
    return rows


@table
def tuned_scales() -> list[Row]:
    """Every law of completing at its best rate, by regime: accuracy, and on the slow devices' data."""
    rows: list[Row] = []
    for regime, arms in tuned_regimes():
        if arms[0].settings.get("server_optimizer"):
            continue
        row = {"regime": regime["regime"], "method": arms[0].name}
        for scale in SCALE_NAMES.values():
            found = [a for a in arms if a.scale == scale and not a.settings.get("server_optimizer")]
            cells = [found[0].estimate(m, ".1%") for m in (ACCURACY, SLOW)] if found else []
            verdicts = [found[0].rows[m]["verdict"] for m in (ACCURACY, SLOW) if found and m in found[0].rows]
            marks = ["**" if v == "ahead" else "*" if v == "behind" else "" for v in verdicts]
            texts = [f"{m}{c.partition(' ±')[0]}{m}" for m, c in zip(marks, cells, strict=False) if c]
            row[scale] = " / ".join(texts)
        rows.append(row)
    return [row for row in rows if row["growth"]]


# Every answer to slow devices: results/schedules/REGIME, made by benchmarks/schedules.py

SCHEDULE_NAMES = {"over-selection": "over-selection", "buffered": "buffered"}
CHOSEN = {"lr": "lr", "cohort": "at work", "factor": "factor", "buffer": "buffer", "mu": "mu"}


def name_answer(settings: dict[str, str], policy: str) -> str:
    """Return an answer to slow devices: the policy, and the schedule if it is not rounds."""
    schedule = SCHEDULE_NAMES.get(settings.get("schedule", ""))
    return policy if schedule is None else schedule + ("" if policy == "wait" else f" + {policy}")


@table
def schedules(regime: str, only: str = "") -> list[Row]:
    """Every answer with every method, or `only` one, at its best setting, on held-out seeds, with what it cost."""
    runs = {(arm.method, arm.policy, arm.settings): arm.runs for arm in read_arms(f"schedules/{regime}")}
    paired = read_tuned(regime, "schedules")
    rows: list[Row] = []
    for arm, ((method, policy, _), records) in zip(paired, runs.items(), strict=True):
        if (arm.method, arm.policy) != (method, policy):
            raise BadTable(f"results/schedules/{regime}: paired.csv and runs.csv have their arms in another order")
        if only not in ("", method):
            continue
        settings = {n.rpartition(".")[2]: v for n, v in arm.settings.items()}
        verdicts = [arm.rows[m]["verdict"] for m in (ACCURACY, SLOW, TIME) if m in arm.rows]
        rows.append(
            {
                "answer": name_answer(settings, policy),
                "method": arm.name,
                "chosen": ", ".join(f"{title} {settings[n]}" for n, title in CHOSEN.items() if n in settings),
                "accuracy": arm.estimate(ACCURACY, ".1%"),
                "slow devices' data": arm.estimate(SLOW, ".1%"),
                "seconds to the target": arm.estimate(TIME, ".0f"),
                "device seconds to it": show_measure(records, "device_seconds_to_target"),
                "megabytes to it": show_measure(records, "megabytes_to_target"),
                "completing is": ", ".join(verdicts) if any(verdicts) else "",
            }
        )
    return [{title: cell for title, cell in row.items() if any(r[title] for r in rows)} for row in rows]


@table
def sensitivity() -> list[Row]:
    """Accuracy, and on the slow devices' data, if the rate is not tuned: results/sensitivity/runs.csv."""
    rows: dict[str, Row] = {}
    for arm in read_arms("sensitivity"):
        settings = dict(word.split("=") for word in arm.settings.split())
        optimizer = settings.get("server_optimizer")
        name = METHOD_NAMES[arm.method] if optimizer is None else OPTIMIZERS[optimizer]
        cells = [show_measure(arm.runs, m) for m in (ACCURACY, SLOW)]
        row = rows.setdefault(settings["lr"], {"eta_l": settings["lr"]})
        row[f"{name}, `{arm.policy}`"] = " / ".join(cells)
    return list(rows.values())


# Which policy, method and deadline: the measurements behind docs/choosing.md


def find_arm(regime: str, method: str, policy: str, optimizer: str = "", study: str = "tuned") -> TunedArm:
    """Return the one arm of a study that is meant; of completing, the present law; of schedules, plain rounds."""
    found = [
        arm
        for arm in read_tuned(regime, study)
        if (arm.method, arm.policy, arm.settings.get("server_optimizer", "")) == (method, policy, optimizer)
        and arm.scale in ("", "feedback")
        and "schedule" not in arm.settings
    ]
    if len(found) != 1:
        raise BadTable(f"results/{study}/{regime}: {len(found)} arms of {method} {policy} {optimizer}, not one")
    return found[0]


def show_schedule(regime: str, answer: str, title: str) -> str:
    """Return a number of FedAvg with an answer to slow devices, from the study of schedules."""
    return next(row[title] for row in schedules(regime, "fedavg") if row["answer"] == answer)


@table
def decisions() -> list[Row]:
    """What to take in which case, what it costs, and the measurement behind it."""

    def of(regime: str, policy: str, method: str = "fedavg", optimizer: str = "", measure: str = ACCURACY) -> str:
        return find_arm(regime, method, policy, optimizer).estimate(measure, ".0f" if measure == TIME else ".1%")

    low = next(row for row in sensitivity() if row["eta_l"] == "0.003")
    paper = {row["policy"]: row["rounds to the target"] for row in rounds("policies")}
    return [
        {
            "your case": "you can tune the local rate and a server optimiser on your fleet",
            "take": "`keep` with `server_optimizer=adam`",
            "what it costs": "a search over two rates",
            "measured": f"{of('fleet', 'keep', optimizer='adam')}; FedAvg at its best rate: "
            f"`keep` {of('fleet', 'keep')}, `complete` {of('fleet', 'complete')}",
        },
        {
            "your case": "you cannot tune, and take a cautious rate",
            "take": "`complete` with `server_optimizer=adam`",
            "what it costs": "above the best rate, completing becomes unstable first with plain averaging",
            "measured": f"at a rate of 0.003: FedAdam `complete` {low['FedAdam, `complete`']}, `keep` "
            f"{low['FedAdam, `keep`']} (all data / slow devices' data)",
        },
        {
            "your case": "plain averaging at a tuned rate",
            "take": "`complete` or `keep`",
            "what it costs": "nothing: they are level",
            "measured": f"`complete` {of('fleet', 'complete')}, `keep` {of('fleet', 'keep')}",
        },
        {
            "your case": "a unit of work is a pass over the data",
            "take": "`keep`",
            "what it costs": "",
            "measured": f"`keep` {of('epochs', 'keep')}, `complete` {of('epochs', 'complete')}",
        },
        {
            "your case": "slow devices hold data that the others do not",
            "take": "`keep` or `complete`, never `drop`",
            "what it costs": "more traffic than FedBuff",
            "measured": f"`drop` {of('fleet', 'drop')}, on the slow devices' data "
            f"{of('fleet', 'drop', measure=SLOW)}; `keep` {of('fleet', 'keep')}",
        },
        {
            "your case": "speeds have nothing to do with the data",
            "take": "`schedule=buffered` (FedBuff), or rounds with `complete`: try both",
            "what it costs": "of FedBuff: no Scaffold, no FedDyn, no secure aggregation",
            "measured": f"seconds to the target {show_schedule('lognormal', 'buffered', 'seconds to the target')}, "
            f"rounds with `complete` {show_schedule('lognormal', 'complete', 'seconds to the target')}; but among "
            f"10,000 phones {show_schedule('phones', 'buffered', 'seconds to the target')} and "
            f"{show_schedule('phones', 'complete', 'seconds to the target')}",
        },
        {
            "your case": "bytes are what you pay for",
            "take": "`schedule=buffered`, or more local work a round",
            "what it costs": "a lower end where slow devices hold data of their own",
            "measured": f"megabytes to the target {show_schedule('fleet', 'buffered', 'megabytes to it')}, rounds with "
            f"`complete` {show_schedule('fleet', 'complete', 'megabytes to it')}; accuracy "
            f"{show_schedule('fleet', 'buffered', 'accuracy')} and {show_schedule('fleet', 'complete', 'accuracy')}",
        },
        {
            "your case": "other devices are slow in every round, at random, and the rate is low",
            "take": "`complete` or `drop`",
            "what it costs": "",
            "measured": f"rounds to the target: `complete` {paper['complete']}, `drop` {paper['drop']}, `keep` "
            f"{paper['keep']}, `wait` {paper['wait']}",
        },
        {
            "your case": "time does not count, or devices are nearly equal",
            "take": "`wait`",
            "what it costs": "the slowest device sets the pace",
            "measured": f"in the same simulated time: `wait` {of('fleet', 'wait')}, `keep` {of('fleet', 'keep')}",
        },
    ]


@table
def methods() -> list[Row]:
    """The six methods and FedAdam in the preset `fleet`, each at its best rate."""
    cases = {
        "FedAvg": ("fleet", "fedavg", "keep", ""),
        "FedLGA": ("fleet", "fedavg", "complete", ""),
        "FedProx": ("fleet", "fedprox", "keep", ""),
        "FedNova": ("fleet", "fednova", "keep", ""),
        "Scaffold": ("scaffold", "scaffold", "complete", ""),
        "FedDyn": ("feddyn", "feddyn", "keep", ""),
        "FedAdam": ("fleet", "fedavg", "keep", "adam"),
    }
    rows: list[Row] = []
    for name, case in cases.items():
        arm = find_arm(*case)
        rows.append(
            {
                "method": name,
                "policy": arm.policy,
                "accuracy": arm.estimate(ACCURACY, ".1%"),
                "slow devices' data": arm.estimate(SLOW, ".1%"),
                "simulated seconds to 75 %": arm.estimate(TIME, ".0f"),
            }
        )
    return rows


@table
def deadlines(fleet: str) -> list[Row]:
    """Accuracy by deadline and policy after the same simulated time: results/deadlines/FLEET/runs.csv."""
    rows: dict[str, Row] = {}
    for arm in read_arms(f"deadlines/{fleet}"):
        settings = dict(word.split("=") for word in arm.settings.split())
        row = rows.setdefault(settings["deadline"], {"deadline, seconds": settings["deadline"]})
        row[f"`{arm.policy}`"] = show_measure(arm.runs, ACCURACY)  # who is slow depends on the deadline
        if arm.policy == "complete":
            rows[settings["deadline"]] |= {
                "seconds to the target, `complete`": show_measure(arm.runs, TIME),
                "megabytes to it, `complete`": show_measure(arm.runs, "megabytes_to_target"),
            }
    last = ("seconds to the target, `complete`", "megabytes to it, `complete`")
    return [{k: v for k, v in row.items() if k not in last} | {k: row[k] for k in last} for row in rows.values()]


# Rates in the paper's setting: results/rates/rates.csv, made by benchmarks/rates.py


def average_rounds(records: Sequence[Record]) -> float | None:
    """Return the mean rounds to the target; None if a seed never got there."""
    values = [number(r, "rounds_to_target") for r in records]
    reached = [v for v in values if v is not None]
    return statistics.fmean(reached) if reached and len(reached) == len(values) else None


def show_rounds(records: Sequence[Record]) -> str:
    """Return the mean rounds to the target over a few seeds, without an interval; 'never' if no seed ever got there."""
    if (mean := average_rounds(records)) is not None:
        return f"{mean:.4g}"
    reached = sum(number(r, "rounds_to_target") is not None for r in records)
    return f"{reached} of {len(records)}" if reached else "never" if records else ""


@table
def rates() -> list[Row]:
    """Rounds to 65 % of FedAvg and FedLGA over both rates, and their ratio."""
    records = [r for r in read_csv("rates/rates.csv") if r["method"] in ("fedavg", "fedlga")]
    rows: list[Row] = []
    for variant, lr, eta_g in dict.fromkeys((r["variant"], r["lr"], r["eta_g"]) for r in records):
        here = [r for r in records if (r["variant"], r["lr"], r["eta_g"]) == (variant, lr, eta_g)]
        fedavg, fedlga = ([r for r in here if r["method"] == m] for m in ("fedavg", "fedlga"))
        means = average_rounds(fedavg), average_rounds(fedlga)
        ratio = f"{means[0] / means[1]:.2f}" if means[0] and means[1] else ""
        row = {"one unit, sampling": variant, "eta_l": lr, "eta_g": eta_g}
        rows.append({**row, "FedAvg": show_rounds(fedavg), "FedLGA": show_rounds(fedlga), "FedAvg / FedLGA": ratio})
    return rows


@table
def rates_of_others() -> list[Row]:
    """Rounds to 65 % of the other methods over both rates; one seed."""
    records = [r for r in read_csv("rates/rates.csv") if r["variant"] == "batch" and r["seed"] == "0"]
    rows: list[Row] = []
    for lr, eta_g in dict.fromkeys((r["lr"], r["eta_g"]) for r in records if r["method"] == "fedprox"):
        row = {"eta_l": lr, "eta_g": eta_g}
        for method in distinct(r["method"] for r in records):
            found = [r for r in records if (r["lr"], r["eta_g"], r["method"]) == (lr, eta_g, method)]
            row[METHOD_NAMES[method]] = show_rounds(found)
        rows.append(row)
    return rows


# The printed formula in training: results/printed/printed.csv, made by benchmarks/printed.py


@table
def printed(lr: str) -> list[Row]:
    """Every reading of Eq. 5 and 6 at one rate: its error, and what training with it reached."""
    records = [r for r in read_csv("printed/printed.csv") if r["lr"] == lr]
    kept = {r["seed"]: number(r, "accuracy") for r in records if r["reading"] == "keep"}
    rows: list[Row] = []
    for reading in distinct(r["reading"] for r in records):
        here = [r for r in records if r["reading"] == reading]
        trained = [r for r in here if r["rounds"]]
        errors = [e for r in here if (e := number(r, "error_kept")) is not None]
        row = {"reading": reading, "approximation": here[0]["definition"]}
        row["needs"] = {"": "", "device": "the device", "truth": "the truth"}[here[0]["needs"]]
        row["Eq. 3 error"] = f"{sum(errors) / len(errors):.2f}" if errors else ""
        row |= {"rounds to 65 %": "", "accuracy at the end": "", "more than `keep`": ""}
        lost = sorted(int(r["not_finite"]) for r in trained if r["not_finite"])
        if trained:
            row["rounds to 65 %"] = show([number(r, "rounds_to_target") for r in trained], ".0f")
        if lost:
            row["accuracy at the end"] = f"not finite on {len(lost)} of {len(trained)}, from round {lost[0]}"
        elif trained:
            row["accuracy at the end"] = show([number(r, "accuracy") for r in trained], ".1%")
            gaps = [known(r, "accuracy") - k for r in trained if (k := kept.get(r["seed"])) is not None]
            row["more than `keep`"] = "" if reading == "keep" else show(gaps, "+.1%")
        rows.append(row)
    return [row for row in rows if row["rounds to 65 %"]]


# Approximation errors


@table
def audit(file: str) -> list[Row]:
    """Errors of every scale by regime, one run each: results/audit/FILE.csv."""
    scales = ("linear", "growth", "feedback")
    return [
        {"regime (one unit, eta_l)": r["regime"], "rounds": r["rounds"], "printed": digits(known(r, "printed"), 3)}
        | {name: f"{known(r, name):.2f}" for name in (*scales, "best")}
        | {f"{name}, mean": f"{known(r, f'{name}_mean'):.2f}" for name in scales}
        | {f"{name}, sum": f"{known(r, f'{name}_sum'):.2f}" for name in scales}
        for r in read_csv(f"audit/{file}.csv")
    ]


@table
def paper_audit(setting: str) -> list[Row]:
    """Errors of completed updates by regime, over the seeds."""
    records = read_csv(f"paper/audit/{setting}.csv")
    columns = {
        "error": "approximation_error",
        "best multiple": "best_scale_error",
        "averaged update": "aggregate_error",
    }
    rows: list[Row] = []
    for point in distinct(r["point"] for r in records):
        runs = [r for r in records if r["point"] == point]
        unit, rate = point.removeprefix("audit-").split("-", 1)
        cells = {title: show_measure(runs, name) for title, name in columns.items()}
        ratios = [known(r, "approximation_error") / known(r, "best_scale_error") for r in runs]
        rows.append({"regime (one unit, eta_l)": f"{unit}, {rate}", **cells, "error / best": show(ratios, ".2f")})
    return rows


# The paper's items: results/paper/ITEM/SETTING.csv

SETTINGS = {
    "fashion-mnist": "Fashion-MNIST",
    "cifar-10-small": "CIFAR-10, small",
    "cifar-100-small": "CIFAR-100, small",
}
PAPER_ITEMS = ("accuracy", "scheme-i", "loss", "best", "runtime", "tau-max", "epochs", "rho", "devices", "cohort")
OUR_ITEMS = ("time", "audit")
BASE_VALUES = {"tau-max": 0.8, "epochs": 5, "rho": 0.5, "devices": 50, "cohort": 10}  # of the point 'base'


def read_item(item: str, setting: str) -> list[Record]:
    """Return the runs of an item."""
    return read_csv(f"paper/{item}/{setting}.csv")


@table
def verdicts(pages: str) -> list[Row]:
    """What each item's page says of its claims, by setting; `pages` is the way to results/paper from the page."""
    rows: list[Row] = []
    total: Row = {"item": "the paper's items together"}
    for setting, name in SETTINGS.items():
        parts = Counter[str]()
        for item in PAPER_ITEMS:
            parts.update(count_parts(item_page(item, setting)))
        total[name] = (
            f"{parts['holds']} of {parts.total()} parts hold, of {parts['the opposite holds']} the opposite holds, "
            f"{parts['not shown']} are not shown"
            + (f", {missing} have no runs to tell" if (missing := parts["no runs to tell"]) else "")
        )
    for item in (*PAPER_ITEMS, *OUR_ITEMS):
        row = {"item": f"`{item}`" + (" (ours)" if item in OUR_ITEMS else "")}
        for setting, name in SETTINGS.items():
            file = item_page(item, setting)
            row[name] = f"[{read_verdict(file)}]({pages}/{item}/{setting}.md)" if file.is_file() else "not run"
        rows += [total, row] if item == OUR_ITEMS[0] else [row]
    return rows


def item_page(item: str, setting: str) -> Path:
    """Return the generated page of an item."""
    return RESULTS / "paper" / item / f"{setting}.md"


def read_verdict(file: Path) -> str:
    """Return the sentence in which a generated page judges its claims."""
    match = re.search(r"^\*\*(?:It )?(.*)\.\*\*$", file.read_text(encoding="utf-8"), re.MULTILINE)
    if match is None:
        raise BadTable(f"results/{file.relative_to(RESULTS).as_posix()} has no verdict")
    return match[1]


def count_parts(file: Path) -> Counter[str]:
    """Return how many of a page's judged claims have each verdict; none if there is no page."""
    text = file.read_text(encoding="utf-8") if file.is_file() else ""
    judged = text.partition("## Does it hold here?")[2].partition("\nBesides")[0]
    return Counter(re.findall(r"^- .*: (holds|the opposite holds|not shown|no runs to tell)\b", judged, re.MULTILINE))


@table
def paper_methods(setting: str) -> list[Row]:
    """The six methods: rounds to the target beside the paper's, best accuracy, loss on the training data."""
    records = read_item("accuracy", setting)
    losses = read_item("loss", setting) if (RESULTS / "paper" / "loss" / f"{setting}.csv").is_file() else records
    rows: list[Row] = []
    for method, policy in dict.fromkeys((r["method"], r["stragglers"]) for r in records):
        runs = [r for r in records if r["method"] == method]
        rows.append(
            {
                "method": METHOD_NAMES[method],
                "policy": policy,
                f"rounds, {_the_paper(setting)}": find_printed("accuracy", setting, method),
                "rounds, here": show_measure(runs, "rounds_to_target"),
                "best accuracy, here": show_measure(runs, "best_accuracy"),
                **_show_loss([r for r in losses if r["method"] == method]),
            }
        )
    return rows


def _show_loss(runs: list[Record]) -> Row:
    """Return f(w) at the end; where no run computed it, the mean loss of batches."""
    if all(r.get("final_train_objective") for r in runs):
        return {"f(w) at the end, here": show_measure(runs, "final_train_objective")}
    return {"mean loss of batches at the end, here": show_measure(runs, "last_train_loss")}


@table
def paper_runtime(setting: str) -> list[Row]:
    """Seconds a round and to the target, beside the paper's."""
    records = read_item("runtime", setting)
    baseline = {r["seed"]: known(r, "seconds_per_round") for r in records if r["method"] == "fedavg"}
    rows: list[Row] = []
    for method in distinct(r["method"] for r in records):
        runs = [r for r in records if r["method"] == method]
        ratios = [known(r, "seconds_per_round") / baseline[r["seed"]] for r in runs]
        rows.append(
            {
                "method": METHOD_NAMES[method],
                "the paper": find_printed("runtime", setting, method),
                "seconds a round, here": show_measure(runs, "seconds_per_round"),
                "times FedAvg's, seed by seed": show(ratios, ".2f"),
                "seconds to the target, here": show_measure(runs, "seconds_to_target"),
            }
        )
    return rows


@table
def paper_sweep(item: str, setting: str, only: str = "", measure: str = "rounds_to_target") -> list[Row]:
    """A measure, a row a method and a column a value; the paper's rounds if it has a number for each value.

    `only` lists the methods that are shown.
    """
    if item not in BASE_VALUES:
        raise BadTable(f"item={item}: takes one of {', '.join(BASE_VALUES)}")
    records = read_item(item, setting)
    points = {p: _point_value(item, p) for p in distinct(r["point"] for r in records)}
    axis = {"tau-max": "tau_max / E", "epochs": "E", "devices": "N", "cohort": "K"}.get(item, item)
    rows: list[Row] = []
    for method in distinct(r["method"] for r in records if not only or r["method"] in only.split(",")):
        printed = {f"{axis} = {v:g}": find_printed(item, setting, method, v) for v in points.values()}
        if "-" not in printed.values() and measure == "rounds_to_target":
            rows.append({"method": f"{METHOD_NAMES[method]}, {_the_paper(setting)}", **printed})
        row = {"method": METHOD_NAMES[method]}
        for point, value in points.items():
            runs = [r for r in records if (r["method"], r["point"]) == (method, point)]
            row[f"{axis} = {value:g}"] = show_measure(runs, measure)
        rows.append(row)
    return rows


def _the_paper(setting: str) -> str:
    """Return how the paper's own numbers are called beside ours."""
    return "the paper" if setting == "fashion-mnist" else "the paper in its setting"


def _point_value(item: str, point: str) -> float:
    """Return what a point of a sweep stands for: 'rho-0.1' is 0.1."""
    return BASE_VALUES[item] if point == "base" else float(point.removeprefix(f"{item}-"))


MOST_COLUMNS = 5  # evaluated rounds that a table of curves shows


@table
def paper_curves(setting: str) -> list[Row]:
    """The accuracy of each method over the rounds, at some of them; eta_l, and the best accuracy."""
    curves, chosen = read_curves(RESULTS / "paper" / "accuracy" / f"{setting}-curves.csv"), find_setting(setting)
    records = read_item("accuracy", setting)
    rounds = next(iter(next(iter(curves.values())).values())).rounds
    shown = rounds[np.unique(np.linspace(0, len(rounds) - 1, MOST_COLUMNS + 1).round().astype(int))[-MOST_COLUMNS:]]
    rows: list[Row] = []
    for arm, by_seed in curves.items():
        method, policy, _ = arm.split(" ")
        runs = [r for r in records if (r["method"], r["stragglers"]) == (method, policy)]
        row = {
            "method": METHOD_NAMES[method],
            "policy": policy,
            "eta_l": f"{chosen.own.get(method, {}).get('lr', chosen.base.lr):g}",
        }
        for at in shown:
            values = [float(curve.measures["accuracy"][curve.rounds == at][0]) for curve in by_seed.values()]
            row[f"round {at}"] = show(values, ".1%")
        rows.append({**row, "best": show_measure(runs, "best_accuracy")})
    return rows


@table
def cifar_rates(dataset: str) -> list[Row]:
    """Accuracy over the last fifth of a search at each rate, the chosen one in bold: results/cifar/DATASET.csv."""
    records = read_csv(f"cifar/{dataset}.csv")
    rates = sorted(distinct(r["settings"] for r in records), key=lambda settings: float(settings.removeprefix("lr=")))
    rows: list[Row] = []
    for arm in distinct(r["arm"] for r in records):
        method, _, policy = arm.partition("-")
        row = {"method": METHOD_NAMES[method], "policy": policy, **dict.fromkeys(rates, "")}
        for r in records:
            if r["arm"] == arm:
                mark = "**" if r["chosen"] == "True" else ""
                row[r["settings"]] = f"{mark}{1 - known(r, 'mean'):.1%}{mark}"
        rows.append({title.replace("lr=", "eta_l "): cell for title, cell in row.items()})
    return rows


@table
def resnet_ways() -> list[Row]:
    """Ways to compute a step of ResNet-20, beside the plain one: results/models/resnet20.csv."""
    return [
        {
            "way": r["way"],
            "what it is": r["meaning"],
            "milliseconds": r["milliseconds"],
            "times as fast": f"{known(r, 'ratio'):.2f} ({known(r, 'low'):.2f} to {known(r, 'high'):.2f})",
        }
        for r in read_csv("models/resnet20.csv")
    ]


@table
def resnet_parts() -> list[Row]:
    """The plain step of ResNet-20 by operation: results/models/resnet20-parts.csv."""
    return [
        {"operation": f"`{r['operation']}`", "calls": r["calls"], "share of the step": f"{known(r, 'share'):.0%}"}
        for r in read_csv("models/resnet20-parts.csv")
    ]


@table
def paper_time() -> list[Row]:
    """The policies over simulated time, in every setting that was run."""
    rows: list[Row] = []
    for setting, name in SETTINGS.items():
        records = read_item("time", setting)
        for policy in distinct(r["stragglers"] for r in records):
            runs = [r for r in records if r["stragglers"] == policy]
            rows.append(
                {
                    "data set": name,
                    "policy": policy,
                    "rounds to the target": show_measure(runs, "rounds_to_target"),
                    "simulated seconds to it": show_measure(runs, "simulated_seconds_to_target"),
                    "accuracy at the end": show_measure(runs, "last_accuracy"),
                }
            )
    return rows


# The paper's convergence analysis: results/theory


@table
def convergence_rates() -> list[Row]:
    """The paper's own table of convergence rates, as it prints them."""
    return [
        {
            "method": r["method"],
            "paper": r["paper"],
            "data": r["data"],
            "losses": r["losses"],
            "some devices a round": r["partial"],
            "stragglers": r["stragglers"],
            "also assumed": r["other assumptions"],
            "rate": f"O({r['rate']})",
        }
        for r in read_csv("theory/convergence-rates.csv")
    ]


@table
def theory_slopes(problem: str, participation: str) -> list[Row]:
    """Slopes of the smallest squared gradient on logarithmic axes, and those of the corollary's rate."""
    names = {"T": "rounds T", "N": "devices N", "K": "devices a round K", "E": "local steps E", "rho": "1 + rho"}
    records = [
        r
        for r in read_csv("theory/slopes.csv")
        if (r["problem"].split()[0], r["participation"]) == (problem, participation)
    ]
    return [
        {
            "over": names[r["sweep"]],
            "unfinished work": r["arm"],
            "measured slope": f"{known(r, 'slope'):+.2f} ({known(r, 'low'):+.2f} to {known(r, 'high'):+.2f})",
            "the corollary's": f"{known(r, 'predicted'):+.2f}",
            "bound over measured": digits(known(r, "bound_over_measured")),
        }
        for r in records
    ]


@table
def theory_experiments() -> list[Row]:
    """What the theorems say of presets, and what a run of each did."""
    rows: list[Row] = []
    for file in sorted((RESULTS / "theory").glob("*.json")):
        a = json.loads(file.read_text(encoding="utf-8"))
        e, s = a["estimates"], a["setting"]
        rows.append(
            {
                "preset": f"`{file.stem}`",
                "L": digits(e["curvature"]["value"]),
                "sigma_l": digits(e["local_variance"]["value"] ** 0.5),
                "sigma_g": digits(e["global_variance"]["value"] ** 0.5),
                "eta_l": f"{s['eta_l']:g}",
                "largest allowed": f"{a['largest']['eta_l']:.2g}",
                "the corollary's": f"{a['corollary']['eta_l']:.2g}, eta_g {digits(a['corollary']['eta_g'])}",
                "squared gradient at the start": digits(e["squared_gradient"]["value"]),
                "bound": digits(a["bounds"]["these"]["total"]) if a["applies"] else "none",
                "best bound": f"{digits(a['bounds']['best']['total'])} at {a['best']['eta_l']:.2g}",
                "the run's smallest": digits(a["run"]["smallest"]),
            }
        )
    return rows


@table
def theory_readings() -> list[Row]:
    """The bound of Theorem 2 for the preset `paper`, as derived and as printed, part by part."""
    a = json.loads((RESULTS / "theory" / "paper.json").read_text(encoding="utf-8"))
    setting, constants = Setting(**a["setting"]), Constants(**a["constants"])
    rows: list[Row] = []
    for theorem, s in ((1, dataclasses.replace(setting, K=None)), (2, setting)):
        for reading in ("derived", "printed"):
            bound = find_bound(s, constants, reading)
            parts = {name: digits(getattr(bound, name)) for name in ("start", "noise", "drift", "completion", "total")}
            rows.append({"theorem": str(theorem), "constants": reading, **parts})
    return rows


# Speed: results/simulators, models, aggregator, growth, flower

WORKLOADS = {
    "epochs": "epoch rounds: 6,000 steps",
    "batches": "batch rounds: 50 steps",
    "overhead": "the same, evaluation on 100 images",
    "resnet20": "ResNet-20, batch rounds",
}
OURS = "fedlga"


@table
def simulators() -> list[Row]:
    """Seconds a round of every simulator, with its times fedlga's in the same repetition."""
    records = read_csv("simulators/simulators.csv")
    rows: list[Row] = []
    for name in distinct(r["simulator"] for r in records):
        mine = {r["workload"]: r for r in records if r["simulator"] == name}
        row = {"simulator": name}
        for workload, title in WORKLOADS.items():
            row[title] = _show_simulator(mine[workload]) if workload in mine else "-"
        first = [known(r, "first_round_seconds") for r in mine.values()]
        rows.append(row | {"first round after": f"{min(first):.1f} to {max(first):.1f} s"})
    return rows


def _show_simulator(record: Record) -> str:
    text = seconds(known(record, "seconds"), 3)
    if record["simulator"] == OURS:
        return text
    ratio, least, most = (digits(known(record, name)) for name in ("ratio", "ratio_min", "ratio_max"))
    return f"{text} ({ratio}; {least} to {most})"


@table
def speed() -> list[Row]:
    """How many times as long as fedlga other simulators take, by workload."""
    records = [r for r in read_csv("simulators/simulators.csv") if not r["simulator"].startswith(OURS)]
    rows: list[Row] = []
    for name in distinct(r["simulator"] for r in records):
        ratios = {r["workload"]: digits(known(r, "ratio")) for r in records if r["simulator"] == name}
        rows.append({"simulator": name} | {title: ratios.get(w, "-") for w, title in WORKLOADS.items()})
    return rows


@table
def where() -> list[Row]:
    """Where the time of a round goes."""
    columns = {
        "round": "round_ms",
        "training": "train_ms",
        "evaluation": "evaluate_ms",
        "at the sgemm peak": "floor_ms",
        "a step": "step_us",
        "a task beyond its steps": "task_us",
    }
    return [
        {"workload": r["workload"]}
        | {title: f"{known(r, name):,.0f}" if known(r, name) else "-" for title, name in columns.items()}
        | {"share of the peak": f"{known(r, 'floor_ms') / known(r, 'round_ms'):.0%}"}
        for r in read_csv("simulators/where.csv")
    ]


MODELS = {
    "mcmahan-cnn": "CNN of McMahan et al.: 5 x 5 convolutions, 32 and 64 channels, 512 units",
    "cnn": "small CNN: 3 x 3 convolutions, 16 and 32 channels, 64 units",
    "mlp-200-200": "MLP, two hidden layers of 200 units",
    "lstm": "LSTM of LEAF: two layers of 256 units, 80 characters",
    "transformer": "transformer: two layers of width 64, 64 symbols",
    "mlp-400": "MLP, one hidden layer of 400 units",
}


@table
def models() -> list[Row]:
    """An SGD step on models of a user's own: how many times as fast as a bare PyTorch loop."""
    rows: list[Row] = []
    for r in read_csv("models/models.csv"):
        row = {"model": MODELS[r["model"]], "PyTorch loop, a step": seconds(known(r, "bare_ms") / 1000)}
        for title, kind in (("general path", "general"), ("compiled", "compiled")):
            ratio, low, high = (number(r, f"{kind}_{part}") for part in ("ratio", "low", "high"))
            row[title] = "-" if ratio is None else f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        took = number(r, "compile_seconds")
        rows.append(row | {"compiling takes": "-" if took is None else seconds(took), "note": r["note"]})
    return rows


@table
def aggregator() -> list[Row]:
    """What completing costs the aggregator."""
    return [
        {
            "parameters": count(known(r, "parameters")),
            "updates": r["updates"],
            "FedAvg": seconds(known(r, "fedavg_seconds")),
            "FedLGA": seconds(known(r, "fedlga_seconds")),
            "ratio (least to most)": "{ratio:.2f} ({ratio_min:.2f} to {ratio_max:.2f})".format(
                **{name: known(r, name) for name in ("ratio", "ratio_min", "ratio_max")}
            ),
            "share of a copy's bandwidth: FedAvg, FedLGA": f"{known(r, 'fedavg_share_of_copy'):.0%}, "
            f"{known(r, 'fedlga_share_of_copy'):.0%}",
        }
        for r in read_csv("aggregator/aggregator.csv")
    ]


@table
def growth(over: str) -> list[Row]:
    """Milliseconds a round and gigabytes of memory over devices, cohort or parameters, a row a method."""
    base = {"devices": "1000", "cohort": "10", "parameters": "318010"}
    if over not in base:
        raise BadTable(f"over={over}: takes one of {', '.join(base)}")
    records = [r for r in read_csv("growth/growth.csv") if r["partition"] == "classes"]
    fixed = [name for name in base if name != over]
    if over == "devices":  # the other two sweeps are at 1000 devices, which this one leaves out
        records = [r for r in records if r["devices"] != base["devices"]]
    else:
        records = [r for r in records if all(r[name] == base[name] for name in fixed)]
    values = sorted({int(r[over]) for r in records})
    rows: list[Row] = []
    for method in distinct(r["method"] for r in records):
        mine = {int(r[over]): r for r in records if r["method"] == method}
        row = {"method": METHOD_NAMES[method]}
        for value in values:
            title = count(value) if over == "parameters" else f"{value:,}"
            row[title] = seconds(known(mine[value], "seconds")) if value in mine else "-"
        memory = [known(r, "gigabytes") for r in mine.values()]
        rows.append(row | {"peak memory": f"{min(memory):.1f} to {max(memory):.1f} GB"})
    return rows


@table
def flower() -> list[Row]:
    """Seconds a round in the pool, on Ray and on SuperNodes."""
    records = [r for r in read_csv("flower/flower.csv") if r["kind"] != "idle"]
    kinds = {
        "pool": "pool",
        "ray": "Flower's simulation (Ray)",
        "superlink": "SuperLink and SuperNodes, on one machine",
    }
    points = sorted({(int(r["parameters"]), int(r["nodes"])) for r in records})
    cells = {(r["kind"], int(r["parameters"]), int(r["nodes"])): known(r, "seconds") for r in records}
    return [
        {"parameters": count(parameters), "nodes": str(nodes)}
        | {
            title: seconds(cells[kind, parameters, nodes]) if (kind, parameters, nodes) in cells else "-"
            for kind, title in kinds.items()
        }
        for parameters, nodes in points
    ]


@table
def nodes() -> list[Row]:
    """Seconds a round on Flower's own nodes, and on those whose device process stays up."""
    records = [r for r in read_csv("flower/nodes.csv") if not r["kind"].startswith("idle")]
    cells = {(r["kind"], int(r["parameters"]), int(r["nodes"])): known(r, "seconds") for r in records}
    points = sorted({(parameters, nodes) for _, parameters, nodes in cells})
    return [
        {
            "parameters": count(parameters),
            "nodes": str(nodes),
            "flower-supernode": seconds(before := cells["superlink", parameters, nodes]),
            "fedlga-node": seconds(after := cells["warm", parameters, nodes]),
            "times as fast": f"{before / after:.1f}",
        }
        for parameters, nodes in points
    ]


@table
def scale() -> list[Row]:
    """What waiting nodes cost a SuperLink: requests that are signed as theirs, and real ones."""
    return [
        {
            "what": r["kind"] if r["kind"] != "real" else f"{r['nodes']} real nodes that wait",
            "way": r["way"],
            "key": r["key"],
            "of a core, a request": ""
            if (cost := number(r, "milliseconds_a_request")) is None
            else f"{digits(cost)} ms",
            "of a core, a node and second": ""
            if (share := number(r, "milliseconds_a_node_and_second")) is None
            else f"{digits(share)} ms",
        }
        for r in read_csv("scale/scale.csv")
    ]


@table
def honest() -> list[Row]:
    """The longest honest updates, as multiples of what was usual when they came."""
    return [
        {
            "preset": r["preset"],
            "method": METHOD_NAMES[r["method"]],
            "settings": r["settings"],
            "rounds": r["rounds"],
            "longest update": f"{known(r, 'longest'):.1f}",
            "longest control": f"{float(r['longest_upload']):.1f}" if r["longest_upload"] else "",
            "left out": r["refused"],
            "long": r["suspects"],
            "smallest cosine": f"{float(r['smallest_cosine']):.2f}" if r["smallest_cosine"] else "",
            "left out by direction": r["against"],
        }
        for r in read_csv("attacks/honest.csv")
    ]


def read_attacks() -> dict[tuple[str, str, str, str], dict[str, float]]:
    """Return accuracies by attack, method, defence and fleet; each by seed."""
    cells: dict[tuple[str, str, str, str], dict[str, float]] = {}
    for r in read_csv("attacks/attacks.csv"):
        key = r["attack"], r["method"], r["defence"], r["fleet"]
        cells.setdefault(key, {})[r["seed"]] = known(r, "accuracy")
    return cells


@table
def attacks() -> list[Row]:
    """Accuracy under attack, mean over the seeds: with all devices equal, and with half of them slow."""
    cells = read_attacks()
    all_attacks, methods, defences, fleets = (distinct(key[place] for key in cells) for place in range(4))

    def cell(attack: str, method: str, defence: str, fleet: str) -> str:
        seeds = cells[attack, method, defence, fleet].values()
        return f"{100 * sum(seeds) / len(seeds):.0f}"

    return [
        {"attack": attack, "method": METHOD_NAMES[method]}
        | {defence: " / ".join(cell(attack, method, defence, fleet) for fleet in fleets) for defence in defences}
        for attack in all_attacks
        for method in methods
    ]


@table
def attack_losses(defence: str) -> list[Row]:
    """Points of accuracy that an attack costs, seed by seed: the mean, and the seed with the largest loss."""
    cells = read_attacks()
    all_attacks, methods, _, fleets = (distinct(key[place] for key in cells) for place in range(4))

    def losses(attack: str, method: str, fleet: str) -> list[float]:
        clean, attacked = (cells[name, method, defence, fleet] for name in ("none", attack))
        return [100 * (clean[seed] - accuracy) for seed, accuracy in attacked.items()]

    return [
        {"attack": attack, "method": METHOD_NAMES[method]}
        | {
            f"{fleet}, {what}": f"{choose(losses(attack, method, fleet)):.1f}"
            for fleet in fleets
            for what, choose in (("mean", statistics.fmean), ("worst seed", max))
        }
        for attack in all_attacks
        if attack != "none"
        for method in methods
    ]


@table
def endurance() -> list[Row]:
    """What long and large runs hold: after a tenth of their rounds, after half of them, and at the end."""
    return [
        {
            "run": r["run"],
            "rounds": f"{int(r['rounds']):,}",
            "milliseconds a round": r["milliseconds_a_round"],
            "megabytes": f"{r['first_megabytes']}, {r['half_megabytes']}, {r['last_megabytes']}",
            "open files": f"{r['first_files']}, {r['last_files']}",
            "processor seconds for the report": r["report_seconds"],
        }
        for r in read_csv("endurance/endurance.csv")
    ]


@table
def pool() -> list[Row]:
    """What a second core gains with each schedule."""
    return [
        {
            "work of a device": r["work"],
            "schedule": r["schedule"],
            "serial, ms a deadline": r["serial_ms"],
            "pool": r["pool_ms"],
            "times as fast": f"{known(r, 'gain'):.2f} ({r['least']} to {r['most']})",
        }
        for r in read_csv("schedules/pool.csv")
    ]


@table
def private() -> list[Row]:
    """Private completing beside the open one and `keep`: accuracy, and on the slow devices' data."""
    records = read_csv("private/private.csv")
    return [
        {"setting": setting}
        | {arm: _show_private(records, setting, arm) for arm in distinct(r["arm"] for r in records)}
        for setting in distinct(r["setting"] for r in records)
    ]


def _show_private(records: Sequence[Record], setting: str, arm: str) -> str:
    runs = [r for r in records if (r["setting"], r["arm"]) == (setting, arm)]
    measures = [m for m in ("accuracy", "accuracy_slow") if runs and runs[0][m]]
    return " / ".join(show([known(r, measure) for r in runs], ".1%") for measure in measures)


# Pages


def make(call: str) -> str:
    """Return the table that a comment asks for, as Markdown."""
    name, *words = call.split()
    if name not in TABLES:
        raise BadTable(f"unknown table {name!r}; takes one of {', '.join(sorted(TABLES))}")
    arguments: dict[str, str] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or key in arguments:
            raise BadTable(f"table {name}: {word!r} is not one argument=value")
        arguments[key] = value
    try:
        inspect.signature(TABLES[name]).bind(**arguments)
    except TypeError as error:
        raise BadTable(f"table {name}: {error}") from None
    return format_rows(TABLES[name](**arguments))


def format_rows(rows: Sequence[Row]) -> str:
    """Return rows as a Markdown table, without columns that are empty in every row."""
    titles = [t for t in distinct(title for row in rows for title in row) if any(row.get(t) for row in rows)]
    lines = [titles, *([row.get(title, "") for title in titles] for row in rows)]
    text = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([text[0], "|" + "---|" * len(titles), *text[1:]])


@dataclass(frozen=True)
class Place:
    """A table in a page: the call in its first comment, and the lines between its comments, from 0."""

    call: str
    first: int
    after: int


def find_places(lines: Sequence[str]) -> Iterator[Place]:
    """Yield the places for tables in a page."""
    opened: tuple[str, int] | None = None
    for index, line in enumerate(lines):
        if match := START.match(line):
            if opened:
                raise BadTable(f"line {index + 1}: a table starts inside table {opened[0]!r}")
            opened = match["call"], index + 1
        elif line == END:
            if not opened:
                raise BadTable(f"line {index + 1}: the end of a table that did not start")
            yield Place(*opened, index)
            opened = None
    if opened:
        raise BadTable(f"table {opened[0]!r} has no end")


def update(text: str) -> tuple[str, list[str]]:
    """Return a page with current tables, and the calls of those that were stale."""
    lines, stale = text.split("\n"), list[str]()
    for place in reversed(list(find_places(lines))):  # from the end, so that earlier places stay where they are
        current = ["", *make(place.call).split("\n"), ""]
        if lines[place.first : place.after] != current:
            lines[place.first : place.after] = current
            stale.insert(0, place.call)
    return "\n".join(lines), stale


def find_faults(page: str, text: str) -> Iterator[str]:
    """Yield what is wrong with a page besides stale tables: tables of numbers by hand, ± without its meaning."""
    lines = text.split("\n")
    places = list(find_places(lines))
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        first, after = token.map or (0, 0)
        source = "\n".join(lines[first:after])
        generated = any(place.first <= first and after <= place.after for place in places)
        if token.type == "table_open" and not generated and re.search(r"\d", source):
            if (page, lines[first]) not in UNMEASURED:
                yield f"line {first + 1}: a table with numbers that no function of tools/make_tables.py makes"
        elif token.type in ("html_block", "inline") and re.search(r"<(table|td)\b", token.content, re.IGNORECASE):
            yield f"line {first + 1}: a table in HTML; use a generated one"
        elif token.type in ("fence", "code_block") and page not in TRANSCRIPTS and _has_columns(token.content):
            yield f"line {first + 1}: columns of numbers in a code block; use a generated table"
    if any("±" in line for place in places for line in lines[place.first : place.after]):
        said = " ".join(text.split()).count(PLUS_MINUS)
        if said != 1:
            yield f"says {said} times, not once, that '{PLUS_MINUS}'"


def _has_columns(code: str) -> bool:
    """Return whether at least two lines hold at least two words each that are numbers."""
    numeric = re.compile(r"[+-]?\d[\d.,]*\s?%?")
    return sum(sum(bool(numeric.fullmatch(w)) for w in line.split()) > 1 for line in code.splitlines()) > 1


def list_pages() -> list[Path]:
    """Return all pages that may hold tables."""
    return [file for pattern in PAGES for file in sorted(ROOT.glob(pattern))]


def update_items(*, check: bool) -> list[Path]:
    """Write the pages of the paper's items again; return those that were stale."""
    stale: list[Path] = []
    for file in list_judgeable(RESULTS / "paper"):
        page, current = file.with_suffix(".md"), remake_page(file)
        if page.read_text(encoding="utf-8") != current:
            stale.append(page)
            if not check:
                write_atomically(page, current)
    return stale


def main(words: Sequence[str] | None = None) -> int:
    """Rewrite the pages, or check them; return the exit code."""
    parser = argparse.ArgumentParser(description="Write the tables of README.md and docs/ from results/.")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if something is not current")
    check = parser.parse_args(words).check
    outdated = update_items(check=check)
    for page in outdated:
        print(f"{page.relative_to(ROOT).as_posix()}: the page {'is stale: make tables' if check else 'is new'}")
    failed = check and bool(outdated)
    for file in list_pages():
        page, text = file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")
        try:
            current, stale = update(text)
            faults = list(find_faults(page, current))
        except BadTable as error:
            print(f"{page}: {error}", file=sys.stderr)
            failed = True
            continue
        for call in stale:
            print(f"{page}: table {call!r} {'is stale: make tables' if check else 'is new'}")
        for fault in faults:
            print(f"{page}: {fault}", file=sys.stderr)
        if stale and not check:
            write_atomically(file, current)
        failed |= bool(faults) or (check and bool(stale))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
