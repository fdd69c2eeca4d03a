"""Which devices the SuperLink knows, and how they are: the keys in nodes/ are what it should know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from fedlga.backends.flower.certificates import find_expiry, read_public_key
from fedlga.backends.flower.control import Control, open_control
from fedlga.backends.flower.deployment import NODES, node_numbers
from fedlga.backends.flower.flower_private import read_work
from fedlga.backends.flower.roster import device_name
from fedlga.core.settings import Stopped

DATABASE = Path("superlink") / "state" / "superlink.db"


@dataclass(frozen=True)
class Device:
    """A device of the fleet, and what the SuperLink says of it."""

    number: int
    state: str  # online, busy, offline, never seen, not registered
    seen: str = ""  # since when
    run: int | None = None  # that it works for


def register_missing(folder: Path, control: Control, numbers: list[int]) -> tuple[list[int], list[str]]:
    """Let the keys of these devices in, if they are not; return who was, and what went wrong."""
    known = {node.key for node in control.list_nodes()}
    done: list[int] = []
    problems: list[str] = []
    for number in numbers:
        key = read_public_key(folder / NODES / str(number) / "key.pub")
        if key in known:
            continue
        try:
            control.register(key, device_name(number))
            done.append(number)
        except Stopped as error:
            problems.append(f"device {number}: {error}")
    return done, problems


def sync(folder: Path, say: Callable[[str], None]) -> None:
    """Let the SuperLink know the keys in nodes/, and no others. Stopped, if it did not take all of it."""
    numbers = node_numbers(folder)
    wanted = {read_public_key(folder / NODES / str(number) / "key.pub") for number in numbers}
    problems: list[str] = []
    with open_control(folder) as control:
        for node in control.list_nodes():
            if node.key not in wanted:
                try:
                    control.unregister(node.node)
                    say(f"refused from now on: node {node.node}")
                except Stopped as error:
                    problems.append(f"node {node.node} is still let in: {error}")
        done, more = register_missing(folder, control, numbers)
    for number in done:
        say(f"registered: device {number}")
    if problems := [*problems, *more]:
        raise Stopped("; ".join(problems))


def list_devices(folder: Path) -> list[Device]:
    """Return all devices of the fleet, and how they are; BadInput if the SuperLink does not answer."""
    with open_control(folder) as control:
        known = {node.key: node for node in control.list_nodes()}
    work = read_work(folder / DATABASE) or {}
    devices: list[Device] = []
    for number in node_numbers(folder):
        node = known.get(read_public_key(folder / NODES / str(number) / "key.pub"))
        if node is None:
            devices.append(Device(number, "not registered"))
        elif node.status == "registered":
            devices.append(Device(number, "never seen"))
        else:
            run = work.get(node.node) if node.status == "online" else None
            devices.append(Device(number, "busy" if run is not None else node.status, node.seen, run))
    return devices


def list_certificates(folder: Path) -> dict[str, str]:
    """Return until when each certificate is valid."""
    files = {"authority": folder / "ca" / "ca.crt", "SuperLink and proxy": folder / "superlink" / "superlink.crt"}
    return {name: f"{find_expiry(file):%Y-%m-%d}" for name, file in files.items() if file.exists()}
