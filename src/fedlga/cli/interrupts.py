"""Ctrl-C between rounds, so that nothing is lost."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from types import FrameType

STOPPING = "stopping after this round; Ctrl-C again stops at once, at the last checkpoint"


class Interrupts:
    """After Ctrl-C (or SIGTERM, or a closed terminal) the current round is finished, so that nothing is lost.

    A second one stops at once. So does one before the first round is done, when there is nothing to lose.
    """

    def __init__(self, say: Callable[[str], None], message: str = STOPPING) -> None:
        self._say, self._message = say, message
        self._asked = self._running = False

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
        self._asked = True  # also if it raises: Python drops exceptions in a finaliser, and then the next round stops
        if at_once:
            raise KeyboardInterrupt
        self._say(self._message)


def report_stop(folder: Path, command: str, superlink: str | None = None) -> int:
    """Say how to continue a run that was stopped in the middle of a round; return the exit code."""
    if any((folder / name).exists() for name in ("experiment.toml", "comparison.toml")):
        where = f" --superlink {superlink}" if superlink else ""
        click.echo(f"stopped at once; to go on from the last checkpoint: fedlga {command} --resume {folder}{where}")
    else:
        click.echo("stopped before the first round; nothing was written")
    return 1
