"""Tensors and files that several processes share: files in memory, mapped by each process."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch

try:
    import fcntl
except ImportError:  # Windows: folders of killed processes stay
    fcntl = None

PREFIX, OWNER = "fedlga-", "fedlga.owner"

_DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        *(torch.float32, torch.float16, torch.bfloat16, torch.float64, torch.bool),
        *(torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.uint16, torch.uint32, torch.uint64),
    )
}


@dataclass(frozen=True)
class SharedTensor:
    """Where a shared tensor is; small enough to be sent as JSON."""

    path: str
    shape: tuple[int, ...]
    dtype: str = "float32"

    def open(self) -> torch.Tensor:
        """Return the tensor itself; all processes that opened it see what is written to it."""
        count = 1
        for size in self.shape:
            count *= size
        flat = torch.from_file(self.path, shared=True, size=count, dtype=_DTYPES[self.dtype], device="cpu")
        return flat.view(self.shape)

    def plain(self) -> dict[str, Any]:
        """Return it as values for JSON."""
        return asdict(self)


class SharedFolder:
    """A private folder for shared tensors and files: in memory if there is room, else on disk.

    `close` removes it; so does the end of the process, or of the last reference to this object. What a process leaves
    that was killed is removed by the next one.
    """

    def __init__(self) -> None:
        self._folders: list[Path] = []
        self._locks: list[int] = []
        self._count = 0
        self.close = weakref.finalize(self, _remove, self._folders, self._locks)

    def new(self, shape: tuple[int, ...], dtype: str = "float32") -> tuple[SharedTensor, torch.Tensor]:
        """Return a new shared tensor, and where it is."""
        size = _DTYPES[dtype].itemsize
        for side in shape:
            size *= side
        self._count += 1
        path = self._reserve(f"{self._count}", max(size, 1))
        shared = SharedTensor(str(path), shape, dtype)
        return shared, shared.open()

    def share(self, tensor: torch.Tensor) -> tuple[SharedTensor, torch.Tensor]:
        """Return a copy of a tensor that other processes can open, and where it is."""
        shared, copy = self.new(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
        copy.copy_(tensor)
        return shared, copy

    def folder(self, name: str, *, in_memory: bool = False) -> Path:
        """Return a private subfolder for files: on disk, or in memory if the system has files in memory."""
        path = self._parent(_memory_files() if in_memory else None) / name
        path.mkdir(exist_ok=True)
        return path

    def folders(self) -> list[str]:
        """Return all that `close` removes, for a process that outlives this one."""
        return [str(folder) for folder in self._folders]

    def _reserve(self, name: str, size: int) -> Path:
        """Return a file with `size` bytes reserved: writing to an overcommitted memory file would kill the process."""
        for place in (_memory_files(), None):
            path = self._parent(place) / name
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

    def _parent(self, place: str | None) -> Path:
        parent = Path(place or tempfile.gettempdir())
        for folder in self._folders:
            if folder.parent == parent:
                return folder
        _sweep(parent)
        self._folders.append(Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent)))
        self._locks += _claim(self._folders[-1])
        return self._folders[-1]


def share_tree(shared: SharedFolder, tree: Any) -> Any:
    """Return where the tensors of a tree are, as values for JSON."""
    if isinstance(tree, Mapping):
        return {"dict": {name: share_tree(shared, inner) for name, inner in cast("Mapping[str, Any]", tree).items()}}
    if isinstance(tree, list | tuple):
        return {"tuple": [share_tree(shared, inner) for inner in cast("Sequence[Any]", tree)]}
    return {"tensor": shared.share(tree)[0].plain()}


def open_tree(description: Mapping[str, Any]) -> Any:
    """Return the tree that `share_tree` shared."""
    if "dict" in description:
        return {name: open_tree(inner) for name, inner in description["dict"].items()}
    if "tuple" in description:
        return tuple(open_tree(inner) for inner in description["tuple"])
    return SharedTensor(**description["tensor"]).open()


def _memory_files() -> str | None:
    shm = "/dev/shm"  # noqa: S108
    return shm if os.access(shm, os.W_OK) else None


def _remove(folders: list[Path], locks: list[int]) -> None:
    """Remove the files. Tensors that are open stay valid until their process closes them."""
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)
    for lock in locks:
        os.close(lock)
    folders.clear()
    locks.clear()


def _claim(folder: Path) -> list[int]:
    """Lock a folder's file OWNER as long as this process lives, however it ends; return the open file."""
    if fcntl is None:
        return []
    new = folder / f"{OWNER}.new"
    lock = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # a file system without locks: nobody will remove the folder
        os.close(lock)
        new.unlink()
        return []
    new.rename(folder / OWNER)  # it is never seen without its lock
    return [lock]


def _sweep(parent: Path) -> None:
    """Remove the folders of processes that are gone: theirs is the file OWNER, and nobody holds its lock."""
    if fcntl is None:
        return
    for file in parent.glob(f"{PREFIX}*/{OWNER}"):
        with contextlib.suppress(OSError):
            status = file.parent.lstat()
            if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
                continue
            lock = os.open(file, os.O_RDWR | os.O_NOFOLLOW)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(file.parent, ignore_errors=True)
            finally:
                os.close(lock)
