"""Repeat offenders rest, and nobody else: strikes by hand, and whole runs."""

from __future__ import annotations

import torch

from fedlga.core.quarantine import STRIKES, WithoutResting, find_resting, judge
from fedlga.core.types import ServerState
from fedlga.experiments.presets import preset
from fedlga.experiments.run import run


def after_round(state: ServerState, refused=(), used=(), *, after=3, rounds=10) -> ServerState:
    """Return the state after a round in which these devices' updates were refused, or counted."""
    done = ServerState(state.round + 1, state.w, state.memory)
    return ServerState(done.round, done.w, {**done.memory, **judge(done, refused, used, after=after, rounds=rounds)})


def start() -> ServerState:
    return ServerState(0, torch.zeros(1))


def test_three_refused_updates_are_ten_rounds_of_rest():
    state = start()
    for _ in range(2):
        state = after_round(state, refused=[4])
        assert find_resting(state) == set()
    state = after_round(state, refused=[4])  # in round 3: it rests in rounds 4 to 13
    resting_after = []
    for _ in range(12):
        resting_after.append((state.round, 4 in find_resting(state)))
        state = after_round(state)
    assert [round for round, rests in resting_after if rests] == list(range(3, 13))


def test_after_its_rest_one_more_refused_update_is_enough():
    state = start()
    for _ in range(3):
        state = after_round(state, refused=[4], rounds=1)
    state = after_round(state, rounds=1)
    assert find_resting(state) == set()
    assert find_resting(after_round(state, refused=[4], rounds=1)) == {4}
    for _ in range(2):  # it makes up for its two strikes
        state = after_round(state, used=[4], rounds=1)
    assert find_resting(after_round(state, refused=[4], rounds=1)) == set()


def test_an_update_that_counts_makes_up_for_one_that_was_refused():
    state = start()
    for _ in range(10):
        state = after_round(state, refused=[1])
        state = after_round(state, used=[1])
    assert find_resting(state) == set()


def test_nothing_is_remembered_where_nothing_is_refused():
    state = after_round(start(), used=range(5))
    assert STRIKES not in state.memory
    assert STRIKES not in after_round(start(), refused=[1], rounds=0).memory


class Present:
    def present(self):
        return [0, 1, 2]


def test_who_rests_is_selected_only_if_all_rest():
    assert WithoutResting(Present(), {1}).present() == [0, 2]
    assert WithoutResting(Present(), {0, 1, 2}).present() == [0, 1, 2]


def test_a_run_records_who_rests_and_resumes_to_the_same_records(tmp_path):
    """A bound below 1 refuses the longer updates of every round: many devices become repeat offenders."""
    changes = {"rounds": 12, "outlier_bound": 0.9, "devices": 10, "cohort": 5, "quarantine": 4, "quarantine_after": 2}
    experiment = preset("digits").changed({**changes, "method": "fedavg", "fleet": "equal"})
    whole = run(experiment, tmp_path / "whole").records
    assert any(record.resting for record in whole)
    for record in whole:
        assert not set(record.resting) & set(record.devices)
    run(experiment.changed({"rounds": 7}), tmp_path / "half")
    again = run(experiment, tmp_path / "half", resume=True).records
    assert [(r.devices, r.resting, r.refused) for r in again] == [(r.devices, r.resting, r.refused) for r in whole]
    never = run(experiment.changed({"quarantine": 0}), tmp_path / "never").records
    assert not any(record.resting for record in never)
