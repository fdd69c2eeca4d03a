"""Replies that arrive in parts: one whose rest never comes holds up nobody, and Flower is not asked for it twice."""

from __future__ import annotations

import pytest
from flwr.app import Message, RecordDict

import grids  # noqa: F401  # it makes this process one of a Flower run
from clocks import FakeTime
from fedlga.backends.flower import replies
from fedlga.backends.flower.flower_private import Announced
from fedlga.backends.flower.replies import LONGEST_UPLOAD, SPARE_PARTS, ReplyReader


class FakeMailbox:
    """What a SuperLink has: parts of replies, None for one that has not come."""

    def __init__(self, parts):
        self.parts, self.listed = parts, []
        self.waiting = [Announced("a", 7, "reply-a", list(parts["a"])), Announced("b", 8, "reply-b", list(parts["b"]))]
        self.asked = {}
        for name, node in (("a", 7), ("b", 8)):
            message = Message(RecordDict(), node, "train")
            message.metadata.__dict__["_message_id"] = name
            self.asked[name] = message

    def list_replies(self, names):
        self.listed.append(list(names))
        came, self.waiting = self.waiting, []
        return came

    def fetch(self, part):
        return {**self.parts["a"], **self.parts["b"]}[part]

    def confirm(self, reply):
        pass

    def is_chunk(self, content):
        return True

    def measure_arrays(self, parts):
        return sum(map(len, parts.values()))

    def put_together(self, reply, parts):
        return Message(RecordDict(), reply_to=self.asked[reply.asked])


@pytest.fixture
def clock(monkeypatch):
    fake = FakeTime()
    fake.replace_time_in(monkeypatch, replies)
    return fake


def read_with(parts, monkeypatch):
    mailbox = FakeMailbox(parts)
    monkeypatch.setattr(replies, "find_mailbox", lambda grid: mailbox)
    return ReplyReader(object()), mailbox


def test_an_upload_that_does_not_end_holds_up_nobody(monkeypatch, clock):
    reader, mailbox = read_with({"a": {"a1": b"x", "a2": None}, "b": {"b1": b"y"}}, monkeypatch)
    assert [reply.asked for reply in reader.pull(["a", "b"], 10)] == ["b"]
    assert reader.pull(["a"], 10) == []
    assert mailbox.listed == [["a", "b"]]  # Flower would make up an error for what it has handed out
    clock.sleep(LONGEST_UPLOAD + 1)
    [reply] = reader.pull(["a"], 10)
    assert (reply.asked, reply.message) == ("a", None)
    assert "did not end" in reply.refused
    assert reader.ignored == 0


def test_the_rest_may_come_later(monkeypatch, clock):
    reader, mailbox = read_with({"a": {"a1": b"x", "a2": None}, "b": {"b1": b"y"}}, monkeypatch)
    reader.pull(["a", "b"], 10)
    mailbox.parts["a"]["a2"] = b"z"
    [reply] = reader.pull(["a"], 10)
    assert reply.message is not None


def test_what_is_too_large_is_refused_before_it_is_put_together(monkeypatch, clock):
    parts = {"a": {"a1": b"x" * 11}, "b": {f"b{number}": b"" for number in range(SPARE_PARTS + 1)}}
    reader, _ = read_with(parts, monkeypatch)
    first, second = reader.pull(["a", "b"], 10)
    assert first.refused == "it has more than the 10 bytes that are the most here"
    assert second.refused == f"it has {SPARE_PARTS + 1} parts"


def test_a_model_of_many_arrays_has_two_parts_for_each(monkeypatch, clock):
    most = SPARE_PARTS + 2 * 1000
    parts = {
        name: {f"{name}{number}": b"" for number in range(count)} for name, count in (("a", most), ("b", most + 1))
    }
    reader, mailbox = read_with(parts, monkeypatch)
    fetched = []
    monkeypatch.setattr(mailbox, "fetch", lambda part: fetched.append(part) or b"")
    first, second = reader.pull(["a", "b"], 10, 1000)
    assert first.message is not None
    assert second.refused == f"it has {most + 1} parts"
    assert len(fetched) == most  # each is a request to the SuperLink: none is made for what has too many


def test_parts_of_replies_that_nobody_asks_for_any_more_are_not_kept(monkeypatch, clock):
    """A hostile node may send nearly all of a reply in every round, and never the rest."""
    reader, _ = read_with({"a": {"a1": b"x", "a2": None}, "b": {"b1": b"y", "b2": None}}, monkeypatch)
    assert reader.pull(["a", "b"], 10) == []
    clock.sleep(LONGEST_UPLOAD + 1)
    [reply] = reader.pull(["a"], 10)
    assert "did not end" in reply.refused
    assert not reader._arriving


def test_a_reply_to_a_message_that_was_not_asked_about_is_counted(monkeypatch, clock):
    reader, _ = read_with({"a": {"a1": b"x"}, "b": {"b1": b"y"}}, monkeypatch)
    assert [reply.asked for reply in reader.pull(["b"], 10)] == ["b"]
    assert reader.ignored == 1
