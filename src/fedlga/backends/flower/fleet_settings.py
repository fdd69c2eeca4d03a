"""fleet.toml: the one place where a fleet's address, ports and number of devices are written down."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from fedlga.core.files import write_atomically
from fedlga.core.settings import BadInput, read_toml

FILE = "fleet.toml"
MOST_NODES = 10_000
LEAST_PORT, MOST_PORT = 1024, 65_535
LOOPBACK = "127.0.0.1"
HOST = r"[A-Za-z0-9.:-]+"

_MEANINGS = {
    "host": "name or address by which nodes reach the proxy",
    "listen": "address that the proxy listens on: 127.0.0.1, or 0.0.0.0 for nodes on other machines",
    "port": "the proxy's: the only one that has to be open to the nodes",
    "control_port": "the SuperLink's, on loopback: whoever runs or stops something uses it",
    "monitor_port": "of fedlga fleet monitor, on loopback: /metrics and /health",
    "runtime_port": "of node 0, on its own loopback; node 1 has the next one, and so on",
    "nodes": "device numbers that were given out, from 0",
}


@dataclass(frozen=True)
class FleetSettings:
    """What fleet.toml says."""

    host: str
    listen: str
    port: int
    control_port: int
    monitor_port: int
    runtime_port: int
    nodes: int

    @classmethod
    def choose(cls, host: str, listen: str, port: int, nodes: int) -> FleetSettings:
        """Return settings whose ports follow each other; BadInput if they cannot work."""
        if not 1 <= nodes <= MOST_NODES:
            raise BadInput(f"--nodes: got {nodes}; it takes 1 to {MOST_NODES}")
        most = MOST_PORT - nodes - 2
        if not LEAST_PORT <= port <= most:
            raise BadInput(f"--port: got {port}; it takes {LEAST_PORT} to {most}")
        if not re.fullmatch(HOST, host):
            raise BadInput(f"--host: got {host!r}; it takes a name or an address")
        if not _is_address(listen):
            raise BadInput(f"--listen: got {listen!r}; it takes an address of this machine, or 0.0.0.0 for all")
        return cls(host, listen, port, port + 1, port + 2, port + 3, nodes)

    @classmethod
    def load(cls, folder: Path) -> FleetSettings:
        """Read fleet.toml; BadInput if it is not there, or says what cannot be."""
        file = folder / FILE
        try:
            values: dict[str, Any] = read_toml(file.read_text(encoding="utf-8"), str(file))
        except (OSError, ValueError) as error:
            raise BadInput(f"{str(folder)!r} holds no fleet: fedlga fleet init makes one") from error
        if "control_port" not in values and type(values.get("port")) is int and type(values.get("nodes")) is int:
            # Of an earlier version: nodes reach the SuperLink itself, and their own ports come right after it.
            port = values["port"]
            most = port + values["nodes"]
            values |= {"listen": LOOPBACK, "control_port": port, "runtime_port": port + 1, "monitor_port": most + 1}
        for field in fields(cls):
            value, kind = values.get(field.name), str if field.name in ("host", "listen") else int
            if type(value) is not kind:
                raise BadInput(f"{str(file)!r}: {field.name}: got {value!r}; it takes {_MEANINGS[field.name]}")
        settings = cls(**{field.name: values[field.name] for field in fields(cls)})
        settings.check(folder)
        return settings

    def check(self, folder: Path) -> None:
        """Raise BadInput if these settings cannot work."""
        file = folder / FILE
        if not 1 <= self.nodes <= MOST_NODES:
            raise BadInput(f"{str(file)!r}: nodes: got {self.nodes}; it takes 1 to {MOST_NODES}")
        if not re.fullmatch(HOST, self.host):
            raise BadInput(f"{str(file)!r}: host: got {self.host!r}; it takes a name or an address")
        if not _is_address(self.listen):
            raise BadInput(f"{str(file)!r}: listen: got {self.listen!r}; it takes {_MEANINGS['listen']}")
        for name, port in self.ports().items():
            if not LEAST_PORT <= port <= MOST_PORT:
                raise BadInput(f"{str(file)!r}: {name}: got {port}; it takes {LEAST_PORT} to {MOST_PORT}")
        singles = [self.control_port, self.monitor_port, *({self.port} - {self.control_port})]
        runtime = range(self.runtime_port, self.runtime_port + self.nodes)
        if len(set(singles)) < len(singles) or any(port in runtime for port in singles):
            raise BadInput(f"{str(file)!r}: two of its ports are the same; each takes one of its own")

    @property
    def has_proxy(self) -> bool:
        """Whether nodes reach a proxy, and not the SuperLink itself as in an earlier version."""
        return self.port != self.control_port

    @property
    def address(self) -> str:
        """What nodes connect to."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def ports(self) -> dict[str, int]:
        """Return all ports by what they are for; of the nodes' own, the first and the last."""
        singles = {name: getattr(self, name) for name in ("port", "control_port", "monitor_port", "runtime_port")}
        return {**singles, "the last node's runtime_port": self.runtime_port + self.nodes - 1}

    def save(self, folder: Path) -> None:
        """Write fleet.toml, with what each line means."""
        lines = [
            f"{name} = {value!r}".replace("'", '"').ljust(24) + f"  # {_MEANINGS[name]}\n"
            for name, value in asdict(self).items()
        ]
        head = "# The only place to change these. Then: fedlga fleet write DIR, and start what runs again.\n"
        write_atomically(folder / FILE, head + "".join(lines))


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True
