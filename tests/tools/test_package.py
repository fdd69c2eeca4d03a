"""What a release consists of says the same version everywhere. `make package` builds and tries it."""

from __future__ import annotations

import re
import sys
import tomllib
import zipfile
from pathlib import Path

import fedlga

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tools"))
import check_package  # noqa: E402


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


def test_a_wheel_lacks_what_the_package_has_and_nothing_else(tmp_path):
    """A wheel of all files but one: that one is named. Files that moved are not looked for at their old places."""
    source = ROOT / "src"
    page = source / "fedlga" / "report" / "web" / "page.html"
    files = [file for file in (source / "fedlga").rglob("*") if file.is_file() and file.suffix != ".pyc"]
    for left_out in ([], [page]):
        with zipfile.ZipFile(tmp_path / "some.whl", "w") as wheel:
            for file in files:
                if file not in left_out:
                    wheel.writestr(file.relative_to(source).as_posix(), "")
        assert check_package.find_missing(tmp_path / "some.whl") == ["fedlga/report/web/page.html"] * len(left_out)
