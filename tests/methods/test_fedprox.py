"""FedProx by hand."""

from __future__ import annotations

import by_hand
from fedlga.methods.fedprox import FedProx


def test_by_hand():
    by_hand.check_fedprox(FedProx)
