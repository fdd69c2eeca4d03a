"""Does the paper's rate hold? The smallest squared gradient over T, N or K, E and rho, on problems that are known.

    .venv/bin/python benchmarks/theory.py [--work DIR] [--out results/theory]

The corollaries say O((1 + rho)/sqrt(E N T) + 1/T) with all devices, and O((1 + rho) sqrt(E)/sqrt(T K) + 1/T) with K of
them, at eta_l = 1/(sqrt(T) E L) and eta_g = sqrt(E N) or sqrt(E K). Every cell is a run of T rounds at these rates, for
SEEDS seeds at once; its result is min_t of the mean of |grad f(w_t)|^2 over the seeds. The mean over t, which the
proofs bound as well, is kept beside it: it has less noise, and holds more of the start. The sweep `rates` multiplies
eta_l, to see where training really breaks.

A slope is that of log(result) over log(T) and so on; of rho, over log(1 + rho). Its 95 % interval is a jackknife over
GROUPS groups of seeds. What is done is kept in the work folder and not run again. About four minutes of one core.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from small_federation import Arm, Array, Curves, Logistic, Problem, Quadratics, run

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.statistics import t_quantile
from fedlga.report.figures import open_figure, put_legend_outside
from fedlga.theory.theorems import (
    Constants,
    Setting,
    apply_corollary,
    find_bound,
    find_largest_lr,
    find_rate,
    satisfies_conditions,
)

OUT = Path(__file__).parents[1] / "results" / "theory"
SEEDS, GROUPS = 24, 8
PROBLEMS = (Quadratics, Logistic)
FINISH = Arm("all finish")
COMPLETE = Arm("complete")
KEEP = Arm("keep", completes=False)
COMPLETE_SAME = Arm("complete, the same slow", same=True)
KEEP_SAME = Arm("keep, the same slow", completes=False, same=True)

# All take part, or K = 16 of N = 64.
BASE = {
    "full": Setting(N=16, K=None, E=4, T=2048, rho=0.5, tau_max=4, eta_l=1, eta_g=1),
    "partial": Setting(N=64, K=16, E=4, T=2048, rho=0.5, tau_max=4, eta_l=1, eta_g=1),
}
POINTS: dict[str, tuple[float, ...]] = {
    "T": (256, 512, 1024, 2048, 4096),
    "N": (2, 4, 8, 16, 32, 64),
    "K": (2, 4, 8, 16, 32, 64),
    "E": (1, 2, 4, 8, 16),
    "rho": (0.0, 0.25, 0.5, 0.75, 1.0),
    "rates": (1, 2, 4, 8, 16, 32),
}
ARMS = {
    "T": (FINISH, COMPLETE, KEEP, COMPLETE_SAME, KEEP_SAME),
    "N": (FINISH, COMPLETE),
    "K": (FINISH, COMPLETE),
    "E": (FINISH, COMPLETE),
    "rho": (COMPLETE, KEEP),
    "rates": (FINISH, COMPLETE),
}
PREDICTED = {  # slopes of the corollaries' first term
    "full": {"T": -0.5, "N": -0.5, "E": -0.5, "rho": 1.0},
    "partial": {"T": -0.5, "K": -0.5, "E": 0.5, "rho": 1.0},
}


@dataclass(frozen=True)
class Cell:
    """One point of a sweep."""

    problem: type[Problem]
    participation: str
    sweep: str
    arm: Arm
    value: float

    @property
    def setting(self) -> Setting:
        """The federation, with the corollary's rates for its problem."""
        base = BASE[self.participation]
        if self.arm is FINISH:
            base = replace(base, rho=0.0)
        if self.sweep == "rates":
            base = replace(base, T=1024)
        elif self.sweep == "rho":
            base = replace(base, rho=self.value)
        else:
            base = replace(base, **{self.sweep: int(self.value)})
        base = replace(base, tau_max=max(base.E, 1))
        s = apply_corollary(base, self.constants.L)
        return replace(s, eta_l=s.eta_l * self.value) if self.sweep == "rates" else s

    @property
    def devices(self) -> int:
        """N."""
        return int(self.value) if self.sweep == "N" else BASE[self.participation].N

    @property
    def constants(self) -> Constants:
        """What is known of its problem."""
        return self.problem(self.devices).constants()  # pyright: ignore[reportCallIssue]

    @property
    def file(self) -> str:
        """Where its result is kept."""
        parts = (self.problem.name, self.participation, self.sweep, self.arm.name, f"{self.value:g}")
        return "-".join(parts).replace(" ", "_").replace(",", "") + ".json"


def list_cells() -> Iterator[Cell]:
    """Yield all cells, the quick problem first."""
    for problem in PROBLEMS:
        for participation in BASE:
            for sweep, values in POINTS.items():
                if sweep == ("K" if participation == "full" else "N"):
                    continue
                for arm in ARMS[sweep]:
                    yield from (Cell(problem, participation, sweep, arm, value) for value in values)


def measure(cell: Cell) -> dict[str, Any]:
    """Run a cell. `without` is the result without each group of seeds, for the jackknife."""
    began = time.process_time()
    problem = cell.problem(cell.devices)  # pyright: ignore[reportCallIssue]
    with np.errstate(over="ignore", invalid="ignore"):
        curves = run(problem, cell.setting, cell.arm, SEEDS)
    groups = np.arange(SEEDS) % GROUPS
    return {
        "smallest": find_smallest(curves.squared_gradients),
        "without": [find_smallest(curves.squared_gradients[:, groups != g]) for g in range(GROUPS)],
        "average": as_finite(float(curves.squared_gradients.mean())),
        "last": as_finite(float(curves.squared_gradients[-len(curves.squared_gradients) // 10 :].mean())),
        "start": float(curves.squared_gradients[0].mean()),
        "bound": as_finite(bound_of(cell, curves)),
        "seconds": time.process_time() - began,
    }


def find_smallest(squares: Array) -> float | None:
    """Return min_t of the mean over the seeds."""
    with np.errstate(over="ignore", invalid="ignore"):
        means = squares.mean(1)
    return float(means[np.isfinite(means)].min())


def as_finite(value: float) -> float | None:
    """Return the value; None if it is not a finite number."""
    return value if math.isfinite(value) else None


def bound_of(cell: Cell, curves: Curves) -> float:
    """Return the theorem's bound, with the measured error of updates: Lemma 1 as an equality."""
    s = cell.setting
    remainder = math.sqrt(curves.error2) / (s.eta_l * s.tau_max) ** 2
    return find_bound(s, replace(cell.constants, M=remainder, gradient4=1.0)).total


def describe(cell: Cell, result: dict[str, Any]) -> dict[str, Any]:
    """Return a cell as a line of study.csv."""
    s = cell.setting
    low, high = jackknife([result["smallest"]], [[value] for value in result["without"]], lambda v: math.log(v[0]))
    return {
        "problem": cell.problem.name,
        "participation": cell.participation,
        "sweep": cell.sweep,
        "arm": cell.arm.name,
        "value": f"{cell.value:g}",
        **{name: f"{value:.6g}" for name, value in asdict(s).items() if value is not None and name != "K"},
        "K": s.taking_part,
        "conditions_hold": satisfies_conditions(s, cell.constants.L),
        "rate": f"{find_rate(s):.4g}",
        "smallest": f"{result['smallest']:.4g}",
        "low": f"{math.exp(low):.4g}",
        "high": f"{math.exp(high):.4g}",
        **{
            name: "" if result[name] is None else f"{result[name]:.4g}"
            for name in ("average", "last", "start", "bound")
        },
    }


def jackknife(whole: Sequence[float], without: Sequence[Sequence[float]], compute: Any) -> tuple[float, float]:
    """Return the 95 % interval of a statistic, from its values without each group of seeds."""
    center, values = compute(whole), np.array([compute(values) for values in without])
    error = math.sqrt((GROUPS - 1) / GROUPS * float(((values - values.mean()) ** 2).sum()))
    half = t_quantile(GROUPS) * error
    return center - half, center + half


def fit_slopes(results: dict[Cell, dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the slope of every sweep but `rates`, with the predicted one."""
    rows: list[dict[str, Any]] = []
    lines = dict.fromkeys((c.problem, c.participation, c.sweep, c.arm) for c in results if c.sweep != "rates")
    for problem, participation, sweep, arm in lines:
        cells = [
            c for c in results if (c.problem, c.participation, c.sweep, c.arm) == (problem, participation, sweep, arm)
        ]
        x = np.log([1 + c.value if sweep == "rho" else c.value for c in cells])

        def slope(values: Sequence[float], x: Array = x) -> float:
            return float(np.polyfit(x, np.log(values), 1)[0])

        without = list(zip(*(results[c]["without"] for c in cells), strict=True))
        whole = [results[c]["smallest"] for c in cells]
        low, high = jackknife(whole, without, slope)
        averages = [results[c]["average"] for c in cells]
        bounded = [results[c] for c in cells if results[c]["bound"] is not None]
        # The rate itself is not a line on logarithmic axes, because of its 1/T: its slope over the same points.
        rows.append(
            {
                "problem": problem.name,
                "participation": participation,
                "sweep": sweep,
                "arm": arm.name,
                "points": len(cells),
                "slope": f"{slope(whole):.3f}",
                "low": f"{low:.3f}",
                "high": f"{high:.3f}",
                "slope_of_average": f"{slope(averages):.3f}",
                "predicted": f"{slope([find_rate(c.setting) for c in cells]):.3f}",
                "first_term": PREDICTED[participation][sweep],
                "below_bound": all(r["smallest"] <= r["bound"] for r in bounded),
                "bound_over_measured": f"{np.median([r['bound'] / r['smallest'] for r in bounded]):.3g}",
            }
        )
    return rows


STYLES = {  # colour, dashes and marker of each arm: a print in grey tells them apart too
    "all finish": ("#0072B2", "-", "s"),
    "complete": ("#D55E00", "-", "o"),
    "keep": ("#E69F00", "-.", "D"),
    "complete, the same slow": ("#009E73", ":", "^"),
    "keep, the same slow": ("#999999", ":", "v"),
}
TITLES = {
    "T": "rounds T",
    "N": "devices N",
    "K": "devices a round K",
    "E": "local steps E",
    "rho": "1 + rho",
    "rates": "eta_l over the corollary's",
}


def draw(rows: Mapping[Cell, Mapping[str, Any]], out: Path) -> None:
    """Draw every sweep on logarithmic axes: points with intervals, and the corollary's rate through the first arm.

    The lines of study.csv hold all that is drawn.
    """
    note = (
        f"Two problems in ten dimensions; {SEEDS} seeds, whiskers: 95 % interval (jackknife over {GROUPS} groups of "
        "seeds). All axes are logarithmic."
    )
    panels = [(problem, participation) for problem in PROBLEMS for participation in BASE]
    files = [out / "rates.png", out / "rates.svg"]
    with open_figure(files, 5, 11.5, 9.0, rows=len(panels), note=note) as axes:
        for line, (problem, participation) in zip(axes, panels, strict=True):
            sweeps = [s for s in POINTS if s != ("K" if participation == "full" else "N")]
            for axis, sweep in zip(line, sweeps, strict=True):
                mine = {
                    c: r
                    for c, r in rows.items()
                    if (c.problem, c.participation, c.sweep) == (problem, participation, sweep)
                }
                draw_sweep(axis, sweep, mine)
                axis.set_xlabel(TITLES[sweep])
            who = "all devices" if participation == "full" else "K of N = 64 devices"
            line[0].set_ylabel(f"{problem.name}, {who}\nsmallest |grad f|$^2$")
        names = {
            text: handle for axis in axes.flat for handle, text in zip(*axis.get_legend_handles_labels(), strict=True)
        }
        put_legend_outside(axes[0][0], names, ncols=7)


def draw_sweep(axis: Any, sweep: str, rows: Mapping[Cell, Mapping[str, Any]]) -> None:
    """Draw one sweep."""
    from matplotlib.ticker import LogFormatterSciNotation, LogLocator, NullFormatter, NullLocator

    axis.set_xscale("log")
    axis.set_yscale("log")
    for arm in dict.fromkeys(c.arm for c in rows):
        mine = [c for c in rows if c.arm == arm]
        x = np.array([1 + c.value if sweep == "rho" else c.value for c in mine])
        y, low, high = (np.array([float(rows[c][name]) for c in mine]) for name in ("smallest", "low", "high"))
        colour, dashes, marker = STYLES[arm.name]
        axis.errorbar(
            x, y, np.abs([low - y, high - y]), marker=marker, ms=3.5, lw=1.2, ls=dashes, color=colour, label=arm.name
        )
        if sweep != "rates" and arm in (FINISH, COMPLETE):
            rate = np.array([find_rate(c.setting) for c in mine])
            scale = math.exp(float(np.mean(np.log(y / rate))))
            label = "the corollary's rate, scaled"
            axis.plot(x, scale * rate, ls="--", lw=0.8, color=colour, label=label if arm is COMPLETE else None)
        if sweep == "rates":  # with the corollary's eta_g
            first = mine[0].setting
            end = find_largest_lr(first, mine[0].constants.L) / first.eta_l
            label = "the conditions end" if arm is COMPLETE else None
            axis.axvline(end, color=colour, lw=1, ls=(0, (1, 1)), label=label)
        axis.set_xticks(x, [f"{value:g}" for value in x])
    axis.xaxis.set_minor_locator(NullLocator())
    low, high = axis.get_ylim()
    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 30 * low else (1,)))
    axis.yaxis.set_major_formatter(LogFormatterSciNotation(minor_thresholds=(math.inf, math.inf)))  # every mark
    axis.yaxis.set_minor_formatter(NullFormatter())


def read_study(file: Path) -> dict[Cell, dict[str, str]]:
    """Return the lines of study.csv, by their cells."""
    with file.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    names = ("problem", "participation", "sweep", "arm", "value")
    by_name = {tuple(row[name] for name in names): row for row in rows}
    return {c: by_name[c.problem.name, c.participation, c.sweep, c.arm.name, f"{c.value:g}"] for c in list_cells()}


def main() -> None:
    """Read the command line, do what is not done, write the tables and the figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=Path("tunings/theory"), help="where results are kept")
    parser.add_argument("--out", type=Path, default=OUT)
    arguments = parser.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    cells, results = list(list_cells()), dict[Cell, dict[str, Any]]()
    for number, cell in enumerate(cells, start=1):
        file = arguments.work / cell.file
        if not file.is_file():
            result = measure(cell)
            write_atomically(file, json.dumps(result))
            print(
                f"{number} of {len(cells)}: {file.stem} {result['smallest']:.4g} ({result['seconds']:.1f} s)",
                flush=True,
            )
        results[cell] = json.loads(file.read_text(encoding="utf-8"))
    rows = {cell: describe(cell, result) for cell, result in results.items()}
    write_atomically(arguments.out / "study.csv", format_csv(list(rows.values())))
    write_atomically(arguments.out / "slopes.csv", format_csv(fit_slopes(results)))
    draw(rows, arguments.out)
    print(f"{sum(r['seconds'] for r in results.values()) / 60:.1f} minutes of one core in all")


if __name__ == "__main__":
    main()
