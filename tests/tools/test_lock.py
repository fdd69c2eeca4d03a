"""requirements.lock: every version has a checksum, and the tested versions are those of constraints.txt."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def read_versions(file: str) -> dict[str, str]:
    lines = [line.split("#")[0].strip() for line in (ROOT / file).read_text().splitlines()]
    pairs = [line.split(" ")[0].split("==") for line in lines if line]
    return {re.sub(r"[-_.]+", "-", name).lower(): version for name, version in pairs}


def test_the_lock_has_the_versions_of_the_constraints():
    locked, pinned = read_versions("requirements.lock"), read_versions("constraints.txt")
    assert pinned.pop("torch")
    assert {name: locked.get(name) for name in pinned} == pinned


def test_the_lock_is_without_torch_and_names_no_place():
    locked = read_versions("requirements.lock")
    assert not {"torch", "fedlga"} & set(locked)
    text = (ROOT / "requirements.lock").read_text()
    assert not re.search(r"://|--(extra-)?index-url|--find-links|--trusted-host", text)


@pytest.mark.parametrize(
    "line", [line for line in (ROOT / "requirements.lock").read_text().splitlines() if "==" in line]
)
def test_every_version_has_a_checksum(line):
    assert re.fullmatch(r"[a-z0-9-]+==\S+ --hash=sha256:[0-9a-f]{64}", line)
