"""Checkpoints: the aggregator's and the devices' state, to continue from, and the proof of what they are.

manifest.json lists every file with its checksum, and says what made them: the experiment, the kernel, the versions.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlga.core.backend import Backend
from fedlga.core.files import sync, write_atomically
from fedlga.core.settings import BadInput
from fedlga.core.tensors import load_tensors, save_tensors
from fedlga.core.types import Job, ServerState, Weights

if TYPE_CHECKING:
    from fedlga.core.types import Memory

EARLIER = "earlier."  # begins the names of weights that devices at work began from
LAYOUT = "3"  # of the files: which vectors there are, what policies remember, what the manifest says
WITHOUT_MANIFEST = "2"  # the layout before it
MANIFEST, SERVER, DEVICES = "manifest.json", "server.safetensors", "devices"
ASIDE = "checkpoint.damaged"  # a damaged checkpoint goes there when the run continues from the one before


@dataclass(frozen=True)
class Origin:
    """What makes a run's weights. Continued with another experiment, they would be those of no experiment."""

    experiment: Mapping[str, Any] = field(default_factory=dict[str, Any])  # plain values: what may not change
    kernel: str = ""  # what trains the devices: it decides the last bits
    versions: Mapping[str, str] = field(default_factory=dict[str, str])  # so do these


def save_checkpoint(folder: Path, state: ServerState, backend: Backend, origin: Origin) -> None:
    """Write all state. The old checkpoint stays until the new one is whole and on the disk."""
    new, old, current = (folder / name for name in ("checkpoint.new", "checkpoint.old", "checkpoint"))
    if old.exists() and not current.exists():  # an earlier save was killed between its two renames
        old.replace(current)
    shutil.rmtree(new, ignore_errors=True)
    (new / DEVICES).mkdir(parents=True)
    vectors = {"w": state.w, **{f"memory.{name}": vector for name, vector in state.memory.items()}}
    vectors |= {} if state.buffers is None else {"buffers": state.buffers}
    for round, weights in state.earlier.items():
        vectors[f"{EARLIER}{round}.w"] = weights.w
        vectors |= {} if weights.buffers is None else {f"{EARLIER}{round}.buffers": weights.buffers}
    jobs = json.dumps([dataclasses.asdict(job) for job in state.jobs])
    known = {"round": str(state.round), "layout": LAYOUT, "clock": state.clock.hex(), "jobs": jobs}
    save_tensors(new / SERVER, vectors, known, durable=True)
    for device, memory in backend.memories():
        save_tensors(new / DEVICES / f"{device}.safetensors", memory, durable=True)
    sync(new / DEVICES)
    write_atomically(new / MANIFEST, json.dumps(_make_manifest(new, origin), indent=1) + "\n")  # syncs `new` too
    shutil.rmtree(old, ignore_errors=True)
    if current.exists():
        current.replace(old)
    new.replace(current)
    sync(folder)
    shutil.rmtree(old, ignore_errors=True)


def _make_manifest(place: Path, origin: Origin) -> dict[str, Any]:
    manifest = {"files": {name: _digest(place / name) for name in _list_files(place)}, **dataclasses.asdict(origin)}
    return {**manifest, "proof": _prove(manifest)}


def _list_files(place: Path) -> list[str]:
    found = sorted(file for file in place.rglob("*") if file.is_file() and file.name != MANIFEST)
    return [file.relative_to(place).as_posix() for file in found]


def _digest(file: Path) -> str:
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def _prove(manifest: Mapping[str, Any]) -> str:
    """Return the checksum of the manifest itself."""
    values = {name: value for name, value in manifest.items() if name != "proof"}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def load_checkpoint(
    folder: Path, start: ServerState, backend: Backend, origin: Origin
) -> tuple[ServerState, list[str]]:
    """Return the state to continue from, and restore the devices; `start` if there is no checkpoint yet.

    Also return what a reader should know, in words: for example that another version of torch made it. If a checkpoint
    is damaged and the one before it is still there, that one counts, and the damaged one is put aside.
    """
    current, old = folder / "checkpoint", folder / "checkpoint.old"
    if current.is_dir() and old.is_dir():
        try:
            return _load(folder, current, start, backend, origin)
        except Damaged:
            loaded = _load(folder, old, start, backend, origin)
        # Else the next save would remove the one that is whole before it has put a new one in its place.
        shutil.rmtree(folder / ASIDE, ignore_errors=True)
        current.replace(folder / ASIDE)
        return loaded
    place = current if current.is_dir() else old
    return _load(folder, place, start, backend, origin) if place.is_dir() else (start, [])


class Damaged(BadInput):
    """A file of a checkpoint is not what was written."""

    def __init__(self, folder: Path, reason: object) -> None:
        """`folder` is the run's."""
        super().__init__(f"--resume: the checkpoint in {str(folder)!r} is damaged ({reason})")


def _check(folder: Path, place: Path, origin: Origin) -> list[str]:
    """Compare a checkpoint with its manifest and the manifest with `origin`; return what differs and does no harm."""
    try:
        manifest: Any = json.loads((place / MANIFEST).read_text(encoding="utf-8"))
        if manifest["proof"] != _prove(manifest):
            raise Damaged(folder, f"{MANIFEST} does not match its checksum")
        files: dict[str, str] = manifest["files"]
        made = Origin(manifest["experiment"], manifest["kernel"], manifest["versions"])
        if not all(isinstance(part, dict) for part in (files, made.experiment, made.versions)):
            raise TypeError("a part of it is no table")
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        if isinstance(error, Damaged):
            raise
        raise Damaged(folder, f"{MANIFEST} cannot be read") from error
    if odd := set(files) ^ set(_list_files(place)):
        name = min(odd)
        raise Damaged(folder, f"{name} is missing" if name in files else f"{name} does not belong to it")
    for name, digest in files.items():
        if _digest(place / name) != digest:
            raise Damaged(folder, f"{name} does not match its checksum")
    for name in sorted({*made.experiment, *origin.experiment}):
        before, now = made.experiment.get(name), origin.experiment.get(name)
        if before != now:
            raise BadInput(
                f"--resume: {name} is {now!r}, and was {before!r} when the checkpoint in {str(folder)!r} was made; "
                "it cannot change in the middle of a run"
            )
    words = [f"trained by {made.kernel} before, by {origin.kernel} now"] if made.kernel != origin.kernel else []
    for name, version in origin.versions.items():
        if (before := made.versions.get(name)) != version:
            words.append(f"{name} was {before} before, is {version} now")
    return words


def _is_possible(round: int, clock: float, jobs: Sequence[Job], origin: Origin) -> bool:
    """Return whether a run can have come this far; what is not would be noticed in the middle of a round only."""
    devices = origin.experiment.get("devices", math.inf)
    whole = [number for job in jobs for number in (job.device, job.round, job.steps, job.steps_asked)]
    times = [clock, *(number for job in jobs for number in (job.started, job.lasts))]
    return (
        round >= 0
        and all(type(number) is int and number >= 0 for number in whole)
        and all(type(number) in (int, float) and math.isfinite(number) and number >= 0 for number in times)
        and all(job.device < devices and job.round <= round for job in jobs)
    )


def _load(
    folder: Path, place: Path, start: ServerState, backend: Backend, origin: Origin
) -> tuple[ServerState, list[str]]:
    def load(file: Path) -> tuple[Memory, dict[str, str]]:
        try:
            return load_tensors(file)
        except Exception as error:
            raise Damaged(folder, error) from error

    def memories() -> Iterator[tuple[int, Memory]]:
        files = list((place / DEVICES).glob("*.safetensors"))
        if odd := [file.name for file in files if not file.stem.isdecimal()]:
            raise Damaged(folder, f"{odd[0]!r} is no device's memory")
        for file in sorted(files, key=lambda f: int(f.stem)):
            yield int(file.stem), load(file)[0]

    vectors, metadata = load(place / SERVER)
    # A checkpoint that has a manifest has to match it: a flipped bit can make one layout of another.
    if metadata.get("layout") == WITHOUT_MANIFEST and not (place / MANIFEST).exists():
        words = ["the checkpoint is of an earlier version, without checksums"]
    elif metadata.get("layout") in (LAYOUT, WITHOUT_MANIFEST):
        words = _check(folder, place, origin)
    else:
        raise BadInput(f"--resume: the checkpoint in {str(folder)!r} is of another version; start the run again")
    if "w" not in vectors:
        raise Damaged(folder, "it holds no weights")
    shapes = [None if v is None else v.shape for v in (vectors["w"], vectors.get("buffers"))]
    if shapes != [None if v is None else v.shape for v in (start.w, start.buffers)]:
        raise BadInput(f"--resume: the checkpoint in {str(folder)!r} belongs to another model")
    memory = {name.removeprefix("memory."): vector for name, vector in vectors.items() if name.startswith("memory.")}
    try:
        clock = float.fromhex(metadata.get("clock", "0x0p+0"))
        jobs = tuple(Job(**job) for job in json.loads(metadata.get("jobs", "[]")))
        earlier = {
            round: Weights(vectors[f"{EARLIER}{round}.w"], vectors.get(f"{EARLIER}{round}.buffers"))
            for round in sorted({job.round for job in jobs})
        }
        known = {"round": int(metadata["round"]), "clock": clock, "jobs": jobs, "earlier": earlier}
        if not _is_possible(int(metadata["round"]), clock, jobs, origin):
            raise ValueError("what it says of the run is not possible")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise Damaged(folder, error) from error
    backend.restore(memories())
    return dataclasses.replace(start, w=vectors["w"], memory=memory, buffers=vectors.get("buffers"), **known), words
