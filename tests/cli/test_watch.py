"""fedlga watch: a process of its own."""

from __future__ import annotations

import functools
import json
import signal
import subprocess
import sys
import urllib.request

import pytest
from click.testing import CliRunner

from fedlga.cli.watch import watch
from fedlga.core.settings import BadInput
from run_folders import append_records, make_record, start_run


def test_it_serves_until_ctrl_c(tmp_path):
    append_records(start_run(tmp_path / "run"), make_record())
    command = [sys.executable, "-m", "fedlga", "watch", str(tmp_path), "--port", "0"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    # A shell that runs the tests in the background ignores Ctrl-C, and what it starts would, too.
    heed = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(command, preexec_fn=heed, **pipes) as process:  # noqa: PLW1509  # one call, and no lock
        assert process.stdout is not None and process.stderr is not None
        line = process.stdout.readline()
        assert line.startswith("1 run: http://127.0.0.1:")
        url = line.split()[2]
        with urllib.request.urlopen(f"{url}updates", timeout=60) as answer:
            assert [run["round"] for run in json.load(answer)["runs"]] == [1]
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == "ended\n"
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org"])
def test_other_machines_are_refused(tmp_path, host):
    result = CliRunner().invoke(watch, [str(tmp_path), "--host", host])
    assert isinstance(result.exception, BadInput)
    assert str(result.exception).startswith(f"--host: {host!r} can be reached from other machines")


def test_a_folder_that_is_not_there(tmp_path):
    result = CliRunner().invoke(watch, [str(tmp_path / "nowhere")])
    assert isinstance(result.exception, BadInput)
    assert "is no folder" in str(result.exception)
