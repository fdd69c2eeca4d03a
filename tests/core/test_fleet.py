"""What every fleet shares: drop-outs, and what a round costs."""

from __future__ import annotations

import pytest

from fedlga.core.fleet import Effort, Workload
from fedlga.fleets.equal import EqualFleet


def equal(dropout=0.0, seed=0):
    return EqualFleet(Workload(seed, [15] * 50, epochs=5, deadline=5.0, dropout=dropout))


def test_drop_outs_are_independent_and_at_their_rate():
    fleet = equal(dropout=0.2)
    lost = [[e.lost for e in fleet.draw(round, range(10))] for round in range(2000)]
    assert sum(map(sum, lost)) / 20000 == pytest.approx(0.2, abs=0.01)
    pairs = sum(a and b for a, b, *_ in lost) / 2000
    assert pairs == pytest.approx(0.04, abs=0.02)
    assert all(e.steps == 0 and not e.slow for e in fleet.draw(0, range(50)) if e.lost)


def test_drop_outs_depend_on_seed_round_and_device_only():
    def lost(fleet, round, devices):
        return [e.device for e in fleet.draw(round, devices) if e.lost]

    fleet = equal(dropout=0.5)
    assert lost(fleet, 7, range(50)) == lost(equal(dropout=0.5), 7, range(50))
    assert lost(fleet, 7, range(50)) != lost(fleet, 8, range(50))
    assert lost(fleet, 7, range(50)) != lost(equal(dropout=0.5, seed=1), 7, range(50))
    assert lost(fleet, 7, range(20)) == [d for d in lost(fleet, 7, range(50)) if d < 20]


def test_waiting_ignores_lost_devices_and_a_deadline_does_not():
    # A device that is lost never answers. An aggregator with a deadline cannot know that, and waits to the deadline.
    fleet = equal()
    efforts = [Effort(0, 15, 15, 3.0), Effort(1, 0, 15, 99.0, lost=True)]
    assert fleet.seconds(efforts, waits=True) == 3.0
    assert fleet.seconds(efforts, waits=False) == 5.0


def test_in_an_equal_fleet_every_device_finishes_at_the_deadline():
    assert equal().draw(3, [4, 2]) == [Effort(4, 15, 15, 5.0), Effort(2, 15, 15, 5.0)]
    assert equal().always_slow() == []
