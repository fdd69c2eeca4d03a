"""The data of a round: copies without vectors, and records of this version and those before."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import replace
from typing import Any

import pytest
import torch

from federations import update
from fedlga.core.settings import BadInput
from fedlga.core.types import Contribution, Record

METRICS: dict[str, float | None] = {"accuracy": 0.5, "loss": 1.0, "accuracy_slow": None, "accuracy_worst": 0.25}
FIELDS: dict[str, Any] = {
    "round": 1,
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
BEFORE_3 = {**FIELDS, **METRICS}  # a line of version 1 or 2, which knew these metrics and no others
LINE = {**BEFORE_3, "version": 3, "metrics": list(METRICS)}
DIVERGED_IN_VERSION_1 = "the weights are no longer finite numbers: the run stops here"


def test_an_update_without_vectors_holds_no_memory():
    vectors = {"uploads": {"control": torch.ones(2)}, "truth": torch.ones(2), "buffers": torch.ones(3)}
    full = replace(update(0, [1.0, 2.0]), **vectors)
    light = full.without_vectors()
    assert light.delta.untyped_storage().nbytes() == 0
    assert not light.uploads
    assert light.truth is None
    assert light.buffers is None
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
        **FIELDS,
        metrics=METRICS,
        clipped={3: "longer than 6"},
        bounded={7: 0.5},
        refused={9: "no update"},
        device_seconds={3: 1.25},
        diverged=True,
        note="a note",
    )
    values = json.loads(json.dumps(record.as_dict()))
    assert values["version"] == 3
    assert Record.from_dict(values) == record


def test_metrics_of_any_name_stand_among_the_fields_of_a_line():
    record = Record(**FIELDS, metrics={"rmse": 0.5, "loss": 0.25, "rmse_slow": None})
    values = json.loads(json.dumps(record.as_dict()))
    assert values["metrics"] == ["rmse", "loss", "rmse_slow"]
    assert (values["rmse"], values["loss"], values["rmse_slow"]) == (0.5, 0.25, None)
    assert Record.from_dict(values) == record


def test_a_metric_is_read_like_a_field():
    record = Record(**FIELDS, metrics=METRICS)
    assert (record.accuracy, record.loss, record.accuracy_slow) == (0.5, 1.0, None)
    with pytest.raises(AttributeError, match="a record has no 'rmse'; its metrics are accuracy, loss"):
        record.rmse  # noqa: B018
    assert pickle.loads(pickle.dumps(record)) == copy.deepcopy(record) == record


@pytest.mark.parametrize("metrics", [["accuracy", "rmse"], None, "accuracy", {"accuracy": 0.5}])
def test_a_list_of_metrics_that_are_not_there_is_refused(metrics):
    with pytest.raises(BadInput, match="record: the field 'metrics' does not list metrics that are there"):
        Record.from_dict({**LINE, "metrics": metrics})


def test_json_has_no_not_a_number():
    fields = {**FIELDS, "train_loss": math.inf, "scales": {3: math.nan}}
    plain = Record(**fields, metrics={**METRICS, "loss": math.nan}).as_dict()
    assert plain["loss"] is None
    assert plain["train_loss"] is None
    assert plain["scales"] == {3: None}
    json.dumps(plain, allow_nan=False)


@pytest.mark.parametrize(
    ("note", "diverged"), [(None, False), ("nobody reported", False), (DIVERGED_IN_VERSION_1, True)]
)
def test_a_record_of_version_1_is_read(note, diverged):
    """It has no version, no `diverged` and no `bounded`: that a run diverged was only in the note."""
    values = json.loads(json.dumps({**BEFORE_3, "note": note}))
    record = Record.from_dict(values)
    assert record == Record(**FIELDS, metrics=METRICS, note=note, diverged=diverged)
    assert record.bounded == {}


@pytest.mark.parametrize("line", [{**BEFORE_3, "version": 2}, LINE], ids=["2", "3"])
def test_from_version_2_on_the_note_decides_nothing(line):
    values = {**line, "note": DIVERGED_IN_VERSION_1}
    assert not Record.from_dict(values).diverged
    assert Record.from_dict({**values, "note": None, "diverged": True}).diverged


def test_a_record_of_version_2_is_read():
    record = Record.from_dict(json.loads(json.dumps({**BEFORE_3, "version": 2, "bounded": {7: 0.5}})))
    assert record == Record(**FIELDS, metrics=METRICS, bounded={7: 0.5})


@pytest.mark.parametrize("line", [BEFORE_3, {**BEFORE_3, "version": 1}, {**BEFORE_3, "version": 2}, LINE])
def test_an_unknown_field_is_carried_along(line):
    record = Record.from_dict({**line, "battery": {"7": 0.5}, "others": 3})
    assert record.others == {"battery": {"7": 0.5}, "others": 3}
    assert {"battery": {"7": 0.5}, "others": 3}.items() <= record.as_dict().items()
    assert Record.from_dict(json.loads(json.dumps(record.as_dict()))) == record


@pytest.mark.parametrize("version", [4, 0, "2", None])
def test_another_version_is_refused(version):
    with pytest.raises(BadInput, match=r"record: got version .*; this fedlga reads 1 to 3") as caught:
        Record.from_dict({**LINE, "version": version})
    assert "\n" not in str(caught.value)


def test_reading_does_not_change_what_was_read():
    values = {**LINE, "scales": {"3": 1.5}}
    before = json.dumps(values)
    Record.from_dict(values)
    assert json.dumps(values) == before
