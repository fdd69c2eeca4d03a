"""fedlga check: a class of one's own holds the contract of its kind, or the broken part of it is named."""

from __future__ import annotations

import pytest

from fedlga.core.registry import SEAMS

pytestmark = pytest.mark.slow

GOOD = {
    "method": "Pulled",
    "policy": "KeepHalf",
    "aggregation": "Clipped",
    "optimizer": "Careful",
    "schedule": "Pairs",
    "fleet": "OddDevices",
    "partition": "Cards",
    "dataset": "Stripes",
    "model": "linear",
    "task": "task_for_tests",
    "tracker": "Lines",
}
# kind, class, the check that fails, what is said of it
BROKEN = [
    (
        "method",
        "Counting",
        "The same seed gives the same weights, bit for bit",
        "two runs differ: is there hidden state?",
    ),
    ("policy", "ScalesAll", "Finished work counts as it was sent", "device 0 finished, and is scaled"),
    ("aggregation", "InPlace", "It does not change the updates", "an update was changed"),
    (
        "optimizer",
        "HiddenVelocity",
        "All that it remembers is in the memory that it returns, under names with 'optimizer.'; it changes no argument",
        "it remembers something elsewhere",
    ),
    (
        "schedule",
        "BackInTime",
        "Simulated time never goes back, and nothing ends before it started",
        "the clock goes from 100 to 99",
    ),
    (
        "fleet",
        "OrderedDraws",
        "The same seed and round give the same answer, in whatever order rounds are asked for",
        "it depends on what was asked before",
    ),
    (
        "fleet",
        "Misspelt",
        "It says of each selected device, in their order, how far it gets: between nothing and all of its steps",
        "AttributeError: 'Workload' object has no attribute 'step'",
    ),
    (
        "partition",
        "LosesTheRest",
        "Every example is held by exactly one device, unless devices share examples",
        "600 rows are held, of 601",
    ),
    (
        "dataset",
        "FromOne",
        "It reads training and test images as uint8, with labels from 0 to classes - 1",
        "a label is beyond the classes",
    ),
    (
        "model",
        "only_one_shape",
        "It takes images of several shapes and gives one score a class",
        "model",
    ),
    (
        "task",
        "broken_task_for_tests",
        "The same seed gives the same weights, bit for bit, in one process and in several",
        "two runs differ: is there hidden state, or a draw that has no seed?",
    ),
    (
        "tracker",
        "WantsAccuracy",
        "It takes a whole run, also rounds in which a metric is not measured, and changes nothing of what it gets",
        "KeyError: 'accuracy'",
    ),
]


def name_of(kind: str, name: str) -> str:
    """Return how it is named on the command line: a task is a module or a file, anything else is in a module."""
    return name if kind == "task" else f"plugins_for_tests:{name}"


def test_there_is_a_good_and_a_broken_one_of_each_kind():
    assert GOOD.keys() == SEAMS.keys() == {kind for kind, *_ in BROKEN}


@pytest.mark.parametrize("kind", GOOD)
def test_a_good_class_holds_its_contract(fedlga, kind):
    code, out, err = fedlga("check", kind, name_of(kind, GOOD[kind]))
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert len(lines) >= 3
    assert all(line.startswith("ok       ") for line in lines)


@pytest.mark.parametrize(("kind", "name", "check", "problem"), BROKEN)
def test_a_broken_class_is_named_with_what_it_breaks(fedlga, kind, name, check, problem):
    code, out, err = fedlga("check", kind, name_of(kind, name))
    assert (code, err) == (1, "")
    lines = out.splitlines()
    failed = dict(zip(lines, [*lines[1:], ""], strict=True))
    assert f"FAILS    {check}" in failed, out
    said = failed[f"FAILS    {check}"]
    assert said.startswith("         ")
    assert problem in said
    assert any(line.startswith("ok ") for line in lines), "the other checks are made too"


def test_a_built_in_and_a_plural_will_do(fedlga):
    code, out, _ = fedlga("check", "fleets", "paper")
    assert code == 0
    assert "FAILS" not in out


def test_data_that_is_not_here_is_not_checked(fedlga):
    code, out, _ = fedlga("check", "dataset", "cifar-10")
    assert code == 0
    assert "skipped  It loads as finite tensors" in out
    assert "the data is not here: fedlga data fetch gets it" in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["flet", "paper"], "KIND: there is no 'flet'; did you mean 'fleets'?"),
        (["fleet", "papr"], "fleet: there is no 'papr'; did you mean 'paper'?"),
        (["fleet", "no_such_module:Fleet"], "fleet: cannot import 'no_such_module:Fleet'"),
        (["fleet", "plugins_for_tests:Nothing"], "fleet: cannot import 'plugins_for_tests:Nothing'"),
        (["fleet", "plugins_for_tests:Cards"], "'plugins_for_tests:Cards' is not a Fleet"),
        (["policy", "plugins_for_tests:Cards"], "stragglers: 'plugins_for_tests:Cards' is not a Policy"),
        (["model", "plugins_for_tests:NOT_A_FUNCTION"], "is not a function"),
        (["fleet"], "Missing argument 'NAME'"),
    ],
)
def test_what_cannot_be_checked_is_one_line(fedlga, words, message):
    code, out, err = fedlga("check", *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert message in err
