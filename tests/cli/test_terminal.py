"""What the terminal shows: the live line, on a real terminal and on a screen in memory."""

from __future__ import annotations

import io
import os
import pty

import pytest
from rich.console import Console

from commands import FAST, start
from fedlga.cli.terminal import Display
from run_folders import make_record


def test_the_live_line_counts_rounds_again_after_a_fetch():
    screen = io.StringIO()
    with Display(Console(file=screen, force_terminal=True, width=80)) as display:
        display.begin(200)
        display.show_fetch("train-images", 3_000_000, 30_000_000)
        assert [task.description for task in display._progress.tasks] == ["round 0/200", "fetching train-images"]
        display.show_round(make_record())
        (task,) = display._progress.tasks
    assert (task.description, task.completed, task.total) == ("round 1/200", 1, 200)


@pytest.mark.slow
def test_progress_on_a_terminal_is_live_and_fits(tmp_path):
    """A real terminal of 80 columns: the live line is drawn over and over, and gone at the end."""
    master, slave = pty.openpty()
    environment = {**os.environ, "COLUMNS": "80", "TERM": "xterm-256color"}
    words = ("run", *FAST, "--rounds", "40", "--out", "r")
    streams = {"stdout": slave, "stderr": slave, "text": False, "start_new_session": False}
    with start(*words, folder=tmp_path, env=environment, **streams) as process:
        os.close(slave)
        shown = b""
        while True:
            try:
                block = os.read(master, 4096)
            except OSError:
                break
            if not block:
                break
            shown += block
    os.close(master)
    assert process.returncode == 0
    text = shown.decode()
    for word in ("round ", "accuracy", "loss", "slow", "run folder: r"):
        assert word in text
    assert text.count("accuracy") > 3, "live: drawn more than once"
