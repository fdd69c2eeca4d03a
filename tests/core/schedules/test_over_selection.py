"""Over-selection: by hand, and with a factor of one."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from federations import close, play, quadratics
from fedlga.core.fleet import Workload
from fedlga.core.policies.drop import Drop
from fedlga.core.policies.wait import Wait
from fedlga.core.registry import create
from fedlga.core.round import run_rounds
from fedlga.core.schedules.over_selection import OverSelection, count_asked
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from fedlga.fleets.speeds import SpeedFleet


def federation(factor, policy, deadline=100.0, dropout=0.0):
    """Return devices that do one, a half and a fifth of a step a second, and are asked for two."""
    given, state = quadratics(
        create("method", "fedavg"),
        centres=[(8.0, 0.0), (0.0, 8.0), (24.0, 24.0)],
        script=[[2] * 3],
        asked=2,
        lr=0.5,
        policy=policy,
        cohort=2,
    )
    fleet = SpeedFleet(Workload(0, [2] * 3, 2, deadline, dropout), speeds=(1.0, 0.5, 0.2))
    return replace(given, fleet=fleet, schedule=OverSelection(factor=factor)), state


def test_the_first_two_of_three_by_hand():
    """They take 2, 4 and 10 seconds. At 4 s two have finished; the third has done 0.8 of a step, so none."""
    f, state = federation(1.5, Wait())
    after, (record,) = play(f, state, 1)
    close(after.w, [(6 + 0) / 2, (0 + 6) / 2])  # two steps go 3/4 of the way
    assert record.simulated_seconds == 4.0
    assert sorted(record.devices) == [0, 1, 2]
    assert sorted(record.used) == [0, 1]
    assert record.device_seconds == {0: 2.0, 1: 4.0, 2: 4.0}
    assert (record.wasted, record.steps_wasted) == ([], 0)
    assert (record.bytes_down, record.bytes_up) == (3 * 8, 2 * 8)


def test_what_the_others_did_is_wasted_and_counted():
    f, state = federation(1.5, Wait())
    fleet = SpeedFleet(Workload(0, [20] * 3, 20, 100.0), speeds=(10.0, 5.0, 2.0))
    _, (record,) = play(replace(f, fleet=fleet), state, 1)
    # At 4 s the third device has done 8 of its 20 steps.
    assert (record.wasted, record.steps_wasted) == ([2], 8)
    assert record.steps[record.devices.index(2)] == 8


def test_with_a_deadline_fewer_may_come():
    f, state = federation(1.5, Drop(), deadline=3.0)
    after, (record,) = play(f, state, 1)
    assert record.used == [0]
    assert record.simulated_seconds == 3.0
    close(after.w, [6.0, 0.0])


def test_drop_outs_are_made_up_for():
    f, state = federation(1.5, Wait(), dropout=0.4)
    _, records = play(f, state, 30)
    assert any(r.absent for r in records)
    for record in records:
        assert len(record.used) == min(2, 3 - len(record.absent))


@pytest.mark.parametrize("method", ["fedavg", "fedprox", "fednova", "scaffold", "feddyn"])
@pytest.mark.parametrize("policy", ["wait", "drop"])
def test_a_factor_of_one_is_rounds_to_the_bit(method, policy):
    base = preset("digits").changed(
        {
            "method": method,
            "stragglers": policy,
            "rounds": 4,
            "fleet": "speeds",
            "speed_median": 2.0,
            "deadline": 3.0,
            "devices": 12,
            "cohort": 5,
            "dropout": 0.1,
            "backend": "serial",
        }
    )
    ends = []
    for changes in ({"schedule": "rounds"}, {"schedule": "over-selection", "factor": 1.0}):
        with simulate(base.changed(changes)) as simulation:
            played = list(run_rounds(simulation.federation, simulation.start, 4))
        ends.append((played[-1][0].w, [(r.devices, r.used, r.simulated_seconds, r.metrics) for _, r in played]))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


@pytest.mark.parametrize("policy", ["keep", "complete"])
def test_policies_for_unfinished_work_are_refused(policy):
    with pytest.raises(BadInput, match=f"stragglers: got '{policy}'; schedule 'over-selection' takes wait, drop"):
        Experiment(method="fedavg", stragglers=policy, schedule="over-selection")


def test_more_than_there_are_cannot_be_asked():
    with pytest.raises(BadInput, match="factor: got 6, which asks 60 devices; there are 50"):
        Experiment(method="fedavg", stragglers="wait", schedule="over-selection", factor=6.0)


@given(st.floats(1, 3), st.integers(1, 1000))
def test_at_least_the_cohort_is_asked(factor, cohort):
    assert cohort <= count_asked(factor, cohort) <= factor * cohort + 1


def test_130_percent():
    assert count_asked(1.3, 100) == 130
    assert count_asked(1.1, 10) == 11
