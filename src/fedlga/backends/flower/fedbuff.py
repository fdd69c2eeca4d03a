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
from typing import TYPE_CHECKING, Any, cast

from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result

from fedlga.backends.flower.strategies import Unequal
from fedlga.core.schedules.buffered import Buffered
from fedlga.core.settings import BadInput
from fedlga.core.types import Contribution, Update

if TYPE_CHECKING:
    from fedlga.core.types import Vector

POLL = 0.25  # seconds between two polls for replies


class BufferingGrid:
    """A grid that returns when enough replies have come, and keeps the other messages under way."""

    def __init__(self, grid: Grid, enough: int) -> None:
        """`enough` is how many replies to training messages a round takes."""
        self._grid, self._enough = grid, enough
        self._under_way: set[str] = set()
        self._ready: list[Message] = []  # replies that came when enough had come
        self.trains = False  # set before training messages are sent: evaluation goes straight to Flower

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grid, name)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        """Push messages; return the replies that have come when they are enough, or when the time is up."""
        messages = list(messages)
        if not self.trains:
            return self._grid.send_and_receive(messages, timeout=timeout)
        self.trains = False
        self._under_way |= {name for name in self._grid.push_messages(messages) if name}
        until = None if timeout is None else time.monotonic() + timeout
        while self._under_way and len(self._ready) < self._enough:
            came = list(self._grid.pull_messages(list(self._under_way)))
            self._ready += came
            self._under_way -= {reply.metadata.reply_to_message_id for reply in came}
            if until is not None and time.monotonic() >= until:
                break
            if not came:
                time.sleep(POLL)
        replies, self._ready = self._ready[: self._enough], self._ready[self._enough :]
        return replies


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
        at_work: nodes at work at any time; unset: all that Flower samples (`fraction_train`).
        staleness_power, staleness_limit: an update that is s steps old counts (1 + s)^-power; older ones are left out.
        """
        if others.setdefault("fraction_evaluate", 0.0) != 0:
            raise BadInput("fraction_evaluate: FedBuff takes 0, because nodes are at work; use evaluate_fn of start()")
        if buffer < 1:
            raise BadInput(f"buffer: got {buffer}; it takes a whole number of at least 1")
        super().__init__(**others)
        self._schedule = Buffered(buffer, at_work or 0, staleness_power, staleness_limit)
        self._begun: dict[int, tuple[int, Vector]] = {}  # nodes at work -> the round they began in, and its weights
        self._buffering: BufferingGrid | None = None
        self._round = 0  # that is being aggregated

    def start(self, grid: Grid, *arguments: Any, **named: Any) -> Result:
        """Run Flower's loop on a grid that does not wait for everybody."""
        self._begun = {}
        self._buffering = BufferingGrid(grid, self._schedule.buffer)
        return super().start(cast("Grid", self._buffering), *arguments, **named)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Return messages to the nodes that are idle, with the newest weights."""
        assert self._buffering is not None, "FedBuff runs in start(): it needs a grid of its own"
        messages = list(super().configure_train(server_round, arrays, config, grid))
        assert self._state is not None or not messages
        online = set(grid.get_node_ids())
        self._begun = {node: begun for node, begun in self._begun.items() if node in online}
        idle = [message for message in messages if message.metadata.dst_node_id not in self._begun]
        if self._schedule.at_work:
            idle = idle[: max(0, self._schedule.at_work - len(self._begun))]
        for message in idle:
            assert self._state is not None
            self._begun[message.metadata.dst_node_id] = server_round, self._state.w
        self._buffering.trains = True
        return idle

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next weights from the replies in the buffer, each by how old it is."""
        self._round = server_round
        known = [reply for reply in replies if reply.metadata.src_node_id in self._begun]
        limit = self._schedule.staleness_limit
        fresh = [r for r in known if limit is None or server_round - self._begun[r.metadata.src_node_id][0] <= limit]
        try:
            return super().aggregate_train(server_round, fresh)
        finally:
            for reply in known:
                del self._begun[reply.metadata.src_node_id]

    def _find_sent(self, node: int) -> Vector:
        return self._begun[node][1]

    def _weigh(self, update: Update, node: int, share: float) -> Contribution:
        staleness = self._round - self._begun[node][0]
        discount = self._schedule.discount(staleness)
        weight = update.examples * discount
        return Contribution(update, weight=weight, share=share, discount=discount, staleness=staleness)
