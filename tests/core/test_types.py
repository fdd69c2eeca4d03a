"""The data of a round: copies without vectors, and records of this version and the one before."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from federations import update
from fedlga.core.settings import BadInput
from fedlga.core.types import Contribution, Record

VALUES: dict[str, Any] = {
    "round": 1,
    "accuracy": 0.5,
    "loss": 1.0,
    "accuracy_slow": None,
    "accuracy_worst": 0.25,
    "train_loss": 2.0,
    "seconds": 0.1,
    "simulated_seconds": 5.0,
    "lr": 0.01,
    "devices": [3, 7],
    "steps": [1, 2],
    "steps_asked": [2, 2],
    "slow": [3],
    "absent": [],
    "used": [3, 7],
    "scales": {3: 1.5},
}
DIVERGED_IN_VERSION_1 = "the weights are no longer finite numbers: the run stops here"


def test_an_update_without_vectors_holds_no_memory():
    full = replace(update(0, [1.0, 2.0]), uploads={"control": torch.ones(2)}, truth=torch.ones(2))
    light = full.without_vectors()
    assert light.delta.untyped_storage().nbytes() == 0
    assert not light.uploads
    assert light.truth is None
    assert light.numbers() == full.numbers()
    assert len(full.delta) == 2
    assert set(full.uploads) == {"control"}


def test_a_contribution_without_vectors_keeps_its_numbers():
    full = Contribution(update(0, [1.0, 2.0]), weight=3.0, share=0.1, scale=2.0, completed=True)
    light = full.without_vectors()
    assert light.update.delta.untyped_storage().nbytes() == 0
    assert replace(light, update=full.update) == full


def test_a_completed_contribution_counts_for_all_steps():
    unfinished = update(0, steps=2, asked=5)
    assert Contribution(unfinished).steps == 2
    assert Contribution(unfinished, completed=True).steps == 5
    assert not unfinished.finished


def test_a_record_is_the_same_after_json():
    record = Record(
        **VALUES,
        clipped={3: "longer than 6"},
        bounded={7: 0.5},
        refused={9: "no update"},
        device_seconds={3: 1.25},
        diverged=True,
        note="a note",
    )
    values = json.loads(json.dumps(record.as_dict()))
    assert values["version"] == 2
    assert Record.from_dict(values) == record


def test_json_has_no_not_a_number():
    plain = Record(**{**VALUES, "loss": math.nan, "train_loss": math.inf, "scales": {3: math.nan}}).as_dict()
    assert plain["loss"] is None
    assert plain["train_loss"] is None
    assert plain["scales"] == {3: None}
    json.dumps(plain, allow_nan=False)


@pytest.mark.parametrize(
    ("note", "diverged"), [(None, False), ("nobody reported", False), (DIVERGED_IN_VERSION_1, True)]
)
def test_a_record_of_version_1_is_read(note, diverged):
    """It has no version, no `diverged` and no `bounded`: that a run diverged was only in the note."""
    values = json.loads(json.dumps({**VALUES, "note": note}))
    record = Record.from_dict(values)
    assert record == Record(**VALUES, note=note, diverged=diverged)
    assert record.bounded == {}


def test_in_version_2_the_note_decides_nothing():
    values = {**VALUES, "version": 2, "note": DIVERGED_IN_VERSION_1}
    assert not Record.from_dict(values).diverged
    assert Record.from_dict({**values, "note": None, "diverged": True}).diverged


@pytest.mark.parametrize("version", [{}, {"version": 1}, {"version": 2}])
def test_an_unknown_field_is_refused(version):
    with pytest.raises(BadInput, match="record: unknown field 'acuracy'") as caught:
        Record.from_dict({**VALUES, **version, "acuracy": 0.5})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [3, 0, "2", None])
def test_another_version_is_refused(version):
    with pytest.raises(BadInput, match=r"record: got version .*; this fedlga reads 1 to 2") as caught:
        Record.from_dict({**VALUES, "version": version})
    assert "\n" not in str(caught.value)


def test_reading_does_not_change_what_was_read():
    values = {**VALUES, "scales": {"3": 1.5}}
    before = json.dumps(values)
    Record.from_dict(values)
    assert json.dumps(values) == before
