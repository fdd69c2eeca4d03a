"""The strategies for other people's Flower apps: rounds worked out by hand, and whatever a client may send."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAvg
from hypothesis import given
from hypothesis import strategies as st

import grids  # noqa: F401  # it makes this process one of a Flower run
from federations import Quadratic, play, quadratics
from fedlga.backends.flower.careful_grid import CarefulGrid
from fedlga.backends.flower.local_terms import UPLOADED
from fedlga.backends.flower.ray import NodesFailed
from fedlga.backends.flower.strategies import Unequal
from fedlga.core.registry import create
from fedlga.core.settings import BadInput
from fedlga.flower import FedDyn, FedLGA, FedNova, LocalTerms, Scaffold

# Two nodes, A and B, from w = 0: A moves by (2, 0) in one step, B by (0, 3) in two.
MOVES = {100: ((2.0, 0.0), 1), 200: ((0.0, 3.0), 2)}


class FixedNodes:
    """The part of Flower's Grid that a strategy uses to choose nodes."""

    def __init__(self, *ids):
        self.ids = list(ids)

    def get_node_ids(self):
        return self.ids


def arrays(w=(0.0, 0.0)):
    """Return a model of two parameters, and a count that is not of floating point."""
    return ArrayRecord(
        {
            "a": Array(np.array([[w[0]]], np.float32)),
            "n": Array(np.array([7], np.int64)),
            "b": Array(np.array([w[1]], np.float64)),
        }
    )


def ask(strategy, w=(0.0, 0.0), round=1, nodes=(100, 200)):
    messages = list(strategy.configure_train(round, arrays(w), ConfigRecord({"lr": 0.5}), FixedNodes(*nodes)))
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"m{number}"
        message.metadata.__dict__["_src_node_id"] = 1
    return messages


def reply_to(message, weights, steps, *, more=None, records=None, examples=1):
    numbers = {"num-examples": examples, "num-steps": steps, **(more or {})}
    metrics = MetricRecord({name: value for name, value in numbers.items() if value is not None})
    content = RecordDict({"arrays": arrays(weights), "metrics": metrics, **(records or {})})
    return Message(content, reply_to=message)


def reply_to_all(messages):
    return [reply_to(m, *MOVES[m.metadata.dst_node_id]) for m in messages]


def weights_of(record):
    return [float(record["a"].numpy()[0, 0]), float(record["b"].numpy()[0])]


def make(cls, **options):
    return cls(fraction_evaluate=0.0, **options)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("flwr").setLevel(logging.WARNING)


@pytest.mark.parametrize(
    ("cls", "options", "expected"),
    [
        (Unequal, {}, [1.0, 1.5]),  # the mean
        (Unequal, {"stragglers": "drop", "steps": 2}, [0.0, 3.0]),  # A did not finish
        (FedNova, {}, [1.5, 1.125]),  # 3/2 * ((2,0)/1 + (0,3)/2) / 2
        (FedLGA, {"steps": 2, "options": {"scale": "linear"}}, [2.0, 1.5]),  # A's doubled: ((4,0) + (0,3)) / 2
        (FedLGA, {"steps": 2, "options": {"scale": "linear", "eta_g": 2.0}}, [4.0, 3.0]),
        (FedLGA, {"options": {"scale": 1.0}}, [1.0, 1.5]),
        (FedLGA, {"steps": 4, "options": {"scale": "linear"}}, [1.0, 1.5]),  # nobody finished: as they came
    ],
)
def test_a_round_by_hand(cls, options, expected):
    strategy = make(cls, **options)
    record, metrics = strategy.aggregate_train(1, reply_to_all(ask(strategy)))
    assert weights_of(record) == expected
    assert {name: (array.shape, array.dtype) for name, array in record.items()} == {
        name: (array.shape, array.dtype) for name, array in arrays().items()
    }
    assert record["n"].numpy().tolist() == [7]
    assert metrics["completed"] == (1 if cls is FedLGA and expected[0] > 1 else 0)


def test_the_median_of_completed_updates_by_hand():
    """Three nodes, two steps asked. A did one and moved by (2, 0): completed, (4, 0). B moved by (0, 3), C by (1, 1).

    Of the first parameter the values are 4, 0, 1, and of the second 0, 3, 1: both medians are 1. The means are 5/3
    and 4/3.
    """
    moves = {**MOVES, 300: ((1.0, 1.0), 2)}
    for aggregation, expected in (("median", [1.0, 1.0]), ("mean", [5 / 3, 4 / 3])):
        strategy = make(FedLGA, aggregation=aggregation, steps=2, options={"scale": "linear"})
        replies = [reply_to(m, *moves[m.metadata.dst_node_id]) for m in ask(strategy, nodes=(100, 200, 300))]
        record, metrics = strategy.aggregate_train(1, replies)
        assert weights_of(record) == pytest.approx(expected, rel=1e-6)
        assert metrics["completed"] == 1


def test_the_median_counts_examples_by_hand():
    """As above, without completion, and B has three examples of five: more than half, so both medians are B's."""
    strategy = make(Unequal, aggregation="median")
    replies = [
        reply_to(m, *{**MOVES, 300: ((1.0, 1.0), 2)}[m.metadata.dst_node_id],
                 examples=3 if m.metadata.dst_node_id == 200 else 1)
        for m in ask(strategy, nodes=(100, 200, 300))
    ]  # fmt: skip
    assert weights_of(strategy.aggregate_train(1, replies)[0]) == [0.0, 3.0]


def test_two_rounds_with_server_momentum_by_hand():
    """Both rounds move the mean by d = (1, 3/2). With beta = 1/2 and eta_g = 2:

    v1 = d = (1, 1.5)                      w1 = 0 + 2 v1 = (2, 3)
    v2 = 1/2 v1 + d = (1.5, 2.25)          w2 = w1 + 2 v2 = (5, 7.5)
    """
    strategy = make(Unequal, server_optimizer="momentum", options={"beta": 0.5, "eta_g": 2.0})
    record, _ = strategy.aggregate_train(1, reply_to_all(ask(strategy)))
    assert weights_of(record) == [2.0, 3.0]
    messages = ask(strategy, w=(2.0, 3.0), round=2)
    moved = {100: ((4.0, 3.0), 1), 200: ((2.0, 6.0), 2)}  # A by (2, 0) and B by (0, 3), from (2, 3)
    record, _ = strategy.aggregate_train(2, [reply_to(m, *moved[m.metadata.dst_node_id]) for m in messages])
    assert weights_of(record) == [5.0, 7.5]


def test_a_round_by_hand_without_flowers_private_functions(monkeypatch):
    """A reply with an error is left out, and the other is aggregated, as with them."""
    monkeypatch.delattr(FedAvg, "_check_and_log_replies")
    strategy = make(FedLGA)
    good, other = sorted(ask(strategy), key=lambda m: m.metadata.dst_node_id)
    failed = Message(Error(code=2, reason="the disk is full"), reply_to=other)
    record, _ = strategy.aggregate_train(1, [reply_to(good, *MOVES[100]), failed])
    assert weights_of(record) == [2.0, 0.0]


def test_what_a_client_reports_it_was_asked_for_counts():
    """B did its two of two, A its one of one: A is finished, and nothing is completed."""
    strategy = make(FedLGA, options={"scale": "linear"})
    replies = [reply_to(m, *MOVES[m.metadata.dst_node_id], more={"num-steps-asked": MOVES[m.metadata.dst_node_id][1]})
               for m in ask(strategy)]  # fmt: skip
    assert weights_of(strategy.aggregate_train(1, replies)[0]) == [1.0, 1.5]


def test_whole_epochs_over_unequal_data_are_finished_work(caplog):
    """A did one step and B two: nobody says that A was asked for more. The line that says what to report comes once."""
    strategy = make(FedLGA, options={"scale": "linear"})
    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        for round in (1, 2):
            record, metrics = strategy.aggregate_train(round, reply_to_all(ask(strategy, round=round)))
            assert weights_of(record) == [1.0, 1.5]
            assert metrics["completed"] == 0
    assert caplog.text.count("so nothing is: a client reports") == 1


EVIDENCE = {
    "steps": {"num-steps-asked": 2},
    "epochs": {"num-epochs": 0.5, "num-epochs-asked": 1},
    "a deadline": {"cut-short": 1},
}


@pytest.mark.parametrize("evidence", EVIDENCE)
def test_work_that_was_cut_short_is_completed(evidence):
    """A did one step of two, as it shows in one way or another: its (2, 0) counts as (4, 0)."""
    strategy = make(FedLGA, options={"scale": "linear"})
    replies = [
        reply_to(m, *MOVES[node], more=EVIDENCE[evidence] if node == 100 else None)
        for m in ask(strategy)
        if (node := m.metadata.dst_node_id)
    ]
    record, metrics = strategy.aggregate_train(1, replies)
    assert weights_of(record) == [2.0, 1.5]
    assert metrics["completed"] == 1


def test_without_a_single_number_of_steps_the_run_stops_and_says_what_to_report():
    strategy = make(FedLGA)
    replies = [reply_to(m, *MOVES[m.metadata.dst_node_id][:1], None) for m in ask(strategy)]
    with pytest.raises(NodesFailed, match='no reply of round 1 can be used: a client reports "num-steps"'):
        strategy.aggregate_train(1, replies)


@pytest.mark.parametrize("cls", [Unequal, FedLGA, FedNova])
def test_huge_finite_weights_are_left_out_and_the_node_is_named(cls, caplog):
    strategy = make(cls)
    good, other = sorted(ask(strategy), key=lambda m: m.metadata.dst_node_id)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        replies = [reply_to(good, *MOVES[100]), reply_to(other, (3e38, -3e38), 2)]
        record, _ = strategy.aggregate_train(1, replies)
    assert weights_of(record) == [2.0, 0.0]
    assert "left out node 200: delta is " in caplog.text


@pytest.mark.parametrize("cls", [Unequal, FedLGA, FedNova])
def test_a_long_update_against_the_others_is_left_out_and_the_node_is_named(cls, caplog):
    """Six nodes move by (3, 4), of length 5; one, by eight times that, the other way, once that is usual."""
    strategy = make(cls)
    strategy.aggregate_train(1, [reply_to(m, (3.0, 4.0), 2) for m in ask(strategy, nodes=range(1, 8))])
    messages = ask(strategy, round=2, nodes=range(1, 8))
    *honest, hostile = sorted(messages, key=lambda m: m.metadata.dst_node_id)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        replies = [*(reply_to(m, (3.0, 4.0), 2) for m in honest), reply_to(hostile, (-24.0, -32.0), 2)]
        record, _ = strategy.aggregate_train(2, replies)
    assert weights_of(record) == pytest.approx([3.0, 4.0])
    assert "left out node 7: delta is 8 times as long as usual for its steps, and points against the" in caplog.text


def test_what_clients_measured_is_not_believed_blindly(caplog):
    """The honest say 0.5 of 10 examples and 0.8 of 20: (5 + 16) / 30 = 0.7."""
    strategy = FedLGA()
    said = [(10, 0.5), (20, 0.8), (10, math.nan), (2**40, 1.0), (0, 1.0), (10, [math.inf])]
    nodes = [100 * (number + 1) for number in range(len(said))]
    messages = sorted(ask(strategy, nodes=nodes), key=lambda m: m.metadata.dst_node_id)
    replies = [
        Message(RecordDict({"metrics": MetricRecord({"num-examples": examples, "accuracy": value})}), reply_to=message)
        for message, (examples, value) in zip(messages, said, strict=True)
    ]
    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        metrics = strategy.aggregate_evaluate(1, replies)
    assert metrics["accuracy"] == pytest.approx(0.7)
    assert [node for node in nodes if f"left out node {node}:" in caplog.text] == nodes[2:]


def test_names_of_metrics_with_codes_are_not_logged():
    strategy = make(FedLGA)
    more = {"\x1b[2Jloss": 1.0, "x" * 1000: 1.0, "loss": 2.0}
    replies = [reply_to(m, *MOVES[m.metadata.dst_node_id], more=more) for m in ask(strategy)]
    assert set(strategy.aggregate_train(1, replies)[1]) == {"completed", "loss", "num-steps"}


def test_in_flowers_loop_a_reply_that_cannot_be_read_is_an_error_of_its_node():
    """And what a node says of its error is one short line."""

    class Loop(FixedNodes):
        def push_messages(self, messages):
            for message in messages:
                message.metadata.__dict__["_message_id"] = f"m{message.metadata.dst_node_id}"
                message.metadata.__dict__["_src_node_id"] = 1
            self.asked = {m.metadata.message_id: m for m in messages}
            return list(self.asked)

        def pull_messages(self, names):
            [name] = names
            message = self.asked[name]
            if name == "m200":
                raise ValueError("an array without a body")
            if name == "m300":
                return [Message(Error(code=2, reason="\x1b[2J\nit broke" + "!" * 1000), reply_to=message)]
            return [reply_to(message, *MOVES[100])]

    grid = CarefulGrid(Loop(100, 200, 300), 10_000, 3)
    messages = [Message(RecordDict(), node, "train") for node in (100, 200, 300)]
    replies = {reply.metadata.reply_to_message_id: reply for reply in grid.send_and_receive(messages)}
    assert replies["m100"].has_content()
    assert replies["m200"].error.reason == "it cannot be read (ValueError)"
    assert replies["m300"].error.reason == ("it broke" + "!" * 1000)[:300]


def test_what_a_silent_node_was_sent_is_not_kept():
    """Each round's message holds the model."""

    class Silent(FixedNodes):
        def push_messages(self, messages):
            return [f"m{number}" for number, _ in enumerate(messages)]

        def pull_messages(self, names):
            return []

    grid = CarefulGrid(Silent(100), 10_000, 3)
    assert grid.send_and_receive([Message(RecordDict(), 100, "train")], timeout=0.0) == []
    assert not grid._asked


def play_rounds(strategy, wrong, rounds, nodes=(100, 200, 300), **more):
    """Return who was asked in each round, where nodes from 300 on reply what is wrong, and others move by (1, 1)."""
    asked, metrics = [], None
    for round in range(1, rounds + 1):
        messages = ask(strategy, round=round, nodes=nodes)
        asked.append(sorted(message.metadata.dst_node_id for message in messages))
        replies = [
            wrong(message) if message.metadata.dst_node_id >= 300 else reply_to(message, (1.0, 1.0), 2, more=more)
            for message in messages
        ]
        _, metrics = strategy.aggregate_train(round, replies)
    return asked, metrics


OFFENCES = {
    "not a number": lambda message: reply_to(message, (math.nan, 0.0), 2),
    "huge": lambda message: reply_to(message, (3e38, 0.0), 2),
    "failed": lambda message: Message(Error(code=2, reason="it broke"), reply_to=message),
}


@pytest.mark.parametrize("offence", OFFENCES)
def test_a_repeat_offender_rests(offence):
    """Three refused replies are a rest of two rounds here; after it, one more is enough."""
    strategy = make(FedLGA, options={"quarantine": 2})
    asked, _ = play_rounds(strategy, OFFENCES[offence], 8)
    assert [300 in nodes for nodes in asked] == [True, True, True, False, False, True, False, False]
    assert all({100, 200} <= set(nodes) for nodes in asked)


def test_a_node_that_was_away_does_not_rest():
    strategy = make(FedLGA)
    asked, _ = play_rounds(strategy, lambda message: Message(Error(code=5, reason="gone"), reply_to=message), 5)
    assert all(300 in nodes for nodes in asked)


def test_if_all_rest_all_are_asked():
    strategy = make(FedLGA, options={"quarantine_after": 1})
    asked, _ = play_rounds(strategy, OFFENCES["failed"], 3, nodes=(300, 400))
    assert asked == [[300, 400]] * 3


@pytest.mark.parametrize(
    "more", [{}, {"loss": math.nan}, {"loss": [1.0, 2.0]}, {"loss": 1e308}], ids=["none", "nan", "list", "refused"]
)
def test_one_client_cannot_take_away_or_spoil_what_the_others_measured(more):
    """The last one's update is refused: what it measured does not count either."""
    weights = (3e38, 0.0) if more == {"loss": 1e308} else (1.0, 1.0)
    strategy = make(FedLGA)
    _, metrics = play_rounds(strategy, lambda m: reply_to(m, weights, 2, more=more), 1, loss=0.25)
    assert metrics["loss"] == 0.25
    replies = [
        Message(RecordDict({"m": MetricRecord({"num-examples": 10, **numbers})}), reply_to=message)
        for message, numbers in zip(ask(strategy, nodes=(1, 2, 3)), [{"loss": 0.25}, {"loss": 0.25}, more], strict=True)
        if weights == (1.0, 1.0)
    ]
    assert not replies or strategy.aggregate_evaluate(1, replies)["loss"] == 0.25


def test_a_few_that_do_not_report_their_steps_cannot_end_a_run():
    """Only node 300 replies in round two, and says nothing. In round one the others did report."""
    strategy = make(FedLGA)
    play_rounds(strategy, lambda message: reply_to(message, (1.0, 1.0), None), 1)
    [last] = [message for message in ask(strategy, round=2, nodes=(100, 300)) if message.metadata.dst_node_id == 300]
    assert strategy.aggregate_train(2, [reply_to(last, (1.0, 1.0), None)]) == (None, None)
    strategy = make(FedLGA)
    [last] = [m for m in ask(strategy, nodes=(100, 200, 300)) if m.metadata.dst_node_id == 300]
    assert strategy.aggregate_train(1, [reply_to(last, (1.0, 1.0), None)]) == (None, None)


def test_examples_are_weights():
    strategy = make(Unequal)
    replies = [reply_to(m, *MOVES[m.metadata.dst_node_id], examples=3 if m.metadata.dst_node_id == 100 else 1)
               for m in ask(strategy)]  # fmt: skip
    assert weights_of(strategy.aggregate_train(1, replies)[0]) == [1.5, 0.75]


WRONG = {
    "not a number": ({"weights": (math.nan, 0.0)}, "not a number"),
    "no steps said": ({"steps": None}, "no num-steps"),
    "no step": ({"steps": 0}, "single step"),
    "more than asked": ({"steps": 9, "more": {"num-steps-asked": 4}}, "claims 9 steps, and was asked for 4"),
    "far more than the other": ({"steps": 10**9}, "claims 1000000000 steps"),
    "no examples": ({"examples": 0}, "num-examples 0"),
    "far more asked than the other": ({"more": {"num-steps-asked": 10**9}}, "claims 1000000000 steps"),
    "a list": ({"steps": [1, 2]}, "num-steps"),
    "steps that are not a number": ({"steps": math.nan}, "num-steps nan"),
    "infinite steps": ({"steps": math.inf}, "num-steps inf"),
    "all steps there are": ({"steps": 1e308}, "num-steps 1e+308"),
    "minus steps": ({"steps": -1}, "num-steps -1"),
    "a bit of an epoch": ({"more": {"num-epochs": 5e-324, "num-epochs-asked": 1}}, "num-epochs 4.94066e-324 of 1"),
    "epochs that are not a number": ({"more": {"num-epochs": math.nan, "num-epochs-asked": 1}}, "num-epochs nan"),
    "what no reader expects": ({"records": {"fedlga": ArrayRecord()}}, "2 records of weights"),
    "minus": ({"examples": -1}, "num-examples"),
    "two metrics": ({"records": {"more": MetricRecord({"x": 1})}}, "metrics"),
    "two models": ({"records": {"more": arrays()}}, "2 records of weights"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_reply_that_cannot_be_right_is_left_out(wrong, caplog):
    changes, reason = WRONG[wrong]
    strategy = make(FedLGA)
    good, other = sorted(ask(strategy), key=lambda m: m.metadata.dst_node_id)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        reply = reply_to(other, **{"weights": (5.0, 5.0), "steps": 2, **changes})
        record, _ = strategy.aggregate_train(1, [reply_to(good, *MOVES[100]), reply])
    assert weights_of(record) == [2.0, 0.0]
    assert "left out node 200" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("first", [100, 200])
def test_only_a_client_that_did_not_finish_needs_to_report_what_it_was_asked_for(first):
    """Whichever replies first: A reports one step of two, B reports two steps."""
    strategy = make(FedLGA, options={"scale": "linear"})
    messages = sorted(ask(strategy), key=lambda m: m.metadata.dst_node_id != first)
    more = {100: {"num-steps-asked": 2, "loss": 3.0, "losses": [1.0]}, 200: {"loss": 1.0, "losses": [1.0, 2.0]}}
    replies = [reply_to(m, *MOVES[m.metadata.dst_node_id], more=more[m.metadata.dst_node_id]) for m in messages]
    record, metrics = strategy.aggregate_train(1, replies)
    assert weights_of(record) == [2.0, 1.5]
    assert metrics["completed"] == 1
    assert metrics["loss"] == 2.0
    assert set(metrics) == {
        "completed",
        "loss",
        "num-steps",
    }  # what not all report in one form has no mean


def test_a_client_that_did_hundreds_of_times_more_because_it_was_asked_to_is_used():
    strategy = make(FedLGA, options={"scale": 1.0})
    first, second = sorted(ask(strategy), key=lambda m: m.metadata.dst_node_id)
    more = {"num-steps-asked": 1000}
    replies = [reply_to(first, (2.0, 0.0), 5, more=more), reply_to(second, (0.0, 3.0), 1000, more=more)]
    assert weights_of(strategy.aggregate_train(1, replies)[0]) == [1.0, 1.5]


def test_another_shape_is_left_out():
    strategy = make(FedLGA)
    first, second = ask(strategy)
    wrong = reply_to(second, (1.0, 1.0), 2)
    wrong.content["arrays"]["a"] = Array(np.zeros((2, 2), np.float32))
    missing = reply_to(first, (1.0, 1.0), 2)
    del missing.content["arrays"]["b"]
    assert strategy.aggregate_train(1, [wrong, missing]) == (None, None)


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 4))
def test_the_same_seed_chooses_the_same_nodes(seed, round, size):
    def choose(order):
        strategy = make(FedLGA, seed=seed, fraction_train=size / 8, min_train_nodes=1)
        return [m.metadata.dst_node_id for m in ask(strategy, round=round, nodes=order)]

    ids = [10, 20, 30, 40, 50, 60, 70, 80]
    assert choose(ids) == choose(ids[::-1])


def test_if_no_client_is_asked_nothing_is_aggregated():
    assert make(FedLGA, fraction_train=0.0).aggregate_train(1, []) == (None, None)


def test_the_deadline_is_sent():
    assert ask(make(FedLGA, deadline=12.5))[0].content["config"]["deadline"] == 12.5


def test_settings_are_checked():
    with pytest.raises(BadInput, match="stragglers"):
        FedLGA(stragglers="drop")
    with pytest.raises(BadInput, match="options: got mu; none of fedlga, complete, mean, sgd has such a setting"):
        FedLGA(options={"mu": 1.0})
    with pytest.raises(BadInput, match="lr: got 0"):
        FedNova(options={"mu": 0.1})
    with pytest.raises(BadInput, match="alpha"):
        FedDyn(options={"alpha": -1.0})
    with pytest.raises(BadInput, match=r"aggregation: .*did you mean 'median'"):
        FedLGA(aggregation="medain")
    with pytest.raises(BadInput, match="none of fedlga, complete, median, sgd has such a setting"):
        FedLGA(aggregation="median", options={"trim": 0.2})


def train_own_loop(message, home, node, centre, steps, *, with_terms=True):
    """Train as a client of a user's own does: SGD at 1/2 on 1/2 |w - centre|^2, with LocalTerms in its loop."""
    model = Quadratic((0.0, 0.0))
    state = message.content["arrays"].to_torch_state_dict()
    model.load_state_dict(state)
    context = Context(5, node, {"state-dir": str(home / str(node))}, RecordDict(), {})
    terms = LocalTerms(message, context, model, lr=0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    images = torch.tensor([[1.0, *centre]])
    for _ in range(steps):
        optimizer.zero_grad()
        model(images).mean().backward()
        terms.add_to_gradients()
        optimizer.step()
    metrics = MetricRecord({"num-examples": 1, "num-steps": steps, "num-steps-asked": 2})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    for key, record in (terms.uploads(steps) if with_terms else {}).items():
        content[key] = record
    return Message(content, reply_to=message)


@pytest.mark.parametrize(
    ("cls", "name", "options"),
    [
        (Unequal, "fedavg", {}),
        (FedNova, "fednova", {"mu": 0.1}),
        (Scaffold, "scaffold", {}),
        (FedDyn, "feddyn", {"alpha": 0.5}),
    ],
)
def test_a_clients_own_loop_gives_what_our_federation_gives(cls, name, options, tmp_path):
    """Three rounds of two devices out of four, with memory on both sides, against the federation itself."""
    centres = [(4.0, 0.0), (0.0, 4.0), (9.0, 9.0), (-9.0, 9.0)]
    script = [[1, 2, 0, 0], [2, 1, 0, 0], [1, 1, 0, 0]]
    federation = quadratics(create("method", name, options), centres=centres, script=script, asked=2, lr=0.5)
    state, _ = play(*federation, 3)
    strategy = make(cls, devices=4, options=options, lr=0.5)
    current = ArrayRecord(Quadratic((0.0, 0.0)).state_dict())
    for round, done in enumerate(script, start=1):
        messages = list(strategy.configure_train(round, current, ConfigRecord({}), FixedNodes(0, 1)))
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"m{number}"
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            replies.append(train_own_loop(message, tmp_path, node, centres[node], done[node]))
        record, _ = strategy.aggregate_train(round, replies)
        assert record is not None
        current = record
    np.testing.assert_allclose(current["w"].numpy(), state.w.numpy(), rtol=1e-5)


def test_scaffold_logs_what_a_client_left_out(tmp_path, caplog):
    strategy = make(Scaffold)
    messages = list(
        strategy.configure_train(1, ArrayRecord(Quadratic((0.0, 0.0)).state_dict()), ConfigRecord({}), FixedNodes(0, 1))
    )
    for message in messages:
        message.metadata.__dict__["_message_id"] = "m"
    replies = [train_own_loop(m, tmp_path, m.metadata.dst_node_id, (1.0, 1.0), 1, with_terms=False) for m in messages]
    logging.getLogger("flwr").propagate = True
    assert strategy.aggregate_train(1, replies) == (None, None)
    assert "scaffold needs LocalTerms" in caplog.text
    assert UPLOADED not in replies[0].content
