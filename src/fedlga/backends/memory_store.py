"""What devices remember from round to round, as files. Every backend uses this one store.

Only devices that took part have a memory. However many there are, main memory holds no more than the user allows; the
rest is on disk.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from fedlga.backends.shared import SharedFolder
from fedlga.core.files import sync
from fedlga.core.settings import BadInput
from fedlga.core.tensors import load_tensors, save_tensors

if TYPE_CHECKING:
    from fedlga.core.types import Memory

NOTHING_YET = -1  # the round of a device that has never counted
ON_NODES = "flower.name"  # a checkpoint of a run on a SuperLink has this in place of memories


@dataclass(frozen=True)
class MemoryFile:
    """One device's memory: a folder with a file a round, and the round that counts.

    An update that was late, refused or dropped changed nothing at the aggregator, so it must not have changed the
    device either: the device continues from the last round that *counted*. That may be an earlier one too, if the
    aggregator went back to its checkpoint and asks for a round again.
    """

    folder: Path
    counted: int = NOTHING_YET  # the last round whose update the aggregator used
    durable: bool = False  # whether it outlives a power cut: a simulation has it in its checkpoints, a node only here

    def read(self) -> Memory:
        """Return what the device remembered after the round that counts."""
        if self.counted == NOTHING_YET:
            return {}
        file = self._file(self.counted)
        try:
            if file.exists():
                return load_tensors(file)[0]
            others = any(self.folder.glob("*.safetensors"))
        except Exception as error:  # a damaged file may make the reader raise anything
            raise BadInput(f"memory: {str(file)!r} cannot be read ({type(error).__name__})") from error
        if others:
            raise BadInput(f"memory: round {self.counted} of this device is gone: {str(file)!r}")
        return {}

    def write(self, round: int, memory: Memory, *, keep_counted: bool = False) -> None:
        """Store what the device remembers after a round; remove other rounds, except the one that counts if asked."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        save_tensors(self._file(round), memory, durable=self.durable)
        if self.durable:
            sync(self.folder)
        for file in self.folder.glob("*.safetensors"):
            if int(file.stem) != round and not (keep_counted and int(file.stem) == self.counted):
                file.unlink(missing_ok=True)

    def size(self) -> int:
        """Return the bytes of the round that counts."""
        file = self._file(self.counted)
        return file.stat().st_size if file.exists() else 0

    def plain(self) -> dict[str, Any]:
        """Return it as values for JSON."""
        return {"folder": str(self.folder), "counted": self.counted}

    @classmethod
    def from_plain(cls, values: Mapping[str, Any]) -> MemoryFile:
        """Return what `plain` gave."""
        return cls(Path(str(values["folder"])), int(values["counted"]))

    def _file(self, round: int) -> Path:
        return self.folder / f"{round}.safetensors"


class MemoryStore:
    """All devices' memories: some in main memory, the rest on disk. A device stays where it was put first."""

    def __init__(self, shared: SharedFolder, limit: float) -> None:
        """Keep `limit` bytes in main memory, give or take a round's; fewer if there is no room."""
        self._shared, self._limit, self._bytes = shared, limit, 0
        self._files: dict[int, MemoryFile] = {}
        self._lock = Lock()

    def read(self, device: int) -> Memory:
        """Return what a device remembers."""
        return self._files[device].read() if device in self._files else {}

    def file(self, device: int, size: int = 0, promised: int = 0) -> MemoryFile:
        """Return a device's memory file; a new one where `size` bytes fit after what others were `promised`."""
        known = self._files.get(device)
        return known or MemoryFile(self._folder(size, promised) / str(device))

    def files(self, devices: Iterable[int], size: int) -> list[MemoryFile]:
        """Return the files of devices that are about to write `size` bytes each at the same time."""
        files: list[MemoryFile] = []
        promised = 0
        for device in devices:
            files.append(self.file(device, size, promised))
            promised += size if device not in self._files and self._in_memory(files[-1]) else 0
        return files

    def count(self, device: int, file: MemoryFile, round: int) -> None:
        """Note that the round's update counts: if the device wrote a memory, it is the one from now on."""
        new = MemoryFile(file.folder, round)
        with self._lock:
            if not new.size():
                return
            if device not in self._files and self._in_memory(new):
                self._bytes += new.size()
            self._files[device] = new

    def memories(self) -> Iterator[tuple[int, Memory]]:
        """Yield each device and its memory, in the order of the devices."""
        return ((device, self._files[device].read()) for device in sorted(self._files))

    def restore(self, memories: Iterable[tuple[int, Memory]]) -> None:
        """Forget everything, and store these."""
        for file in self._files.values():
            shutil.rmtree(file.folder, ignore_errors=True)
        self._files, self._bytes = {}, 0
        for device, memory in memories:
            if ON_NODES in memory:
                raise BadInput("backend: the memories of this run's devices are on the nodes of a SuperLink, not here")
            file = self.file(device)
            file.write(0, memory)
            self.count(device, file, 0)

    @cached_property
    def _fast(self) -> Path:
        return self._shared.folder("memory", in_memory=True)

    @cached_property
    def _slow(self) -> Path:
        return self._shared.folder("memory-on-disk")

    def create_folders(self) -> None:
        """Create the folders now, not when the first device remembers something: other processes need to know them."""
        assert self._fast != self._slow

    def _folder(self, size: int, promised: int) -> Path:
        room = shutil.disk_usage(self._fast)  # some is left free: a file is written before the old one is removed
        fits = room.free - promised - size > max(room.total / 4, 4 * size)
        return self._fast if self._bytes < self._limit and fits else self._slow

    def _in_memory(self, file: MemoryFile) -> bool:
        return file.folder.parent == self._fast
