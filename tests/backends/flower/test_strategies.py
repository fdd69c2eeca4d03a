"""The strategies for other people's Flower apps: numbers by hand, and whatever a client may send."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

import grids  # noqa: F401  # a process of a run
from federations import Quadratic, play, quadratics
from fedlga.flower import FedDyn, FedLGA, FedNova, LocalTerms, Scaffold
from fedlga.flower.strategies import Unequal
from fedlga.flower.terms import UPLOADED
from fedlga.methods import make_method
from fedlga.settings import BadInput

# Two nodes, A and B, from w = 0: A moves by (2, 0) in one step, B by (0, 3) in two.
MOVES = {100: ((2.0, 0.0), 1), 200: ((0.0, 3.0), 2)}


class Nodes:
    def __init__(self, *ids):
        self.ids = list(ids)

    def get_node_ids(self):
        return self.ids


def arrays(w=(0.0, 0.0)):
    """A model of two parameters, and a count that is not of floating point."""
    return ArrayRecord(
        {
            "a": Array(np.array([[w[0]]], np.float32)),
            "n": Array(np.array([7], np.int64)),
            "b": Array(np.array([w[1]], np.float64)),
        }
    )


def asked(strategy, w=(0.0, 0.0), round=1, nodes=(100, 200)):
    messages = list(strategy.configure_train(round, arrays(w), ConfigRecord({"lr": 0.5}), Nodes(*nodes)))
    for number, message in enumerate(messages):
        message.metadata.__dict__["_message_id"] = f"m{number}"
        message.metadata.__dict__["_src_node_id"] = 1
    return messages


def answer(message, weights, steps, *, more=None, records=None, examples=1):
    numbers = {"num-examples": examples, "num-steps": steps, **(more or {})}
    metrics = MetricRecord({name: value for name, value in numbers.items() if value is not None})
    content = RecordDict({"arrays": arrays(weights), "metrics": metrics, **(records or {})})
    return Message(content, reply_to=message)


def answers(messages):
    return [answer(m, *MOVES[m.metadata.dst_node_id]) for m in messages]


def weights(record):
    return [float(record["a"].numpy()[0, 0]), float(record["b"].numpy()[0])]


def strategy(cls, **options):
    return cls(fraction_evaluate=0.0, **options)


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("flwr").setLevel(logging.WARNING)


@pytest.mark.parametrize(
    ("cls", "options", "expected"),
    [
        (Unequal, {}, [1.0, 1.5]),  # the mean
        (Unequal, {"stragglers": "drop"}, [0.0, 3.0]),  # A did not finish
        (FedNova, {}, [1.5, 1.125]),  # 3/2 * ((2,0)/1 + (0,3)/2) / 2
        (FedLGA, {"options": {"scale": "linear"}}, [2.0, 1.5]),  # A's doubled: ((4,0) + (0,3)) / 2
        (FedLGA, {"options": {"scale": "linear", "eta_g": 2.0}}, [4.0, 3.0]),
        (FedLGA, {"options": {"scale": 1.0}}, [1.0, 1.5]),
        (FedLGA, {"steps": 4, "options": {"scale": "linear"}}, [1.0, 1.5]),  # nobody finished: as they came
    ],
)
def test_a_round_by_hand(cls, options, expected):
    made = strategy(cls, **options)
    record, metrics = made.aggregate_train(1, answers(asked(made)))
    assert weights(record) == expected
    assert {name: (array.shape, array.dtype) for name, array in record.items()} == {
        name: (array.shape, array.dtype) for name, array in arrays().items()
    }
    assert record["n"].numpy().tolist() == [7]
    assert metrics["completed"] == (1 if cls is FedLGA and expected[0] > 1 else 0)


def test_what_a_client_says_it_was_asked_for_counts():
    """B did its two of two, A its one of one: A is finished, and nothing is completed."""
    made = strategy(FedLGA, options={"scale": "linear"})
    replies = [answer(m, *MOVES[m.metadata.dst_node_id], more={"num-steps-asked": MOVES[m.metadata.dst_node_id][1]})
               for m in asked(made)]  # fmt: skip
    assert weights(made.aggregate_train(1, replies)[0]) == [1.0, 1.5]


def test_examples_are_weights():
    made = strategy(Unequal)
    replies = [answer(m, *MOVES[m.metadata.dst_node_id], examples=3 if m.metadata.dst_node_id == 100 else 1)
               for m in asked(made)]  # fmt: skip
    assert weights(made.aggregate_train(1, replies)[0]) == [1.5, 0.75]


BAD = {
    "not a number": ({"weights": (math.nan, 0.0)}, "not a number"),
    "no steps said": ({"steps": None}, "no num-steps"),
    "no step": ({"steps": 0}, "single step"),
    "more than asked": ({"steps": 9, "more": {"num-steps-asked": 4}}, "claims 9 steps, and was asked for 4"),
    "far more than the other": ({"steps": 10**9}, "claims 1000000000 steps"),
    "no examples": ({"examples": 0}, "num-examples 0"),
    "far more asked than the other": ({"more": {"num-steps-asked": 10**9}}, "claims 1000000000 steps"),
    "a list": ({"steps": [1, 2]}, "num-steps"),
    "minus": ({"examples": -1}, "num-examples"),
    "two metrics": ({"records": {"more": MetricRecord({"x": 1})}}, "metrics"),
    "two models": ({"records": {"more": arrays()}}, "2 records of weights"),
}


@pytest.mark.parametrize("bad", BAD)
def test_what_cannot_be_is_left_out(bad, caplog):
    changes, reason = BAD[bad]
    made = strategy(FedLGA)
    good, other = sorted(asked(made), key=lambda m: m.metadata.dst_node_id)
    with caplog.at_level(logging.WARNING, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        wrong = answer(other, **{"weights": (5.0, 5.0), "steps": 2, **changes})
        record, _ = made.aggregate_train(1, [answer(good, *MOVES[100]), wrong])
    assert weights(record) == [2.0, 0.0]
    assert "left out node 200" in caplog.text
    assert reason in caplog.text


@pytest.mark.parametrize("first", [100, 200])
def test_only_who_did_not_finish_need_say_what_it_was_asked_for(first):
    """Whoever answers first: A says it did one step of two, B that it did two."""
    made = strategy(FedLGA, options={"scale": "linear"})
    messages = sorted(asked(made), key=lambda m: m.metadata.dst_node_id != first)
    more = {100: {"num-steps-asked": 2, "loss": 3.0, "losses": [1.0]}, 200: {"loss": 1.0, "losses": [1.0, 2.0]}}
    replies = [answer(m, *MOVES[m.metadata.dst_node_id], more=more[m.metadata.dst_node_id]) for m in messages]
    record, metrics = made.aggregate_train(1, replies)
    assert weights(record) == [2.0, 1.5]
    assert metrics["completed"] == 1
    assert metrics["loss"] == 2.0
    assert set(metrics) == {"completed", "loss", "num-steps"}  # what not all have, or at another length, has no mean


def test_who_did_hundreds_of_times_more_as_asked_is_believed():
    made = strategy(FedLGA, options={"scale": 1.0})
    first, second = sorted(asked(made), key=lambda m: m.metadata.dst_node_id)
    more = {"num-steps-asked": 1000}
    replies = [answer(first, (2.0, 0.0), 5, more=more), answer(second, (0.0, 3.0), 1000, more=more)]
    assert weights(made.aggregate_train(1, replies)[0]) == [1.0, 1.5]


def test_another_shape_is_left_out():
    made = strategy(FedLGA)
    first, second = asked(made)
    wrong = answer(second, (1.0, 1.0), 2)
    wrong.content["arrays"]["a"] = Array(np.zeros((2, 2), np.float32))
    missing = answer(first, (1.0, 1.0), 2)
    del missing.content["arrays"]["b"]
    assert made.aggregate_train(1, [wrong, missing]) == (None, None)


@given(st.integers(0, 2**31), st.integers(1, 9), st.integers(1, 4))
def test_the_same_seed_chooses_the_same_nodes(seed, round, size):
    def chosen(order):
        made = strategy(FedLGA, seed=seed, fraction_train=size / 8, min_train_nodes=1)
        return [m.metadata.dst_node_id for m in asked(made, round=round, nodes=order)]

    ids = [10, 20, 30, 40, 50, 60, 70, 80]
    assert chosen(ids) == chosen(ids[::-1])


def test_nobody_is_asked_and_nothing_comes_of_it():
    assert strategy(FedLGA, fraction_train=0.0).aggregate_train(1, []) == (None, None)


def test_the_deadline_is_told():
    assert asked(strategy(FedLGA, deadline=12.5))[0].content["config"]["deadline"] == 12.5


def test_settings_are_checked():
    with pytest.raises(BadInput, match="stragglers"):
        FedLGA(stragglers="drop")
    with pytest.raises(BadInput, match="no such"):
        FedLGA(options={"mu": 1.0})
    with pytest.raises(BadInput, match="lr: got 0"):
        FedNova(options={"mu": 0.1})
    with pytest.raises(BadInput, match="alpha"):
        FedDyn(options={"alpha": -1.0})


def client(message, home, node, centre, steps, *, helped=True):
    """Somebody's Flower client: SGD at 1/2 on 1/2 |w - centre|^2, with a parameter of its own order and names."""
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
    for key, record in (terms.uploads(steps) if helped else {}).items():
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
def test_a_clients_own_loop_gives_what_ours_gives(cls, name, options, tmp_path):
    """Three rounds of two devices out of four, with memory on both sides, against the federation itself."""
    centres = [(4.0, 0.0), (0.0, 4.0), (9.0, 9.0), (-9.0, 9.0)]
    script = [[1, 2, 0, 0], [2, 1, 0, 0], [1, 1, 0, 0]]
    federation = quadratics(make_method(name, options), centres=centres, script=script, asked=2, lr=0.5)
    server, _ = play(*federation, 3)
    made = strategy(cls, devices=4, options=options, lr=0.5)
    current = ArrayRecord(Quadratic((0.0, 0.0)).state_dict())
    for round, done in enumerate(script, start=1):
        messages = list(made.configure_train(round, current, ConfigRecord({}), Nodes(0, 1)))
        for number, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"m{number}"
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            replies.append(client(message, tmp_path, node, centres[node], done[node]))
        record, _ = made.aggregate_train(round, replies)
        assert record is not None
        current = record
    np.testing.assert_allclose(current["w"].numpy(), server.w.numpy(), rtol=1e-5)


def test_scaffold_says_what_a_client_forgot(tmp_path, caplog):
    made = strategy(Scaffold)
    messages = list(
        made.configure_train(1, ArrayRecord(Quadratic((0.0, 0.0)).state_dict()), ConfigRecord({}), Nodes(0, 1))
    )
    for message in messages:
        message.metadata.__dict__["_message_id"] = "m"
    replies = [client(m, tmp_path, m.metadata.dst_node_id, (1.0, 1.0), 1, helped=False) for m in messages]
    logging.getLogger("flwr").propagate = True
    assert made.aggregate_train(1, replies) == (None, None)
    assert "scaffold needs LocalTerms" in caplog.text
    assert UPLOADED not in replies[0].content
