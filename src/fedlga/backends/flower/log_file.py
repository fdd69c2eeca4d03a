"""Run a command with its output in a log file: each line with the time and a name, and old parts put aside.

`python -m fedlga.backends.flower.log_file FILE NAME COMMAND...`. This process becomes the command; another one, which
it leaves behind, writes the lines until the command and all that it started are gone. Under systemd, journald does it.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
import time
from pathlib import Path

LARGEST = 10_000_000  # bytes of a part
PARTS = 5  # that are kept: FILE, FILE.1, ... FILE.4
LONGEST_LINE = 10_000  # bytes: a line may come from a stranger's app
COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


def write_lines(source: int, file: Path, name: str, largest: int = LARGEST) -> None:
    """Write what comes from a pipe into a file, line by line, until its end.

    Lines that the disk does not take are lost: without a reader of the pipe, the command would fail too.
    """
    size, rest = file.stat().st_size if file.exists() else 0, b""
    while chunk := os.read(source, 65_536):
        *lines, rest = (rest + chunk).split(b"\n")
        if len(rest) > LONGEST_LINE:
            lines, rest = [*lines, rest], b""
        for line in lines:
            size = _add(file, _stamp(line, name), size, largest)
    if rest:
        _add(file, _stamp(rest, name), size, largest)


def _add(file: Path, stamped: bytes, size: int, largest: int) -> int:
    """Add a line to a file of this size, or to a new one; return its size then."""
    with contextlib.suppress(OSError):
        if size and size + len(stamped) > largest:
            _put_aside(file)
            size = 0
        with file.open("ab", buffering=0) as out:
            out.write(stamped)
        size += len(stamped)
    return size


def _stamp(line: bytes, name: str) -> bytes:
    now = time.time()
    moment = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now))}.{int(now * 1000) % 1000:03d}Z"
    text = COLOURS.sub("", line[:LONGEST_LINE].decode(errors="replace"))
    plain = "".join(letter for letter in text if letter.isprintable() or letter == "\t")  # others could forge a line
    return f"{moment} {name} {plain}\n".encode()


def _put_aside(file: Path) -> None:
    """Number the parts one up; the oldest goes."""
    for number in range(PARTS - 1, 0, -1):
        older = file.with_name(f"{file.name}.{number}")
        newer = file if number == 1 else file.with_name(f"{file.name}.{number - 1}")
        if newer.exists():
            newer.replace(older)


def main() -> None:
    """Run the command."""
    file, name, command = Path(sys.argv[1]), sys.argv[2], sys.argv[3:]
    source, sink = os.pipe()
    if os.fork() == 0:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):  # it ends when there is nothing left to write
            signal.signal(number, signal.SIG_IGN)
        os.close(sink)
        write_lines(source, file, name)
        os._exit(0)
    os.close(source)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    os.close(sink)
    try:
        os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        os.write(2, f"{command[0]}: cannot be started ({error.strerror})\n".encode())
        os._exit(127)


if __name__ == "__main__":
    main()
