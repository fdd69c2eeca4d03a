"""Checkpoints: the aggregator's and the devices' state, to continue from."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedlga.core.backend import Backend
from fedlga.core.files import sync
from fedlga.core.settings import BadInput
from fedlga.core.tensors import load_tensors, save_tensors
from fedlga.core.types import ServerState

if TYPE_CHECKING:
    from fedlga.core.types import Memory

LAYOUT = "2"  # of the files: which vectors there are, and what policies remember


def save_checkpoint(folder: Path, state: ServerState, backend: Backend) -> None:
    """Write all state. The old checkpoint stays until the new one is whole and on the disk."""
    new, old, current = (folder / name for name in ("checkpoint.new", "checkpoint.old", "checkpoint"))
    if old.exists() and not current.exists():  # an earlier save was killed between its two renames
        old.replace(current)
    shutil.rmtree(new, ignore_errors=True)
    (new / "devices").mkdir(parents=True)
    vectors = {"w": state.w, **{f"memory.{name}": vector for name, vector in state.memory.items()}}
    vectors |= {} if state.buffers is None else {"buffers": state.buffers}
    save_tensors(new / "server.safetensors", vectors, {"round": str(state.round), "layout": LAYOUT}, durable=True)
    for device, memory in backend.memories():
        save_tensors(new / "devices" / f"{device}.safetensors", memory, durable=True)
    for written in (new / "devices", new):
        sync(written)
    shutil.rmtree(old, ignore_errors=True)
    if current.exists():
        current.replace(old)
    new.replace(current)
    sync(folder)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: Path, start: ServerState, backend: Backend) -> ServerState:
    """Return the state to continue from, and restore the devices; `start` if there is no checkpoint yet.

    If a checkpoint is damaged and the one before it is still there, that one counts.
    """
    there = [c for name in ("checkpoint", "checkpoint.old") if (c := folder / name).is_dir()]
    for place in there[:-1]:
        try:
            return _load(folder, place, start, backend)
        except Damaged:
            continue
    return _load(folder, there[-1], start, backend) if there else start


class Damaged(BadInput):
    """A file of a checkpoint cannot be read."""


def _load(folder: Path, place: Path, start: ServerState, backend: Backend) -> ServerState:
    def load(file: Path) -> tuple[Memory, dict[str, str]]:
        try:
            return load_tensors(file)
        except Exception as error:
            raise Damaged(f"--resume: the checkpoint in {str(folder)!r} is damaged ({error})") from error

    def memories() -> Iterator[tuple[int, Memory]]:
        for file in sorted((place / "devices").glob("*.safetensors"), key=lambda f: int(f.stem)):
            yield int(file.stem), load(file)[0]

    vectors, metadata = load(place / "server.safetensors")
    if metadata.get("layout") != LAYOUT:
        raise BadInput(f"--resume: the checkpoint in {str(folder)!r} is of an earlier version; start the run again")
    if vectors["w"].shape != start.w.shape:
        raise BadInput(f"--resume: the checkpoint in {str(folder)!r} belongs to another model")
    buffers = vectors.get("buffers")
    if (None if buffers is None else buffers.shape) != (None if start.buffers is None else start.buffers.shape):
        raise BadInput(f"--resume: the checkpoint in {str(folder)!r} belongs to another model")
    backend.restore(memories())
    memory = {name.removeprefix("memory."): vector for name, vector in vectors.items() if name.startswith("memory.")}
    return dataclasses.replace(start, round=int(metadata["round"]), w=vectors["w"], memory=memory, buffers=buffers)
