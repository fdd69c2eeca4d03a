"""`fedlga-node`: Flower's SuperNode with a device process that stays up, and that asks for messages when they may come.

It takes the arguments of `flower-supernode`, and any Flower app runs on it. Flower's own node starts a process for each
message and asks the SuperLink every three seconds. What is changed for it is in `flower_private.py`; with a Flower that
has none of it, or with arguments that ask for another kind of process, Flower's own node runs instead, and says so.
"""

from __future__ import annotations

import argparse
import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from fedlga.backends.flower.flower_private import quicken_pulls, quicken_supernode, run_supernode

DEVICE_PROCESS = "fedlga.backends.flower.device_process"
LOOPBACK = "127.0.0.1"
SHORTEST_PAUSE, LONGEST_PAUSE, GROWTH = 0.1, 3.0, 1.3  # seconds between two questions to the SuperLink
REPLY_PAUSE = 0.02  # seconds between two looks for the reply, within the node
RESTART_PAUSE = 1.0  # seconds before a device process that ended is started again
OWN_PROCESSES = ("--isolation", "--ssl-certfile", "--ssl-keyfile", "--allow-runtime-dependency-installation")
HELP = ("-h", "--help", "-V", "--version")


class Pace:
    """When a node asks again. The longer there was nothing, the longer it waits; up to three seconds, as in Flower."""

    def __init__(self) -> None:
        """Begin quickly."""
        self._pause, self._at_work = SHORTEST_PAUSE, False

    def heard(self, message: object) -> None:
        """Take note of the SuperLink's answer: a message, or None."""
        self._at_work = message is not None
        if self._at_work:
            self._pause = SHORTEST_PAUSE

    def next_pause(self) -> float:
        """Return the seconds until the next question."""
        if self._at_work:
            return REPLY_PAUSE
        pause, self._pause = self._pause, min(LONGEST_PAUSE, GROWTH * self._pause)
        return pause


class Device:
    """The device process, which is started again when it ends."""

    def __init__(self, address: str) -> None:
        """`address` is where the node's runtime API will listen."""
        words = ["-m", DEVICE_PROCESS, "--runtime-api-address", address]
        self._command = [sys.executable, *words, "--parent-pid", str(os.getpid())]
        self._process = self._start()
        threading.Thread(target=self._watch, daemon=True).start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self._command, stdin=subprocess.PIPE, bufsize=0)  # noqa: S603

    def _watch(self) -> None:
        while True:
            code = self._process.wait()
            time.sleep(RESTART_PAUSE)
            _say(f"fedlga-node: the device process ended with {code}; it is started again")
            self._process = self._start()

    def wake(self) -> None:
        """Say that there is a message."""
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(b"\n")
        except OSError:  # it has just ended; the next one looks for messages when it starts
            return


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def run(arguments: Sequence[str]) -> None:
    """Run a node with the arguments of `flower-supernode`."""
    sys.argv = ["flower-supernode", *arguments]  # where Flower reads them
    if any(word.partition("=")[0] in OWN_PROCESSES for word in arguments):
        _say("fedlga-node: these arguments ask for Flower's own processes: flower-supernode runs instead")
    elif not any(word in HELP for word in arguments) and not _keep_device_up(arguments):
        _say("fedlga-node: this Flower's node is not known: flower-supernode runs instead, with a process a message")
    run_supernode()


def _keep_device_up(arguments: Sequence[str]) -> bool:
    """Start the device process, and let Flower's node use it; return False if this Flower cannot."""
    try:
        importlib.import_module(DEVICE_PROCESS)  # it uses more of Flower than this module does
    except ImportError:
        return False
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--host", default=LOOPBACK)
    parser.add_argument("--port", default="9094")  # Flower's default, for a node
    options, _ = parser.parse_known_args(arguments)
    pace, devices = Pace(), list[Device]()

    def heard(message: object) -> None:
        pace.heard(message)
        if message is not None:
            devices[0].wake()

    quicken_pulls()
    if not quicken_supernode(heard, pace.next_pause):
        return False
    sys.argv += ["--isolation", "process", "--host", options.host, "--port", options.port]
    host: str = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(options.host) or options.host  # noqa: S104  # compared, not bound to
    devices.append(Device(f"[{host}]:{options.port}" if ":" in host else f"{host}:{options.port}"))
    return True


def main() -> None:
    """Run `fedlga-node`."""
    run(sys.argv[1:])


if __name__ == "__main__":
    main()
