"""A fleet of speeds: how far each device gets by the deadline, by hand, and how speeds are drawn."""

from __future__ import annotations

import numpy as np
import pytest

from fedlga.core.fleet import Effort, Workload
from fedlga.fleets.speeds import SpeedFleet, draw_speeds, suggest_deadline


def test_speeds_and_a_deadline_by_hand():
    # 12 steps asked, 4 seconds: at 3 a second just done; at 1.3 a second 5.2 steps, so 5; at 0.2 not one.
    fleet = SpeedFleet(Workload(0, [12] * 4, 4, 4.0), speeds=(3.0, 1.3, 0.2, 12.0))
    assert fleet.draw(0, [0, 1, 2, 3]) == [
        Effort(0, 12, 12, 4.0),
        Effort(1, 5, 12, pytest.approx(12 / 1.3)),
        Effort(2, 0, 12, pytest.approx(60.0)),
        Effort(3, 12, 12, 1.0),
    ]
    everyone, fast = fleet.draw(0, [0, 1, 2, 3]), fleet.draw(0, [3])
    assert fleet.seconds(everyone, waits=True) == pytest.approx(60.0)  # the slowest
    assert fleet.seconds(everyone, waits=False) == 4.0  # the deadline
    assert fleet.seconds(fast, waits=False) == fleet.seconds(fast, waits=True) == 1.0  # all are there before it
    assert fleet.always_slow() == [1, 2]


def test_log_normal_speeds_have_their_median_and_spread():
    speeds = np.array(draw_speeds(0, 20000, median=2.0, sigma=0.7))
    assert np.median(speeds) == pytest.approx(2.0, rel=0.02)
    assert np.log(speeds).std() == pytest.approx(0.7, rel=0.02)
    assert draw_speeds(0, 5, 2.0, 0.7) != draw_speeds(1, 5, 2.0, 0.7)


def test_without_speeds_they_are_drawn_from_the_seed():
    fleet = SpeedFleet(Workload(3, [12] * 5, 4, 4.0), speed_median=2.0, speed_sigma=0.5)
    assert fleet.speed_of == draw_speeds(3, 5, 2.0, 0.5)


def test_devices_that_hold_slow_classes_are_slow():
    # Classes 0 and 1 are slow: devices 0 and 2 hold some of them.
    held = np.array([[5, 0, 1], [0, 0, 9], [0, 1, 0]])
    fleet = SpeedFleet(Workload(0, [10] * 3, 5, 5.0, held=held), speed_median=2.0, slow_classes=(0, 1), slow_speed=0.2)
    assert fleet.speed_of == [0.4, 2.0, 0.4]
    assert [e.steps for e in fleet.draw(0, range(3))] == [2, 10, 2]
    assert fleet.always_slow() == [0, 2]


def test_the_suggested_deadline_is_what_the_median_device_needs():
    assert suggest_deadline([1.0, 9.0, 4.0]) == 4.0


def test_a_suggested_deadline_leaves_something_to_complete():
    """Three of five need 25 seconds, as the median does: by then all are done."""
    assert suggest_deadline([5.0, 25.0, 25.0, 5.0, 25.0]) == 5.0
    assert suggest_deadline([5.0, 5.0]) == 5.0, "all are equally fast"
