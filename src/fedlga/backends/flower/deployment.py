"""Write a deployment: certificates, keys, the scripts that start it, an app. `trial.py` runs all of it on loopback.

DIR/
  README.md         what each folder is for, and where to copy it
  fleet.toml        addresses, ports, number of nodes: the one place to change them
  ca/               the authority that signs the SuperLink's certificate: its key must not leave this folder
  superlink/        for the machine that aggregates: the SuperLink, the proxy that nodes reach, the monitor
  nodes/0 ...       one for each device, to be copied there
  revoked/          what was in nodes/ before it was revoked
  flower/           Flower's configuration and credential for the commands that talk to the SuperLink (FLWR_HOME)
  docker/           the same in containers
  app/              a Flower app: your model and data
"""

from __future__ import annotations

import importlib.metadata
import re
import shutil
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import tomli_w

from fedlga.backends.flower.certificates import (
    write_authority,
    write_certificate,
    write_credential,
    write_node_key,
)
from fedlga.backends.flower.fleet_settings import LOOPBACK, FleetSettings
from fedlga.backends.flower.flower_private import write_cli_credential
from fedlga.core.files import write_atomically
from fedlga.core.settings import BadInput

NODES, REVOKED = "nodes", "revoked"


def init(
    folder: Path,
    *,
    nodes: int = 5,
    host: str = LOOPBACK,
    listen: str = LOOPBACK,
    port: int = 9443,
    task: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a deployment into a new folder. `host` is the name or address that nodes reach the proxy by.

    `task` is the user's own task, and `settings` those that it brings; without one, the app holds an example. Its file
    has to be importable without the files beside it: it goes to the nodes alone.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{str(folder)!r} is a file; a fleet needs a folder of its own")
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{str(folder)!r} is not empty; a fleet takes a folder of its own")
    if any(character in str(folder.resolve()) for character in '"\\%$`\n'):
        raise BadInput(f"{str(folder)!r}: a fleet's path takes no quotes, backslashes, percent or dollar signs")
    fleet = FleetSettings.choose(host, listen, port, nodes)
    content = None if task is None else _read_task(task)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        write_authority(folder)
        write_certificate(folder, host)
        write_credential(folder)
        for number in range(nodes):
            write_node_key(folder / NODES / str(number))
        fleet.save(folder)
        write_scripts(folder)
        _write_app(folder, nodes)
        if content is not None:
            _put_task(folder / "app", content, nodes, settings or {})
    except OSError as error:
        raise BadInput(f"cannot write to {str(folder)!r} ({error.strerror})") from error
    return sorted(path for path in folder.iterdir())


def node_numbers(folder: Path, kind: str = NODES) -> list[int]:
    """Return the devices of a fleet that have a key, or that were revoked."""
    parent = folder / kind
    names = [path.name for path in parent.iterdir() if path.is_dir()] if parent.is_dir() else []
    form = r"([0-9]{1,5})" if kind == NODES else r"([0-9]{1,5})-.*"  # revoked ones have the time in their names
    return sorted({int(match[1]) for name in names if (match := re.fullmatch(form, name))})


def add_nodes(folder: Path, count: int) -> list[int]:
    """Write keys and scripts for more devices; return their numbers. The app's number of devices grows with them."""
    fleet = FleetSettings.load(folder)
    if count < 1:
        raise BadInput(f"--count: got {count}; it takes 1 or more")
    grown = replace(fleet, nodes=fleet.nodes + count)
    grown.check(folder)
    new = list(range(fleet.nodes, grown.nodes))  # a number that was revoked is not given out again
    for number in new:
        write_node_key(folder / NODES / str(number))
    grown.save(folder)
    write_scripts(folder)
    _set_devices(folder / "app" / "pyproject.toml", fleet.nodes, grown.nodes)
    return new


def check_nodes(folder: Path, numbers: Sequence[int]) -> None:
    """Raise BadInput if one of these devices is not in the fleet."""
    known = node_numbers(folder)
    for number in numbers:
        if number not in known:
            why = "was revoked" if number in node_numbers(folder, REVOKED) else "is not in this fleet"
            raise BadInput(f"device {number} {why}; it has {', '.join(map(str, known)) or 'none'}")


def put_aside(folder: Path, numbers: Sequence[int]) -> None:
    """Move what revoked devices had out of nodes/: their keys are not registered again."""
    check_nodes(folder, numbers)
    (folder / REVOKED).mkdir(exist_ok=True, mode=0o700)
    for number in dict.fromkeys(numbers):
        (folder / NODES / str(number)).rename(folder / REVOKED / f"{number}-{time.strftime('%Y%m%d-%H%M%S')}")


def replace_keys(folder: Path, numbers: Sequence[int]) -> None:
    """Write new key pairs for devices of the fleet."""
    check_nodes(folder, numbers)
    for number in numbers:
        write_node_key(folder / NODES / str(number))


def renew(folder: Path, *, authority: bool = False, credential: bool = False) -> None:
    """Write a new certificate for the SuperLink and its proxy.

    `authority`: also a new authority, because the old one's key was lost or stolen: no node believes the SuperLink
    before it has the new ca.crt. `credential`: also a new secret for commands.
    """
    fleet = FleetSettings.load(folder)
    if authority:
        write_authority(folder)
    write_certificate(folder, fleet.host)
    if credential or not (folder / "superlink" / "control.secret").exists():
        write_credential(folder)
    write_scripts(folder)


def write_scripts(folder: Path) -> None:
    """Write scripts, units and configurations from fleet.toml. Keys, certificates and the app stay as they are."""
    fleet = FleetSettings.load(folder)
    names = {name.upper(): str(value) for name, value in vars(fleet).items()}
    names |= {
        "LISTEN": f"[{fleet.listen}]" if ":" in fleet.listen else fleet.listen,
        "ADDRESS": fleet.address,
        "FOLDER": str(folder.resolve()),
        "VERSION": importlib.metadata.version("fedlga"),
        "HARDENING": _read_template("hardening"),
    }

    def fill(name: str, target: Path, **more: str) -> None:
        _fill(name, target, names | more)

    superlink, docker = folder / "superlink", folder / "docker"
    if not (superlink / "control.secret").exists():  # the fleet is of an earlier version
        write_credential(folder)
    secret = (superlink / "control.secret").read_text(encoding="utf-8")
    fill("README.md", folder / "README.md")
    fill("superlink.sh", superlink / "superlink.sh")
    fill("proxy.conf", superlink / "proxy.conf")
    for name in ("superlink", "proxy", "monitor"):
        fill(f"{name}.service", superlink / f"fedlga-{name}.service")
    shutil.copyfile(folder / "fleet.toml", superlink / "fleet.toml")  # for the monitor
    fill("Dockerfile", docker / "Dockerfile")
    fill("compose.yaml", docker / "compose.yaml")
    fill("dashboard.json", folder / "grafana-dashboard.json")
    for home, certificate in (
        (folder / "flower", f"{names['FOLDER']}/ca/ca.crt"),
        (docker / "flower", "/fleet/ca.crt"),
    ):
        fill("config.toml", home / "config.toml", CERTIFICATE=certificate)
        write_cli_credential(home, f"{LOOPBACK}:{fleet.control_port}", secret)
    for number in node_numbers(folder):
        node = folder / NODES / str(number)
        fill("node.sh", node / "node.sh", NUMBER=str(number), RUNTIME=str(fleet.runtime_port + number))
        fill("node.service", node / "fedlga-node.service", NUMBER=str(number))
        fill("node_compose.yaml", node / "compose.yaml", NUMBER=str(number))
        shutil.copyfile(folder / "ca" / "ca.crt", node / "ca.crt")


def _read_template(name: str) -> str:
    source = resources.files("fedlga.backends.flower") / "templates"
    return (source / f"{name}.tmpl").read_text(encoding="utf-8")


def _fill(name: str, target: Path, names: Mapping[str, str]) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, Template(_read_template(name)).substitute(names))
    if target.suffix == ".sh":
        target.chmod(0o755)


def _write_app(folder: Path, nodes: int) -> None:
    for name in ("pyproject.toml", "client.py", "server.py", "task.py"):
        parent = folder / "app" if name == "pyproject.toml" else folder / "app" / "fleet_app"
        _fill(f"app_{name}", parent / name, {"NODES": str(nodes)})
    write_atomically(folder / "app" / "fleet_app" / "__init__.py", '"""A federation of your own."""\n')


def _set_devices(project: Path, before: int, now: int) -> None:
    """Let the app's experiment have all devices of the fleet, if it had all of them before. Comments stay."""
    if not project.is_file():
        return
    text = project.read_text(encoding="utf-8")
    for name in ("devices", "cohort"):
        text = re.sub(rf"(?m)^{name} = {before}$", f"{name} = {now}", text)
    write_atomically(project, text)


def _read_task(file: Path) -> bytes:
    """Return the content of a task's file; BadInput if it cannot be imported on a node."""
    from fedlga.backends.flower.task_check import check_alone

    try:
        content = file.read_bytes()
    except OSError as error:
        raise BadInput(f"--task: {str(file)!r} cannot be read ({error.strerror})") from error
    check_alone(file, content)
    return content


def _put_task(app: Path, content: bytes, nodes: int, settings: Mapping[str, Any]) -> None:
    """Let the app learn a task of the user's own: its file as it is, and its settings in the app's configuration."""
    package = app / "fleet_app"
    (package / "task.py").write_bytes(content)
    for name in ("client", "server"):
        text = (
            f'"""The Flower {name.title()}App, for the task in task.py."""\n\n'
            f"from pathlib import Path\n\nfrom fedlga.flower import {name}_app\n\n"
            f'app = {name}_app(task=Path(__file__).with_name("task.py"))\n'
        )
        write_atomically(package / f"{name}.py", text)
    project = tomllib.loads((app / "pyproject.toml").read_text(encoding="utf-8"))
    config = project["tool"]["flwr"]["app"]["config"]
    for name in ("epochs", "steps_per_epoch", "batch_size", "lr", "target"):  # of the example
        config.pop(name, None)
    plain = {name: value for name, value in settings.items() if isinstance(value, str | int | float | bool)}
    kept = {"devices": nodes, "cohort": min(nodes, int(plain.get("cohort") or nodes)), "out": "", "resume": False}
    project["tool"]["flwr"]["app"]["config"] = {**config, **plain, **kept}
    write_atomically(app / "pyproject.toml", tomli_w.dumps(project))
