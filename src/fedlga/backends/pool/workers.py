"""The pool's processes, and how to talk to them."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from fedlga.core.settings import BadInput, Stopped


class WorkerFailed(Stopped):
    """A worker process ended or raised; the message holds its output."""


def _libraries_first() -> list[str]:
    """Return the import path with libraries first: a user's numpy.py must not replace the one that torch imports.

    The set-up of a run gives workers the path as it is.
    """
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return sorted((path for path in sys.path if path), key=lambda path: path not in libraries)


class WorkerEnded(WorkerFailed):
    """A worker process is gone: another one can do its work again, to the same bits."""


CHECK_SECONDS = 10.0  # between two looks at a worker that does not answer
STANDSTILL_SECONDS = 300.0  # without any processor time, with work to do: such a worker is ended


class Workers:
    """The processes. They can serve many runs: a comparison starts them once."""

    def __init__(self, count: int) -> None:
        self._processes = [_start_worker() for _ in range(count)]
        self._received = [bytearray() for _ in range(count)]  # what was read after the last whole line

    def __len__(self) -> int:
        return len(self._processes)

    def send(self, worker: int, message: dict[str, Any]) -> None:
        """Send one message to one worker, which answers messages in their order."""
        pipe = self._processes[worker].stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # `receive` reports it
            pipe.write(json.dumps(message).encode() + b"\n")
            pipe.flush()

    def receive(self, worker: int) -> dict[str, Any]:
        """Wait for a worker's next answer."""
        answer = json.loads(self._read_line(worker))
        if "bad" in answer:
            raise BadInput(answer["bad"])
        if "error" in answer:
            raise WorkerFailed(f"worker {worker} failed:\n{answer['error']}")
        return answer

    def _read_line(self, worker: int) -> bytes:
        process, received = self._processes[worker], self._received[worker]
        assert process.stdout is not None
        used: int | None = None  # processor time when it was last looked at
        since = time.monotonic()
        while b"\n" not in received:
            try:
                if select.select([process.stdout], [], [], CHECK_SECONDS)[0]:
                    block = os.read(process.stdout.fileno(), 1 << 16)
                    if not block:
                        raise WorkerEnded(f"worker {worker} {describe_end(process.wait())}")
                    received += block
                    continue
            except ValueError as error:  # `close` was faster
                raise WorkerEnded(f"worker {worker} was closed") from error
            now = _processor_time(process.pid)
            if now is None or now != used:
                used, since = now, time.monotonic()
            elif time.monotonic() - since > STANDSTILL_SECONDS:
                process.kill()
                raise WorkerEnded(f"worker {worker} stood still for {STANDSTILL_SECONDS:g} seconds")
        line, _, rest = bytes(received).partition(b"\n")
        received[:] = rest
        return line

    def replace(self, worker: int) -> None:
        """Start a new process in place of one that ended. It needs the set-up of the run again."""
        _end(self._processes[worker])
        self._processes[worker] = _start_worker()
        self._received[worker].clear()

    def close(self) -> None:
        """Kill them: what they hold is shared memory that is not theirs, and files that are written atomically."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            _end(process)


def _start_worker() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-P", "-m", "fedlga.backends.pool.worker"]  # -P: not from the working folder
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(_libraries_first())}
    return subprocess.Popen(  # noqa: S603
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        bufsize=0,
        env=environment,
        start_new_session=True,  # a Ctrl-C in the terminal goes to this process alone, which stops the workers
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()


def describe_end(code: int) -> str:
    """Return how a process ended, in words."""
    if code == -signal.SIGKILL:
        return "was killed (by signal 9: is there enough memory?)"
    return f"was ended by signal {-code}" if code < 0 else f"ended unexpectedly (exit code {code})"


def _processor_time(pid: int) -> int | None:
    """Return the processor time of a process, in the kernel's ticks; None where the system does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return sum(int(ticks) for ticks in fields[11:15])  # with that of children which have ended
