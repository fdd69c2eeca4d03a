"""Searches: what is run next and what is chosen, on costs whose best is known; and small searches with real runs."""

from __future__ import annotations

import csv
import json
import math
import random
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.settings import BadInput
from fedlga.experiments.arms import Arm
from fedlga.experiments.config import Experiment
from fedlga.experiments.criteria import CRITERIA, Criterion, check_by, find_criterion
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_summary
from fedlga.experiments.search import Point, SearchState, Trial, choose, find_beyond, grid_points, next_trials
from fedlga.experiments.tune import (
    TuningPlan,
    chosen_arms,
    held_out_plan,
    plan_tuned,
    read_search,
    run_tuning,
    search_folder,
    start,
    write_search,
)
from run_folders import write_finished

ACCURACY, METRIC, SLOW, TIME = (CRITERIA[name] for name in ("accuracy", "metric", "slow", "time"))
TINY = preset("digits").changed(
    {"rounds": 3, "steps_per_epoch": 1, "devices": 5, "cohort": 2, "lr": 0.1, "target": 0.3}
)
Cost = Callable[[Mapping[str, Any], int], float]


def search(
    grid: Mapping[str, Sequence[Any]],
    cost: Cost,
    seeds: Sequence[int] = (7, 8, 9),
    criterion: Criterion = ACCURACY,
    pick: Callable[[Sequence[Trial]], Iterable[Trial]] = lambda trials: trials,
    **options: Any,
) -> tuple[SearchState, list[Trial], dict[Point, dict[int, float]]]:
    """Run a search to its end; return its state, the trials in their order, and their scores.

    `pick` says which of the trials that are asked for are done before the search is asked again.
    """
    scores: dict[Point, dict[int, float]] = {}
    done: list[Trial] = []
    while (state := next_trials(grid, scores, seeds, criterion, **options)).trials:
        for trial in pick(state.trials):
            scores.setdefault(trial.point, {})[trial.seed] = cost(dict(trial.point), trial.seed)
            done.append(trial)
        assert len(done) < 1000, "the search does not end"
    return state, done, scores


def bowl(settings: Mapping[str, Any], seed: int) -> float:
    """Return a cost that is least at lr = 0.01; seeds differ a little."""
    return (math.log10(settings["lr"]) + 2) ** 2 + seed / 1000


def point(**settings: Any) -> Point:
    return tuple(settings.items())


def count_points(trials: Iterable[Trial], name: str = "lr") -> dict[Any, int]:
    """Return how many seeds each value of a setting was run on."""
    return dict(Counter(dict(trial.point)[name] for trial in trials))


# What to run next


def test_a_grid_that_holds_the_best():
    """The best, and its neighbours one decade away with a cost of 1: only the best is run on the other two seeds."""
    state, trials, _ = search({"lr": [0.001, 0.01, 0.1]}, bowl)
    assert (state.best, state.at_edge) == (point(lr=0.01), [])
    assert count_points(trials) == {0.001: 1, 0.01: 3, 0.1: 1}
    assert [trial.seed for trial in trials] == [7, 7, 7, 8, 9]


@pytest.mark.parametrize("grid", [[0.0001, 0.001], [0.001, 0.0001]])
def test_a_grid_below_the_best_widens(grid):
    """The search goes up to 0.01, and one step further to see that it is the best: of three widenings two are used."""
    state, trials, _ = search({"lr": grid}, bowl)
    assert (state.best, state.at_edge) == (point(lr=0.01), [])
    assert count_points(trials) == {0.0001: 1, 0.001: 3, 0.01: 3, 0.1: 1}
    assert len(state.points) == 4


def test_a_grid_above_the_best_widens():
    state, trials, _ = search({"lr": [0.1, 1]}, bowl)
    assert (state.best, state.at_edge) == (point(lr=0.01), [])
    assert count_points(trials) == {1: 1, 0.1: 3, 0.01: 3, 0.001: 1}


def test_two_settings_at_once():
    """lr is within its grid, mu is best at 1, beyond its grid.

    6 points on the first seed and the best on two more. mu = 1 on three: it is the best. Then its neighbours that were
    not tried: mu = 10, and mu = 1 with the other two rates.
    """
    grid = {"lr": [0.001, 0.01, 0.1], "mu": [0.01, 0.1]}
    state, trials, _ = search(grid, lambda s, seed: bowl(s, seed) + math.log10(s["mu"]) ** 2)
    assert (state.best, state.at_edge) == (point(lr=0.01, mu=1.0), [])
    assert len(trials) == 6 + 2 + 3 + 3
    assert set(state.points[6:]) == {
        *(point(lr=0.01, mu=1.0), point(lr=0.01, mu=10.0)),
        *(point(lr=0.001, mu=1.0), point(lr=0.1, mu=1.0)),
    }


def test_two_settings_that_are_both_too_low():
    """The best is lr = 0.01, mu = 1, which is beyond the grid in both; only one is changed at a time.

    With b for the best so far: the grid costs 12, 6, 9 and b = 3 at (0.001, 0.1). Its neighbours beyond the grid are
    (0.01, 0.1) with 2 and b = (0.001, 1) with 1. The neighbours of that are (0.0001, 1) with 4, (0.001, 10) with 3 and
    b = (0.01, 1) with 0. The neighbours of that are (0.1, 1) and (0.01, 10). Each b has two seeds more.
    """
    grid = {"lr": [0.0001, 0.001], "mu": [0.01, 0.1]}
    state, trials, _ = search(grid, lambda s, seed: bowl(s, seed) + 2 * math.log10(s["mu"]) ** 2)
    assert (state.best, state.at_edge) == (point(lr=0.01, mu=1.0), [])
    assert set(state.points[4:]) == {
        *(point(lr=0.01, mu=0.1), point(lr=0.001, mu=1.0)),
        *(point(lr=0.0001, mu=1.0), point(lr=0.01, mu=1.0), point(lr=0.001, mu=10.0)),
        *(point(lr=0.1, mu=1.0), point(lr=0.01, mu=10.0)),
    }
    assert len(trials) == (4 + 2) + (2 + 2) + (3 + 2) + 2


@pytest.mark.parametrize(("widenings", "best"), [(0, 0.01), (1, 0.1), (3, 10.0)])
def test_a_cost_that_only_falls_is_at_the_edge_in_the_end(widenings, best):
    state, trials, _ = search({"lr": [0.001, 0.01]}, lambda s, seed: -math.log10(s["lr"]), widenings=widenings)
    assert (state.best, state.at_edge) == (point(lr=best), ["lr"])
    assert len(trials) == 2 + 2 + 3 * widenings, "every new point is the best so far"


def test_points_beyond_the_limits_of_a_setting_are_not_tried():
    """Higher is better, and 0.9 * 0.9 / 0.5 = 1.62, as 2, is too high: the search is over, and not at an edge."""
    state, trials, _ = search(
        {"momentum": [0.5, 0.9]}, lambda s, seed: -s["momentum"], fits=lambda p: dict(p)["momentum"] < 1
    )
    assert (state.best, state.at_edge) == (point(momentum=0.9), [])
    assert count_points(trials, "momentum") == {0.5: 1, 0.9: 3}
    lower, _, _ = search(
        {"momentum": [0.5, 0.9]}, lambda s, seed: s["momentum"], fits=lambda p: dict(p)["momentum"] < 1
    )
    assert [dict(p)["momentum"] for p in lower.points] == [0.5, 0.9, 0.3, 0.2, 0.1], "the other way is free"


@pytest.mark.parametrize(
    ("values", "best", "further"),
    [
        ([0.01, 0.03, 0.1], 0.1, [0.3]),
        ([0.1, 0.03, 0.01], 0.01, [0.003]),
        ([0.01, 0.03, 0.1], 0.03, []),
        ([1, 2], 2, [4]),
        ([1, 2, 5], 1, [0.5]),
        ([10, 12], 12, [14]),  # 14.4 as 10 would be lower
        ([0.9, 1.0], 1.0, [1.1]),  # 1.11 as 1 would be the same
        ([1.0, 1.01], 1.01, [1.02]),
        ([0.5], 0.5, []),
        ([0, 0.1], 0.1, []),
        ([-1, 1], 1, []),
        ([False, True], True, []),
        (["sgd", "adam"], "adam", []),
    ],
)
def test_the_next_value_beyond_an_edge(values, best, further):
    points = grid_points({"x": values})
    assert find_beyond(points, point(x=best)) == {point(x=value): "x" for value in further}


def test_points_far_behind_run_on_the_first_seed_only():
    """The margin is 0.03. After the second seed the mean counts: (0.02 + 0.06) / 2 = 0.04 is too far behind 0."""
    costs = {1: [0.0, 0.0, 0.0], 2: [0.029, 0.03, 0.028], 3: [0.02, 0.06, 0.0], 4: [0.031, 0.0, 0.0]}
    state, trials, _ = search(
        {"x": [2, 1, 3, 4]}, lambda s, seed: costs[s["x"]][seed], seeds=[0, 1, 2], fits=lambda p: False
    )
    assert count_points(trials, "x") == {1: 3, 2: 3, 3: 2, 4: 1}
    assert state.best == point(x=1)


def test_the_margin_of_times_is_a_share_of_the_best():
    """Half of the best: up to 150 seconds against 100."""
    costs = {1: 100.0, 2: 149.0, 3: 151.0}
    _, trials, _ = search({"x": [1, 2, 3]}, lambda s, _: costs[s["x"]], criterion=TIME, fits=lambda p: False)
    assert count_points(trials, "x") == {1: 3, 2: 3, 3: 1}


@pytest.mark.parametrize("factor", [1.0, 1e5, 1e-5])
def test_margins_of_a_metric_in_other_units_keep_the_same_points(factor):
    """An rmse of 0.2 in units, in hundred thousands or in hundred thousandths: 10 % behind stays, 11 % leaves."""
    costs = {1: [0.2, 0.2], 2: [0.219, 0.219], 3: [0.222, 0.222]}
    for criterion in (SLOW.for_metric("rmse"), METRIC.for_metric("rmse")):
        state, trials, _ = search(
            {"x": [2, 1, 3]},
            lambda s, seed: factor * costs[s["x"]][seed],
            seeds=[0, 1],
            criterion=criterion,
            fits=lambda p: False,
        )
        assert count_points(trials, "x") == {1: 2, 2: 2, 3: 1}
        assert state.best == point(x=1)


def test_the_margins_of_accuracy_stay_what_they_were():
    """0.03 and 0.002 for the accuracy and for that of slow devices; shares of the error by the metric of a task."""
    for criterion in (ACCURACY, SLOW):
        assert criterion.for_metric("accuracy") == criterion == criterion.for_metric("top5_accuracy")
        assert criterion.limit([0.2, 0.5, 0.9], criterion.margin) == 0.2 + 0.03
        assert criterion.limit([0.2, 0.5, 0.9], criterion.tie) == 0.2 + 0.002
    assert METRIC.for_metric("accuracy") == METRIC
    assert METRIC.limit([0.2, 0.5, 0.9], METRIC.margin) == 0.2 + 0.1 * 0.2
    assert TIME.for_metric("rmse") == TIME


@pytest.mark.parametrize(
    ("costs", "most"),
    [
        ([2.0, 3.0, 50.0], 2.2),  # a tenth of the best
        ([-0.9, -0.5, 4.0], -0.81),  # an R² of 0.9: a tenth of it
        ([-0.01, 0.02, 0.3], -0.007),  # around zero, a tenth of the way to the median: 0.003
        ([0.0, 0.5, 1.0, math.inf], 0.05),  # a perfect one; what diverged has no place in the median
        ([-4.0, -3.0, math.inf], -3.6),
        ([0.0, 0.0], 0.0),
        ([math.inf, math.inf], math.inf),
    ],
)
def test_a_margin_for_costs_of_any_sign(costs, most):
    for order in (costs, costs[::-1]):
        assert METRIC.limit(order, METRIC.margin) == pytest.approx(most)


def test_a_point_with_all_seeds_is_not_lost_to_a_neighbour_that_was_lucky_once():
    """lr = 0.1 has a mean of 0.1 over three seeds when the grid grows. lr = 1 has 0.05 on the first, 0.3 on the others.

    On the first seed lr = 0.1 is 0.05 behind, more than the margin; over all seeds it is 0.1167 ahead.
    """
    costs = {0.01: [0.2, 0.2, 0.2], 0.1: [0.1, 0.1, 0.1], 1.0: [0.05, 0.3, 0.3]}
    state, trials, _ = search({"lr": [0.01, 0.1]}, lambda s, seed: costs[s["lr"]][seed], [0, 1, 2], widenings=1)
    assert (state.best, state.at_edge) == (point(lr=0.1), [])
    assert count_points(trials) == {0.01: 1, 0.1: 3, 1.0: 2}, "after its second seed, lr = 1 is 0.075 behind"


def test_a_point_that_left_does_not_come_back_when_the_grid_grows():
    """lr = 0.01 leaves after two seeds, with 0.16 against 0.11. That lr = 1 leads on the first seed changes nothing.

    On that seed alone lr = 0.01 is close to lr = 1, and lr = 0.1, which is better than both, is not.
    """
    costs = {0.01: [0.1, 0.22, 0.1], 0.1: [0.12, 0.1, 0.1], 1.0: [0.085, 0.5, 0.5]}
    state, trials, _ = search({"lr": [0.01, 0.1]}, lambda s, seed: costs[s["lr"]][seed], [0, 1, 2], widenings=1)
    assert state.best == point(lr=0.1)
    assert count_points(trials) == {0.01: 2, 0.1: 3, 1.0: 2}


@pytest.mark.parametrize(
    ("criterion", "a", "b", "chosen"),
    [
        (ACCURACY, [0.45, 0.55], [0.500, 0.502], "b"),  # 0.001 behind, with less spread
        (ACCURACY, [0.45, 0.55], [0.503, 0.503], "a"),  # 0.003 behind: not tied
        (ACCURACY, [0.50, 0.52], [0.501, 0.521], "a"),  # the same spread: the least mean
        (TIME, [90.0, 110.0], [101.0, 102.0], "b"),  # 1.5 % behind
        (TIME, [90.0, 110.0], [103.0, 103.0], "a"),  # 3 % behind
    ],
)
def test_ties_go_to_the_point_with_less_spread(criterion, a, b, chosen):
    scores = {point(x="a"): dict(enumerate(a)), point(x="b"): dict(enumerate(b))}
    for racing in (list(scores), list(scores)[::-1]):
        assert choose(scores, racing, [0, 1], criterion) == point(x=chosen)


def test_a_setting_that_diverges_is_never_chosen_over_one_that_does_not():
    """Also if only one of its seeds does."""
    costs = {0.1: [0.2, math.inf, 0.2], 0.01: [0.21, 0.21, 0.21], 1.0: [math.inf] * 3}
    state, trials, _ = search({"lr": [0.01, 0.1, 1.0]}, lambda s, seed: costs[s["lr"]][seed], [0, 1, 2], widenings=0)
    assert state.best == point(lr=0.01)
    assert count_points(trials) == {0.01: 3, 0.1: 2, 1.0: 1}
    state, _, _ = search({"lr": [0.1, 1.0]}, lambda s, seed: math.inf)
    assert state.best is not None, "if all diverge the search is over too"


def test_an_arm_without_a_setting_of_the_grid_has_one_point():
    state, trials, _ = search({}, lambda s, seed: 0.5)
    assert (state.best, len(trials)) == ((), 3)


small_grids = st.dictionaries(
    st.sampled_from(["a", "b"]),
    st.lists(st.sampled_from([0.01, 0.03, 0.1, 1, 2.5]), min_size=1, max_size=3, unique=True),
)


CRITERIA_AND_COSTS = [(ACCURACY, 0.1, 0.1), (TIME, 100.0, 100.0), (METRIC, -0.5, 1.0), (METRIC, -3.0, 2.0)]


@given(small_grids, st.sampled_from(CRITERIA_AND_COSTS), st.integers(1, 3), st.integers(0, 3), st.integers(0, 10**6))
def test_every_search_ends_with_the_best_of_the_race(grid, criterion_and_costs, count, widenings, salt):
    """Costs without any order, from `least` to `least + width`."""
    criterion, least, width = criterion_and_costs
    seeds = range(count)
    options = {"seeds": seeds, "criterion": criterion, "widenings": widenings}

    def cost(settings: Mapping[str, Any], seed: int) -> float:
        return least + width * random.Random(repr((salt, settings, seed))).random()

    def mean(p: Point, done: int) -> float:
        return statistics.fmean([scores[p][s] for s in seeds[:done]])

    state, trials, scores = search(grid, cost, **options)
    assert len(trials) == len({(t.point, t.seed) for t in trials}), "nothing is run twice"
    assert len(state.points) == len(set(state.points))
    assert set(scores) == set(state.points)
    finalists = [p for p in state.points if len(scores[p]) == count]
    for p in state.points:  # who left was too far behind another one, on the same seeds
        done = len(scores[p])
        assert list(scores[p]) == list(seeds[:done])
        rivals = [q for q in state.points if len(scores[q]) >= done]
        if p not in finalists:
            assert mean(p, done) > min(mean(q, done) for q in rivals)
            if criterion is not METRIC:
                best = min(mean(q, done) for q in rivals)
                assert mean(p, done) > best + criterion.margin * (best if criterion.relative else 1)

    # The best of all points with all seeds was chosen; of those that are tied, the one with the least spread.
    means = {p: mean(p, count) for p in finalists}
    tied = [p for p in finalists if means[p] <= criterion.limit(means.values(), criterion.tie)]
    spread = {p: max(scores[p].values()) - min(scores[p].values()) for p in tied}
    assert state.best in tied
    assert spread[state.best] == min(spread.values())
    if len(state.at_edge) == 0:
        assert find_beyond(state.points, state.best) == {}

    # An interruption anywhere, and results in any order, lead to the same trials and the same choice.
    one_at_a_time = random.Random(salt)
    again, others, _ = search(grid, cost, pick=lambda trials: [one_at_a_time.choice(trials)], **options)
    assert again == state
    assert {(t.point, t.seed) for t in others} == {(t.point, t.seed) for t in trials}


# What a run costs


def summary(**values: Any) -> dict[str, Any]:
    base = {"diverged": False, "closing_accuracy": 0.75, "closing_accuracy_slow": 0.5, "best_accuracy": 0.8}
    times = {"simulated_seconds_to_target": 120.0, "simulated_seconds": 300.0}
    return {**base, **times, **values}


def test_the_cost_of_a_run_by_hand():
    e = TINY.changed({"target": 0.85})
    assert ACCURACY.cost(e, summary()) == 0.25
    assert SLOW.cost(e, summary()) == 0.5
    assert TIME.cost(e, summary()) == 120.0
    late = summary(simulated_seconds_to_target=None)
    assert TIME.cost(e, late) == pytest.approx(300 * 1.05), "0.05 below the target, after 300 seconds"
    assert TIME.cost(e, {**late, "best_accuracy": 0.6}) == pytest.approx(300 * 1.25)
    assert TIME.cost(e, {**late, "best_accuracy": None}) == pytest.approx(300 * 1.85)


@pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA)
def test_a_run_that_diverged_costs_more_than_any_other(criterion):
    assert criterion.cost(TINY, summary(diverged=True)) == math.inf


def regression(**values: Any) -> dict[str, Any]:
    """Return a summary of a task that is measured by rmse."""
    base = {"diverged": False, "metric": "rmse", "better": "lower", "target": None}
    measured = {"closing_rmse": 2.5, "closing_rmse_slow": 4.0, "best_rmse": 2.0}
    times = {"simulated_seconds_to_target": None, "simulated_seconds": 300.0}
    return {**base, **measured, **times, **values}


def test_the_cost_of_a_run_with_another_metric_by_hand():
    e = Experiment(task="python:mine")
    assert METRIC.cost(e, regression()) == 2.5
    assert SLOW.cost(e, regression()) == 4.0
    assert METRIC.cost(e, regression(better="higher")) == -2.5
    assert TIME.cost(e, regression(target=1.6)) == pytest.approx(300 * 1.25), "a quarter of the target away"
    assert TIME.cost(e, regression(target=1.6, best_rmse=math.nan)) == pytest.approx(300 * 2)
    assert TIME.cost(e, regression(target=2.1, simulated_seconds_to_target=9.0)) == 9.0
    with pytest.raises(BadInput, match="--by: got 'time', and the experiment has no target; set one with --target"):
        TIME.cost(e, regression())


@pytest.mark.parametrize("value", [None, math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("better", ["higher", "lower"])
def test_what_is_no_number_is_never_the_best(value, better):
    assert METRIC.cost(TINY, regression(closing_rmse=value, better=better)) == math.inf


def test_slow_devices_of_which_nothing_is_known():
    for values, metric in (
        (summary(closing_accuracy_slow=None), "accuracy"),
        (regression(closing_rmse_slow=None), "rmse"),
    ):
        with pytest.raises(BadInput) as error:
            SLOW.cost(TINY, values)
        known = f"{metric} is not known for the devices that are always slow"
        assert str(error.value) == f"--by: got 'slow', and {known}; it takes {metric} or time"


def test_what_a_setting_is_chosen_by():
    """By the accuracy of a dataset, or by the metric that a task has, whatever it is called."""
    assert find_criterion(None, "accuracy") is find_criterion("accuracy", "accuracy") is ACCURACY
    assert find_criterion(None, "loss") is find_criterion(None, None) is find_criterion("rmse", None) is METRIC
    assert (find_criterion("slow", None), find_criterion("time", "accuracy")) == (SLOW, TIME)
    assert ACCURACY.describe("accuracy") == "mean accuracy over the last fifth of the simulated time"
    assert METRIC.describe("rmse") == "mean rmse over the last fifth of the simulated time"
    assert SLOW.describe("rmse").startswith("mean rmse over the last fifth of the simulated time, on data like that of")


def test_another_metric_than_the_target_metric_is_refused():
    for by in ("rmse", "metric", "slow", "time"):
        check_by(by, "rmse", ["rmse", "mae", "loss"])
    for by, more in (("accuracy", ""), ("beauty", ""), ("mae", ", or mae with --set metric=mae")):
        with pytest.raises(BadInput) as error:
            check_by(by, "rmse", ["rmse", "mae", "loss"])
        expected = f"--by: got {by!r}, and the target metric is rmse; it takes rmse, slow or time{more}"
        assert str(error.value) == expected


# The plan


def make_plan(**changes: Any) -> TuningPlan:
    fields: dict[str, Any] = {
        "base": TINY,
        "arms": [Arm("fedavg", "keep"), Arm("fedprox", "keep")],
        "grid": {"lr": [0.05, 0.1], "mu": [0.1, 1]},
        "criterion": ACCURACY,
        "seeds": [100, 101],
        "held_out": [0, 1],
        "widenings": 1,
    }
    return TuningPlan(**{**fields, **changes})


def test_an_arm_takes_the_settings_that_it_has():
    fixed = Arm("fedprox", "keep", {"lr": 0.5})
    plan = make_plan(arms=[Arm("fedavg", "keep"), Arm("fedprox", "keep"), fixed])
    assert [plan.grid_of(arm) for arm in plan.arms] == [{"lr": [0.05, 0.1]}, plan.grid, {"mu": [0.1, 1]}]


def test_a_setting_with_its_owner_is_for_those_who_use_it():
    adam = Arm("fedavg", "keep", {"server_optimizer": "adam"})
    plan = make_plan(arms=[Arm("fedavg", "keep"), adam], grid={"lr": [0.1], "adam.eta_g": [0.01, 0.1]})
    assert [list(plan.grid_of(arm)) for arm in plan.arms] == [["lr"], ["lr", "adam.eta_g"]]
    e = plan.experiment(adam, point(**{"lr": 0.1, "adam.eta_g": 0.01}), 100)
    assert e.settings("optimizer")["eta_g"] == 0.01


def test_a_run_of_the_search():
    """It has the arm, the point and the seed; one process; and by time it ends at the target."""
    plan = make_plan(base=TINY.changed({"backend": "pool"}))
    e = plan.experiment(plan.arms[1], point(lr=0.05, mu=1), 101)
    assert (e.method, e.policy, e.seed, e.lr, e.settings("method")["mu"]) == ("fedprox", "keep", 101, 0.05, 1)
    assert (e.backend, e.stop_at_target) == ("serial", False)
    assert make_plan(criterion=TIME).experiment(plan.arms[0], point(lr=0.05), 100).stop_at_target is True


def test_what_fits_an_arm():
    plan = make_plan(grid={"momentum": [0.5, 0.9], "epochs": [2, 5]})
    good = {"momentum": 0.99, "epochs": 3}
    assert plan.fits(plan.arms[0], tuple(good.items()))
    for bad in ({"momentum": 1.0}, {"momentum": 2.0}, {"epochs": 0.8}, {"epochs": 0}):
        assert not plan.fits(plan.arms[0], tuple({**good, **bad}.items()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"held_out": [3, 101]}, "--held-out: seed 101 is one of --seeds; a seed that chose a setting cannot judge it"),
        ({"arms": [Arm("fedavg", "keep")] * 2}, "--arm: fedavg-keep is there twice; each arm is compared once"),
        ({"arms": [Arm("fedlga", "keep")]}, "stragglers: got 'keep'; method fedlga takes complete"),
        ({"seeds": []}, "--seeds: got none; it takes at least one"),
        ({"widenings": -1}, "--widen: got -1; it takes a whole number of at least 0"),
        ({"grid": {}}, "--grid: got none; it takes a setting with its values, such as lr=0.01,0.03,0.1"),
        ({"grid": {"lr": [0.1], "mu": []}}, "--grid: got no value for mu; it takes at least one"),
        ({"grid": {"lr": [0.1, 0.2, 0.10]}}, "--grid: lr=0.1 is there twice; each value is tried once"),
        ({"grid": {"lr": [1, 1.0]}}, "--grid: lr=1 is there twice; each value is tried once"),
        ({"grid": {"lr": [0.1], "seed": [0, 1]}}, "--grid: seed is what tune varies itself; see fedlga tune --help"),
        ({"grid": {"method": ["fedavg"]}}, "--grid: method is what tune varies itself; see fedlga tune --help"),
        ({"grid": {"stragglers": ["keep"]}}, "--grid: stragglers is what tune varies itself; see fedlga tune --help"),
        ({"grid": {"backend": ["pool"]}}, "--grid: backend is what tune varies itself; see fedlga tune --help"),
        ({"grid": {"lr": [0.1], "learning_rate": [1]}}, "--grid: no arm has a setting 'learning_rate'"),
        ({"grid": {"lr": [0.1], "yogi.eta_g": [1]}}, "--grid: no arm has a setting 'yogi.eta_g'"),
        ({"grid": {"lr": [0.1, -1]}}, "lr: got -1.0; it takes a number above 0"),
        ({"grid": {"lr": [0.1, "high"]}}, "lr: got 'high'; it takes a number above 0"),
    ],
)
def test_a_wrong_plan_gets_one_line(changes, message):
    with pytest.raises(BadInput) as error:
        make_plan(**changes)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_plan_survives_its_file(tmp_path):
    arms = [Arm("fedavg", "keep"), Arm("fedprox", "keep", {"server_optimizer": "adam"})]
    grid = {"lr": [0.05, 1], "adam.eta_g": [0.1], "model": ["mlp", "cnn"]}
    plan = make_plan(arms=arms, grid=grid, criterion=TIME, base=TINY.changed({"rho": 0.7, "time_limit": 50.0}))
    start(plan, tmp_path / "new" / "folder")
    assert TuningPlan.load(tmp_path / "new" / "folder") == plan


DAMAGES = {
    "not TOML": lambda text: text.replace("[base]", "[base"),
    "empty": lambda text: "",
    "another criterion": lambda text: text.replace('"accuracy"', '"beauty"'),
    "without seeds": lambda text: text.replace("seeds =", "others ="),
    "a seed for a list": lambda text: text.replace("seeds = [\n    100,\n    101,\n]", "seeds = 100"),
    "seeds of another type": lambda text: text.replace("    100,\n", '    "a",\n'),
    "no seed at all": lambda text: text.replace("    100,\n    101,\n", ""),
    "an arm that lacks its policy": lambda text: text.replace('policy = "keep", ', "", 1),
    "an arm with more": lambda text: text.replace('policy = "keep"', 'policy = "keep", colour = "red"', 1),
    "another base": lambda text: text.replace("devices = 5", "devices = 5\ncolours = 2"),
    "bytes": lambda text: "\0\ufffd",
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_plan_gets_one_line(tmp_path, damage):
    start(make_plan(), tmp_path)
    text = (tmp_path / "tuning.toml").read_text()
    assert damage(text) != text
    (tmp_path / "tuning.toml").write_text(damage(text))
    with pytest.raises(BadInput) as error:
        TuningPlan.load(tmp_path)
    assert "\n" not in str(error.value)


def test_a_plan_that_is_not_there(tmp_path):
    for folder in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(BadInput, match=r"--resume: .* holds no search; it takes the folder of fedlga tune"):
            TuningPlan.load(folder)
    (tmp_path / "tuning.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match=r"--resume: .*tuning\.toml' is damaged"):
        TuningPlan.load(tmp_path)


# The files, with runs that are written here


def write_runs(plan: TuningPlan, out: Path, cost: Cost, most: int = 1000) -> int:
    """Write the results that a search asks for, until it is over or there are so many; return their number."""
    written = 0
    while trials := [(arm, t) for arm in plan.arms for t in read_search(plan, out, arm)[0].trials]:
        for arm, trial in trials:
            if written == most:
                return written
            accuracy = 1 - cost({**arm.settings, **dict(trial.point)}, trial.seed)
            folder = search_folder(out, arm, trial.point, trial.seed)
            write_finished(folder, seed=trial.seed, diverged=False, closing_accuracy=accuracy)
            written += 1
    return written


@pytest.fixture
def searched(tmp_path) -> tuple[TuningPlan, Path]:
    """A search that is over: lr = 0.01 for FedAvg; FedProx, which does best with mu = 1, the same."""
    grid = {"lr": [0.001, 0.01, 0.1], "mu": [0.1, 1, 10]}
    plan = make_plan(grid=grid)
    start(plan, tmp_path / "t")
    write_runs(plan, tmp_path / "t", lambda s, seed: (bowl(s, seed) + math.log10(s.get("mu", 1)) ** 2) / 100)
    write_search(plan, tmp_path / "t")
    return plan, tmp_path / "t"


def test_what_a_search_writes(searched):
    plan, out = searched
    rows = list(csv.DictReader((out / "tuning.csv").read_text().splitlines()))
    assert len(rows) == 3 + 9
    assert [(row["arm"], row["settings"]) for row in rows if row["chosen"] == "True"] == [
        ("fedavg-keep", "lr=0.01"),
        ("fedprox-keep", "lr=0.01 mu=1"),
    ]
    (best, *_) = [row for row in rows if row["chosen"] == "True"]
    assert (float(best["seed 100"]), float(best["seed 101"])) == (pytest.approx(0.001), pytest.approx(0.00101))
    assert float(best["mean"]) == pytest.approx(0.001005)
    assert chosen_arms(plan, out) == [
        Arm("fedavg", "keep", {"lr": 0.01}),
        Arm("fedprox", "keep", {"lr": 0.01, "mu": 1}),
    ]
    held_out = held_out_plan(plan, out)
    assert (held_out.arms, list(held_out.seeds)) == (chosen_arms(plan, out), [0, 1])


def test_a_point_that_left_the_race_has_an_empty_cell(tmp_path):
    plan = make_plan(arms=[Arm("fedavg", "keep")], grid={"lr": [0.01, 1]}, widenings=0)
    start(plan, tmp_path)
    write_runs(plan, tmp_path, bowl)
    write_search(plan, tmp_path)
    rows = {row["settings"]: row for row in csv.DictReader((tmp_path / "tuning.csv").read_text().splitlines())}
    assert rows["lr=1"]["seed 101"] == ""
    assert float(rows["lr=1"]["mean"]) == float(rows["lr=1"]["seed 100"])
    assert "at_edge" in (tmp_path / "choice.toml").read_text()


@pytest.mark.parametrize("most", range(8))
def test_a_search_that_stopped_anywhere_goes_on_to_the_same_files(tmp_path, most):
    plan = make_plan(arms=[Arm("fedavg", "keep")], grid={"lr": [0.0001, 0.001]}, widenings=3)
    for name in ("whole", "stopped"):
        start(plan, tmp_path / name)
    assert write_runs(plan, tmp_path / "whole", bowl) == 1 + 2 + 2 + 1
    assert write_runs(plan, tmp_path / "stopped", bowl, most) == min(most, 6)
    if most < 6:
        assert chosen_arms(plan, tmp_path / "stopped") == []
    write_search(plan, tmp_path / "stopped")
    write_runs(plan, tmp_path / "stopped", bowl)
    for name in ("whole", "stopped"):
        write_search(plan, tmp_path / name)
    for file in ("choice.toml", "tuning.csv"):
        assert (tmp_path / "whole" / file).read_text() == (tmp_path / "stopped" / file).read_text()


def test_the_race_by_slow_devices_follows_the_metric_of_the_runs(tmp_path):
    """An rmse of 200 and one of 210 in dollars: 5 % behind. An accuracy of 0.9 and one of 0.86: too far behind."""
    plan = make_plan(arms=[Arm("fedavg", "keep")], grid={"lr": [0.01, 1]}, criterion=SLOW, widenings=0)
    dollars = {"metric": "rmse", "better": "lower"}
    cases = (
        ("rmse", {0.01: dollars | {"closing_rmse_slow": 200.0}, 1: dollars | {"closing_rmse_slow": 210.0}}, {0.01, 1}),
        ("accuracy", {0.01: {"closing_accuracy_slow": 0.9}, 1: {"closing_accuracy_slow": 0.86}}, {0.01}),
    )
    for name, summaries, racing in cases:
        for lr, values in summaries.items():
            write_finished(search_folder(tmp_path / name, plan.arms[0], point(lr=lr), 100), diverged=False, **values)
        state, _ = read_search(plan, tmp_path / name, plan.arms[0])
        assert {dict(trial.point)["lr"] for trial in state.trials} == racing


def test_an_arm_that_is_tuned_to_what_another_has_is_compared_once(tmp_path):
    plan = make_plan(
        arms=[Arm("fedavg", "keep"), Arm("fedavg", "keep", {"lr": 0.01}), Arm("fedavg", "drop")],
        grid={"lr": [0.001, 0.01, 0.1]},
    )
    start(plan, tmp_path)
    write_runs(plan, tmp_path, bowl)
    write_search(plan, tmp_path)
    arms = [Arm("fedavg", "keep", {"lr": 0.01}), Arm("fedavg", "drop", {"lr": 0.01})]
    assert held_out_plan(plan, tmp_path).arms == arms
    assert plan_tuned(tmp_path, {}, [5]).arms == arms


def test_a_comparison_of_what_was_chosen(searched):
    plan, out = searched
    comparison = plan_tuned(out, {"rounds": 9}, [5, 6])
    assert comparison.arms == chosen_arms(plan, out)
    assert [(e.method, e.seed, e.lr, e.rounds, e.devices) for e in comparison.experiments()] == [
        ("fedavg", 5, 0.01, 9, 5),
        ("fedprox", 5, 0.01, 9, 5),
        ("fedavg", 6, 0.01, 9, 5),
        ("fedprox", 6, 0.01, 9, 5),
    ]


def test_a_seed_that_chose_cannot_judge(searched):
    with pytest.raises(BadInput, match=r"--seeds: seed 101 chose the settings in .*; take others"):
        plan_tuned(searched[1], {}, [0, 101])


def test_a_search_that_is_not_over_chose_nothing_yet(searched, tmp_path):
    plan, _ = searched
    out = tmp_path / "half"
    start(plan, out)
    with pytest.raises(BadInput, match=r"--tuned: .*half' holds no search"):
        plan_tuned(out, {}, [5])
    write_runs(plan, out, bowl, most=3)
    write_search(plan, out)
    with pytest.raises(BadInput, match=r"--tuned: the search in .*half' is not over; fedlga tune --resume .*half"):
        plan_tuned(out, {}, [5])


@pytest.mark.parametrize("file", ["tuning.toml", "choice.toml"])
@pytest.mark.parametrize(
    "damage",
    [None, "", "[[arms", "arms = 3", "[[arms]]", 'arms = ["fedavg"]', "\0"],
    ids=["missing", "empty", "cut", "a number", "no method", "a text", "a byte"],
)
def test_a_choice_or_plan_that_cannot_be_read(searched, file, damage):
    _, out = searched
    if damage is None:
        (out / file).unlink()
    else:
        (out / file).write_text(damage)
    with pytest.raises(BadInput, match=r"^--tuned: .*(holds no search|is damaged)") as error:
        plan_tuned(out, {}, [5])
    assert "\n" not in str(error.value)


def test_a_choice_with_damaged_settings(searched):
    _, out = searched
    arm = '[[arms]]\nmethod = "fedavg"\npolicy = "keep"\n'
    (out / "choice.toml").write_text(2 * (arm + "settings = 3\n"))
    with pytest.raises(BadInput, match=r"--tuned: .*choice\.toml' is damaged"):
        plan_tuned(out, {}, [5])


# Real runs


def read_tables(out: Path) -> dict[str, Any]:
    """Return what a search leaves behind, without measured seconds."""
    tables: dict[str, Any] = {name: (out / name).read_text() for name in ("choice.toml", "tuning.csv")}
    for name in ("comparison.csv", "runs.csv"):
        rows = list(csv.DictReader((out / "held-out" / name).read_text().splitlines()))
        tables[name] = [{k: v for k, v in row.items() if not k.startswith("seconds")} for row in rows]
    return tables


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[TuningPlan, Path]:
    """A small search with real runs, from its beginning to its end."""
    plan, out = make_plan(), tmp_path_factory.mktemp("tuned") / "t"
    start(plan, out)
    steps = list(run_tuning(plan, out, processes=2))
    assert [step.phase for step in steps] == sorted((step.phase for step in steps), reverse=True), "the search is first"
    assert all(step.outcome.summary["finished"] for step in steps)
    assert len({step.outcome.job.folder for step in steps}) == len(steps)
    return plan, out


def list_seeds(folder: Path) -> set[int]:
    """Return the seeds of all runs below a folder: by the names of their folders, and by their experiments."""
    files = list(folder.rglob("experiment.toml"))
    named = {int(file.parent.name.removeprefix("seed-")) for file in files}
    assert named == {Experiment.load(file).seed for file in files}
    return named


@pytest.mark.slow
def test_a_search_end_to_end(tuned):
    plan, out = tuned
    assert {p.name for p in out.iterdir()} == {"tuning.toml", "choice.toml", "tuning.csv", "search", "held-out"}
    assert list_seeds(out / "search") == {100, 101}
    assert list_seeds(out / "held-out") == {0, 1}
    assert len(list((out / "held-out").rglob("summary.json"))) == 4
    assert {folder.name for folder in (out / "search").iterdir()} == {"fedavg-keep", "fedprox-keep"}
    tables = read_tables(out)
    arms = chosen_arms(plan, out)
    assert [(row["method"], row["settings"], row["seeds"]) for row in tables["comparison.csv"]] == [
        (arm.method, arm.settings_text, "2") for arm in arms
    ]
    assert len(tables["runs.csv"]) == 4
    for arm in arms:
        for seed in (0, 1):
            written = Experiment.load(out / "held-out" / arm.label / f"seed-{seed}" / "experiment.toml")
            assert written == arm.experiment(TINY, seed).resolved()
    assert {step.phase for step in run_tuning(plan, out)} == {"held-out"}, "nothing is left to search"
    assert read_tables(out) == tables


@pytest.mark.slow
def test_an_interrupted_search_ends_with_the_same_files(tuned, tmp_path):
    """It is left in the search, then among the held-out runs, and then it goes on to its end."""
    plan, whole = tuned
    out = tmp_path / "t"
    start(plan, out)
    steps = run_tuning(plan, out, processes=2)
    assert [step.phase for step in islice(steps, 3)] == ["search"] * 3
    steps.close()
    assert not (out / "held-out").exists()
    assert chosen_arms(plan, out) == []
    steps = run_tuning(plan, out, processes=1)
    assert any(step.phase == "held-out" for step in steps)
    steps.close()
    assert not (out / "held-out" / "comparison.csv").exists()
    before = {file: file.stat().st_mtime_ns for file in (out / "search").rglob("rounds.jsonl")}
    assert all(step.outcome.summary for step in run_tuning(plan, out, processes=1))
    assert {file: file.stat().st_mtime_ns for file in (out / "search").rglob("rounds.jsonl")} == before
    assert read_tables(out) == read_tables(whole)


def copy_search(tuned: tuple[TuningPlan, Path], to: Path) -> tuple[TuningPlan, Path]:
    return tuned[0], Path(shutil.copytree(tuned[1], to))


def turn_accuracy(folder: Path) -> None:
    """Turn every accuracy of a run upside down: what was best becomes worst."""
    file = folder / "summary.json"
    values = json.loads(file.read_text())
    changed = {name: 1 - v for name, v in values.items() if "accuracy" in name and isinstance(v, float)}
    file.write_text(json.dumps({**values, **changed}))


@pytest.mark.slow
def test_held_out_runs_are_never_used_to_choose(tuned, tmp_path, monkeypatch):
    plan, out = copy_search(tuned, tmp_path / "t")
    chosen, choice = chosen_arms(plan, out), (out / "choice.toml").read_text()

    def assert_same_choice() -> None:
        write_search(plan, out)
        assert chosen_arms(plan, out) == chosen
        assert (out / "choice.toml").read_text() == choice

    for folder in (out / "held-out").glob("*/seed-*"):
        turn_accuracy(folder)
    assert_same_choice()
    for file in (out / "held-out").rglob("*.*"):
        if file.is_file():
            file.write_text("{")
    assert_same_choice()
    shutil.rmtree(out / "held-out")
    assert_same_choice()

    read: list[Path] = []
    reader = "fedlga.experiments.tune.read_summary"
    monkeypatch.setattr(reader, lambda folder, old=read_summary: read.append(folder) or old(folder))
    assert_same_choice()
    assert {folder.relative_to(out).parts[0] for folder in read} == {"search"}
    assert {folder.name for folder in read} == {"seed-100", "seed-101"}

    for folder in (out / "search").glob("*/*/seed-*"):
        turn_accuracy(folder)
    assert chosen_arms(plan, out) != chosen, "the runs of the search are used"
