"""Reading run folders: what can be read, and that a damaged file is named in one line and left as it is."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedlga
from damaged_records import DAMAGES
from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.measures import summarise_run
from fedlga.experiments.presets import preset
from fedlga.experiments.records import (
    read_lines,
    read_partition,
    read_records,
    read_run,
    read_summary,
    read_versions,
)
from run_folders import read_everything

SMALL = preset("digits").changed({"rounds": 4, "steps_per_epoch": 1, "lr": 0.1, "target": 0.3, "audit": True})


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory) -> Path:
    """A run of four rounds, which no test changes."""
    return fedlga.run(SMALL, tmp_path_factory.mktemp("records") / "run").folder


@pytest.fixture(scope="module")
def content(run_folder) -> bytes:
    """What its rounds.jsonl holds."""
    return (run_folder / "rounds.jsonl").read_bytes()


@pytest.fixture(scope="module")
def mutant(tmp_path_factory) -> Path:
    """A folder for a rounds.jsonl that is written again and again."""
    return tmp_path_factory.mktemp("mutant")


@pytest.mark.parametrize("name", DAMAGES)
def test_a_damaged_line_is_named(tmp_path, content, name):
    damage = DAMAGES[name]
    file = tmp_path / "rounds.jsonl"
    file.write_bytes(damage.damage(content.splitlines(keepends=True)))
    before = read_everything(tmp_path)
    with pytest.raises(BadInput) as caught:
        read_records(tmp_path)
    assert str(caught.value) == f"{str(file)!r}: {damage.message}"
    assert read_everything(tmp_path) == before


@pytest.mark.parametrize("size", [0, 1, 20, -1])
def test_only_a_last_line_without_its_end_does_not_count(tmp_path, content, size):
    lines = content.splitlines(keepends=True)
    (tmp_path / "rounds.jsonl").write_bytes(b"".join(lines[:3]) + lines[3][:size])
    assert [r.round for r in read_records(tmp_path)] == [1, 2, 3]


def test_a_folder_without_rounds_has_none(tmp_path):
    assert read_records(tmp_path) == []


def test_a_file_that_cannot_be_opened_is_named(tmp_path):
    (tmp_path / "rounds.jsonl").mkdir()
    with pytest.raises(BadInput, match=r"cannot read '.*rounds\.jsonl' \(Is a directory\)"):
        read_records(tmp_path)


def test_each_record_is_read_with_the_end_of_its_line(tmp_path, content, run_folder):
    for record, end in read_lines(run_folder):
        (tmp_path / "rounds.jsonl").write_bytes(content[:end])
        assert read_records(tmp_path) == read_records(run_folder)[: record.round]


EDITS = st.lists(
    st.tuples(
        st.sampled_from(["put", "insert", "cut", "repeat"]),
        st.floats(0, 1, exclude_max=True),  # where, as a part of the file
        st.one_of(
            st.binary(min_size=1, max_size=4),
            st.sampled_from([b"\n", b"\r", b"null", b'"', b"}", b"{", b"[", b"NaN", b"1e999", b"-", b"true", b", "]),
        ),
    ),
    min_size=1,
    max_size=3,
)


@given(EDITS)
def test_whatever_happens_to_the_bytes_there_are_records_or_one_line(mutant, content, edits):
    changed, first = content, len(content)
    for kind, where, data in edits:
        at = int(where * len(changed))
        first = min(first, at)
        if kind == "put":
            changed = changed[:at] + data + changed[at + len(data) :]
        elif kind == "insert":
            changed = changed[:at] + data + changed[at:]
        elif kind == "cut":
            changed = changed[:at] + changed[at + 40 * len(data) :]
        else:
            changed = changed[: at + 300] + changed[at:]
    check_readable(mutant, changed, unchanged=content[:first].count(b"\n"))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)


NAMES = [*(f.name for f in dataclasses.fields(Record)), "version", "accuracy", "loss", "accuracy_slow"]


@given(line=st.integers(0, 3), name=st.sampled_from(NAMES), value=JSON)
def test_whatever_a_field_holds_there_are_records_or_one_line(mutant, content, line, name, value):
    lines = content.splitlines()
    lines[line] = json.dumps({**json.loads(lines[line]), name: value}).encode()
    check_readable(mutant, b"\n".join(lines) + b"\n", unchanged=line)


def check_readable(folder: Path, content: bytes, unchanged: int) -> None:
    """Assert that a rounds.jsonl gives records that can be summarised, or a BadInput that names a line."""
    file = folder / "rounds.jsonl"
    file.write_bytes(content)
    try:
        records = read_records(folder)
    except BadInput as error:
        message = str(error)
        assert message.startswith(f"{str(file)!r}: line ")
        assert len(message.splitlines()) == 1
        assert int(message.removeprefix(f"{str(file)!r}: line ").split()[0]) > unchanged
    else:
        assert [r.round for r in records] == list(range(1, len(records) + 1))
        assert len(records) >= unchanged
        summarise_run(SMALL.changed({"audit": False}), records)
    assert file.read_bytes() == content


def test_a_record_survives_json(run_folder):
    record = read_records(run_folder)[0]
    assert fedlga.Record.from_dict(json.loads(json.dumps(record.as_dict()))) == record
    metrics = {**record.metrics, "loss": float("nan")}
    lost = dataclasses.replace(record, metrics=metrics, scales={3: float("inf")})
    written = json.loads(json.dumps(lost.as_dict(), allow_nan=False))
    assert written["loss"] is None
    assert written["scales"] == {"3": None}


def test_numbers_that_were_lost_are_read_as_unknown(tmp_path, run_folder):
    """JSON has no not-a-number: a diverged round has None in its place, and can still be read."""
    nan, inf = float("nan"), float("inf")
    first = read_records(run_folder)[0]
    metrics = {**first.metrics, "loss": nan}
    lost = dataclasses.replace(first, metrics=metrics, train_loss=nan, growth=inf, scales={3: inf}, bounded={2: nan})
    (tmp_path / "rounds.jsonl").write_text(json.dumps(lost.as_dict(), allow_nan=False) + "\n")
    (record,) = read_records(tmp_path)
    assert (record.loss, record.train_loss, record.growth, record.scales[3], record.bounded[2]) == (None,) * 5


def test_without_pandas_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(BadInput, match="pandas is not installed"):
        fedlga.frame([])


def test_the_summary_of_a_finished_run_only(tmp_path, run_folder):
    assert read_summary(run_folder)["rounds"] == 4
    assert read_summary(run_folder) == json.loads((run_folder / "summary.json").read_text())
    for text in ("", "{", "[]", "3", '{"finished": false, "rounds": 4}', '{"rounds": 4}', "\xff"):
        (tmp_path / "summary.json").write_text(text, encoding="latin-1")
        assert read_summary(tmp_path) == {}
    assert read_summary(tmp_path / "nowhere") == {}


def test_what_a_summary_lacks_is_computed_from_the_records(tmp_path, run_folder):
    """As if an earlier version had written it, which had no such measure."""
    for name in ("experiment.toml", "rounds.jsonl"):
        (tmp_path / name).write_bytes((run_folder / name).read_bytes())
    summary = json.loads((run_folder / "summary.json").read_text())
    loss = summary.pop("last_train_loss")
    (tmp_path / "summary.json").write_text(json.dumps({**summary, "best_accuracy": 0.123}))
    assert read_summary(tmp_path)["last_train_loss"] == loss == read_run(run_folder).summary["last_train_loss"]
    assert read_summary(tmp_path)["best_accuracy"] == 0.123, "what is there is not computed again"


def test_versions_and_partition_if_the_folder_says(tmp_path, run_folder):
    assert set(read_versions(run_folder)) == {"python", "fedlga", "torch", "numpy"}
    held = read_partition(run_folder)
    assert held is not None
    assert (len(held), sum(map(sum, held))) == (20, 1438)
    for text in ("[", "[]", "{}", '{"counts": 3, "versions": 3}'):
        (tmp_path / "partition.json").write_text(text)
        (tmp_path / "summary.json").write_text(text)
        assert read_partition(tmp_path) is None
        assert read_versions(tmp_path) == {}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"steps": [1]}, "devices, steps and steps_asked are not of one length"),
        ({"seconds": 10**400}, "a number of more than 30 digits"),
        ({"bytes_up": -(10**30)}, "a number of more than 30 digits"),
        ({"staleness": {"0": None}}, "staleness is not of the type"),
        ({"refused": {"0": None}}, "refused is not of the type"),
    ],
)
def test_what_would_end_a_reader_later_is_refused_with_its_line(tmp_path, content, fields, words):
    lines = content.splitlines(keepends=True)
    values = {**json.loads(lines[1]), **fields}
    (tmp_path / "rounds.jsonl").write_bytes(lines[0] + json.dumps(values).encode() + b"\n")
    with pytest.raises(BadInput, match=rf"line 2 cannot be read \(record: .*{words}"):
        read_records(tmp_path)


def test_texts_with_many_digits_and_unknown_seconds_are_read(tmp_path, content):
    """Nodes have numbers of twenty digits; what is not a number is written as null."""
    values = {**json.loads(content.splitlines()[0]), "note": "node 12345678901234567890"}
    values |= {"device_seconds": {"1": 2.0, "2": None}, "bounded": {"1": None}, "node": 2**64}
    (tmp_path / "rounds.jsonl").write_text(json.dumps(values) + "\n")
    (record,) = read_records(tmp_path)
    assert record.note == "node 12345678901234567890"
    assert record.others == {"node": 2**64}
    assert record.work_seconds == 2.0


@pytest.mark.parametrize("count", [-1, 10**20])
def test_a_partition_that_cannot_be_is_not_read(tmp_path, count):
    (tmp_path / "partition.json").write_text(json.dumps({"counts": [[3, count]]}))
    assert read_partition(tmp_path) is None
