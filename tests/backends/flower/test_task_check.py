"""A task's file that needs what lies beside it is refused before a fleet is written: real processes import it alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fedlga.backends.flower.deployment import init
from fedlga.core.settings import BadInput
from fedlga.learning.task import load_task

FUNCTIONS = "\n\ndef model():\n    pass\n\n\ndef data():\n    pass\n"
MODULE = (
    "mine.py imports 'shapes_beside', which does not go to the nodes; "
    "put it into the file, or into an installed package"
)
PACKAGE = MODULE.replace("shapes_beside", "tools_beside")
TABLE = (
    "mine.py opens 'rentals.csv' while it is imported, which does not go to the nodes; "
    "open it in data(), where it is on the nodes"
)
ALONE = "mine.py cannot be imported alone, as on the nodes: "
MISTAKES = {
    "a module": ("import shapes_beside", MODULE),
    "a name of a module": ("from shapes_beside import SIDES", MODULE),
    "a package": ("from tools_beside.shapes import SIDES", PACKAGE),
    "a table": ('with open("rentals.csv") as file:\n    TABLE = file.read()', TABLE),
    "a table beside the file": (
        'from pathlib import Path\nTABLE = Path(__file__).with_name("rentals.csv").read_text()',
        TABLE,
    ),
    "the name of the file": (
        'assert not __file__.endswith("task.py"), "what am I called?"',
        f"{ALONE}AssertionError: what am I called? (task.py, line 1)",
    ),
    "an end of the process": ('import os\nif __file__.endswith("task.py"):\n    os._exit(7)', f"{ALONE}exit code 7"),
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder, with what a task may wrongly rely on: a module, a package and a table."""
    (tmp_path / "shapes_beside.py").write_text("SIDES = 4\n")
    (tmp_path / "tools_beside").mkdir()
    (tmp_path / "tools_beside" / "__init__.py").write_text("")
    (tmp_path / "tools_beside" / "shapes.py").write_text("SIDES = 4\n")
    (tmp_path / "rentals.csv").write_text("hour,rentals\n8,120\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] in ("shapes_beside", "tools_beside")]:
        del sys.modules[name]


@pytest.mark.parametrize(("line", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_what_lies_beside_a_task_does_not_go_to_the_nodes(line, message, folder, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")]))
    (folder / "mine.py").write_text(line + FUNCTIONS)
    load_task("mine.py")  # here it is a task
    with pytest.raises(BadInput) as refused:
        init(folder / "deep" / "fleet", nodes=2, task=folder / "mine.py")
    assert str(refused.value) == message
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == [
        *("mine.py", "rentals.csv", "shapes_beside.py", "tools_beside")
    ]


@pytest.mark.parametrize(
    "text",
    [
        "import json\n\nimport numpy\n" + FUNCTIONS,  # what is installed
        'print("noise")\n' + FUNCTIONS,
        FUNCTIONS.replace("pass", "import shapes_beside"),  # not called: what they need may be on the nodes
    ],
    ids=["installed", "talkative", "needy functions"],
)
def test_a_task_that_is_whole_is_written_as_it_is(text, folder):
    (folder / "mine.py").write_text(text)
    init(folder / "fleet", nodes=1, task=folder / "mine.py")
    assert (folder / "fleet" / "app" / "fleet_app" / "task.py").read_text() == text


def test_the_command_says_it_in_one_line_and_leaves_nothing(folder):
    (folder / "mine.py").write_text("import shapes_beside\n" + FUNCTIONS)
    (folder / "fleet").mkdir()
    command = [sys.executable, "-m", "fedlga", "fleet", "init", "fleet", "--task", "mine.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"fedlga: {MODULE}\n")
    assert list((folder / "fleet").iterdir()) == []


def test_a_task_that_is_no_file_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"--task: 'shakespeare' cannot be read \(No such file or directory\)"):
        init(tmp_path / "fleet", task=Path("shakespeare"))
    assert not (tmp_path / "fleet").exists()
