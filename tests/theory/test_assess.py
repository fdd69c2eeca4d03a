"""An experiment as the theorems see it: who is slow, what is not as assumed, and what a run did."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import Simulation, simulate
from fedlga.theory.assess import (
    Stragglers,
    apply_theorem,
    assess,
    count_stragglers,
    find_remainder,
    list_departures,
    make_setting,
    measure_completion,
    shorten,
    summarise_gradients,
)
from fedlga.theory.theorems import c2, find_bound

SMALL = preset("digits").changed({"steps_per_epoch": 1, "rounds": 40, "cohort": 10, "lr": 0.002})


@pytest.fixture(scope="module")
def assessment():
    return assess(SMALL)


def test_an_experiment_is_measured_and_judged(assessment):
    a = assessment
    assert (a.setting.N, a.setting.K, a.setting.E, a.setting.T) == (20, 10, 5, 40)
    assert (a.setting.eta_l, a.setting.eta_g) == (0.002, 1.0)
    assert a.estimates.curvature.value == a.constants.L
    assert a.constants.gap == a.estimates.objective.value  # the loss cannot fall below 0
    assert a.applies == (a.setting.eta_l <= a.largest_lr)
    assert a.applies
    assert a.best_bound.total <= a.bound.total
    assert a.best_lr <= a.largest_lr
    assert a.corollary.eta_l == pytest.approx(1 / (math.sqrt(40) * 5 * a.constants.L))
    assert a.corollary.eta_g == pytest.approx(math.sqrt(50))
    assert a.corollary_holds == (a.fewest_rounds <= 40)


def test_the_error_of_completed_updates_is_the_measured_one(assessment):
    """By c_2 with Lemma 1 as an equality: rho (1 + rho) e^2 (1 + L eta_g eta_l E) / (2 eta_l^2 E^2)."""
    s, k, error = assessment.setting, assessment.constants, assessment.completion_error
    assert error is not None
    rho = s.rho
    expected = rho * (1 + rho) * error.value**2 * (1 + k.L * s.eta_l * 5) / (2 * s.eta_l**2 * 25)
    assert c2(s, k) * k.gradient4 == pytest.approx(expected)
    assert error.low <= error.value <= error.high
    assert find_remainder(0.5, s, 0.0) == 0.0


def test_the_error_of_completed_updates_is_a_root_mean_square(monkeypatch):
    """Five updates in four rounds, whose squares add up to 40."""
    rounds = [(25.0, 2), (0.0, 0), (1.0, 1), (14.0, 2)]
    audits = [{"completed_squares": square, "stragglers": number} for square, number in rounds]
    steps = [(None, SimpleNamespace(audit=audit)) for audit in audits]
    monkeypatch.setattr("fedlga.theory.assess.run_rounds", lambda *_: steps)
    error = measure_completion(SimpleNamespace(experiment=SMALL, federation=None, start=None))
    assert error is not None
    assert error.value == pytest.approx(math.sqrt(8))
    assert 0 == error.low < error.value < error.high


def test_without_stragglers_nothing_is_completed():
    a = assess(SMALL.changed({"stragglers": "wait", "method": "fedavg", "devices": 10, "cohort": 10}))
    assert a.completion_error is None
    assert a.constants.M == a.bound.completion == 0
    assert a.setting.K is None
    assert a.setting.theorem == 1
    assert (a.setting.rho, a.setting.tau_max) == (0.0, 1)
    assert a.departures == []


def lines_of(simulation: Simulation) -> str:
    return "\n".join(d.line for d in list_departures(simulation.experiment, simulation.federation))


def test_stragglers_are_counted_as_the_theorem_does():
    """tau is uniform in 1..4, and tau = 1 is not slow: of rho = 0.8, three quarters are unfinished."""
    changed = {"rho": 0.8, "method": "fedavg", "stragglers": "keep"}
    with simulate(SMALL.changed(changed)) as simulation:
        found = count_stragglers(simulation.federation)
        assert found.rho == pytest.approx(0.6, abs=0.03)
        assert found.tau_max == 4
        setting = make_setting(simulation.experiment, simulation.federation, found)
        assert setting.rho == found.rho
        assert "as it came" in lines_of(simulation)
    with simulate(SMALL.changed({**changed, "stragglers": "drop"})) as simulation:
        assert count_stragglers(simulation.federation) == Stragglers(0.0, 1)
        assert "dropped" in lines_of(simulation)
    with simulate(SMALL.changed({**changed, "rho": 0.0})) as simulation:  # nobody is slow: nothing is kept as it came
        assert "as it came" not in lines_of(simulation)


def test_departures():
    changes = {
        "method": "scaffold",
        "stragglers": "keep",
        "server_optimizer": "adam",
        "aggregation": "median",
        "steps_per_epoch": 0,
        "partition": "quantity",
        "averaging": "examples",
        "lr_schedule": "cosine",
        "lr_warmup": 3,
        "momentum": 0.9,
        "dropout": 0.1,
    }
    with simulate(SMALL.changed(changes)) as simulation:
        lines = lines_of(simulation)
        assert make_setting(simulation.experiment, simulation.federation, Stragglers(0, 1)).eta_g == 1
    for words in ("scaffold", "adam", "median", "E is the most", "by examples", "cosine", "momentum", "send nothing"):
        assert words in lines
    assert "without replacement" in lines
    assert "grows in the first 3 rounds" in lines


SPEEDS = {"fleet": "speeds", "deadline": 5.0, "speeds": (1.0,) * 15 + (0.6,) * 5}  # the last five do 3 of 5 steps
SAME_SLOW = "the same devices are slow in every round"


@pytest.mark.parametrize("policy", ["complete", "keep", "drop"])
def test_the_same_devices_slow_in_every_round_are_not_as_assumed(policy):
    """Lemma 2 draws who is slow anew. With the paper's fleet it is so; with speeds of their own the same are slow."""
    change = {"method": "fedavg", "stragglers": policy}
    with simulate(SMALL.changed(change | SPEEDS)) as simulation:
        assert SAME_SLOW in lines_of(simulation)
    with simulate(SMALL.changed(change)) as simulation:
        assert SAME_SLOW not in lines_of(simulation)
    for other in ({"stragglers": "wait"}, {"deadline": 9.0}):  # nobody is late
        with simulate(SMALL.changed(change | SPEEDS | other)) as simulation:
            assert SAME_SLOW not in lines_of(simulation)


def test_devices_that_send_nothing(tmp_path):
    """A device too slow for one step sends nothing, unless the round waits; for a lost one it waits in vain."""
    idle = SPEEDS | {"speeds": (1.0,) * 15 + (0.1,) * 5, "method": "fedavg"}
    trace = tmp_path / "trace.csv"
    trace.write_text("round,device,epochs\n" + "".join(f"{r},3,0\n" for r in range(1, 30)))
    lost = {"fleet": "trace", "trace": str(trace), "method": "fedavg"}
    for change, silent in (
        (idle | {"stragglers": "keep"}, True),
        (idle | {"stragglers": "wait"}, False),
        (lost | {"stragglers": "wait"}, True),
        (SPEEDS, False),
        ({}, False),
    ):
        with simulate(SMALL.changed(change)) as simulation:
            assert ("some devices send nothing" in lines_of(simulation)) == silent


def test_devices_that_are_there_at_some_hours():
    with simulate(SMALL.changed({"fleet": "population", "deadline": 20.0, "available": 0.5})) as simulation:
        assert "devices are there at some times only" in lines_of(simulation)
    with simulate(SMALL.changed({"fleet": "population", "deadline": 20.0})) as simulation:
        assert "devices are there at some times only" not in lines_of(simulation)


def test_a_batch_norm_of_each_device_is_another_algorithm():
    """FedBN: what devices keep for themselves is in no joint model."""
    with simulate(SMALL) as simulation:
        kept = SMALL.changed({"batch_norm": "device"})
        departures = list_departures(kept, simulation.federation)
    assert [d.excludes for d in departures if "BatchNorm" in d.line] == [True]


def test_a_device_that_is_drawn_twice_works_once():
    with simulate(SMALL.changed({"sampling": "with-replacement"})) as simulation:
        assert "works once and counts twice" in lines_of(simulation)


@pytest.mark.parametrize(
    "change",
    [
        {"method": "scaffold", "stragglers": "complete"},
        {"server_optimizer": "adam", "eta_g": 0.01},
        {"aggregation": "median"},
        {"schedule": "over-selection", "method": "fedavg", "stragglers": "drop"},
        {"momentum": 0.9},
        {"local_optimizer": "adamw"},
        {"clip": 1.0},
        {"method": "fedavg", "stragglers": "plugins_for_tests:KeepHalf"},
    ],
    ids=str,
)
def test_other_algorithms_are_not_covered(assessment, change):
    with simulate(SMALL.changed(change)) as simulation:
        departures = list_departures(simulation.experiment, simulation.federation)
    assert assessment.covered
    assert not replace(assessment, departures=departures).covered


def test_a_warmup_does_not_make_completed_updates_look_better(assessment):
    """The error is measured at the rate that the bound is for, and the experiment stays as it was."""
    warmed = assess(SMALL.changed({"lr_warmup": 30}))
    assert warmed.completion_error == assessment.completion_error
    assert (warmed.experiment.lr_warmup, warmed.experiment.audit) == (30, False)


def record(round: int, squared: float | None) -> Record:
    empty = {"devices": [], "steps": [], "steps_asked": [], "slow": [], "absent": [], "used": []}
    return Record(
        round, {}, None, 0.0, 0.0, 0.1, **empty, scales={}, train_objective=2.0 - round / 10, squared_gradient=squared
    )


def test_what_a_run_did():
    outcome = summarise_gradients([record(1, 4.0), record(2, None), record(3, 1.0), record(4, 3.0)])
    assert outcome is not None
    assert (outcome.rounds, outcome.recorded, outcome.smallest, outcome.round, outcome.last) == (4, 3, 1.0, 3, 3.0)
    assert outcome.objective == pytest.approx(1.6)
    assert summarise_gradients([record(1, None)]) is None


def test_nothing_is_promised_where_a_condition_fails(assessment):
    """With all devices, the corollary needs (1 + rho)^2 E N rounds; c_1 is positive long before."""
    a, full = assessment, replace(assessment.setting, K=None)
    fewest = math.ceil((1 + full.rho) ** 2 * 5 * 20)
    for rounds in (fewest - 1, fewest):
        judged = apply_theorem(
            a.experiment, replace(full, T=rounds), a.constants, a.estimates, a.completion_error, a.departures
        )
        assert judged.fewest_rounds == fewest
        assert judged.corollary_holds == (rounds == fewest) == math.isfinite(judged.corollary_bound.total)
        assert math.isfinite(find_bound(judged.corollary, judged.constants).total)


def test_a_run_of_fewer_rounds_has_a_larger_bound(assessment):
    shorter = shorten(assessment, 20)
    assert shorter.setting == replace(assessment.setting, T=20)
    assert shorter.bound.start == pytest.approx(2 * assessment.bound.start)
    assert shorten(assessment, 40) is assessment


def test_a_loss_below_its_lowest_value_is_refused():
    with pytest.raises(BadInput, match="--lowest: got 100, and the loss at the start is 2"):
        assess(SMALL, lowest=100)


def test_real_devices_keep_their_data_to_themselves():
    real = preset("digits").changed({"fleet": "real", "backend": "flower"})
    with pytest.raises(BadInput, match="fleet: got 'real'; the theorems need the devices' data"):
        assess(real)
