"""Private completing in Flower apps: a round by hand, Flower's own clipping and noise, and what clients may claim."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import fixedclipping_mod
from flwr.serverapp.strategy import DifferentialPrivacyClientSideFixedClipping

import grids  # noqa: F401  # it makes this process one of a Flower run
from fedlga.backends.flower.own_completion import EXPONENT, LENGTH, LONGEST, SCALED
from fedlga.core.settings import BadInput
from fedlga.flower import FedLGA, PrivateFedLGA, complete_own_mod

NODES = (100, 200)  # the first is cut short after one of four steps


class Nodes:
    """The part of Flower's Grid that a strategy uses to choose nodes."""

    def get_node_ids(self):
        return list(NODES)


def make_app(*mods):
    """Return an app whose client moves the weights by (1, 0) a step."""
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        sent = next(iter(message.content.array_records.values()))["w"].numpy()
        steps = 1 if message.metadata.dst_node_id == NODES[0] else 4
        arrays = ArrayRecord({"w": Array(sent + np.array([steps, 0.0], np.float32))})
        metrics = MetricRecord({"num-examples": 1, "num-steps": steps, "num-steps-asked": 4})
        return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)

    return app


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("flwr").setLevel(logging.WARNING)


def run_round(strategy, app, w, round, tamper=None):
    """Return what the nodes were told, what each reported and sent, and the next weights.

    Flower asks the nodes in any order, so what belongs to a node is kept by its number.
    """
    arrays = ArrayRecord({"w": Array(np.array(w, np.float32))})
    messages = list(strategy.configure_train(round, arrays, ConfigRecord(), Nodes()))
    replies = []
    for number, message in enumerate(messages):
        node = message.metadata.dst_node_id
        message.metadata.__dict__.update(_message_id=f"m{round}{number}", _src_node_id=1, _run_id=1)
        context = Context(run_id=1, node_id=node, node_config={}, state=RecordDict(), run_config={})
        replies.append(app(message, context))
        if tamper is not None and node == NODES[0]:
            next(iter(replies[-1].content.metric_records.values())).update(tamper)
    after, _ = strategy.aggregate_train(round, replies)
    told = next(iter(messages[0].content.config_records.values()))
    reported = {r.metadata.src_node_id: next(iter(r.content.metric_records.values())) for r in replies}
    sent = {r.metadata.src_node_id: next(iter(r.content.array_records.values()))["w"].numpy().tolist() for r in replies}
    return told, reported, sent, None if after is None else after["w"].numpy().tolist()


def test_rounds_by_hand():
    """The first round shows that one step moves 1 and four move 4: 4^q = 4, so q = 1, and 4 is the usual length.

    In the second round the first client multiplies its update by 4, so both send (4, 0), and so is the mean.
    """
    strategy, app = PrivateFedLGA(fraction_evaluate=0.0), make_app(complete_own_mod)
    told, reported, _, w = run_round(strategy, app, (0.0, 0.0), 1)
    assert told[EXPONENT] == 0
    assert LONGEST not in told
    assert (reported[100][SCALED], reported[100][LENGTH]) == (1, 1)
    assert w == [2.5, 0]
    told, reported, sent, w = run_round(strategy, app, w, 2)
    assert told[EXPONENT] == pytest.approx(1)
    assert told[LONGEST] == 8
    assert reported[100][SCALED] == pytest.approx(4)
    assert reported[100][LENGTH] == 1
    assert reported[200][SCALED] == 1
    assert w == pytest.approx([6.5, 0])
    assert sent == {100: [6.5, 0], 200: [6.5, 0]}


def test_with_flowers_clipping_and_noise_the_exponent_follows_what_was_released():
    """Clients complete, then clip to length 2; the noise is added to the mean, and the law sees the noisy weights."""
    inner = PrivateFedLGA(fraction_evaluate=0.0)
    strategy = DifferentialPrivacyClientSideFixedClipping(inner, 0.5, 2.0, 2)
    app, w = make_app(fixedclipping_mod, complete_own_mod), (0.0, 0.0)
    noise = []
    for round in range(1, 6):
        before = w
        _, reported, sent, w = run_round(strategy, app, w, round)
        updates = np.array(list(sent.values())) - before
        assert all(np.linalg.norm(update) <= 2 * (1 + 1e-6) for update in updates)
        noise.append(np.linalg.norm(np.array(w) - before - updates.mean(axis=0)))
    assert min(noise) > 0, "Flower adds noise after the strategy"
    assert reported[100][SCALED] > 1
    state = inner._state
    learned = state.memory["step"]  # the step before the last: of weights that had their noise
    assert np.linalg.norm(learned.numpy()) > 0
    assert 0 <= float(state.memory["exponent"]) <= 1


def test_with_another_strategy_the_mod_does_nothing():
    strategy = FedLGA(fraction_evaluate=0.0)
    _, reported, sent, _ = run_round(strategy, make_app(complete_own_mod), (0.0, 0.0), 1)
    assert SCALED not in reported[100]
    assert sent[100] == [1, 0]


def test_clients_without_the_mod_are_left_out(caplog):
    strategy = PrivateFedLGA(fraction_evaluate=0.0)
    _, _, _, w = run_round(strategy, make_app(), (0.0, 0.0), 1)
    assert w is None
    assert "its app needs complete_own_mod" in caplog.text


@pytest.mark.parametrize(
    ("name", "value"),
    [(SCALED, 5.0), (SCALED, 0.1), (SCALED, math.nan), (LENGTH, -1.0), (LENGTH, math.inf), (LENGTH, 1e308)],
)
def test_a_client_cannot_claim_what_it_was_not_told(name, value, caplog):
    """One of four steps: more than a factor of 4 was never allowed."""
    strategy, app = PrivateFedLGA(fraction_evaluate=0.0), make_app(complete_own_mod)
    _, _, _, w = run_round(strategy, app, (0.0, 0.0), 1)
    _, _, _, w = run_round(strategy, app, w, 2, tamper={name: value})
    assert w == [6.5, 0], "the other client's update alone"
    assert "left out node 100" in caplog.text


def test_other_server_optimisers_are_refused():
    with pytest.raises(BadInput, match="PrivateFedLGA takes sgd"):
        PrivateFedLGA(server_optimizer="adam")
