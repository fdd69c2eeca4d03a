"""FedLGA by hand: Eq. 7 with unfinished updates, and the scales that complete them."""

from __future__ import annotations

import pytest

import by_hand
from federations import close, play
from fedlga.core.policies.complete import Complete
from fedlga.methods.fedlga import FedLGA


def test_with_the_policy_keep_it_is_an_average_with_a_global_rate():
    by_hand.check_fedavg(FedLGA)


def test_completed_updates_by_hand():
    # The four devices of by_hand.py: A did 1 of 2 steps, delta (2, 0); B is complete, delta (0, 3).
    # growth: log|delta| on log steps through (0, log 2), (log 2, log 3): p = log(3/2) / log 2, scale 2^p = 3/2.
    # Completed A: (3, 0), which is what it would have sent; the mean is (1.5, 1.5).
    state, (record,) = play(*by_hand.four_devices(FedLGA(), policy=Complete(scale="growth")), 1)
    close(state.w, [1.5, 1.5])
    assert record.scales == pytest.approx({0: 1.5})
    assert record.growth == pytest.approx(0.5849625)
    # printed: g = -delta_A / (1/2 * 1) = (-4, 0); d = (0, 3) - (2, 0) = (-2, 3); g.d = 8; g (g.d) = (-32, 0):
    # (2, 0) + (-32, 0) = (-30, 0), which is -15 delta_A. The mean with B: (-15, 1.5).
    state, (record,) = play(*by_hand.four_devices(FedLGA(), policy=Complete(scale="printed")), 1)
    close(state.w, [-15.0, 1.5])
    assert record.scales == pytest.approx({0: -15.0})
    # a number: 2 delta_A = (4, 0)
    state, _ = play(*by_hand.four_devices(FedLGA(), policy=Complete(scale=2.0)), 1)
    close(state.w, [2.0, 1.5])
