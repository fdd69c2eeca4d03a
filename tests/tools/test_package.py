"""What a release consists of says the same version everywhere. `make package` builds and tries it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import fedlga

ROOT = Path(__file__).parents[2]


def test_the_version_is_in_one_place():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["project"]["dynamic"] == ["version"]
    assert project["tool"]["setuptools"]["dynamic"]["version"] == {"attr": "fedlga.__version__"}
    cited = re.findall(r"^version: (.+)$", (ROOT / "CITATION.cff").read_text(), flags=re.MULTILINE)
    assert cited == [fedlga.__version__]


def test_every_file_that_the_package_needs_is_packed():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packed = {
        file
        for pattern in project["tool"]["setuptools"]["package-data"]["fedlga"]
        for file in (ROOT / "src" / "fedlga").glob(pattern)
        if file.is_file()
    }
    others = {
        file
        for file in (ROOT / "src" / "fedlga").rglob("*")
        if file.is_file() and file.suffix not in (".py", ".pyc") and "__pycache__" not in file.parts
    }
    assert others == packed
