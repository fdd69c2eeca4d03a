"""Checkpoints: the aggregator's and the devices' state, to continue from."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from fedlga.core.backend import Backend
from fedlga.core.files import sync
from fedlga.core.settings import BadInput
from fedlga.core.tensors import load_tensors, save_tensors
from fedlga.core.types import Job, ServerState, Weights

if TYPE_CHECKING:
    from fedlga.core.types import Memory

EARLIER = "earlier."  # begins the names of weights that devices at work began from
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
    for round, weights in state.earlier.items():
        vectors[f"{EARLIER}{round}.w"] = weights.w
        vectors |= {} if weights.buffers is None else {f"{EARLIER}{round}.buffers": weights.buffers}
    jobs = json.dumps([dataclasses.asdict(job) for job in state.jobs])
    known = {"round": str(state.round), "layout": LAYOUT, "clock": state.clock.hex(), "jobs": jobs}
    save_tensors(new / "server.safetensors", vectors, known, durable=True)
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
    try:
        clock = float.fromhex(metadata.get("clock", "0x0p+0"))
        jobs = tuple(Job(**job) for job in json.loads(metadata.get("jobs", "[]")))
        earlier = {
            round: Weights(vectors[f"{EARLIER}{round}.w"], vectors.get(f"{EARLIER}{round}.buffers"))
            for round in sorted({job.round for job in jobs})
        }
        known = {"round": int(metadata["round"]), "clock": clock, "jobs": jobs, "earlier": earlier}
    except (KeyError, TypeError, ValueError) as error:
        raise Damaged(f"--resume: the checkpoint in {str(folder)!r} is damaged ({error})") from error
    return dataclasses.replace(start, w=vectors["w"], memory=memory, buffers=buffers, **known)
