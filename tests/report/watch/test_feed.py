"""What pages get: every round once, and what changed."""

from __future__ import annotations

import json
import shutil

import pytest

from fedlga.core.settings import BadInput
from fedlga.report.watch import feed as module
from fedlga.report.watch.feed import Feed
from run_folders import append_records, make_record, start_run


@pytest.fixture(autouse=True)
def _look_always(monkeypatch):
    monkeypatch.setattr(module, "BETWEEN", 0.0)
    monkeypatch.setattr(module, "BETWEEN_SEARCHES", 0.0)


def ask(feed: Feed, before: dict | None = None) -> dict:
    before = before or {"epoch": "", "position": 0, "revision": 0}
    return json.loads(feed.read_since(before["epoch"], before["position"], before["revision"]))


def test_no_round_is_sent_twice(tmp_path):
    folder = start_run(tmp_path / "run", rounds=10)
    append_records(folder, make_record(round=1), make_record(round=2))
    feed = Feed([tmp_path])
    first = ask(feed)
    assert [row[1][0] for row in first["rows"]] == [1, 2]
    assert [run["round"] for run in first["runs"]] == [2]
    nothing = ask(feed, first)
    assert (nothing["rows"], nothing["runs"], nothing["quantiles"]) == ([], [], None)
    append_records(folder, make_record(round=3))
    more = ask(feed, nothing)
    assert [row[1][0] for row in more["rows"]] == [3]
    assert [run["round"] for run in more["runs"]] == [3]
    assert [row[1][0] for row in ask(feed)["rows"]] == [1, 2, 3], "a new page gets all"
    assert [row[1][0] for row in ask(feed, {**more, "epoch": "another"})["rows"]] == [1, 2, 3]


def test_long_runs_come_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MOST_ROWS", 4)
    append_records(start_run(tmp_path / "run", rounds=10), *(make_record(round=r) for r in range(1, 11)))
    feed, answer, rounds = Feed([tmp_path]), None, []
    while answer is None or answer["more"]:
        answer = ask(feed, answer)
        assert len(answer["rows"]) <= 4
        rounds += [row[1][0] for row in answer["rows"]]
    assert rounds == list(range(1, 11))


def test_runs_come_and_go(tmp_path):
    feed = Feed([tmp_path])
    before = ask(feed)
    assert before["numbers"] == []
    folder = start_run(tmp_path / "later", rounds=10)
    append_records(folder, make_record(round=1))
    came = ask(feed, before)
    assert came["numbers"] == [0]
    shutil.rmtree(folder)
    assert ask(feed, came)["numbers"] == []
    start_run(tmp_path / "later", rounds=10)
    append_records(tmp_path / "later", make_record(round=1, seconds=5.0))
    back = ask(feed, came)
    assert [number for number, _ in back["rows"]] == [0, 0]
    assert back["rows"][0][1] is None, "what was sent before no longer holds"


def test_a_run_that_went_back_is_taken_back(tmp_path):
    folder = start_run(tmp_path / "run", rounds=10)
    append_records(folder, *(make_record(round=r) for r in (1, 2, 3)))
    feed = Feed([tmp_path])
    before = ask(feed)
    append_records(folder, make_record(round=1), mode="w")
    assert [row and row[0] for _, row in ask(feed, before)["rows"]] == [None, 1]


def test_seeds_are_a_group(tmp_path):
    for seed in (0, 1):
        append_records(
            start_run(tmp_path / f"keep-{seed}", seed=seed, method="fedavg", stragglers="keep"), make_record()
        )
    append_records(start_run(tmp_path / "other", method="fedavg", stragglers="drop"), make_record())
    runs = ask(Feed([tmp_path]))["runs"]
    assert [(run["label"], run["group"]) for run in runs] == [
        ("FedAvg (keep)", 0),
        ("FedAvg (keep)", 0),
        ("FedAvg (drop)", 1),
    ]
    assert runs[0]["colour"] != runs[2]["colour"]


def test_a_folder_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "experiment.toml").write_text("rounds = [")
    append_records(start_run(tmp_path / "good"), make_record())
    answer = ask(Feed([tmp_path]))
    assert len(answer["runs"]) == 1
    assert len(answer["unreadable"]) == 1 and "bad" in answer["unreadable"][0]


@pytest.mark.parametrize(
    "change", [{"steps": [1]}, {"seconds": 10**400}, {"scales": {"0": 10**400}}, {"staleness": {"0": None}}]
)
def test_one_damaged_run_does_not_hide_the_others(tmp_path, change):
    bad = start_run(tmp_path / "bad")
    (bad / "rounds.jsonl").write_text(json.dumps({**make_record().as_dict(), **change}) + "\n")
    append_records(start_run(tmp_path / "good"), make_record())
    answer = ask(Feed([tmp_path]))
    assert [(run["round"], run["state"]) for run in answer["runs"]] == [(0, "damaged"), (1, "stopped")]


def test_what_is_no_folder(tmp_path):
    with pytest.raises(BadInput, match=r"DIR: '.*nowhere' is no folder"):
        Feed([tmp_path / "nowhere"])
