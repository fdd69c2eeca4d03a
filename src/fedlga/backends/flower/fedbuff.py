"""FedBuff as a Flower strategy: asynchronous training for other people's Flower apps.

Nguyen et al., Federated Learning with Buffered Asynchronous Aggregation, AISTATS 2022.

Flower's own loop is synchronous: in every round it calls `configure_train`, sends the messages with
`grid.send_and_receive`, and gives the replies to `aggregate_train`. This strategy lets that loop run, and puts a grid
of its own between it and Flower's. Its `send_and_receive` pushes the new messages, and returns as soon as enough
replies have come, from whichever round they are; the other nodes work on. `configure_train` then sends the new weights
to the nodes that are idle. So a round is a step of the aggregator, and a slow node holds up nobody.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid

from fedlga.backends.flower.strategies import Unequal
from fedlga.core.schedules.buffered import Buffered
from fedlga.core.settings import BadInput
from fedlga.core.types import Contribution, Update

if TYPE_CHECKING:
    from fedlga.core.types import Vector

POLL = 0.25  # seconds between two polls for replies


@dataclass(frozen=True)
class Sent:
    """A training message: to whom, and what the node begins from."""

    node: int
    round: int
    w: Vector


class BufferingGrid:
    """A grid that returns when enough replies have come, and keeps the other messages under way.

    Replies are told apart by the message that they answer. A node is busy until one has come: Flower replies for a node
    that is gone, with an error.
    """

    def __init__(self, grid: Grid, schedule: Buffered) -> None:
        """`schedule` says how many replies make a round, and how old they may be."""
        self._grid, self._schedule = grid, schedule
        self._under_way: dict[str, Sent] = {}
        self._ready: list[Message] = []  # replies that came when enough had come
        self._answered: dict[str, Sent] = {}  # what the replies that were returned, or are ready, answer
        self.step: tuple[int, Vector] | None = None
        # The round and its weights: set before training messages are sent. Evaluation goes straight to Flower.

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def busy(self) -> set[int]:
        """Return the nodes that work, or whose reply waits for the next round."""
        ready = [self._answered[reply.metadata.reply_to_message_id] for reply in self._ready]
        return {sent.node for sent in (*self._under_way.values(), *ready)}

    def find(self, reply: Message) -> Sent:
        """Return what a reply that was returned answers."""
        return self._answered[reply.metadata.reply_to_message_id]

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages; return the replies that have come when they are enough, or when the time is up.

        Errors, and replies that are too old, are returned with them, and do not count towards enough.
        """
        messages = list(messages)
        if self.step is None:
            return self._grid.send_and_receive(messages, timeout=timeout)
        (round, w), self.step = self.step, None
        waiting = {reply.metadata.reply_to_message_id for reply in self._ready}
        self._answered = {name: sent for name, sent in self._answered.items() if name in waiting}
        for name, message in zip(self._grid.push_messages(messages) if messages else [], messages, strict=True):
            if name:
                self._under_way[name] = Sent(message.metadata.dst_node_id, round, w)
        until = None if timeout is None else time.monotonic() + timeout
        counting = [reply for reply in self._ready if self.counts(reply, round)]
        while self._under_way and len(counting) < self._schedule.buffer:
            came = list(self._grid.pull_messages(list(self._under_way)))
            for reply in came:
                name = reply.metadata.reply_to_message_id
                if name in self._under_way:  # and not a second reply, or one to a message of nobody
                    self._answered[name] = self._under_way.pop(name)
                    self._ready.append(reply)
            counting = [reply for reply in self._ready if self.counts(reply, round)]
            if until is not None and time.monotonic() >= until:
                break
            if not came:
                time.sleep(POLL)
        later = counting[self._schedule.buffer :]
        replies = [reply for reply in self._ready if reply not in later]
        self._ready = later
        return replies

    def counts(self, reply: Message, round: int) -> bool:
        """Return whether a reply is one of those that make a step."""
        limit = self._schedule.staleness_limit
        return not reply.has_error() and (limit is None or round - self.find(reply).round <= limit)


class FedBuff(Unequal):
    """Asynchronous averaging: the aggregator steps with every `buffer` replies, and slow nodes hold up nobody.

    With `stragglers="complete"` and a `deadline` that clients keep, their unfinished work is completed in the buffer.
    """

    method_name = "fedavg"

    def __init__(
        self,
        *,
        buffer: int = 10,
        at_work: int | None = None,
        staleness_power: float = 0.5,
        staleness_limit: int | None = None,
        **others: Any,
    ) -> None:
        """`others` are the arguments of the other strategies, and of Flower's FedAvg.

        buffer: replies that make a step.
        at_work: nodes at work at any time; unset: `fraction_train` of those that are connected.
        staleness_power, staleness_limit: an update that is s steps old counts (1 + s)^-power; older ones are left out.
        """
        if others.setdefault("fraction_evaluate", 0.0) != 0:
            raise BadInput("fraction_evaluate: FedBuff takes 0, because nodes are at work; use evaluate_fn of start()")
        if buffer < 1:
            raise BadInput(f"buffer: got {buffer}; it takes a whole number of at least 1")
        self._fraction = float(others.pop("fraction_train", 1.0))
        super().__init__(**others)  # Flower returns all nodes, in a drawn order: those that are idle are taken here
        self._schedule = Buffered(buffer, at_work or 0, staleness_power, staleness_limit)
        self._buffering: BufferingGrid | None = None
        self._round = 0  # that is being aggregated

    def _guard(self, grid: Grid, arrays: ArrayRecord) -> Grid:
        """Return a grid that does not wait for everybody."""
        self._buffering = BufferingGrid(super()._guard(grid, arrays), self._schedule)
        return cast("Grid", self._buffering)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages to nodes that are idle, with the newest weights, until enough are at work."""
        assert self._buffering is not None, "FedBuff runs in start(): it needs a grid of its own"
        messages = list(super().configure_train(server_round, arrays, config, grid))
        if not messages:
            return []
        assert self._state is not None
        self._buffering.step = server_round, self._state.w
        busy, online = self._buffering.busy(), len(messages)
        places = self._schedule.at_work or max(int(self._fraction * online), self.min_train_nodes)
        free = places - len(busy & {message.metadata.dst_node_id for message in messages})
        idle = [message for message in messages if message.metadata.dst_node_id not in busy]
        return idle[: max(0, free)]

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next weights from the replies in the buffer, each by how old it is."""
        assert self._buffering is not None
        self._round = server_round
        grid = self._buffering
        return super().aggregate_train(
            server_round, [r for r in replies if r.has_error() or grid.counts(r, server_round)]
        )

    def _find_sent(self, reply: Message) -> Vector:
        assert self._buffering is not None
        return self._buffering.find(reply).w

    def _weigh(self, update: Update, reply: Message, share: float) -> Contribution:
        assert self._buffering is not None
        staleness = self._round - self._buffering.find(reply).round
        discount = self._schedule.discount(staleness)
        weight = update.examples * discount
        return Contribution(update, weight=weight, share=share, discount=discount, staleness=staleness)
