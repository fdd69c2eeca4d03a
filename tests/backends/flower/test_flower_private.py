"""What we use of Flower beyond its public interface: each use goes on without it."""

from __future__ import annotations

import logging
import sys

import pytest
from flwr.app import Error, Message, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp.strategy import FedAvg

import grids  # noqa: F401  # it makes this process one of a Flower run
from fedlga.backends.flower.flower_private import find_codes_of_absent_nodes, find_logger, take_replies_without_errors
from fedlga.backends.flower.nodes import NOT_THERE

CODES = {3, 4, 5}


def test_the_codes_of_absent_nodes_are_flowers():
    names = ("MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "NODE_UNAVAILABLE")
    assert find_codes_of_absent_nodes() == {getattr(ErrorCode, name) for name in names} == CODES == NOT_THERE


def test_the_codes_are_known_if_flower_has_them_no_more(monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr.common.constant", None)  # an import raises ImportError
    with pytest.raises(ImportError):
        from flwr.common.constant import ErrorCode as _  # noqa: F401
    assert find_codes_of_absent_nodes() == CODES


def test_the_codes_are_known_if_flower_renames_one(monkeypatch):
    monkeypatch.delattr(ErrorCode, "NODE_UNAVAILABLE")
    assert find_codes_of_absent_nodes() == CODES


def test_flowers_logger_is_the_one_that_flower_uses():
    from flwr.supercore import logger

    assert find_logger() is logger.FLOWER_LOGGER


def make_replies():
    asked = Message(RecordDict(), dst_node_id=1, message_type="train")
    asked.metadata.__dict__["_message_id"] = "m"
    good = Message(RecordDict(), reply_to=asked)
    return [good, Message(Error(code=2, reason="the disk is full"), reply_to=asked)]


def test_replies_with_errors_are_left_out_and_logged_by_flower(caplog):
    good, bad = make_replies()
    with caplog.at_level(logging.INFO, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        assert list(take_replies_without_errors(FedAvg(), iter([good, bad]))) == [good]
    assert "1 failures" in caplog.text


def test_replies_with_errors_are_left_out_and_logged_without_flowers_help(monkeypatch, caplog):
    monkeypatch.delattr(FedAvg, "_check_and_log_replies")
    good, bad = make_replies()
    with caplog.at_level(logging.INFO, logger="flwr"):
        logging.getLogger("flwr").propagate = True
        assert list(take_replies_without_errors(FedAvg(), iter([good, bad]))) == [good]
    assert "node 1 failed: the disk is full" in caplog.text
