"""Write requirements.lock: the exact versions that are installed here, with the checksum of each file that pip takes.

    .venv/bin/python tools/make_lock.py      after `make setup`, on the platform that the file is for

torch is not in it: which build fits is a question of the machine. Nor is fedlga itself.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

LOCK = Path(__file__).parents[1] / "requirements.lock"
LEFT_OUT = ("fedlga", "torch", "pip", "setuptools", "wheel")  # the last three come with an environment
HEADER = """\
# The packages of the extra `dev`, without torch, with checksums: CPython {version} on Linux x86-64.
# Written by tools/make_lock.py; SECURITY.md says how to install from it.
"""


def list_installed() -> list[str]:
    """Return NAME==VERSION of all packages in this environment, except for those that are left out."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "list", "--format", "json"], check=True, capture_output=True, text=True
    )
    packages = {normalise(entry["name"]): entry["version"] for entry in json.loads(listed.stdout)}
    return [f"{name}=={version}" for name, version in sorted(packages.items()) if name not in LEFT_OUT]


def resolve(pins: list[str]) -> list[dict[str, Any]]:
    """Return what pip would install, as its report says. Nothing is installed."""
    with tempfile.TemporaryDirectory() as scratch:
        report, wanted = Path(scratch) / "report.json", Path(scratch) / "pins.txt"
        wanted.write_text("\n".join(pins), encoding="utf-8")
        options = ["--quiet", "--dry-run", "--ignore-installed", "--no-deps", "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, "-r", str(wanted)]
        subprocess.run(command, check=True)  # noqa: S603
        return json.loads(report.read_text(encoding="utf-8"))["install"]


def format_lock(packages: list[dict[str, Any]]) -> str:
    """Return the text of the lock file: a version and a checksum a package."""
    lines: list[str] = []
    for package in sorted(packages, key=lambda package: normalise(package["metadata"]["name"])):
        name, version = normalise(package["metadata"]["name"]), package["metadata"]["version"]
        checksum = package["download_info"]["archive_info"]["hashes"]["sha256"]
        lines.append(f"{name}=={version} --hash=sha256:{checksum}\n")
    return HEADER.format(version=f"{sys.version_info[0]}.{sys.version_info[1]}") + "".join(lines)


def normalise(name: str) -> str:
    """Return a package's name as indexes spell it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    LOCK.write_text(format_lock(resolve(list_installed())), encoding="utf-8")
