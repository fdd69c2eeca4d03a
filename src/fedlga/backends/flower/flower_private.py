"""What we use of Flower beyond its public interface, in one place, each with a fallback."""

from __future__ import annotations

import importlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flwr.app import Message

# Flower's error codes for a node, or its reply, that is not there (flwr.common.constant.ErrorCode).
_NOT_THERE = ("MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "NODE_UNAVAILABLE")
FIRST_PAUSE = 0.03  # seconds; each further one is twice as long, up to ten seconds
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


def quicken_supernode(heard: Callable[[object], None], next_pause: Callable[[], float]) -> bool:
    """Let Flower's node tell what the SuperLink gave it, and pause no longer than `next_pause` says.

    Flower's loop sleeps for three seconds where there is no message, and for half a second between two looks for the
    reply. It takes the first reply that it finds for the one to its message: after a run was stopped while the node
    received a message, that is the reply to the old one, and from then on each reply would wait for the next message.
    So replies are sent here until the right one was among them. Return False, with nothing changed, if this Flower's
    loop is another.
    """
    try:
        loop: Any = importlib.import_module("flwr.supernode.start_client_internal")
        pull, push, _ = loop._pull_and_store_message, loop._push_messages, loop.time.sleep
    except (ImportError, AttributeError):
        return False
    waited_for: list[str] = []

    def pull_and_tell(*, receive: Callable[[], Any], **named: Any) -> Any:
        def receive_and_note() -> Any:
            received = receive()
            waited_for[:] = [] if received is None else [received[0].metadata.message_id]
            return received

        run = pull(receive=receive_and_note, **named)
        heard(run)
        return run

    def push_the_right_one(*, send: Callable[..., Any], **named: Any) -> None:
        def send_and_note(message: Any, *words: Any) -> Any:
            if message.metadata.reply_to_message_id in waited_for:
                waited_for.clear()
            return send(message, *words)

        while True:
            push(send=send_and_note, **named)
            if not waited_for:
                return

    def pause(seconds: float) -> None:
        time.sleep(min(seconds, next_pause()))

    loop._pull_and_store_message, loop._push_messages = pull_and_tell, push_the_right_one
    loop.time = SimpleNamespace(sleep=pause)
    return True


def quicken_pulls(most_seconds: float | None = None) -> None:
    """Ask sooner again for a part of a message that is not there yet: Flower waits a second, then two, then four.

    A message is announced before its parts are sent, so this happens to most messages that are asked for in time.
    `most_seconds` is how long all parts of a message may take; unset: as Flower has it.
    """
    try:
        parts: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_utils")
        for pull in (parts.pull_objects, parts.pull_and_inflate_object_from_tree):
            if "initial_backoff" in (pull.__kwdefaults__ or {}):
                pull.__kwdefaults__["initial_backoff"] = FIRST_PAUSE
            if most_seconds is not None and "max_time" in (pull.__kwdefaults__ or {}):
                pull.__kwdefaults__["max_time"] = most_seconds
    except (ImportError, AttributeError):
        return


def parse_supernode_arguments(arguments: Sequence[str]) -> Any:
    """Return the arguments of Flower's node, as its own parser reads them; an error if this Flower has another."""
    module: Any = importlib.import_module("flwr.supernode.cli.flower_supernode")
    return module._parse_args_run_supernode().parse_args(list(arguments))


def run_supernode() -> None:
    """Run Flower's node, with the arguments in sys.argv."""
    from flwr.supernode.cli.flower_supernode import flower_supernode

    flower_supernode()
