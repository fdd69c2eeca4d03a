"""What devices remember from round to round, as files: the first of them in memory, the rest on disk.

Only devices that took part have any. However many there are, main memory holds no more than the user allows.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from ..settings import BadInput
from ..tensors import load_tensors, save_tensors
from .shared import SharedFolder

if TYPE_CHECKING:
    from ..types import Memory


def recall(folder: Path, device: int) -> Memory:
    """What a device remembers."""
    file = folder / f"{device}.safetensors"
    return load_tensors(file)[0] if file.exists() else {}


def remember(folder: Path, device: int, memory: Memory) -> None:
    """Keep what a device remembers."""
    save_tensors(folder / f"{device}.safetensors", memory)


def check_here(memory: Memory) -> None:
    """Whether a checkpoint's memory is one at all: that of a run on a SuperLink only says where they are."""
    if "flower.name" in memory:
        raise BadInput("backend: what this run's devices remember lies on the nodes of a SuperLink, not here")


class Homes:
    """Which folder keeps which device's memory. A device keeps its home, whoever writes to it."""

    def __init__(self, shared: SharedFolder, limit: float) -> None:
        """`limit`: bytes to keep in memory, give or take a round's; fewer where there is no room."""
        self._fast, self._slow = shared.folder("memory", in_memory=True), shared.folder("memory-on-disk")
        self._limit, self._bytes = limit, 0
        self._homes: dict[int, Path] = {}
        self._lock = Lock()

    def of(self, device: int, size: int = 0, promised: int = 0) -> Path:
        """The folder a device's memory is in, or is to go to: some `size` bytes, after what others were `promised`."""
        if device in self._homes:
            return self._homes[device]
        room = shutil.disk_usage(self._fast)  # some is left free: a file is written anew before the old one goes
        fits = room.free - promised - size > max(room.total / 4, 4 * size)
        return self._fast if self._bytes < self._limit and fits else self._slow

    def of_all(self, devices: Iterable[int], size: int) -> list[Path]:
        """The folders of devices that are about to write at the same time."""
        found: list[Path] = []
        promised = 0
        for device in devices:
            found.append(self.of(device, size, promised))
            promised += size if device not in self._homes and found[-1] == self._fast else 0
        return found

    def kept(self, device: int, home: Path) -> None:
        """Take note of a memory that was written, if it was."""
        file = home / f"{device}.safetensors"
        with self._lock:
            if device not in self._homes and file.exists():
                self._homes[device] = home
                self._bytes += file.stat().st_size if home == self._fast else 0

    def items(self) -> Iterator[tuple[int, Memory]]:
        """Everyone's, by device."""
        return ((device, recall(self._homes[device], device)) for device in sorted(self._homes))

    def refill(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Forget everything, and keep these."""
        for device, home in self._homes.items():
            (home / f"{device}.safetensors").unlink(missing_ok=True)
        self._homes, self._bytes = {}, 0
        for device, memory in memories:
            check_here(memory)
            home = self.of(device)
            remember(home, device, memory)
            self.kept(device, home)
