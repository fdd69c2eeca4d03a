"""Ctrl-C between rounds, so that nothing is lost."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from types import FrameType

STOPPING = "stopping after this round; Ctrl-C again stops at once, at the last checkpoint"


class StopSignal(KeyboardInterrupt):
    """Ctrl-C, or another signal to stop."""

    def __init__(self, number: int = signal.SIGINT) -> None:
        super().__init__()
        self.code = 128 + number  # what shells call a command that a signal ended: 130 after Ctrl-C


def raise_stop(number: int, frame: FrameType | None) -> None:
    """Stop what is going on, in a way that cleans up; a handler of signals."""
    raise StopSignal(number)


def find_code(error: BaseException) -> int:
    """Return the exit code after an interruption."""
    return error.code if isinstance(error, StopSignal) else StopSignal().code


def quote(folder: Path) -> str:
    """Return a folder as it can be pasted into a shell."""
    return shlex.quote(str(folder))


class Interrupts:
    """After Ctrl-C (or SIGTERM, or a closed terminal) the current round is finished, so that nothing is lost.

    A second one stops at once. So does one before the first round is done, when there is nothing to lose.
    """

    def __init__(self, say: Callable[[str], None], message: str = STOPPING) -> None:
        self._say, self._message = say, message
        self._asked = self._running = False
        self.code = 0  # the exit code, once it was asked to stop

    def between_rounds(self) -> bool:
        """Return whether to stop here. Call it after each round."""
        self._running = True
        return self._asked

    def __enter__(self) -> Interrupts:
        numbers = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
        self._before = {number: signal.signal(number, self._ask) for number in numbers}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        at_once = self._asked or not self._running
        self.code = StopSignal(number).code
        self._asked = True  # also if it raises: Python drops exceptions in a finaliser, and then the next round stops
        if at_once:
            raise StopSignal(number)
        self._say(self._message)


def report_stop(folder: Path, command: str, error: BaseException, superlink: str | None = None) -> int:
    """Say how to continue a run that was stopped in the middle of a round; return the exit code."""
    if any((folder / name).exists() for name in ("experiment.toml", "comparison.toml")):
        where = f" --superlink {shlex.quote(superlink)}" if superlink else ""
        command = f"fedlga {command} --resume {quote(folder)}{where}"
        click.echo(f"stopped at once; to go on from the last checkpoint: {command}")
    else:
        click.echo("stopped before the first round; nothing was written")
    return find_code(error)
