"""The audit: how close completed updates come to the true ones, by hand."""

from __future__ import annotations

import math

import pytest

from federations import play, quadratics
from fedlga.core.audit import average_errors
from fedlga.core.policies.complete import Complete
from fedlga.core.policies.drop import Drop
from fedlga.core.policies.keep import Keep
from fedlga.methods.fedavg import FedAvg


def test_the_audit_by_hand():
    # A sent (2, 0) and would have sent (3, 0); B is complete with (0, 3). The true mean is (1.5, 1.5).
    two_devices = {"centres": [(4.0, 0.0), (0.0, 4.0)], "script": [[1, 2]], "asked": 2, "lr": 0.5, "audit": True}
    _, (kept,) = play(*quadratics(FedAvg(), **two_devices, policy=Keep()), 1)
    assert kept.audit == {
        "error": pytest.approx(1.0),
        "stragglers": 1,
        "completed": pytest.approx(1.0),
        "completed_squares": pytest.approx(1.0),
        "sent": pytest.approx(1.0),
        "best": pytest.approx(0.0, abs=1e-6),
        "mean_completed": pytest.approx(0.5),
        "mean_sent": pytest.approx(0.5),
        "true_scales": {0: pytest.approx(1.5)},
    }
    _, (twice,) = play(*quadratics(FedAvg(), **two_devices, policy=Complete(scale=2.0)), 1)
    assert twice.audit is not None
    assert twice.audit["error"] == pytest.approx(1.0)  # 4 is as far from 3 as 2 is
    _, (thrice,) = play(*quadratics(FedAvg(), **two_devices, policy=Complete(scale=3.0)), 1)
    assert thrice.audit is not None
    assert (thrice.audit["completed"], thrice.audit["completed_squares"]) == pytest.approx((3.0, 9.0))
    _, (grown,) = play(*quadratics(FedAvg(), **two_devices, policy=Complete(scale="growth")), 1)
    assert grown.audit is not None
    assert grown.audit["error"] == pytest.approx(0.0, abs=1e-5)
    _, (dropped,) = play(*quadratics(FedAvg(), **two_devices, policy=Drop()), 1)
    assert dropped.audit is not None
    assert dropped.audit["stragglers"] == 0, "dropped work is not simulated, so there is nothing to audit"


def test_a_round_without_stragglers_has_no_error():
    one_device = {"centres": [(4.0, 0.0)], "script": [[2]], "asked": 2, "lr": 0.5, "audit": True}
    _, (record,) = play(*quadratics(FedAvg(), **one_device), 1)
    assert record.audit is not None
    assert record.audit["error"] is None


def test_rounds_that_diverged_do_not_count():
    """Not-a-number becomes null in JSON."""

    class Audited:
        def __init__(self, completed, sent):
            self.audit = {"completed": completed, "sent": sent, "best": sent, "mean_completed": 0.0, "mean_sent": 1.0}

    assert average_errors([Audited(1.0, 2.0), Audited(None, None)])["approximation_error"] == 0.5
    assert average_errors([Audited(None, None)])["approximation_error"] is None
    non_finite = [Audited(1.0, 2.0), Audited(math.inf, 1.0), Audited(1.0, math.nan)]
    assert average_errors(non_finite)["approximation_error"] == 0.5
