"""The web server of `fedlga watch`: it reads, it answers GET, and it gives nobody a file but its own.

Nothing that a browser sends names a file: there are a handful of fixed addresses, and runs have numbers. The Host
header must be an address or a name that this server was started with, so that a web site cannot reach it under a name
of its own (DNS rebinding). The page may load nothing from anywhere else, and run no script but ours.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
import socket
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from fedlga.core.settings import BadInput
from fedlga.report.page import read_asset
from fedlga.report.watch.feed import Feed

DEFAULT_PORT = 8765
ASSETS = {
    "/": ("watch.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/watch.css": ("watch.css", "text/css"),
    "/uplot.css": ("uplot/uPlot.min.css", "text/css"),
    "/uplot.js": ("uplot/uPlot.iife.min.js", "text/javascript"),
    "/charts.js": ("charts.js", "text/javascript"),
    "/watch.js": ("watch.js", "text/javascript"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
NUMBER = re.compile(r"\d{1,12}")
IDLE_SECONDS = 10.0  # after which a connection that asks nothing is closed


class WatchServer(ThreadingHTTPServer):
    """A server about one feed. Threads that answer end with the process."""

    daemon_threads = True

    def __init__(self, host: str, port: int, feed: Feed) -> None:
        self.feed = feed
        self.names = {"localhost", host.lower()}
        self.assets = {path: (read_asset(name).encode(), kind) for path, (name, kind) in ASSETS.items()}
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        self.address_family = family
        super().__init__((host, port), _Handler)

    @property
    def url(self) -> str:
        """The address of the page."""
        host, port = str(self.server_address[0]), self.server_address[1]
        return f"http://{f'[{host}]' if ':' in host else host}:{port}/"

    def allows(self, host: str | None) -> bool:
        """Return whether a Host header names this server: by an address, which nobody can rebind, or by its name."""
        if host is None:
            return False
        with contextlib.suppress(ValueError):
            name = urlsplit(f"//{host}").hostname or ""
            return name in self.names or _is_address(name)
        return False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing about a browser that went away."""


class _Handler(BaseHTTPRequestHandler):
    server: WatchServer  # pyright: ignore[reportIncompatibleVariableOverride]
    timeout = IDLE_SECONDS
    server_version, sys_version = "fedlga", ""

    def do_GET(self) -> None:
        """Answer."""
        if not self.server.allows(self.headers.get("Host")):
            self._refuse(HTTPStatus.FORBIDDEN, "this server has another name")
            return
        parts = urlsplit(self.path)
        if parts.path in self.server.assets:
            content, kind = self.server.assets[parts.path]
            self._send(HTTPStatus.OK, content, kind)
            return
        answer: Callable[[dict[str, str]], str | None] | None = {
            "/updates": self._read_updates,
            "/devices": self._read_devices,
        }.get(parts.path)
        try:
            text = None if answer is None else answer(_read_query(parts.query))
        except ValueError:
            self._refuse(HTTPStatus.BAD_REQUEST, "not a request of this page")
            return
        if text is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")
        else:
            self._send(HTTPStatus.OK, text.encode(), "application/json")

    do_HEAD = do_GET  # noqa: N815

    def _read_updates(self, query: dict[str, str]) -> str:
        position, revision = (_parse_number(query.get(name, "0")) for name in ("position", "revision"))
        return self.server.feed.read_since(query.get("epoch", ""), position, revision)

    def _read_devices(self, query: dict[str, str]) -> str | None:
        return self.server.feed.describe_devices(_parse_number(query.get("run", "")))

    def _send(self, status: HTTPStatus, content: bytes, kind: str) -> None:
        self.send_response(status)
        for name, value in HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _refuse(self, status: HTTPStatus, reason: str) -> None:
        self._send(status, f"{reason}\n".encode(), "text/plain")

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: a page asks every second."""


def _read_query(query: str) -> dict[str, str]:
    return {name: values[-1] for name, values in parse_qs(query, max_num_fields=5).items()}


def _parse_number(text: str) -> int:
    if not NUMBER.fullmatch(text):
        raise ValueError(text)
    return int(text)


def _is_address(name: str) -> bool:
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return False


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address; names other than localhost count as reachable."""
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host.lower() == "localhost"


def open_server(feed: Feed, host: str, port: int | None) -> WatchServer:
    """Open the server; without a port at the usual one, or, if that is taken, at any that is free."""
    try:
        return WatchServer(host, DEFAULT_PORT if port is None else port, feed)
    except (OSError, UnicodeError) as error:
        if port is None and isinstance(error, OSError) and not isinstance(error, socket.gaierror):
            with contextlib.suppress(OSError):
                return WatchServer(host, 0, feed)
        where = f"{host}:{DEFAULT_PORT if port is None else port}"
        reason = error.strerror if isinstance(error, OSError) else "not an address"
        raise BadInput(f"--host, --port: cannot listen at {where} ({reason})") from error
