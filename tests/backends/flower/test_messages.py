"""Assignments and updates as messages: what is sent arrives, and a changed reply is refused or harmless."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from flwr.app import ConfigRecord, Message
from hypothesis import given
from hypothesis import strategies as st

import grids  # noqa: F401  # it makes this process one of a Flower run
from fedlga.backends.flower.messages import (
    NUMBERS,
    REPORTED,
    Refused,
    pack_assignment,
    pack_update,
    unpack_assignment,
    unpack_update,
)
from fedlga.core.types import Assignment, Update


@given(st.data())
def test_a_reply_with_any_number_changed_is_refused_or_harmless(data):
    assignment = Assignment(3, 1, torch.zeros(5), steps=4, steps_asked=4, lr=0.1, momentum=0.0, seed=0, broadcast={})
    update = Update(1, torch.ones(5), 10, 4, 4, 0.5, {}, 0.1, 0.0)
    content = pack_update(update, 3, 0.1)
    name = data.draw(st.sampled_from(REPORTED))
    value = data.draw(st.one_of(st.integers(-(2**40), 2**40), st.floats(), st.lists(st.floats(), max_size=2)))
    content[NUMBERS][name] = value
    try:
        unpacked = unpack_update(content, assignment, ())
    except Refused:
        return
    assert (unpacked.device, unpacked.steps_asked, unpacked.lr) == (1, 4, 0.1)
    assert 0 <= unpacked.steps <= 4
    assert unpacked.examples >= 0


def test_an_assignment_arrives_as_it_was_sent():
    control = torch.rand(5)
    assignment = Assignment(3, 1, torch.rand(5), 2, 4, 0.1, 0.9, 2**40, {"control": control}, audit=True, seconds=2.5)
    content = pack_assignment(assignment, ConfigRecord())
    unpacked = unpack_assignment(Message(content, dst_node_id=1, message_type="train"))
    assert torch.equal(unpacked.w, assignment.w)
    assert torch.equal(unpacked.broadcast["control"], control)
    assert replace(unpacked, w=assignment.w, broadcast={}) == replace(assignment, broadcast={})


def test_an_update_arrives_as_it_was_sent():
    """With an upload and, because its work is unfinished and audited, with the update of the full work."""
    assignment = Assignment(3, 1, torch.zeros(5), 2, 4, 0.1, 0.9, 0, {}, audit=True)
    vectors = {"delta": torch.rand(5), "truth": torch.rand(5)}
    update = Update(1, examples=10, steps=2, steps_asked=4, train_loss=0.5, uploads={"control": torch.rand(5)}, lr=0.1,
                    momentum=0.9, seconds=1.5, **vectors)  # fmt: skip
    unpacked = unpack_update(pack_update(update, 3, 1.5), assignment, ("control",))
    assert torch.equal(unpacked.delta, vectors["delta"])
    assert torch.equal(unpacked.truth, vectors["truth"])
    assert torch.equal(unpacked.uploads["control"], update.uploads["control"])
    assert unpacked.numbers() == update.numbers()


@pytest.mark.parametrize(
    ("scaled", "length", "refused"),
    [(2.0, 3.0, False), (1.0, 0.0, False), (2.1, 3.0, True), (0.5, 3.0, True), (2.0, -1.0, True), (2.0, 1e308, True)],
)
def test_what_a_device_says_of_completing_itself(scaled, length, refused):
    """One of four steps with exponent 1/2: it may multiply by 4^(1/2) = 2 at most, and not shorten what it sends."""
    assignment = Assignment(3, 1, torch.zeros(5), 4, 4, 0.1, 0.0, 0, {}, exponent=0.5, longest=9.0)
    update = Update(1, torch.ones(5), 10, 1, 4, 0.5, {}, 0.1, 0.0, scaled=scaled, length=length)
    content = pack_update(update, 3, 0.1)
    if refused:
        with pytest.raises(Refused, match="scaled"):
            unpack_update(content, assignment, ())
    else:
        assert unpack_update(content, assignment, ()).numbers() == replace(update, seconds=0.1).numbers()


def test_a_device_reports_of_completing_only_what_was_agreed():
    """Neither more than was asked for, nor less."""
    plain = Assignment(3, 1, torch.zeros(5), 4, 4, 0.1, 0.0, 0, {})
    update = Update(1, torch.ones(5), 10, 1, 4, 0.5, {}, 0.1, 0.0)
    for asked, sent in ((plain, replace(update, length=1.0)), (replace(plain, exponent=0.5), update)):
        with pytest.raises(Refused, match="agreed form"):
            unpack_update(pack_update(sent, 3, 0.1), asked, ())
