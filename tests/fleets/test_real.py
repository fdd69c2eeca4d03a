"""Real devices: the fleet asks for all the work, and refuses what only a simulation can do."""

from __future__ import annotations

import pytest

from fedlga.core.fleet import Effort, Workload
from fedlga.core.settings import BadInput
from fedlga.fleets.real import RealFleet

EXPERIMENT = {"backend": "flower", "audit": False, "dropout": 0.0, "record": None}


def test_all_devices_are_asked_for_all_their_work():
    fleet = RealFleet(Workload(0, [4, 6], epochs=2, deadline=3.0))
    assert fleet.real
    assert fleet.draw(0, [1, 0]) == [Effort(1, 6, 6, 3.0), Effort(0, 4, 4, 3.0)]
    assert RealFleet.resolve({}, EXPERIMENT) == {}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"backend": "pool"}, "fleet: got 'real' with backend 'pool'; it takes backend 'flower'"),
        ({"audit": True}, "fleet: got 'real' with audit; it needs simulated devices"),
        ({"dropout": 0.1}, "fleet: got 'real' with dropout; it needs simulated devices"),
        ({"record": "gradient"}, "fleet: got 'real' with record; it needs simulated devices"),
    ],
)
def test_what_needs_a_simulation_is_refused(changes, said):
    with pytest.raises(BadInput, match=said):
        RealFleet.resolve({}, {**EXPERIMENT, **changes})
