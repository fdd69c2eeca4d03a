"""Tensors that several processes see: files in memory, mapped by each."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

_DTYPES = {"float32": torch.float32, "int64": torch.int64, "bool": torch.bool}


@dataclass(frozen=True)
class Mapped:
    """Where a shared tensor is; small enough to be sent as JSON."""

    path: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def open(self) -> torch.Tensor:
        """The tensor itself; writing to it is seen by everyone who opened it."""
        count = 1
        for size in self.shape:
            count *= size
        flat = torch.from_file(self.path, shared=True, size=count, dtype=_DTYPES[self.dtype])
        return flat.view(self.shape)

    def plain(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


class SharedFolder:
    """A private folder for shared tensors: in memory where there is room, else on disk. `close` removes it."""

    def __init__(self) -> None:
        self._folders: list[Path] = []
        self._count = 0

    def new(self, shape: tuple[int, ...], dtype: str = "float32") -> tuple[Mapped, torch.Tensor]:
        """A new shared tensor."""
        size = torch.empty(0, dtype=_DTYPES[dtype]).element_size()
        for side in shape:
            size *= side
        self._count += 1
        path = self._reserve(f"{self._count}", max(size, 1))
        mapped = Mapped(str(path), shape, dtype)
        return mapped, mapped.open()

    def share(self, tensor: torch.Tensor) -> tuple[Mapped, torch.Tensor]:
        """A copy of a tensor that others can open."""
        mapped, copy = self.new(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        copy.copy_(tensor)
        return mapped, copy

    def folder(self, name: str, *, in_memory: bool = False) -> Path:
        """A private subfolder, for what is shared as files: on disk, or in memory where there are files in memory."""
        path = self._home(_memory_files() if in_memory else None) / name
        path.mkdir(exist_ok=True)
        return path

    def folders(self) -> list[str]:
        """All that `close` would remove, for whoever outlives us."""
        return [str(folder) for folder in self._folders]

    def close(self) -> None:
        """Remove the files. Tensors that are open stay valid until their process lets go of them."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
        self._folders = []

    def _reserve(self, name: str, size: int) -> Path:
        """A file of `size` bytes that are really there: an overcommitted memory file would kill us when written."""
        for place in (_memory_files(), None):
            path = self._home(place) / name
            with path.open("wb") as file:
                try:
                    if hasattr(os, "posix_fallocate"):
                        os.posix_fallocate(file.fileno(), 0, size)
                    else:
                        file.truncate(size)
                    return path
                except OSError:
                    if place is None:
                        raise
            path.unlink()
        raise AssertionError("unreachable")

    def _home(self, place: str | None) -> Path:
        parent = Path(place or tempfile.gettempdir())
        for folder in self._folders:
            if folder.parent == parent:
                return folder
        self._folders.append(Path(tempfile.mkdtemp(prefix="fedlga-", dir=parent)))
        return self._folders[-1]


def _memory_files() -> str | None:
    shm = "/dev/shm"  # noqa: S108
    return shm if os.access(shm, os.W_OK) else None
