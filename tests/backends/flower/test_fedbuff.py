"""FedBuff in Flower's own loop: by hand, with nodes that take their time, leave, or fail."""

from __future__ import annotations

import copy
import logging
from itertools import count

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict

import grids  # noqa: F401  # it makes this process one of a Flower run
from clocks import FakeTime
from fedlga.backends.flower import fedbuff
from fedlga.core.settings import BadInput
from fedlga.flower import FedBuff

CENTRES = {100: (8.0, 0.0), 200: (0.0, 8.0), 300: (24.0, 24.0)}


class TimedGrid:
    """Nodes that go half the way to their centre, and take their time for it."""

    def __init__(self, clock, seconds, asked=2):
        self.clock, self.seconds, self.asked = clock, seconds, asked
        self.ids = list(seconds)
        self.under_way: dict[str, tuple[float, Message]] = {}
        self.names = count(1)
        self.pushed: list[tuple[float, int]] = []
        self.steps: dict[int, int] = {}
        self.failing: set[int] = set()

    def get_node_ids(self):
        return self.ids

    def push_messages(self, messages):
        names = []
        for message in messages:
            name, node = f"m{next(self.names)}", message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = name
            message.metadata.__dict__["_src_node_id"] = 1
            self.under_way[name] = self.clock.now + self.seconds[node], message
            self.pushed.append((self.clock.now, node))
            names.append(name)
        return names

    def pull_messages(self, names):
        due = [name for name in self.under_way if name in set(names) and self.under_way[name][0] <= self.clock.now]
        return [self.reply_to(self.under_way.pop(name)[1]) for name in due]

    def send_and_receive(self, messages, *, timeout=None):
        assert not list(messages), "nobody is asked to evaluate"
        return []

    def reply_to(self, message):
        node = message.metadata.dst_node_id
        if node in self.failing:
            return Message(Error(code=2, reason="it failed"), reply_to=message)
        steps = self.steps.get(node, self.asked)
        w = message.content["arrays"]["w"].numpy()
        moved = Array((w + (np.array(CENTRES[node]) - w) / 2).astype(np.float32))
        numbers = MetricRecord({"num-examples": 1, "num-steps": steps, "num-steps-asked": self.asked})
        return Message(RecordDict({"arrays": ArrayRecord({"w": moved}), "metrics": numbers}), reply_to=message)


@pytest.fixture
def clock(monkeypatch):
    fake = FakeTime()
    fake.now = 0.0
    fake.replace_time_in(monkeypatch, fedbuff)
    monkeypatch.setattr(fedbuff, "POLL", 0.5)
    logging.getLogger("flwr").setLevel(logging.WARNING)
    return fake


def run(grid, rounds, **settings):
    """Return the weights after each round, and when it was over."""
    strategy = FedBuff(**{"min_available_nodes": 1, "min_train_nodes": 1, **settings})
    seen = []

    def note(round, arrays):
        seen.append((grid.clock.now, arrays["w"].numpy().tolist()))

    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    strategy.start(grid, start, num_rounds=rounds, train_config=ConfigRecord({"lr": 0.5}), evaluate_fn=note)
    return seen[1:]


def test_three_nodes_by_hand(clock):
    """As in tests/core/schedules/test_buffered.py: nodes take 1, 2 and 5 seconds, and two replies make a step."""
    grid = TimedGrid(clock, {100: 1.0, 200: 2.0, 300: 5.0})
    seen = run(grid, 3, buffer=2, staleness_power=1.0)
    assert seen == [(2.0, [2.0, 2.0]), (4.0, [3.0, 3.0]), (5.0, [6.25, 4.25])]
    assert [node for _, node in grid.pushed].count(300) == 1, "a node at work is not asked again"


def test_an_update_that_is_too_old_is_left_out(clock):
    """At 5 s come node 100's update and that of node 300, which is two steps old: the step waits for another, of node
    200 at 6 s. Both began from (3, 3): (5.5, 1.5) and (1.5, 5.5).
    """
    grid = TimedGrid(clock, {100: 1.0, 200: 2.0, 300: 5.0})
    seen = run(grid, 3, buffer=2, staleness_power=1.0, staleness_limit=1)
    assert seen[2] == (6.0, [3.5, 3.5])


def test_one_too_many_waits_for_the_next_step(clock):
    """All three reply at 1 s. Two make a step; the third is one step old in the next, at the same moment."""
    grid = TimedGrid(clock, {100: 1.0, 200: 1.0, 300: 1.0})
    seen = run(grid, 2, buffer=2, staleness_power=1.0)
    assert len({node for _, node in grid.pushed[:3]}) == 3
    assert [moment for moment, _ in seen] == [1.0, 2.0]
    moves = {node: np.array(centre) / 2 for node, centre in CENTRES.items()}
    first, second, third = (node for _, node in grid.pushed[:3])
    w1 = (moves[first] + moves[second]) / 2
    assert seen[0][1] == pytest.approx(w1.tolist())
    again = grid.pushed[3][1]  # the first to be asked again, and so to reply
    w2 = w1 + (moves[third] / 2 + (np.array(CENTRES[again]) - w1) / 2) / 2
    assert seen[1][1] == pytest.approx(w2.tolist())


def test_fewer_at_work(clock):
    grid = TimedGrid(clock, {100: 1.0, 200: 1.0, 300: 1.0})
    run(grid, 4, buffer=1, at_work=1)
    assert [moment for moment, _ in grid.pushed] == [0.0, 1.0, 2.0, 3.0]


def test_unfinished_work_is_completed_in_the_buffer(clock):
    """Node 300 did one of two steps: its (12, 12) counts twice. ((4, 0) + (0, 4) + (24, 24)) / 3."""
    grid = TimedGrid(clock, {100: 1.0, 200: 1.0, 300: 1.0})
    grid.steps[300] = 1
    seen = run(grid, 1, buffer=3, stragglers="complete", options={"scale": "linear", "longest": 100.0})
    assert seen[0][1] == pytest.approx([28 / 3, 28 / 3])


def test_nodes_that_leave_or_fail_hold_up_nobody(clock):
    grid = TimedGrid(clock, {100: 1.0, 200: 1.0, 300: 1000.0})
    grid.failing = {200}
    seen = run(grid, 3, buffer=1)
    assert [moment for moment, _ in seen] == [1.0, 2.0, 3.0]
    assert seen[-1][1][1] == 0.0, "node 200 failed, and counts for nothing"
    grid.ids.remove(300)
    assert run(grid, 1, buffer=1)[0][0] == 4.0


def test_a_node_that_fails_at_once_does_not_use_up_the_rounds(clock):
    grid = TimedGrid(clock, {100: 60.0, 200: 0.0})
    grid.failing = {200}
    seen = run(grid, 2, buffer=1)
    assert seen == [(60.0, [4.0, 0.0]), (120.0, [6.0, 0.0])]


def test_a_node_that_was_away_for_a_moment_is_measured_by_what_it_was_sent(clock):
    """Node 300 is asked at 0 s and replies at 5 s, three steps later: (12, 12) / 4, in a buffer of one."""
    grid = TimedGrid(clock, {100: 2.0, 300: 5.0})
    online = grid.ids

    def get_node_ids():
        return [node for node in online if node != 300 or not 1.5 < clock.now < 3.0]

    grid.get_node_ids = get_node_ids
    seen = run(grid, 3, buffer=1, staleness_power=1.0)
    assert [node for _, node in grid.pushed].count(300) == 1, "it is still at work"
    assert seen[:2] == [(2.0, [4.0, 0.0]), (4.0, [6.0, 0.0])]
    assert seen[2] == (5.0, [6.0 + 12 / 3, 12 / 3])


def test_flowers_reply_for_a_node_that_is_gone_frees_it(clock):
    """Such a reply comes from the SuperLink, not from the node."""
    grid = TimedGrid(clock, {100: 2.0, 200: 3.0})
    reply_to, gone = grid.reply_to, [200]

    def reply(message):
        if message.metadata.dst_node_id in gone:
            gone.remove(200)
            error = Message(Error(code=3, reason="gone"), reply_to=message)
            error.metadata.__dict__["_src_node_id"] = 1
            return error
        return reply_to(message)

    grid.reply_to = reply
    run(grid, 4, buffer=1)
    assert [node for _, node in grid.pushed].count(200) >= 2


def test_a_second_reply_and_one_to_nobody_are_not_read(clock):
    grid = TimedGrid(clock, {100: 1.0, 200: 2.0})
    pull = grid.pull_messages

    def pull_twice(names):
        came = pull(names)
        stray = [reply_with_id(reply, "nobody's") for reply in came]
        return [*came, *came, *stray]

    def reply_with_id(reply, name):
        again = copy.deepcopy(reply)
        again.metadata.__dict__["_reply_to_message_id"] = name
        return again

    grid.pull_messages = pull_twice
    assert run(grid, 2, buffer=1, staleness_power=1.0) == [(1.0, [4.0, 0.0]), (2.0, [4.0, 2.0])]


@pytest.mark.parametrize(("settings", "most"), [({"fraction_train": 0.5}, 3), ({"at_work": 2}, 2), ({}, 6)])
def test_so_many_are_at_work_at_any_time(settings, most, clock):
    """Six nodes; the three slow ones do not pile up, and a free place is taken by one that is idle."""
    CENTRES.update(dict.fromkeys(range(1, 7), (8.0, 0.0)))
    grid = TimedGrid(clock, {node: 50.0 if node < 4 else 1.0 for node in range(1, 7)})
    at_work = []
    push = grid.push_messages

    def note(messages):
        names = push(messages)
        at_work.append(len(grid.under_way))
        return names

    grid.push_messages = note
    run(grid, 8, buffer=1, **settings)
    assert max(at_work) == most


def test_a_timeout_ends_a_round_with_what_came(clock):
    grid = TimedGrid(clock, {100: 1.0, 200: 1000.0})
    strategy = FedBuff(buffer=2, min_available_nodes=1, min_train_nodes=1)
    start = ArrayRecord({"w": Array(np.zeros(2, np.float32))})
    result = strategy.start(grid, start, num_rounds=1, timeout=10.0)
    assert result.arrays["w"].numpy().tolist() == [4.0, 0.0]


@pytest.mark.parametrize(
    ("settings", "words"), [({"fraction_evaluate": 0.5}, "evaluate_fn"), ({"buffer": 0}, "buffer")]
)
def test_what_it_does_not_take(settings, words):
    with pytest.raises(BadInput, match=words):
        FedBuff(**settings)
