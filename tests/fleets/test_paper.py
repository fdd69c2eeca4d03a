"""The paper's fleet: its bounds, its rates over many rounds, and that draws depend on seed and round only."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedlga.core.fleet import Workload
from fedlga.fleets.paper import PaperFleet


def paper(rho=0.5, tau_min=1, tau_max=4, epochs=5, unit=3, devices=50, dropout=0.0, seed=0):
    workload = Workload(seed, [epochs * unit] * devices, epochs, float(epochs), dropout)
    return PaperFleet(workload, rho, tau_min, tau_max)


@settings(deadline=None)
@given(st.data())
def test_the_papers_fleet_keeps_its_bounds(data):
    epochs = data.draw(st.integers(1, 9))
    tau_max = data.draw(st.integers(1, epochs))
    tau_min = data.draw(st.integers(1, tau_max))
    rho, cohort = data.draw(st.floats(0, 1)), data.draw(st.integers(1, 20))
    fleet = paper(rho, tau_min, tau_max, epochs, seed=data.draw(st.integers(0, 2**32)))
    efforts = fleet.draw(data.draw(st.integers(0, 1000)), range(cohort))
    assert [e.device for e in efforts] == list(range(cohort))
    for e in efforts:
        done = e.steps / 3
        assert done == epochs or epochs - tau_max + 1 <= done <= epochs - tau_min + 1
        assert e.steps_asked == epochs * 3
        # a device's speed is the same before and after the deadline
        assert e.seconds == pytest.approx(fleet.workload.deadline * e.steps_asked / e.steps)
    assert sum(e.slow for e in efforts) <= int(rho * cohort) + 1


def test_the_share_of_slow_devices_is_rho_and_tau_is_uniform():
    # tau from 2, so that a slow device never finishes; rho K = 3.5 is not whole on purpose.
    fleet = paper(rho=0.35, tau_min=2, tau_max=5)
    efforts = [e for round in range(4000) for e in fleet.draw(round, range(10))]
    slow = [e for e in efforts if e.slow]
    assert len(slow) / len(efforts) == pytest.approx(0.35, abs=0.01)
    for units in (1, 2, 3, 4):
        assert sum(e.steps == units * 3 for e in slow) / len(slow) == pytest.approx(0.25, abs=0.02)


def test_at_tau_max_1_no_device_is_slow():
    assert not any(e.slow for round in range(50) for e in paper(rho=1.0, tau_max=1).draw(round, range(10)))


def test_an_unset_tau_max_is_one_less_than_the_epochs():
    assert [paper(tau_max=None).draw(r, range(10)) for r in range(20)] == [
        paper(tau_max=4).draw(r, range(10)) for r in range(20)
    ]


def test_draws_depend_on_seed_and_round_only():
    assert paper().draw(7, range(10)) == paper().draw(7, range(10))
    assert paper().draw(7, range(10)) != paper().draw(8, range(10))
    assert paper().draw(7, range(10)) != paper(seed=1).draw(7, range(10))
