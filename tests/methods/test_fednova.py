"""FedNova by hand, and its optimum with unequal work."""

from __future__ import annotations

import pytest

import by_hand
from federations import close, play, quadratics
from fedlga.methods.fednova import FedNova


@pytest.mark.parametrize(
    "check",
    [
        by_hand.check_fednova,
        by_hand.check_fednova_by_examples,
        by_hand.check_fednova_momentum,
        by_hand.check_fednova_proximal,
    ],
    ids=lambda check: check.__name__,
)
def test_by_hand(check):
    check(FedNova)


@pytest.mark.slow
def test_with_unequal_steps_fednova_comes_close_to_the_optimum():
    right, _ = play(*quadratics(FedNova(), **by_hand.UNEQUAL_WORK), 400)
    # Its fixed point weighs each centre by (1 - (1 - eta)^steps) / steps: 0.00995 and 0.00956: within 0.05 of the
    # optimum, and exact as eta goes to 0. FedAvg ends at (0.69, 3.31).
    close(right.w, [2.0, 2.0], 0.05)
