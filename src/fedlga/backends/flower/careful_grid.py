"""A grid for Flower's own loop that no reply can break: each is read on its own, and errors are plain text."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flwr.app import Error, Message

from fedlga.backends.flower.replies import ReplyReader, shorten_reason

if TYPE_CHECKING:
    from flwr.serverapp import Grid

POLL = 0.25  # seconds between two polls for replies
FAILED = 2  # Flower's code for an app that failed: a reply that cannot be read is one, too


class CarefulGrid:
    """Flower's grid, as far as a strategy's loop uses it."""

    def __init__(self, grid: Grid, most_bytes: int, most_arrays: int) -> None:
        """`most_bytes`: of all arrays in a reply, of which there are `most_arrays` at most."""
        self._grid, self._most_bytes, self._most_arrays = grid, most_bytes, most_arrays
        self._replies = ReplyReader(grid)
        self._asked: dict[str, Message] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages; return their ids."""
        sent = list(messages)
        names = list(self._grid.push_messages(sent)) if sent else []
        self._asked |= {name: message for name, message in zip(names, sent, strict=True) if name}
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to messages that have come. One that cannot be read is an error of its node."""
        names = [name for name in message_ids if name in self._asked]
        came = self._replies.pull(names, self._most_bytes, self._most_arrays)
        pairs = [(self._asked.pop(reply.asked), reply) for reply in came]
        return [_as_plain(asked, reply.message, reply.refused) for asked, reply in pairs]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send messages; return their replies when all have come, or when the time is up."""
        waiting = {name for name in self.push_messages(messages) if name}
        until = None if timeout is None else time.monotonic() + timeout
        replies: list[Message] = []
        while waiting:
            came = self.pull_messages(waiting)
            replies += came
            waiting -= {reply.metadata.reply_to_message_id for reply in came}
            if until is not None and time.monotonic() >= until:
                break
            if waiting and not came:
                time.sleep(POLL)
        for name in waiting:  # nobody asks for these again: what they were sent need not be kept
            del self._asked[name]
        return replies


def _as_plain(asked: Message, reply: Message | None, refused: str) -> Message:
    """Return a reply whose error, if it is one, is a short line: strategies log it."""
    if reply is None:
        return Message(Error(FAILED, refused), reply_to=asked)
    if reply.has_error():
        return Message(Error(reply.error.code, shorten_reason(reply.error.reason)), reply_to=asked)
    return reply
