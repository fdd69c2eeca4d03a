"""Learning curves as numbers: what is written is what is read, and differences are paired by seed."""

from __future__ import annotations

import numpy as np
import pytest

from fedlga.core.settings import BadInput
from fedlga.report.seed_curves import align_seeds, pair_seeds, read_curves, take_curve, write_curves
from run_folders import make_record


def make_rounds(*accuracies, seconds=5.0, **more):
    """Return rounds with these accuracies, each of so many simulated seconds, with 2 MB sent and a device at work."""
    costs = {"bytes_down": 1_500_000, "bytes_up": 500_000, "device_seconds": {0: 3.0}}
    return [
        make_record(round=i, accuracy=a, simulated_seconds=seconds, **costs, **more)
        for i, a in enumerate(accuracies, start=1)
    ]


def test_a_file_holds_the_evaluated_rounds_of_each_seed(tmp_path):
    """Round 2 was not evaluated; by round 3, 3 times 5 seconds, 3 of a device and 2 MB were spent."""
    runs = {"fedavg keep": {4: make_rounds(0.1, None, 0.25), 7: make_rounds(0.2)}}
    curves = write_curves(tmp_path / "curves.csv", runs, ["accuracy", "accuracy_slow"])
    assert (tmp_path / "curves.csv").read_text().splitlines() == [
        "arm,seed,round,simulated_seconds,work_seconds,megabytes,accuracy",
        "fedavg keep,4,1,5,3,2,0.1",
        "fedavg keep,4,3,15,9,6,0.25",
        "fedavg keep,7,1,5,3,2,0.2",
    ]
    assert list(curves) == ["fedavg keep"]
    assert list(curves["fedavg keep"]) == [4, 7]
    curve = curves["fedavg keep"][4]
    assert curve.rounds.tolist() == [1, 3]
    assert curve.over("megabytes").tolist() == [2, 6]
    assert curve.over("rounds").tolist() == [1, 3]
    assert curve.measures["accuracy"].tolist() == [0.1, 0.25]


def test_what_was_not_measured_stays_unknown(tmp_path):
    runs = {
        "a": {0: make_rounds(0.1, 0.2, accuracy_slow=None)},
        "b": {0: make_rounds(0.1, accuracy_slow=0.05)},
    }
    curves = write_curves(tmp_path / "curves.csv", runs, ["accuracy", "accuracy_slow"])
    assert np.isnan(curves["a"][0].measures["accuracy_slow"]).all()
    assert align_seeds(curves["a"].values(), "accuracy_slow")[0].tolist() == []
    assert align_seeds(curves["b"].values(), "accuracy_slow")[1].tolist() == [[0.05]]


def test_differences_are_by_seed_and_between_evaluations_on_a_line():
    """The first arm is measured after 4, 8, 12 seconds, the other after 6, 12, 18: common are 8 and 12 seconds.

    There the other's values are 0.1 + (0.4 - 0.1) 2/6 = 0.2 and 0.4 with seed 0; 0.2 and 0.2 with seed 1; the first
    arm's are 0.2, 0.3, and 0.1, 0.1. Seed 2 is of one arm alone.
    """
    first = {
        seed: take_curve(make_rounds(*values, seconds=4.0), ["accuracy"])
        for seed, values in {0: (0.1, 0.2, 0.3), 1: (0.1, 0.1, 0.1), 2: (0.9, 0.9, 0.9)}.items()
    }
    other = {
        seed: take_curve(make_rounds(*values, seconds=6.0), ["accuracy"])
        for seed, values in {0: (0.1, 0.4, 0.5), 1: (0.2, 0.2, 0.2)}.items()
    }
    where, values = pair_seeds(other, first, "accuracy", "simulated_seconds")
    assert where.tolist() == [8.0, 12.0]
    np.testing.assert_allclose(values, [[0.0, 0.1], [0.1, 0.1]], atol=1e-12)


def test_arms_without_a_common_seed_have_no_difference():
    curve = take_curve(make_rounds(0.1, 0.2), ["accuracy"])
    where, values = pair_seeds({0: curve}, {1: curve}, "accuracy", "rounds")
    assert len(where) == 0
    assert values.size == 0


@pytest.mark.parametrize(
    "text", ["arm,seed,round\na,x,1\n", "seed,round\n1,1\n", "arm,seed,round,accuracy\na,0,1,high\n"]
)
def test_a_file_that_holds_no_curves_is_refused(tmp_path, text):
    (tmp_path / "curves.csv").write_text(text)
    with pytest.raises(BadInput, match="cannot be read as learning curves"):
        read_curves(tmp_path / "curves.csv")
