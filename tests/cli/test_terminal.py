"""What the terminal shows: the live line, on a real terminal and on a screen in memory."""

from __future__ import annotations

import io
import os
import pty

import pytest
from rich.console import Console
from rich.table import Table

from commands import FAST, start
from fedlga.cli.terminal import Display, describe_outcome, has_targets, make_comparison_table, make_end_table
from fedlga.experiments.arms import Arm
from fedlga.experiments.compare import Plan, make_table
from fedlga.experiments.config import Experiment
from run_folders import make_record, write_finished


def test_the_live_line_counts_rounds_again_after_a_fetch():
    screen = io.StringIO()
    with Display(Console(file=screen, force_terminal=True, width=80)) as display:
        display.begin(200)
        display.show_fetch("train-images", 3_000_000, 30_000_000)
        assert [task.description for task in display._progress.tasks] == ["round 0/200", "fetching train-images"]
        display.show_round(make_record())
        (task,) = display._progress.tasks
    assert (task.description, task.completed, task.total) == ("round 1/200", 1, 200)


def show(table: Table | None) -> list[list[str]]:
    """Return the words of a table's lines, on a terminal of 80 columns."""
    assert table is not None
    screen = io.StringIO()
    Console(file=screen, width=80).print(table)
    return [line.split() for line in screen.getvalue().splitlines()]


def test_a_comparison_whose_arms_have_a_target_or_none(tmp_path):
    """fedavg with keep has none, with drop all seeds reach it, with wait none does; what was not measured is '-'."""
    arms = [Arm("fedavg", "keep"), Arm("fedavg", "drop", {"target": 2.5}), Arm("fedavg", "wait", {"target": 1.5})]
    plan = Plan(Experiment(task="python:mine"), {}, [], [], [0, 1], more_arms=arms)
    reached = {"rounds_to_target": 4, "seconds_to_target": 0.5, "simulated_seconds_to_target": 20.0}
    for arm, e, folder in plan.runs(tmp_path):
        best = {} if arm.policy == "wait" else {"best_rmse": 2.0}
        write_finished(folder, metric="rmse", target=e.target, **best, **(reached if arm.policy == "drop" else {}))
    _, *lines = show(make_comparison_table(make_table(plan, tmp_path), plan.experiments()[0], "rmse"))
    assert [line for line in lines if line[0] == "fedavg"] == [
        ["fedavg", "keep", "-", "-", "-", "-", "2"],
        ["fedavg", "drop", "target=2.5", "4", "2/2", "0.5", "20", "2"],
        ["fedavg", "wait", "target=1.5", "never", "0/2", "never", "never", "-"],
    ]


def test_a_row_of_a_comparison_is_a_line_of_80_columns(tmp_path):
    """With three seeds each number has its interval: the longest title breaks, and no number does."""
    plan = Plan(Experiment(), {}, ["scaffold"], ["complete"], [0, 1, 2])
    for seed, (_, _, folder) in enumerate(plan.runs(tmp_path)):
        times = {"rounds_to_target": 100 + seed, "seconds_to_target": 10.0 + seed}
        write_finished(folder, **times, simulated_seconds_to_target=100.0 + 9 * seed, best_accuracy=0.5 + seed / 10)
    table = make_comparison_table(make_table(plan, tmp_path), plan.experiments()[0], "accuracy")
    screen = io.StringIO()
    Console(file=screen, width=80).print(table)
    above, titles, row = screen.getvalue().splitlines()
    assert (above.split(), titles.split()[2:4]) == (["rounds"], ["to", "65%"])
    assert row.split()[2:4] == ["101", "±2"]
    assert row.rstrip().endswith("60.0% ±24.8%")


def test_a_comparison_without_a_target_shows_each_number_once(tmp_path):
    """How runs ended is in the first table, unless the second one shows it."""
    plan = Plan(Experiment(task="python:mine"), {}, ["fedavg"], ["keep"], [0])
    measured = {"metric": "rmse", "target": None, "best_rmse": 2.0, "last_rmse": 3.0}
    write_finished(tmp_path / "a" / "fedavg-keep" / "seed-0", **measured)
    rows = make_table(plan, tmp_path / "a")
    assert not has_targets(rows)
    assert make_end_table(rows, "rmse") is None
    header, row = show(make_comparison_table(rows, plan.base, "rmse"))
    assert " ".join(header) == "method stragglers best rmse rmse at the end simulated seconds in all"
    assert row == ["fedavg", "keep", "2", "3", "9"]
    write_finished(tmp_path / "b" / "fedavg-keep" / "seed-0", **measured, last_rmse_slow=5.0)
    rows = make_table(plan, tmp_path / "b")
    assert show(make_comparison_table(rows, plan.base, "rmse"))[1] == ["fedavg", "keep", "2"]
    assert show(make_end_table(rows, "rmse"))[1] == ["fedavg", "keep", "3", "5", "9"]


def test_the_end_of_a_run_names_its_metric():
    summary = {"metric": "rmse", "best_rmse": 2.0, "diverged": False, "rounds": 9, "target": None}
    assert describe_outcome(summary) == "best rmse 2"
    assert describe_outcome({**summary, "target": 1.5, "rounds_to_target": None}) == "rmse 1.5 never, best rmse 2"
    assert describe_outcome({**summary, "target": 3.0, "rounds_to_target": 1}) == "rmse 3 after 1 round, best rmse 2"
    top = {"metric": "top5_accuracy", "best_top5_accuracy": 0.9, "target": 0.85, "rounds_to_target": 4}
    assert describe_outcome({**summary, **top}) == "top5_accuracy 85% after 4 rounds, best top5_accuracy 90.00%"


@pytest.mark.slow
def test_progress_on_a_terminal_is_live_and_fits(tmp_path):
    """A real terminal of 80 columns: the live line is drawn over and over, and gone at the end."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
    words = ("run", *FAST, "--rounds", "40", "--out", "r")
    streams = {"stdout": slave, "stderr": slave, "text": False, "start_new_session": False}
    with start(*words, folder=tmp_path, env=environment, **streams) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                block = os.read(master, 4096)
            except OSError:
                break
            if not block:
                break
            shown += block
    os.close(master)
    assert process.returncode == 0
    text = shown.decode()
    for word in ("round ", "accuracy", "loss", "slow", "run folder: r"):
        assert word in text
    assert text.count("accuracy") > 3, "live: drawn more than once"


@pytest.mark.parametrize(
    ("bytes_up", "wasted", "text"),
    [
        (2_544_080_000, 0, "100 s; 2,544 MB down, 2,544 MB up"),
        (72_000, 25, "100 s, 25% of the steps for nothing; 0.07 MB down, 0.07 MB up"),
    ],
)
def test_what_a_run_cost_the_devices(bytes_up, wasted, text):
    from fedlga.cli.terminal import _describe_costs

    costs = {
        "device_seconds": 100.0,
        "steps": 100,
        "steps_wasted": wasted,
        "bytes_down": bytes_up,
        "bytes_up": bytes_up,
    }
    assert _describe_costs(costs) == text
