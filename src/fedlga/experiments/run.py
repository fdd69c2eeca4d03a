"""The run folder: what a run leaves on disk, and how it goes on after a break.

experiment.toml     all of it, defaults included
partition.json      how many examples of each class every device holds
rounds.jsonl        a line a round
summary.json        what one wants to know at the end
model.safetensors   the joint model, by parameter name
checkpoint/         the aggregator's and the devices' state, to go on from
"""

from __future__ import annotations

import csv
import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import shutil
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .experiment import Experiment
from .settings import BadInput
from .tensors import load_tensors, save_tensors
from .types import Record, Server

if TYPE_CHECKING:
    import pandas as pd

    from .backends.pool import Workers
    from .data.datasets import Data
    from .data.sources import Progress
    from .flower.ray import Carrier
    from .simulation import Simulation
    from .types import Backend, Memory

CHECKPOINT_SECONDS = 30.0  # what a killed run loses at most, and the round it was in
PICTURED = 1000  # devices: of more, the run folder does not say who holds what
LAYOUT = "2"  # of a checkpoint's vectors: what lies where, and what policies remember
MAY_CHANGE = (
    "rounds",
    "target",
    "stop_at_target",
    "audit",
    "backend",
    "workers",
    "memory_limit",
    "grace",
    "patience",
)  # when a run is resumed


@dataclass(frozen=True)
class Run:
    """A run that is over, or was stopped."""

    folder: Path
    experiment: Experiment
    records: Sequence[Record]
    summary: dict[str, Any]


def run(experiment: Experiment, out: str | Path, *, data_dir: str | Path | None = None) -> Run:
    """Run an experiment to its end into the folder `out`."""
    folder = Path(out)
    for _ in recorded(experiment, folder, data_dir=data_dir):
        pass
    return read(folder)


def recorded(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    data_dir: str | Path | None = None,
    data: Data | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    grid: Carrier | None = None,
    simulation: AbstractContextManager[Simulation] | None = None,
) -> Generator[Record]:
    """Run an experiment round by round and keep every round in `folder`.

    What it runs on is made from the rest, or is the `simulation` that is handed in.

    Whoever stops in the middle (a `break`, Ctrl-C between rounds) finds a folder that `resume=True` goes on from, to
    the same weights as if nothing had happened.
    """
    from .federation import rounds
    from .simulation import simulate

    e = experiment.resolved()
    if not resume:
        check_free(folder)
    making = simulation or simulate(e, data_dir=data_dir, data=data, workers=workers, progress=progress, grid=grid)
    with making as made, _held(folder, new=not resume):
        server, records = _resume(folder, e, made) if resume else (made.start, [])
        if not resume:
            _create(folder, e, made)
        saved = time.monotonic()
        # Real devices keep the memory of their last two rounds, so no more may have to be done again.
        seconds = 0.0 if grid is not None or simulation is not None else CHECKPOINT_SECONDS
        try:
            with (folder / "rounds.jsonl").open("a", encoding="utf-8") as lines:
                if not done(e, records):
                    for server, record in rounds(made.federation, server, e.rounds):  # noqa: B020
                        records.append(record)
                        lines.write(json.dumps(record.as_dict(), allow_nan=False) + "\n")
                        lines.flush()
                        if time.monotonic() - saved > seconds:
                            save_checkpoint(folder, server, made.federation.backend)
                            saved = time.monotonic()
                        yield record
                        if done(e, records):
                            break
        except GeneratorExit:
            _close(folder, e, server, records, made)
            raise
        _close(folder, e, server, records, made)


def done(e: Experiment, records: Sequence[Record]) -> bool:
    """Whether there is nothing left to do."""
    if not records:
        return False
    last = records[-1]
    reached = last.accuracy is not None and last.accuracy >= e.target
    return last.round >= e.rounds or diverged(last) or (e.stop_at_target and reached)


def diverged(record: Record) -> bool:
    """Whether the run ended because its weights were no longer numbers."""
    return record.note is not None and "no longer finite" in record.note


def summary(e: Experiment, records: Sequence[Record]) -> dict[str, Any]:
    """The run in a few numbers. Names are stable: people script against them."""
    from .audit import errors

    accuracies = [r.accuracy for r in records if r.accuracy is not None]
    hit = next((i for i, r in enumerate(records) if r.accuracy is not None and r.accuracy >= e.target), None)
    until = None if hit is None else records[: hit + 1]
    seconds = sum(r.seconds for r in records)
    return {
        "method": e.method,
        "stragglers": e.policy,
        "dataset": e.dataset,
        "seed": e.seed,
        "rounds": len(records),
        "target": e.target,
        "rounds_to_target": None if until is None else until[-1].round,
        "seconds_to_target": None if until is None else sum(r.seconds for r in until),
        "simulated_seconds_to_target": None if until is None else sum(r.simulated_seconds for r in until),
        "best_accuracy": max(accuracies, default=None),
        "final_accuracy": accuracies[-1] if accuracies else None,
        **{f"last_{name}": _last(records, name) for name in ("accuracy", "accuracy_slow", "accuracy_worst")},
        "seconds": seconds,
        "seconds_per_round": seconds / len(records) if records else None,
        "simulated_seconds": sum(r.simulated_seconds for r in records),
        **(errors(records) if e.audit else {}),
        "finished": done(e, records),
        "diverged": bool(records) and diverged(records[-1]),
        "versions": versions(),
    }


def _last(records: Sequence[Record], name: str) -> float | None:
    """The mean of the last ten evaluations: with few classes a device, accuracy jumps from round to round."""
    values = [value for r in records if (value := getattr(r, name)) is not None][-10:]
    return sum(values) / len(values) if values else None


def versions() -> dict[str, str]:
    """What made a result."""
    packages = {name: importlib.metadata.version(name) for name in ("fedlga", "torch", "numpy")}
    return {"python": platform.python_version(), **packages}


def machine() -> str:
    """What it ran on, in a few words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text(encoding="utf-8").splitlines() if info.exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return f"{os.cpu_count()} cores of {model or platform.machine()}"


def read(folder: Path) -> Run:
    """A run from its folder."""
    experiment = Experiment.load(folder / "experiment.toml")
    records = _records(folder)
    return Run(folder, experiment, records, summary(experiment, records))


def frame(records: Sequence[Record]) -> pd.DataFrame:
    """Records as a pandas DataFrame, a row a round."""
    try:
        import pandas as pd
    except ImportError as error:
        raise BadInput("frame: pandas is not installed; pip install 'fedlga[pandas]'") from error
    return pd.DataFrame([r.as_dict() for r in records]).set_index("round")


def check_free(folder: Path) -> None:
    """A run needs a folder of its own that can be written to. Leaves no trace."""
    try:
        if folder.exists() and not folder.is_dir():
            raise BadInput(f"--out: {str(folder)!r} is a file; it takes a folder")
        for ours in ("experiment.toml", "rounds.jsonl", "comparison.toml"):
            if (folder / ours).exists():
                raise BadInput(f"--out: {str(folder)!r} already holds another run; take another folder, or --resume it")
        there = next(p for p in (folder, *folder.resolve().parents) if p.exists())
        if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
            raise BadInput(f"--out: cannot write to {str(there)!r} ({_not_writable(there)})")
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(folder)!r} ({error.strerror})") from error


def _not_writable(there: Path) -> str:
    return "Permission denied" if there.is_dir() else "Not a directory"


def table_as_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same names as CSV."""
    text = io.StringIO()
    if rows:
        writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return text.getvalue()


def write_atomically(path: Path, text: str) -> None:
    """The old text or the new, never half of it."""
    half = path.with_name(path.name + ".half")
    half.write_text(text, encoding="utf-8")
    half.replace(path)


@contextmanager
def _held(folder: Path, *, new: bool) -> Generator[None]:
    """A run's folder for one process alone. The system lets go of it when the process ends, however it does."""
    try:
        import fcntl
    except ImportError:  # Windows: whoever starts two runs into one folder there is not told
        yield
        return
    try:
        folder.mkdir(parents=True, exist_ok=True)
        here = os.open(folder, os.O_RDONLY)
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(folder)!r} ({error.strerror})") from error
    try:
        try:
            fcntl.flock(here, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise BadInput(f"--out: another process is at work in {str(folder)!r}") from error
        except OSError:
            pass  # a file system without locks, such as some over a network: there nobody is told either
        if new:
            check_free(folder)  # once more: somebody may have begun since
        yield
    finally:
        os.close(here)


def _create(folder: Path, e: Experiment, simulation: Simulation) -> None:
    from .data.partition import counts

    devices = simulation.devices
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if devices is not None and e.devices <= PICTURED:
            labels = devices.labels.numpy()
            held = counts(devices.parts, labels, int(labels.max()) + 1)
            write_atomically(folder / "partition.json", json.dumps({"counts": held.tolist()}) + "\n")
        write_atomically(folder / "experiment.toml", e.to_toml())
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(folder)!r} ({error.strerror})") from error


def made_with(folder: Path) -> dict[str, str]:
    """The versions that made a run, where its summary says."""
    file = folder / "summary.json"
    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))["versions"]) if file.is_file() else {}
    except (ValueError, TypeError, KeyError):
        return {}


def partition_of(folder: Path) -> list[list[int]] | None:
    """How many examples of each class every device of a run holds; None where the folder does not say."""
    file = folder / "partition.json"
    try:
        return json.loads(file.read_text(encoding="utf-8"))["counts"] if file.is_file() else None
    except (ValueError, TypeError, KeyError):
        return None


def _records(folder: Path) -> list[Record]:
    """The rounds of a folder; a last line that a kill cut short does not count."""
    file = folder / "rounds.jsonl"
    records: list[Record] = []
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines() if file.exists() else ():
        try:
            records.append(Record.from_dict(json.loads(line)))
        except (ValueError, TypeError, KeyError, AttributeError):
            break
    return records


def resumable(folder: Path, changes: dict[str, Any]) -> Experiment:
    """The experiment of a folder to go on with; only what does not change the past may be changed."""
    if not (folder / "experiment.toml").is_file():
        raise BadInput(f"--resume: {str(folder)!r} holds no run; it takes the folder of one")
    if fixed := [name for name in changes if name not in MAY_CHANGE]:
        raise BadInput(
            f"--resume: {', '.join(fixed)} cannot change in the middle of a run; only {', '.join(MAY_CHANGE)}"
        )
    return Experiment.load(folder / "experiment.toml").changed(changes)


def _resume(folder: Path, e: Experiment, simulation: Simulation) -> tuple[Server, list[Record]]:
    """Go back to the last checkpoint, and forget the rounds after it: they will be the same again."""
    server = load_checkpoint(folder, simulation.start, simulation.federation.backend)
    records = [r for r in _records(folder) if r.round <= server.round]
    write_atomically(folder / "rounds.jsonl", "".join(json.dumps(r.as_dict()) + "\n" for r in records))
    write_atomically(folder / "experiment.toml", e.to_toml())
    return server, records


def _close(folder: Path, e: Experiment, server: Server, records: Sequence[Record], simulation: Simulation) -> None:
    save_checkpoint(folder, server, simulation.federation.backend)
    simulation.model.vector.copy_(server.w)
    state = {name: tensor.clone() for name, tensor in simulation.model.module.state_dict().items()}
    save_tensors(folder / "model.safetensors", state)
    compiled = simulation.devices is not None and simulation.devices.kernel is not None  # whose last bits are its own
    found = {**summary(e, records), "compiled": compiled}
    write_atomically(folder / "summary.json", json.dumps(found, indent=2) + "\n")


def save_checkpoint(folder: Path, server: Server, backend: Backend) -> None:
    """Keep all state. The old checkpoint stays until the new one is whole."""
    new, old, current = (folder / name for name in ("checkpoint.new", "checkpoint.old", "checkpoint"))
    if old.exists() and not current.exists():  # an earlier save was killed between its two renames
        old.replace(current)
    shutil.rmtree(new, ignore_errors=True)
    (new / "devices").mkdir(parents=True)
    vectors = {"w": server.w, **{f"memory.{name}": vector for name, vector in server.memory.items()}}
    save_tensors(new / "server.safetensors", vectors, {"round": str(server.round), "layout": LAYOUT})
    for device, memory in backend.memories():
        save_tensors(new / "devices" / f"{device}.safetensors", memory)
    shutil.rmtree(old, ignore_errors=True)
    if current.exists():
        current.replace(old)
    new.replace(current)
    shutil.rmtree(old, ignore_errors=True)


def load_checkpoint(folder: Path, start: Server, backend: Backend) -> Server:
    """The state to go on from; the start, where a run was killed before its first checkpoint."""
    whole = [c for name in ("checkpoint", "checkpoint.old") if (c := folder / name).is_dir()]
    if not whole:
        return start

    def memories() -> Iterator[tuple[int, Memory]]:
        for file in sorted((whole[0] / "devices").glob("*.safetensors"), key=lambda f: int(f.stem)):
            yield int(file.stem), load_tensors(file)[0]

    try:
        vectors, metadata = load_tensors(whole[0] / "server.safetensors")
    except Exception as error:
        raise BadInput(f"--resume: the checkpoint in {str(folder)!r} is damaged ({error})") from error
    if metadata.get("layout") != LAYOUT:
        raise BadInput(f"--resume: the checkpoint in {str(folder)!r} is of an earlier version; start the run again")
    if vectors["w"].shape != start.w.shape:
        raise BadInput(f"--resume: the checkpoint in {str(folder)!r} belongs to another model")
    backend.restore(memories())
    memory = {name.removeprefix("memory."): vector for name, vector in vectors.items() if name != "w"}
    return dataclasses.replace(start, round=int(metadata["round"]), w=vectors["w"], memory=memory)
