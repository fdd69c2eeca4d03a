"""Logs of a fleet's processes: each line with time and device, old parts put aside."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

from fedlga.backends.flower.log_file import PARTS, write_lines

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z node-3 (.*)")


def wait_for(file, words):
    """Wait until the log has these words: the process that writes them outlives the command."""
    until = time.monotonic() + 600
    while not file.exists() or words not in file.read_text():
        assert time.monotonic() < until
        time.sleep(0.01)


def write_all(file, content, **more):
    source, sink = os.pipe()

    def send():
        with os.fdopen(sink, "wb") as out:
            out.write(content)

    sender = threading.Thread(target=send)  # a pipe holds little
    sender.start()
    write_lines(source, file, "node-3", **more)
    sender.join()
    os.close(source)


def test_a_command_becomes_the_process_and_its_lines_have_time_and_device(tmp_path):
    """Also those of a process that it left behind, and those that a stranger would forge or colour."""
    file = tmp_path / "node.log"
    script = r"(sleep 0.2; echo late) & printf 'one\n\033[31mred\033[0m\rforged\n'; echo $$ > pid; exit 3"
    command = [sys.executable, "-m", "fedlga.backends.flower.log_file", str(file), "node-3", "sh", "-c", script]
    with subprocess.Popen(command, cwd=tmp_path, start_new_session=True) as process:
        assert process.wait() == 3
        assert int((tmp_path / "pid").read_text()) == process.pid
    wait_for(file, "late")
    lines = [LINE.fullmatch(line) for line in file.read_text().splitlines()]
    assert [line.group(1) for line in lines] == ["one", "redforged", "late"]


def test_a_command_that_is_not_there_is_in_the_log(tmp_path):
    command = [sys.executable, "-m", "fedlga.backends.flower.log_file", str(tmp_path / "log"), "n", "no-such-program"]
    assert subprocess.run(command, check=False).returncode == 127
    wait_for(tmp_path / "log", "no-such-program: cannot be started")


def test_old_parts_are_put_aside_and_the_oldest_goes(tmp_path):
    file = tmp_path / "log"
    write_all(file, b"".join(b"%04d\n" % number for number in range(1000)), largest=2000)
    parts = [file, *(file.with_name(f"log.{number}") for number in range(1, PARTS))]
    assert all(part.stat().st_size <= 2000 for part in parts)
    assert not file.with_name(f"log.{PARTS}").exists()
    kept = [line[-4:] for part in reversed(parts) for line in part.read_text().splitlines()]
    assert kept == [f"{number:04d}" for number in range(1000 - len(kept), 1000)]


def test_what_a_terminal_obeys_is_taken_out(tmp_path):
    """Also the control characters beyond ASCII, and those that turn the direction of writing round."""
    write_all(tmp_path / "log", "a\u009b2Kb\u202ec\u2028d\te ü\n".encode() + b"\xff\n")
    lines = [LINE.fullmatch(line).group(1) for line in (tmp_path / "log").read_text(encoding="utf-8").split("\n")[:-1]]
    assert lines == ["a2Kbcd\te ü", "\ufffd"]


def test_a_full_disk_does_not_stop_the_command():
    """All that is written is read from its pipe: otherwise the command would end, or wait forever."""
    write_all(Path("/dev/full"), b"line\n" * 100_000)


def test_a_line_without_end_does_not_fill_memory(tmp_path):
    write_all(tmp_path / "log", b"x" * 1_000_000)
    assert (tmp_path / "log").stat().st_size < 1_000_000
