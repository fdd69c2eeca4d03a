"""A Flower grid whose nodes are in this process: quick, and its nodes do as they are told, also wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

from fedlga.flower.device import client_app

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # as in any process of a run

Tamper = Callable[[Message, Message], Message]  # what was asked, the honest answer -> what is sent


class HereGrid:
    """`present` are the devices that are connected; `silent` those that do not answer, until they no longer are."""

    def __init__(self, devices: int, home: Path, app: ClientApp | None = None, **config: Any) -> None:
        self._app = app or client_app()
        self._ids = count(1)
        self._asked: dict[str, Message] = {}
        self._home, self._config = home, config
        self.present = set(range(devices))
        self.silent: set[int] = set()
        self.tamper: dict[int, Tamper] = {}
        self.configs: dict[int, dict[str, Any]] = {}  # what a node says that differs from the others
        self.crossed: list[RecordDict] = []

    def node(self, device: int) -> int:
        """Flower's numbers are long, and say nothing."""
        return 2**63 + 17 * device

    def get_node_ids(self) -> Iterable[int]:
        return [self.node(device) for device in self.present]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        found = []
        for message in messages:
            name = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            message.metadata.__dict__["_run_id"] = 1
            self._asked[name] = message
            found.append(name)
        return found

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for name in list(message_ids) if (reply := self._answer(name)) is not None]

    def _answer(self, name: str) -> Message | None:
        message = self._asked.get(name)
        if message is None:
            return None
        device = (message.metadata.dst_node_id - 2**63) // 17
        if device in self.silent:
            return None
        del self._asked[name]
        config = {"device": device, "state-dir": str(self._home / str(device)), **self._config}
        context = Context(1, self.node(device), {**config, **self.configs.get(device, {})}, RecordDict(), {})
        if device not in self.present:
            return Message(Error(code=5, reason="node unavailable"), reply_to=message)
        try:
            reply = self._app(message=message, context=context)
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        if device in self.tamper and message.metadata.message_type == "train":
            reply = self.tamper[device](message, reply)
        if reply.has_content():
            self.crossed.append(reply.content)
        return reply
