"""Schedules: eta_l in each round by hand, and the combinations that make no sense."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlga
from fedlga.core.rates import SCHEDULES, RateSchedule
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.run import load_for_resume

ROOT = math.sqrt(0.5)  # cos(pi / 4)


@pytest.mark.parametrize(
    ("schedule", "rates"),
    [
        (RateSchedule(0.8), [0.8, 0.8, 0.8, 0.8]),
        # 0.8 * (1 - 0.5)^t
        (RateSchedule(0.8, "exponential", decay=0.5), [0.8, 0.4, 0.2, 0.1]),
        # Half after every second round.
        (RateSchedule(0.8, "step", decay=0.5, every=2), [0.8, 0.8, 0.4, 0.4, 0.2]),
        # T = 4: 0.4 (1 + cos(pi t / 4)), with cosines 1, ROOT, 0, -ROOT, -1
        (RateSchedule(0.8, "cosine", rounds=4), [0.8, 0.4 * (1 + ROOT), 0.4, 0.4 * (1 - ROOT), 0.0]),
        # Two rounds to grow, 1/2 and 2/2, then the schedule begins.
        (RateSchedule(0.8, warmup=2), [0.4, 0.8, 0.8, 0.8]),
        (RateSchedule(0.8, "exponential", decay=0.5, warmup=2), [0.4, 0.8, 0.8, 0.4, 0.2]),
        (RateSchedule(0.9, "step", decay=0.5, every=1, warmup=3), [0.3, 0.6, 0.9, 0.9, 0.45]),
        # T = 4 with two of warm-up: 0.4 (1 + cos(pi t / 2)) for t = 0, 1, 2
        (RateSchedule(0.8, "cosine", rounds=4, warmup=2), [0.4, 0.8, 0.8, 0.4, 0.0]),
    ],
)
def test_rates_by_hand(schedule, rates):
    assert [schedule.rate(t) for t in range(len(rates))] == pytest.approx(rates, abs=1e-15)


@given(
    name=st.sampled_from(SCHEDULES),
    lr=st.floats(1e-6, 10),
    decay=st.floats(0, 0.99),
    every=st.integers(1, 20),
    rounds=st.integers(2, 300),
    data=st.data(),
)
def test_a_rate_is_positive_and_never_above_lr_and_falls_after_the_warm_up(name, lr, decay, every, rounds, data):
    warmup = data.draw(st.integers(0, rounds - 1))
    schedule = RateSchedule(lr, name, decay, every, rounds, warmup)
    rates = [schedule.rate(t) for t in range(rounds)]
    assert all(0 <= rate <= lr * (1 + 1e-12) for rate in rates)
    assert rates[warmup] == lr, "the schedule begins at lr"
    growing, falling = rates[: warmup + 1], rates[warmup:]
    assert growing == sorted(growing)
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize(
    ("settings", "rates"),
    [
        ({}, [0.8, 0.8, 0.8, 0.8]),
        ({"lr_decay": 0.5}, [0.8, 0.4, 0.2, 0.1]),  # exponential without saying so, as in older experiments
        ({"lr_schedule": "step", "lr_decay": 0.5, "lr_step": 3}, [0.8, 0.8, 0.8, 0.4]),
        ({"lr_schedule": "cosine", "lr_warmup": 2}, [0.4, 0.8, 0.8, 0.4]),
    ],
)
def test_a_run_records_the_rates_of_its_schedule(settings, rates):
    e = preset("digits").changed({"rounds": 4, "lr": 0.8, "steps_per_epoch": 1, "backend": "serial", **settings})
    assert [record.lr for record in fedlga.rounds(e)] == pytest.approx(rates)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"lr_schedule": "cosine", "lr_decay": 0.1}, "lr_decay: got 0.1 with lr_schedule 'cosine'"),
        ({"lr_schedule": "constant", "lr_decay": 0.1}, "lr_decay: got 0.1 with lr_schedule 'constant'"),
        ({"lr_schedule": "step"}, "lr_decay: got 0 with lr_schedule 'step'"),
        ({"lr_warmup": 5, "rounds": 5}, "lr_warmup: got 5; it takes fewer than the 5 rounds"),
        ({"lr_schedule": "cosin"}, "lr_schedule: got 'cosin'"),
        ({"lr_step": 0}, "lr_step: got 0"),
        ({"lr_warmup": -1}, "lr_warmup: got -1"),
    ],
)
def test_senseless_combinations_are_refused(settings, message):
    with pytest.raises(BadInput) as error:
        Experiment(**settings)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_a_cosine_run_is_not_continued_to_other_rounds(tmp_path):
    e = preset("digits").changed({"rounds": 2, "steps_per_epoch": 1, "lr_schedule": "cosine", "backend": "serial"})
    fedlga.run(e, tmp_path / "run")
    with pytest.raises(BadInput, match="rounds cannot change with lr_schedule 'cosine'"):
        load_for_resume(tmp_path / "run", {"rounds": 3})
    assert load_for_resume(tmp_path / "run", {"rounds": 2}).rounds == 2
    assert load_for_resume(tmp_path / "run", {"target": 0.9}).rates == e.rates
