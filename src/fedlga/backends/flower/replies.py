"""Reading what nodes reply, each reply on its own: none can take others along, grow without limit, or lie whose it is.

Nothing is believed of a reply but what the SuperLink checked: who sent it, and which message it answers.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from fedlga.backends.flower.flower_private import Announced, Mailbox, find_mailbox
from fedlga.backends.flower.messages import Refused
from fedlga.core.text import clean_text

if TYPE_CHECKING:
    from flwr.app import Message

    from fedlga.backends.flower.ray import MessageGrid

LARGEST_RECORDS = 4 * 2**20  # bytes of all that is not an array's numbers: names, metrics, heads
SPARE_PARTS = 64  # of a reply, besides those of its arrays: each is a request to the SuperLink
LONGEST_UPLOAD = 180.0  # seconds from the first part of a reply to the last
FETCHED_AT_ONCE = 2  # parts, as in Flower


@dataclass(frozen=True)
class Reply:
    """What came back for a message: the reply itself, or why it cannot be used."""

    asked: str  # the id of the message
    message: Message | None = None
    refused: str = ""


@dataclass
class _Arriving:
    announced: Announced
    since: float
    parts: dict[str, bytes] = field(default_factory=dict[str, bytes])
    records: int = 0  # bytes
    numbers: int = 0


@final
class ReplyReader:
    """Reads replies of a grid's nodes. A reply whose parts have not all come holds up nobody: it is read later."""

    def __init__(self, grid: MessageGrid) -> None:
        """`grid` may be of a SuperLink, or simulated."""
        self._grid = grid
        self._mailbox: Mailbox | None = find_mailbox(grid)
        self._simulated = hasattr(grid, "state")  # Flower's simulation has its messages in this process
        self._arriving: dict[str, _Arriving] = {}
        self.ignored = 0  # replies to messages that nobody asked about

    def pull(self, asked: Iterable[str], most_bytes: int, most_arrays: int = 0) -> list[Reply]:
        """Return the replies to these messages that are whole, each once.

        A reply may have `most_arrays` arrays, of `most_bytes` together.
        """
        names = list(asked)
        self._forget_old(names)
        if not names:
            return []
        if self._mailbox is None:
            return self._pull_through_flower(names)
        mailbox, now = self._mailbox, time.monotonic()
        # Those that are arriving are not asked for again: Flower has handed them out, and would make up errors.
        open_names = [name for name in names if name not in self._arriving]
        for announced in mailbox.list_replies(open_names) if open_names else []:
            if announced.asked in open_names and announced.asked not in self._arriving:
                self._arriving[announced.asked] = _Arriving(announced, now)
            else:
                self.ignored += 1
        replies: list[Reply] = []
        for name in [name for name in names if name in self._arriving]:
            arriving = self._arriving[name]
            try:
                reply = self._read(mailbox, arriving, most_bytes, most_arrays)
                if reply is None and time.monotonic() - arriving.since > LONGEST_UPLOAD:
                    raise Refused(f"its upload did not end in {LONGEST_UPLOAD:g} seconds")
            except Refused as refused:
                reply = Reply(name, refused=str(refused))
            if reply is not None:
                del self._arriving[name]
                replies.append(reply)
        return replies

    def _forget_old(self, names: Iterable[str]) -> None:
        """Forget parts of replies that are too old and that nobody asks for any more: their rest may never come."""
        asked, since = set(names), time.monotonic() - LONGEST_UPLOAD
        self._arriving = {n: a for n, a in self._arriving.items() if n in asked or a.since >= since}

    def _read(self, mailbox: Mailbox, arriving: _Arriving, most_bytes: int, most_arrays: int) -> Reply | None:
        """Fetch what has come of a reply; return it when it is whole."""
        announced, parts = arriving.announced, arriving.parts
        if len(announced.parts) > SPARE_PARTS + 2 * most_arrays + most_bytes // 2**20:
            raise Refused(f"it has {len(announced.parts)} parts")
        missing = [part for part in announced.parts if part not in parts]
        try:
            with ThreadPoolExecutor(FETCHED_AT_ONCE) as threads:
                for start in range(0, len(missing), FETCHED_AT_ONCE):
                    some = missing[start : start + FETCHED_AT_ONCE]
                    for part, content in zip(some, threads.map(mailbox.fetch, some), strict=True):
                        if content is None:
                            return None
                        parts[part] = content
                        self._measure(mailbox, arriving, content, most_bytes)
            mailbox.confirm(announced)
            if (size := mailbox.measure_arrays(parts)) > most_bytes:
                raise Refused(f"it would be {size} bytes, and {most_bytes} are the most here")
            message = mailbox.put_together(announced, parts)
        except Refused:
            raise
        except Exception as error:  # a stranger's bytes may make a reader raise anything
            if _is_about_the_connection(error):
                raise
            raise Refused(f"it cannot be read ({type(error).__name__})") from error
        said = message.metadata
        if (said.reply_to_message_id, said.src_node_id) != (announced.asked, announced.sender):
            raise Refused("it says that it answers another message, or comes from another node")
        return Reply(announced.asked, message)

    def _measure(self, mailbox: Mailbox, arriving: _Arriving, content: bytes, most_bytes: int) -> None:
        if mailbox.is_chunk(content):
            arriving.numbers += len(content)
        else:
            arriving.records += len(content)
        if arriving.numbers > most_bytes:
            raise Refused(f"it has more than the {most_bytes} bytes that are the most here")
        if arriving.records > LARGEST_RECORDS:
            raise Refused(f"its records have more than {LARGEST_RECORDS} bytes")

    def _pull_through_flower(self, names: Sequence[str]) -> list[Reply]:
        """Return the replies that Flower reads. One that it cannot read would take others of the same pull along."""
        replies: list[Reply] = []
        for some in [names] if self._simulated else [[name] for name in names]:
            try:
                messages = list(self._grid.pull_messages(some))
            except Exception as error:
                if self._simulated or _is_about_the_connection(error):
                    raise
                replies.append(Reply(some[0], refused=f"it cannot be read ({type(error).__name__})"))
                continue
            for message in messages:
                asked = message.metadata.reply_to_message_id
                if asked in some and not any(reply.asked == asked for reply in replies):
                    replies.append(Reply(asked, message))
                else:
                    self.ignored += 1
        return replies


def shorten_reason(reason: str | None) -> str:
    """Return what went wrong on a node in one line, without the traces of Flower and Ray."""
    lines = [line.strip() for line in (reason or "").splitlines() if line.strip()]
    last = lines[-1].rpartition("Message: ")[2] if lines else "no reason given"
    return clean_text(last.rpartition(">:<'")[2].rstrip("'>"))  # Flower's form: <class 'OSError'>:<'what it said'>


def _is_about_the_connection(error: Exception) -> bool:
    """Return whether an error is of the way to the SuperLink, and not of a reply."""
    from httpx import HTTPError

    connection: tuple[Any, ...] = (HTTPError, ConnectionError, TimeoutError)
    return isinstance(error, connection)
