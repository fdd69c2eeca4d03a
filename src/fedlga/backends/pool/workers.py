"""The pool's processes, and how to talk to them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
from typing import Any

from fedlga.core.settings import BadInput


class WorkerFailed(RuntimeError):
    """A worker process ended or raised; the message holds its output."""


def _libraries_first() -> list[str]:
    """Return the import path with libraries first: a user's numpy.py must not replace the one that torch imports.

    The set-up of a run gives workers the path as it is.
    """
    libraries = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    return sorted((path for path in sys.path if path), key=lambda path: path not in libraries)


class Workers:
    """The processes. They can serve many runs: a comparison starts them once."""

    def __init__(self, count: int) -> None:
        command = [sys.executable, "-P", "-m", "fedlga.backends.pool.worker"]  # -P: not from the working folder
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(_libraries_first())}
        self._processes = [
            subprocess.Popen(  # noqa: S603
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=environment,
                text=True,
                encoding="utf-8",
                start_new_session=True,  # a Ctrl-C in the terminal goes to this process alone, which stops the workers
            )
            for _ in range(count)
        ]

    def __len__(self) -> int:
        return len(self._processes)

    def send(self, worker: int, message: dict[str, Any]) -> None:
        """Send one message to one worker, which answers messages in their order."""
        pipe = self._processes[worker].stdin
        assert pipe is not None
        with contextlib.suppress(BrokenPipeError, ValueError):  # `receive` reports it
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()

    def receive(self, worker: int) -> dict[str, Any]:
        """Wait for a worker's next answer."""
        process = self._processes[worker]
        assert process.stdout is not None
        try:
            line = process.stdout.readline()
        except ValueError:
            line = ""
        if not line:
            raise WorkerFailed(f"worker {worker} ended unexpectedly (exit code {process.poll()})")
        answer = json.loads(line)
        if "bad" in answer:
            raise BadInput(answer["bad"])
        if "error" in answer:
            raise WorkerFailed(f"worker {worker} failed:\n{answer['error']}")
        return answer

    def close(self) -> None:
        """Kill them: what they hold is shared memory that is not theirs, and files that are written atomically."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):
                        pipe.close()
