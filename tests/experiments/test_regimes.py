"""The audit's regimes: what is run, and that watching changes nothing."""

from __future__ import annotations

import pytest

import fedlga
from fedlga.core.policies.complete import SCALES
from fedlga.experiments.regimes import REGIMES, THE_FIVE, make_regime, run_regime


def test_the_five_regimes():
    assert THE_FIVE == ["batch, 0.001", "batch, 0.01", "batch, 0.1", "epoch, 0.001", "epoch, 0.01"]
    experiments = [make_regime(name) for name in THE_FIVE]
    assert [(e.lr, e.steps_per_epoch, e.rounds) for e in experiments] == [
        *((0.001, 1, 150), (0.01, 1, 150), (0.1, 1, 150), (0.001, 0, 40), (0.01, 0, 40)),
    ]
    for e in experiments:
        assert (e.method, e.policy, e.audit, e.evaluate_every) == ("fedavg", "complete", True, e.rounds)


@pytest.mark.parametrize("name", REGIMES)
def test_every_regime_can_be_tried_on_small_data(name):
    e = make_regime(name, rounds=3, seed=2, base="digits")
    assert (e.dataset, e.model, e.rounds, e.seed) == ("digits", "mlp", 3, 2)
    assert make_regime(name).dataset == ("cifar-10" if name.startswith("CIFAR") else "fashion-mnist")


def test_all_scales_are_tried_on_the_same_updates():
    e = make_regime("batch, 0.01", rounds=6, base="digits")
    *steps, last = run_regime(e)
    records, row = [step.record for step in steps], last.row
    assert row is not None
    assert [r.round for r in records] == [1, 2, 3, 4, 5, 6]
    kinds = [f"{scale}{kind}" for scale in SCALES for kind in ("", "_mean", "_sum")]
    assert set(row) == {*kinds, "best", "stragglers"}
    assert row["best"] <= min(row[scale] for scale in SCALES), "no scale beats the best multiple"
    assert row["stragglers"] == sum(r.audit["stragglers"] for r in records if r.audit)
    own = list(fedlga.rounds(e))
    assert [(r.devices, r.scales, r.accuracy, r.audit) for r in records] == [
        (r.devices, r.scales, r.accuracy, r.audit) for r in own
    ], "watching changes nothing"
    sums = [sum(r.audit[name] for r in own if r.audit) for name in ("completed", "sent")]
    assert row["feedback"] == pytest.approx(sums[0] / sums[1])
    means = [sum(r.audit[name] for r in own if r.audit) for name in ("mean_completed", "mean_sent")]
    assert row["feedback_mean"] == pytest.approx(means[0] / means[1])
