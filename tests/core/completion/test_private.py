"""Private completing: numbers by hand, and training where the aggregator sees sums only."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedlga.core.completion.digest import summarise
from fedlga.core.completion.private import learn_private, make_instruction, scale_own
from fedlga.core.policies.complete import Complete
from fedlga.core.round import run_rounds
from fedlga.core.settings import BadInput
from fedlga.core.types import Assignment, Record, ServerState, Update
from fedlga.experiments.config import Experiment
from fedlga.experiments.presets import preset
from fedlga.experiments.simulation import simulate
from summing import SummingBackend


def assignment(exponent: float | None, longest: float | None = None, momentum: float = 0.0) -> Assignment:
    return Assignment(
        1, 0, torch.zeros(2), 4, 4, lr=0.1, momentum=momentum, seed=0, broadcast={}, exponent=exponent, longest=longest
    )


def report(device: int, steps: int, length: float | None) -> Update:
    return Update(device, torch.zeros(0), 1, steps, 4, 0.0, {}, lr=0.1, momentum=0.0, length=length)


def memory(**numbers: float) -> dict[str, torch.Tensor]:
    return {name: torch.tensor([value], dtype=torch.float64) for name, value in numbers.items()}


def test_a_device_multiplies_its_update_by_the_power_of_all_over_done() -> None:
    assert scale_own(assignment(0.5), steps=1, length=3.0) == 2.0  # (4 / 1)^0.5
    assert scale_own(assignment(1.0), steps=2, length=3.0) == 2.0  # 4 / 2
    assert scale_own(assignment(1.0), steps=4, length=3.0) == 1.0  # it finished
    assert scale_own(assignment(1.0), steps=0, length=0.0) == 1.0  # it sends nothing
    assert scale_own(assignment(None), steps=1, length=3.0) == 1.0  # it was not asked to


def test_with_momentum_work_is_what_the_steps_amount_to() -> None:
    # With momentum 1/2, one step moves 1; four move 1 + 3/2 + 7/4 + 15/8 = 49/8.
    assert scale_own(assignment(1.0, momentum=0.5), steps=1, length=1.0) == pytest.approx(49 / 8)


def test_a_completed_update_is_no_longer_than_told_and_a_long_one_keeps_its_length() -> None:
    assert scale_own(assignment(1.0, longest=6.0), steps=1, length=3.0) == 2.0  # 4 * 3 would be 12
    assert scale_own(assignment(1.0, longest=6.0), steps=1, length=9.0) == 1.0


@given(st.floats(0, 1), st.integers(1, 4), st.floats(1e-30, 1e30), st.none() | st.floats(1e-30, 1e30))
def test_a_device_never_shortens_its_update_nor_exceeds_its_work(q: float, steps: int, length: float, longest: Any):
    scale = scale_own(assignment(q, longest), steps, length)
    assert 1 <= scale <= (4 / steps) ** q
    assert longest is None or scale == 1 or scale * length <= longest * (1 + 1e-12)


def test_the_instruction_before_anything_is_known_leaves_updates_as_they_are() -> None:
    nothing = make_instruction({}, "feedback", 2.0)
    assert (nothing.exponent, nothing.longest) == (0.0, None)
    known = make_instruction(memory(exponent=0.25, usual=3.0), "feedback", 2.0)
    assert (known.exponent, known.longest) == (0.25, 6.0)
    assert make_instruction({}, "linear", 2.0).exponent == 1.0


def test_the_exponent_starts_at_the_growth_of_the_first_round_with_a_straggler() -> None:
    step = torch.tensor([1.0, 0.0])
    finished = [report(0, 4, 8.0), report(1, 4, 8.0)]
    assert "exponent" not in learn_private({}, "feedback", step, finished, 0.95, 0.0)
    # One step of four is half as long as all of them: 4^p = 2, so p = 1/2.
    learned = learn_private({}, "feedback", step, [report(0, 4, 8.0), report(1, 1, 4.0)], 0.95, 0.0)
    assert float(learned["exponent"]) == pytest.approx(0.5)
    assert float(learned["usual"]) == 8.0


def test_the_exponent_follows_the_angle_between_steps() -> None:
    east, north_east, west = torch.tensor([1.0, 0.0]), torch.tensor([1.0, 1.0]), torch.tensor([-2.0, 0.0])
    state = {**memory(exponent=0.5), "step": summarise(east).sketch}
    updates = [report(0, 4, 1.0), report(1, 1, 1.0)]
    up = learn_private(state, "feedback", north_east, updates, 0.95, 0.0)
    assert float(up["exponent"]) == pytest.approx(0.5 + 0.02 / math.sqrt(2))
    down = learn_private(state, "feedback", west, updates, 0.95, 0.0)
    assert float(down["exponent"]) == pytest.approx(0.48)
    assert down["step"].tolist() == [-2.0, 0.0]
    # An optimiser that repeats half of each step: the next one is compared with -2 + 1/2.
    assert learn_private(state, "feedback", west, updates, 0.95, 0.5)["step"].tolist() == [-1.5, 0.0]


def test_growth_is_learned_from_reported_lengths() -> None:
    updates = [report(0, 4, 8.0), report(1, 1, 4.0)]
    learned = learn_private({}, "growth", torch.zeros(2), updates, 0.95, 0.0)
    assert float(learned["exponent"]) == pytest.approx(0.5)
    # Without a report nothing is learned, and nothing breaks.
    nothing = learn_private({}, "growth", torch.zeros(2), [report(0, 4, None)], 0.95, 0.0)
    assert float(nothing["exponent"]) == 0.0


def test_the_aggregator_multiplies_nothing_again() -> None:
    decision = Complete(private=True).decide(ServerState(1, torch.zeros(2)), [report(1, 1, 4.0)], {})
    assert decision.treatments[1].scale == 1
    assert decision.treatments[1].completed


@pytest.mark.parametrize("scale", ["printed", 3.0])
def test_scales_that_need_single_updates_are_refused(scale: Any) -> None:
    with pytest.raises(BadInput, match="private; it takes feedback, growth, linear"):
        Complete(scale=scale, private=True)


@pytest.mark.parametrize(("field", "value"), [("audit", True), ("schedule", "buffered"), ("aggregation", "median")])
def test_settings_that_need_single_updates_are_refused(field: str, value: Any) -> None:
    with pytest.raises(BadInput, match=f"{field}: got"):
        experiment().changed({field: value}).resolved()


def experiment(**changes: Any) -> Experiment:
    return preset("digits").changed(
        {"method": "fedavg", "stragglers": "complete", "private": True, "rounds": 8, **changes}
    )


def run(e: Experiment, *, summing: bool = False) -> tuple[ServerState, list[Record], SummingBackend | None]:
    with simulate(e) as simulation:
        f, backend = simulation.federation, None
        if summing:
            backend = SummingBackend(f.backend)
            f = replace(f, backend=backend)
        states, records = zip(*run_rounds(f, simulation.start, e.rounds), strict=True)
        return states[-1], list(records), backend


@pytest.mark.parametrize(
    "changes", [{}, {"scale": "growth"}, {"scale": "linear"}, {"server_optimizer": "adam"}], ids=str
)
def test_training_is_the_same_where_the_aggregator_sees_only_the_sum(changes: dict[str, Any]) -> None:
    open_state, open_records, _ = run(experiment(**changes))
    state, records, backend = run(experiment(**changes), summing=True)
    assert backend is not None
    # Masks round the last digits of updates; an optimiser that divides by small numbers enlarges that a little.
    assert torch.allclose(state.w, open_state.w, atol=2e-4)
    assert [r.used for r in records] == [r.used for r in open_records]
    assert any(r.scales for r in records), "somebody has to be completed, or this shows nothing"
    # What it saw of single devices is noise: the cosine with what they sent is that of a random vector.
    cosines = [
        torch.nn.functional.cosine_similarity(a, b, dim=0) for a, b in zip(backend.seen, backend.sent, strict=True)
    ]
    assert max(abs(float(c)) for c in cosines) < 5 / math.sqrt(len(state.w))


def test_open_completing_sees_through_no_mask() -> None:
    """The same masks ruin a run whose aggregator completes: what it multiplies no longer cancels."""
    plain, _, _ = run(experiment(private=False, scale="linear"))
    masked, _, _ = run(experiment(private=False, scale="linear"), summing=True)
    assert (masked.w - plain.w).norm() > plain.w.norm()


def test_records_hold_what_devices_multiplied_by_and_the_exponent() -> None:
    _, records, _ = run(experiment(scale="linear"))
    assert {r.growth for r in records} == {1.0}
    first = records[0]  # nothing is known of lengths: no limit
    expected = {d: a / s for d, s, a in zip(first.devices, first.steps, first.steps_asked, strict=True) if 0 < s < a}
    assert first.scales == pytest.approx(expected)


@pytest.mark.parametrize("method", ["fednova", "scaffold", "feddyn"])
def test_other_methods_train_with_it(method: str) -> None:
    _, records, _ = run(experiment(method=method))
    assert (records[-1].accuracy or 0) > 0.5
