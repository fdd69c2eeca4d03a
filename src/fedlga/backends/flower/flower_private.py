"""What we use of Flower beyond its public interface, in one place, each with a fallback."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message

# Flower's error codes for a node, or its reply, that is not there (flwr.common.constant.ErrorCode).
_NOT_THERE = ("MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "NODE_UNAVAILABLE")
_NOT_THERE_NUMBERS = (3, 4, 5)  # in Flower 1.41, if the names are gone


def find_codes_of_absent_nodes() -> frozenset[int]:
    """Return Flower's error codes for a node, or its reply, that is not there."""
    try:
        from flwr.common.constant import ErrorCode

        return frozenset(int(getattr(ErrorCode, name)) for name in _NOT_THERE)
    except (ImportError, AttributeError):
        return frozenset(_NOT_THERE_NUMBERS)


def find_logger() -> logging.Logger:
    """Return Flower's logger."""
    return logging.getLogger("flwr")


def take_replies_without_errors(strategy: Any, replies: Iterable[Message]) -> Sequence[Message]:
    """Return the replies that hold content; log the errors of the others.

    Flower's own function also checks that all replies have the same keys, and drops the whole round if one differs:
    that is turned off here.
    """
    check = getattr(strategy, "_check_and_log_replies", None)
    replies = list(replies)
    if check is None:
        for reply in (reply for reply in replies if reply.has_error()):
            find_logger().warning("aggregate_train: node %d failed: %s", reply.metadata.src_node_id, reply.error.reason)
        return [reply for reply in replies if not reply.has_error()]
    valid, _ = check(replies, is_train=True, validate=False)
    return valid
