"""Write a deployment: certificates, keys, the scripts that start it, an app. `trial.py` runs all of it on loopback.

DIR/
  README.md         what each folder is for, and where to copy it
  fleet.toml        address and number of nodes
  ca/               the authority that signs the SuperLink's certificate: its key must not leave this folder
  superlink/        for the machine that aggregates
  nodes/0 ...       one for each device, to be copied there
  flower/           Flower's configuration for the commands that talk to the SuperLink (FLWR_HOME)
  app/              a Flower app: your model and data
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import shutil
import sys
import tomllib
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

import tomli_w

from fedlga.core.files import write_atomically
from fedlga.core.settings import BadInput

VALID_DAYS = 825  # the most that clients accept


def init(
    folder: Path,
    *,
    nodes: int = 5,
    host: str = "127.0.0.1",
    port: int = 9443,
    task: Path | None = None,
    settings: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Write a deployment into a new folder. `host` is the name or address that nodes reach the SuperLink by.

    `task` is the user's own task, and `settings` those that it brings; without one, the app holds an example. Its file
    has to be importable without the files beside it: it goes to the nodes alone.
    """
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{str(folder)!r} is a file; a fleet needs a folder of its own")
    if folder.exists() and any(folder.iterdir()):
        raise BadInput(f"{str(folder)!r} is not empty; a fleet takes a folder of its own")
    if not re.fullmatch(r"[A-Za-z0-9.:-]+", host):
        raise BadInput(f"--host: got {host!r}; it takes a name or an address")
    if any(character in str(folder.resolve()) for character in '"\\%$`\n'):
        raise BadInput(f"{str(folder)!r}: a fleet's path takes no quotes, backslashes, percent or dollar signs")
    if not 1 <= nodes <= 10_000:  # noqa: PLR2004
        raise BadInput(f"--nodes: got {nodes}; it takes 1 to 10000")
    if not 1024 <= port <= 65_535 - nodes - 1:  # noqa: PLR2004
        raise BadInput(f"--port: got {port}; it takes 1024 to {65_535 - nodes - 1}")
    content = None if task is None else _read_task(task)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o700)
        _write_certificates(folder, host)
        for number in range(nodes):
            _write_node_key(folder / "nodes" / str(number))
            shutil.copy(folder / "ca" / "ca.crt", folder / "nodes" / str(number) / "ca.crt")
        write_atomically(folder / "fleet.toml", f'host = "{host}"\nport = {port}\nnodes = {nodes}\n')
        names = {
            "ADDRESS": f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
            "PORT": str(port),
            "NODES": str(nodes),
            "FOLDER": str(folder.resolve()),
            "BIN": str(Path(sys.executable).parent),
        }
        _fill_templates(folder, names, nodes)
        if content is not None:
            _put_task(folder / "app", content, nodes, settings or {})
    except OSError as error:
        raise BadInput(f"cannot write to {str(folder)!r} ({error.strerror})") from error
    return sorted(path for path in folder.iterdir())


def _fill_templates(folder: Path, names: dict[str, str], nodes: int) -> None:
    source = resources.files("fedlga.backends.flower") / "templates"

    def fill(name: str, target: Path, **more: str) -> None:
        text = Template((source / f"{name}.tmpl").read_text(encoding="utf-8")).substitute(names | more)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(target, text)
        if target.suffix == ".sh":
            target.chmod(0o755)

    fill("README.md", folder / "README.md")
    fill("config.toml", folder / "flower" / "config.toml")
    fill("superlink.sh", folder / "superlink" / "superlink.sh")
    fill("superlink.service", folder / "superlink" / "fedlga-superlink.service")
    for number in range(nodes):
        node = folder / "nodes" / str(number)
        fill("node.sh", node / "node.sh", NUMBER=str(number), RUNTIME=str(int(names["PORT"]) + 1 + number))
        fill("node.service", node / "fedlga-node.service", NUMBER=str(number))
    for name in ("pyproject.toml", "client.py", "server.py", "task.py"):
        parent = folder / "app" if name == "pyproject.toml" else folder / "app" / "fleet_app"
        fill(f"app_{name}", parent / name)
    write_atomically(folder / "app" / "fleet_app" / "__init__.py", '"""A federation of your own."""\n')


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


def _write_certificates(folder: Path, host: str) -> None:
    """Write a new authority, and the SuperLink's certificate for loopback and for `host`, signed by it."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    def make_name(name: str) -> x509.Name:
        return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    now = datetime.datetime.now(datetime.UTC)

    def build_certificate(subject: str, key: ec.EllipticCurvePrivateKey, issuer: str) -> x509.CertificateBuilder:
        return (
            x509.CertificateBuilder()
            .subject_name(make_name(subject))
            .issuer_name(make_name(issuer))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=VALID_DAYS))
        )

    authority, server = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    root = (
        build_certificate("fedlga fleet authority", authority, "fedlga fleet authority")
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(authority.public_key()), critical=False)
        .add_extension(_key_usage(x509, signs=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    addresses: list[Any] = [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    try:
        addresses.append(x509.IPAddress(ipaddress.ip_address(host)))
    except ValueError:
        try:
            addresses.append(x509.DNSName(host))
        except ValueError as error:
            raise BadInput(f"--host: got {host!r}; it takes a name or an address") from error
    addresses = list(dict.fromkeys(addresses))
    server_certificate = (
        build_certificate("superlink", server, "fedlga fleet authority")
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName(addresses), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()), critical=False)
        .add_extension(_key_usage(x509, signs=False), critical=True)
        .sign(authority, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    for key, file in ((authority, folder / "ca" / "ca.key"), (server, folder / "superlink" / "superlink.key")):
        private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        _write_secret(file, private)
    certificates = {"ca/ca.crt": root, "superlink/ca.crt": root, "superlink/superlink.crt": server_certificate}
    for file, certificate in certificates.items():
        (folder / file).write_bytes(certificate.public_bytes(pem))


def _key_usage(x509: Any, *, signs: bool) -> Any:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _write_node_key(folder: Path) -> None:
    """Write the key pair by which the SuperLink recognises a node."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    _write_secret(folder / "key", private)
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    (folder / "key.pub").write_bytes(public + b"\n")


def _write_secret(file: Path, content: bytes) -> None:
    """Write a file that only its owner can read, from the first byte on."""
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
