"""What we use of Flower beyond its public interface, in one place, each with a fallback."""

from __future__ import annotations

import base64
import contextlib
import hmac
import importlib
import json
import logging
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from fedlga.backends.flower.certificates import write_secret

if TYPE_CHECKING:
    from flwr.app import Message

# Flower's error codes for a node, or its reply, that is not there (flwr.common.constant.ErrorCode).
_NOT_THERE = ("MESSAGE_UNAVAILABLE", "REPLY_MESSAGE_UNAVAILABLE", "NODE_UNAVAILABLE")
RUN_PAUSE = 5.0  # seconds between two looks whether a node's run is still going on
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


def take_replies_without_errors(
    strategy: Any, replies: Iterable[Message], *, is_train: bool = True
) -> Sequence[Message]:
    """Return the replies that hold content; log the errors of the others.

    Flower's own function also checks that all replies have the same keys, and drops the whole round if one differs:
    that is turned off here.
    """
    check = getattr(strategy, "_check_and_log_replies", None)
    replies = list(replies)
    if check is None:
        for reply in (reply for reply in replies if reply.has_error()):
            what = "aggregate_train" if is_train else "aggregate_evaluate"
            find_logger().warning("%s: node %d failed: %s", what, reply.metadata.src_node_id, reply.error.reason)
        return [reply for reply in replies if not reply.has_error()]
    valid, _ = check(replies, is_train=is_train, validate=False)
    return valid


class _RunIsOver(BaseException):  # not an Exception: Flower's loop catches those
    """The node works for a run that was stopped."""


def quicken_supernode(
    heard: Callable[[object], None], next_pause: Callable[[], float], stop_work: Callable[[], None] | None = None
) -> bool:
    """Let Flower's node tell what the SuperLink gave it, and pause no longer than `next_pause` says.

    Flower's loop sleeps for three seconds where there is no message, and for half a second between two looks for the
    reply. It takes the first reply that it finds for the one to its message: after a run was stopped while the node
    received a message, that is the reply to the old one, and from then on each reply would wait for the next message.
    So replies are sent here until the right one was among them.

    Flower does not tell a node that its run was stopped: it trains on, and the next run waits. So while it waits for
    the reply, the node asks for its run every few seconds, and if that is over, calls `stop_work` and goes on.

    Return False, with nothing changed, if this Flower's loop is another.
    """
    try:
        loop: Any = importlib.import_module("flwr.supernode.start_client_internal")
        pull, push, _ = loop._pull_and_store_message, loop._push_messages, loop.time.sleep
        not_running: Any = getattr(loop, "RunNotRunningException", _RunIsOver)
    except (ImportError, AttributeError):
        return False
    waited_for: list[str] = []
    at_work: list[Callable[[], Any]] = []  # asks for the run that the node works for
    next_look = [0.0]

    def pull_and_tell(*, receive: Callable[[], Any], **named: Any) -> Any:
        def receive_and_note() -> Any:
            received = receive()
            waited_for[:] = [] if received is None else [received[0].metadata.message_id]
            return received

        run = pull(receive=receive_and_note, **named)
        at_work[:] = [lambda: named["get_run"](run)] if "get_run" in named and run is not None else []
        next_look[0] = time.monotonic() + RUN_PAUSE
        heard(run)
        return run

    def push_the_right_one(*, send: Callable[..., Any], **named: Any) -> None:
        def send_and_note(message: Any, *words: Any) -> Any:
            if message.metadata.reply_to_message_id in waited_for:
                waited_for.clear()
            return send(message, *words)

        try:
            while True:
                push(send=send_and_note, **named)
                if not waited_for:
                    return
        except _RunIsOver:
            waited_for.clear()
            find_logger().warning("the run was stopped: its work here is stopped too")
            if stop_work is not None:
                stop_work()

    def run_is_over() -> bool:
        try:
            at_work[0]()
        except not_running:
            return True
        except Exception:  # the SuperLink does not answer: that says nothing of the run
            return False
        return False

    def pause(seconds: float) -> None:
        if stop_work is not None and waited_for and at_work and time.monotonic() >= next_look[0]:
            if run_is_over():
                raise _RunIsOver
            next_look[0] = time.monotonic() + RUN_PAUSE
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


@dataclass(frozen=True)
class Announced:
    """A reply that the SuperLink has: which message it answers and who sent it, as the SuperLink checked."""

    asked: str
    sender: int
    name: str
    parts: Sequence[str]  # the ids of all objects that it consists of


class Mailbox:
    """The replies to a run's messages, part by part.

    Flower's own `pull_messages` reads all replies at once: one that cannot be read takes the others along, since each
    is handed out once. It waits two hours for a part that never comes, builds arrays of any size, and believes what a
    reply says of itself. Here, each of these is up to the caller.
    """

    def __init__(self, grid: Any) -> None:
        """`grid` is Flower's HttpGrid; an error if this Flower's is another."""
        module: Any = importlib.import_module("flwr.superlink.grid.http_grid")
        if not isinstance(grid, module.HttpGrid):
            raise TypeError(type(grid).__name__)
        self._grid: Any = grid
        self._flower: Any = module
        self._bodies: Any = importlib.import_module("flwr.supercore.inflatable.inflatable_object")
        self._requests: Any = importlib.import_module("flwr.proto.message_pb2")
        for owner, names in (
            (module, ("PullAppMessagesRequest", "ConfirmMessageReceivedRequest", "inflate_object_from_contents")),
            (module, ("iterate_object_tree",)),
            (self._bodies, ("get_object_head_values_from_object_content",)),
            (self._requests, ("PullObjectRequest",)),
            (module.HttpGrid, ("_runtime_client",)),
            (self._grid, ("node", "_run")),
        ):
            for name in names:
                getattr(owner, name)  # an error now, and not in the middle of a run

    def list_replies(self, messages: Iterable[str]) -> list[Announced]:
        """Return the replies to these messages that have come since they were last listed."""
        request = self._flower.PullAppMessagesRequest(message_ids=list(messages))
        answer = self._grid._runtime_client.PullMessages(request)
        pairs = zip(answer.messages_list, answer.message_object_trees, strict=True)
        return [
            Announced(
                asked=reply.metadata.reply_to_message_id,
                sender=reply.metadata.src_node_id,
                name=reply.metadata.message_id,
                parts=list(dict.fromkeys(part.object_id for part in self._flower.iterate_object_tree(tree))),
            )
            for reply, tree in pairs
        ]

    def fetch(self, part: str) -> bytes | None:
        """Return a part of a reply; None if it has not come yet. LookupError if it never will."""
        request = self._requests.PullObjectRequest(node=self._grid.node, run_id=self._grid._run.run_id, object_id=part)
        answer = self._grid._runtime_client.PullObject(request)
        if not answer.object_found:
            raise LookupError(part)
        return answer.object_content if answer.object_available else None

    def confirm(self, reply: Announced) -> None:
        """Tell the SuperLink that it need not keep a reply."""
        request = self._flower.ConfirmMessageReceivedRequest(
            node=self._grid.node, run_id=self._grid._run.run_id, message_object_id=reply.name
        )
        self._grid._runtime_client.ConfirmMessageReceived(request)

    def is_chunk(self, content: bytes) -> bool:
        """Return whether a part holds numbers of an array, and nothing else."""
        return self._head(content)[0] == "ArrayChunk"

    def measure_arrays(self, parts: Mapping[str, bytes]) -> int:
        """Return how many bytes the arrays in these parts have when they are put together."""
        total = 0
        for content in parts.values():
            kind, children, length = self._head(content)
            if kind == "Array":
                chunks: list[int] = json.loads(content[len(content) - length :])["arraychunk_ids"]
                sizes = [self._head(parts[child])[2] for child in children]
                total += sum(sizes[number] for number in chunks)
        return total

    def _head(self, content: bytes) -> tuple[str, list[str], int]:
        return self._bodies.get_object_head_values_from_object_content(content)

    def put_together(self, reply: Announced, parts: dict[str, bytes]) -> Message:
        """Return the reply that these parts make; they are used up."""
        message = self._flower.inflate_object_from_contents(reply.name, parts)
        message.metadata.__dict__["_message_id"] = reply.name
        return message


def find_mailbox(grid: Any) -> Mailbox | None:
    """Return the mailbox behind a grid; None if it is no SuperLink's, or this Flower's is another inside."""
    try:
        return Mailbox(grid)
    except (ImportError, AttributeError, TypeError):
        return None


def find_enrolments(grid: Any) -> dict[int, Enrolment]:
    """Return for each connected node what it was registered with; empty if the grid does not tell."""
    try:
        return {
            int(node.node_id): Enrolment(bytes(node.public_key), str(node.name) if node.HasField("name") else "")
            for node in grid.get_nodes()
            if node.public_key
        }
    except (AttributeError, ValueError, TypeError):
        return {}


@dataclass(frozen=True)
class Enrolment:
    """What the SuperLink knows of a node: the key that it proved to have, and the name that its operator gave it."""

    key: bytes
    name: str = ""


def guard_superlink(secret: str, executor_secret: Path) -> bool:
    """Let Flower's SuperLink refuse commands without `secret`, and executors without what is in `executor_secret`.

    Flower's own SuperLink does what anyone asks who reaches its control API, unless accounts are set up, and hands its
    tasks to any process that asks for one. Return False, with nothing changed, if this Flower's SuperLink is another.
    """
    try:
        module: Any = importlib.import_module("flwr.superlink.cli.flower_superlink")
        plugins: Any = importlib.import_module("flwr.superlink.auth_plugin")
        constants: Any = importlib.import_module("flwr.common.constant")
        parse, find_command = module._parse_superlink_lifespan_config, module._get_superexec_command
        nobody, token_name = plugins.NoOpControlAuthnPlugin, constants.ACCESS_TOKEN_KEY
        _ = module.load_control_authn_plugin
        if not all(callable(getattr(nobody, name, None)) for name in ("validate_tokens_in_metadata", "refresh_tokens")):
            return False
    except (ImportError, AttributeError):
        return False

    class Credential(nobody):
        """Whoever knows the secret is the operator."""

        operator: Callable[..., tuple[bool, Any]] = nobody.validate_tokens_in_metadata

        def validate_tokens_in_metadata(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[bool, Any]:
            given = dict(metadata).get(token_name, "")
            shown = given if isinstance(given, bytes) else given.encode()
            if hmac.compare_digest(shown, secret.encode()):
                return self.operator(metadata)
            return False, None

        def refresh_tokens(self, metadata: Sequence[tuple[str, str | bytes]]) -> tuple[None, None]:
            return None, None  # there is one secret, and it is not given to anyone who asks

    def parse_and_guard() -> Any:
        config = parse()
        config.superexec_auth_secret = executor_secret.read_bytes()
        return config

    def find_guarded_command(*words: Any, **named: Any) -> list[str]:
        return [*find_command(*words, **named), "--superexec-auth-secret-file", str(executor_secret)]

    module.load_control_authn_plugin = Credential
    module._parse_superlink_lifespan_config, module._get_superexec_command = parse_and_guard, find_guarded_command
    return True


def run_superlink() -> None:
    """Run Flower's SuperLink, with the arguments in sys.argv."""
    from flwr.superlink.cli.flower_superlink import flower_superlink

    flower_superlink()


def write_cli_credential(home: Path, address: str, secret: str) -> None:
    """Let Flower's commands that use this FLWR_HOME show `secret` to the SuperLink at `address`."""
    lines = {
        "authn-type": "oidc",  # Flower's commands then send the access token with every request
        "oidc-access-token": secret,
        "oidc-refresh-token": "none",
    }
    text = "".join(
        f"flower.account-auth.{address}.{name}: {base64.b64encode(value.encode()).decode()}\n"
        for name, value in lines.items()
    )
    write_secret(home / "credentials.yaml", text.encode())


def read_work(database: Path) -> dict[int, int] | None:
    """Return the nodes that have a message and have not replied, with the run it is of, from the SuperLink's database.

    None if there is no database, or this Flower's is another. When a run is stopped Flower deletes its messages: what a
    node still does for it is seen nowhere but on the node.
    """
    query = (
        "SELECT ins.dst_node_id, ins.run_id FROM message_ins AS ins LEFT JOIN message_res AS res "
        "ON res.reply_to_message_id = ins.message_id WHERE res.message_id IS NULL AND ins.delivered_at <> '' "
        "AND ins.created_at + ins.ttl > ?"
    )
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as connection:
            rows = connection.execute(query, (time.time(),)).fetchall()
    except sqlite3.Error:
        return None
    return {int(node) % 2**64: int(run) % 2**64 for node, run in rows}  # numbers are stored with a sign


def read_nodes(database: Path) -> dict[str, int] | None:
    """Return how many registered nodes are in which state, from the SuperLink's database; None as for `read_work`."""
    query = "SELECT online_until > ?, last_activated_at <> '' FROM node WHERE coalesce(unregistered_at, '') = ''"
    try:
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)) as connection:
            rows = connection.execute(query, (time.time(),)).fetchall()
    except sqlite3.Error:
        return None
    states = ["online" if online else "offline" if seen else "never seen" for online, seen in rows]
    counts = {state: states.count(state) for state in ("online", "offline", "never seen")}
    return {**counts, "busy": len(read_work(database) or ())}
