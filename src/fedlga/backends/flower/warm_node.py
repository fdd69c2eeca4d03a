"""`fedlga-node`: Flower's SuperNode with a device process that stays up, and that asks for messages when they may come.

It takes the arguments of `flower-supernode`, and any Flower app runs on it. Flower's own node starts a process for each
message and asks the SuperLink every three seconds. What is changed for it is in `flower_private.py`; with a Flower that
has none of it, or with arguments that ask for another kind of process, Flower's own node runs instead, and says so.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from fedlga.backends.flower.flower_private import (
    parse_supernode_arguments,
    quicken_pulls,
    quicken_supernode,
    run_supernode,
)

DEVICE_PROCESS = "fedlga.backends.flower.device_process"
LOOPBACK = "127.0.0.1"
SHORTEST_PAUSE, LONGEST_PAUSE, GROWTH = 0.1, 3.0, 1.3  # seconds between two questions to the SuperLink
REPLY_PAUSE = 0.02  # seconds between two looks for the reply, within the node
RESTART_PAUSE, LONGEST_RESTART_PAUSE = 1.0, 60.0  # seconds before a device process that ended is started again
LONG_ENOUGH = 60.0  # seconds that a device process ran which did not end from its start
OWN_PROCESSES = ("isolation", "ssl_certfile", "ssl_keyfile", "ssl_ca_certfile", "superexec_auth_secret_file")
NOT_KNOWN = "this Flower's node is not known"
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
        pause = RESTART_PAUSE
        while True:
            started = time.monotonic()
            code = self._process.wait()
            lasted = time.monotonic() - started
            pause = RESTART_PAUSE if lasted > LONG_ENOUGH else min(LONGEST_RESTART_PAUSE, 2 * pause)
            time.sleep(pause)
            _say(f"fedlga-node: the device process ended with {code}; it is started again")
            self._process = self._start()

    def stop_work(self) -> None:
        """End the process, whatever it does: its run was stopped. Another one takes its place."""
        self._process.kill()

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
    if not any(word in HELP for word in arguments) and (reason := _keep_device_up(arguments)):
        _say(f"fedlga-node: {reason}: flower-supernode runs instead, with a process a message")
    run_supernode()


def _keep_device_up(arguments: Sequence[str]) -> str | None:
    """Start the device process, and let Flower's node use it; return why not, if it cannot be."""
    try:
        options = parse_supernode_arguments(arguments)
        importlib.import_module(DEVICE_PROCESS)  # it uses more of Flower than this module does
        defaults = parse_supernode_arguments(["--insecure"])
        own = [name for name in OWN_PROCESSES if getattr(options, name) != getattr(defaults, name)]
        own += ["runtime_dependency_install"] if options.runtime_dependency_install else []
        own += ["isolation"] if any(word.startswith("--iso") for word in arguments) else []  # also its default
    except (ImportError, AttributeError):
        return NOT_KNOWN
    if own:
        return f"{own[0]} asks for Flower's own processes"
    pace, devices = Pace(), list[Device]()

    def heard(message: object) -> None:
        pace.heard(message)
        if message is not None:
            devices[0].wake()

    def stop_work() -> None:
        devices[0].stop_work()

    quicken_pulls()
    if not quicken_supernode(heard, pace.next_pause, stop_work):
        return NOT_KNOWN
    sys.argv += ["--isolation", "process"]
    host: str = {"0.0.0.0": LOOPBACK, "::": "::1"}.get(options.host) or options.host  # noqa: S104  # compared, not bound
    devices.append(Device(f"[{host}]:{options.port}" if ":" in host else f"{host}:{options.port}"))
    return None


def main() -> None:
    """Run `fedlga-node`."""
    run(sys.argv[1:])


if __name__ == "__main__":
    main()
