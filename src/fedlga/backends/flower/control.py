"""Commands to the SuperLink about nodes: what `flwr supernode` does, with keys, and with one line for an error."""

from __future__ import annotations

import datetime
import shlex
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import httpx
from flwr.proto.control_pb2 import ListNodesRequest, RegisterNodeRequest, UnregisterNodeRequest
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor

from fedlga.backends.flower.fleet_settings import LOOPBACK, FleetSettings
from fedlga.core.settings import BadInput, Stopped
from fedlga.core.text import clean_text

UNAUTHORIZED = 401


@dataclass(frozen=True)
class Registered:
    """A node that the SuperLink knows."""

    node: int  # Flower's number of it
    key: bytes
    status: str  # online, offline, or registered: never seen
    seen: str  # since when it is in this state; empty if it was never seen


@final
class Control:
    """The control API of a fleet's SuperLink, on loopback."""

    def __init__(self, client: Any) -> None:
        """Use `open_control`."""
        self._client = client

    def list_nodes(self) -> list[Registered]:
        """Return the nodes whose keys are let in."""
        with _in_one_line():
            nodes = self._client.ListNodes(ListNodesRequest()).nodes_info
        return [_read(node) for node in nodes if node.status != "unregistered"]

    def register(self, key: bytes, name: str) -> None:
        """Let a key in. Stopped, if the SuperLink refuses it."""
        with _in_one_line():
            self._client.RegisterNode(RegisterNodeRequest(public_key=key, name=name))

    def unregister(self, node: int) -> None:
        """Let a node in no longer."""
        with _in_one_line():
            self._client.UnregisterNode(UnregisterNodeRequest(node_id=node))


def _read(node: Any) -> Registered:
    seen = {"online": node.last_activated_at, "offline": node.last_deactivated_at}.get(node.status, "")
    moment = f"{datetime.datetime.fromisoformat(seen):%Y-%m-%d %H:%M:%S}" if seen else ""
    return Registered(int(node.node_id), bytes(node.public_key), str(node.status), moment)


@contextmanager
def open_control(folder: Path) -> Generator[Control]:
    """Connect to the SuperLink of the fleet in `folder`, with its secret."""
    port = FleetSettings.load(folder).control_port
    try:
        secret = (folder / "superlink" / "control.secret").read_text(encoding="utf-8").strip()
        authority = (folder / "ca" / "ca.crt").read_bytes()
    except OSError as error:
        raise BadInput(
            f"{error.filename!r} cannot be read ({error.strerror}); fedlga fleet renew {shlex.quote(str(folder))}"
        ) from error
    client = ControlHttpClient.from_server_address(
        server_address=f"{LOOPBACK}:{port}",
        insecure=False,
        root_certificates=authority,
        interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI"), _ShowSecret(secret)],
    )
    try:
        yield Control(client)
    finally:
        client.close()


@final
class _ShowSecret:
    def __init__(self, secret: str) -> None:
        self._secret = secret

    def intercept(self, context: Any, call_next: Any) -> httpx.Response:
        context.request.headers["Authorization"] = f"Bearer {self._secret}"
        return call_next(context)


@contextmanager
def _in_one_line() -> Generator[None]:
    """BadInput if the SuperLink does not answer, Stopped if it refuses: in one line."""
    try:
        yield
    except httpx.RequestError as error:
        raise BadInput(f"the SuperLink does not answer on {error.request.url.netloc.decode()} ({error})") from error
    except httpx.HTTPStatusError as error:
        if error.response.status_code == UNAUTHORIZED:
            reason = (
                "the secret is not the one that it was started with: start it again, or copy superlink/control.secret"
            )
        else:
            reason = _explain(error.response)
        raise Stopped(f"the SuperLink refused ({reason})") from error


def _explain(response: httpx.Response) -> str:
    """Return what the SuperLink said of an error."""
    try:
        answer = response.json()
    except ValueError:
        answer = None
    if isinstance(answer, dict):
        texts = [value for value in answer.values() if isinstance(value, str)]  # pyright: ignore
        return clean_text(" ".join(" ".join(texts).split()))  # pyright: ignore
    return f"{response.status_code}"
