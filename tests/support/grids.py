"""A Flower grid whose nodes are in this process: quick, and its nodes can be told to do wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.proto.node_pb2 import NodeInfo
from flwr.supercore.task_identity import TaskIdentity

from fedlga.experiments.flower_client import client_app

TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 0, 1  # Flower sets these in every process of a run

Tamper = Callable[[Message, Message], Message]  # what was asked, the honest reply -> what is sent
NODE_UNAVAILABLE = 5  # Flower's error code


def say_gone(asked: Message, reply: Message) -> Message:
    """Tamper with a reply: the node is not there any more."""
    return Message(Error(code=NODE_UNAVAILABLE, reason="gone"), reply_to=asked)


class InProcessGrid:
    """`present` are the devices that are connected; `silent` are those that do not reply until they are removed."""

    def __init__(self, devices: int, home: Path, app: ClientApp | None = None, **config: Any) -> None:
        self._app = app or client_app()
        self._ids = count(1)
        self._asked: dict[str, Message] = {}
        self._home, self._config = home, config
        self.present = set(range(devices))
        self.silent: set[int] = set()
        self.tamper: dict[int, Tamper] = {}
        self.tamper_with_tests: dict[int, Tamper] = {}
        self.configs: dict[int, dict[str, Any]] = {}  # device -> what its node's configuration has that others' has not
        self.contents: list[RecordDict] = []  # of all replies
        self.keys: dict[int, bytes] = {}  # of the devices' nodes, as the SuperLink knows them
        self.names: dict[int, str] = {}  # that the nodes were enrolled with

    def node(self, device: int) -> int:
        """Return a device's node id: as long as Flower's are."""
        return 2**63 + 17 * device

    def get_node_ids(self) -> Iterable[int]:
        return [self.node(device) for device in self.present]

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=self.node(device), public_key=self.keys.get(device, b""), name=self.names.get(device))
            for device in self.present
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        names = []
        for message in messages:
            name = f"message-{next(self._ids)}"
            message.metadata.__dict__["_message_id"] = name
            message.metadata.__dict__["_run_id"] = 1
            self._asked[name] = message
            names.append(name)
        return names

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [reply for name in list(message_ids) if (reply := self._reply_to(name)) is not None]

    def lose_messages(self) -> None:
        """Forget what the nodes were asked and did not reply to yet, as if they had been killed and started again."""
        self._asked.clear()

    def kind_of(self, name: str) -> str | None:
        """Return the type of a message that was not replied to yet."""
        return self._asked[name].metadata.message_type if name in self._asked else None

    def _reply_to(self, name: str) -> Message | None:
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
            return Message(Error(code=NODE_UNAVAILABLE, reason="node unavailable"), reply_to=message)
        try:
            reply = self._app(message=message, context=context)
        except Exception as error:
            return Message(Error(code=2, reason=f"{type(error)}:<'{error}'>"), reply_to=message)
        if device in self.tamper and message.metadata.message_type == "train":
            reply = self.tamper[device](message, reply)
        if device in self.tamper_with_tests and message.metadata.message_type == "evaluate":
            reply = self.tamper_with_tests[device](message, reply)
        if reply.has_content():
            self.contents.append(reply.content)
        return reply
