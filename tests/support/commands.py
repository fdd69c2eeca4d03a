"""Calling the command line: in this process, or as a process of its own that can be stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fedlga.cli.main import main

FAST = ("--preset", "digits", "--set", "steps_per_epoch=1", "--set", "lr=0.1")
ENDLESS = "100000000"  # rounds: no machine gets there before it is stopped
PATIENCE = 300  # seconds that a busy machine may take for anything here

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fedlga(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> Call:
    """Call the command line in an empty folder, in this process; gives exit code, output, errors."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FEDLGA_DATA", str(tmp_path / "no data"))
    monkeypatch.setattr(sys, "path", [*sys.path])  # `main` adds the current folder

    def call(*words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["fedlga", *map(str, words)])
        monkeypatch.setattr(sys.modules["__main__"], "__package__", None, raising=False)  # not `python -m pytest`
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capfd.readouterr()
        return int(ended.value.code or 0), out, err

    return call


def start(*words: str, folder: Path, **more: Any) -> subprocess.Popen[str]:
    """Start the command line as a process, the leader of a group as in a terminal."""
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True, **more}
    return subprocess.Popen([sys.executable, "-m", "fedlga", *words], cwd=folder, **options)


def with_startup_code(folder: Path, code: str) -> dict[str, str]:
    """Return an environment in which every Python process runs some code before anything else."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(code)
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}


def wait_until(condition: Callable[[], Any], what: str) -> None:
    """Wait until something is so. The limit is only there to fail one day."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"this did not happen: {what}"
        time.sleep(0.01)


def wait_for_lines(file: Path, lines: int) -> None:
    """Wait until a file holds so many whole lines."""
    wait_until(lambda: file.exists() and file.read_bytes().count(b"\n") >= lines, f"{lines} lines in {file}")


def find_children(process: int) -> list[int]:
    """Return the processes that a process started."""
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def kill_group(process: subprocess.Popen[str], number: int) -> None:
    """Send a signal to all processes of a terminal, as its Ctrl-C does."""
    os.killpg(process.pid, number)
