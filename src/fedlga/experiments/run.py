"""Running an experiment into a folder, and continuing it after an interruption.

experiment.toml     all of it, defaults included
partition.json      how many examples of each class every device holds
inputs.json         what is done to raw inputs before the model gets them, for predictions
rounds.jsonl        a line a round
summary.json        the run in a few numbers
model.safetensors   the joint model, by parameter name
checkpoint/         the aggregator's and the devices' state, to continue from, and what made them
task.py             a copy of the task's file, if it has one
"""

from __future__ import annotations

import itertools
import json
import math
import os
import shlex
import shutil
import time
import tomllib
import warnings
from collections.abc import Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from fedlga.core.files import sync, try_writing, write_atomically
from fedlga.core.settings import BadInput, Stopped
from fedlga.core.tensors import save_tensors
from fedlga.core.types import Record, ServerState
from fedlga.experiments.checkpoint import Origin, load_checkpoint, save_checkpoint
from fedlga.experiments.config import Experiment
from fedlga.experiments.folder import check_free, choose_folder, lock_folder
from fedlga.experiments.measures import EndWatch, find_versions, summarise_run
from fedlga.experiments.prediction import INPUTS, describe_inputs
from fedlga.experiments.records import (
    EXPERIMENT,
    PARTITION,
    ROUNDS,
    SUMMARY,
    Run,
    count_rounds,
    iterate_records,
    read_lines,
    read_run,
)
from fedlga.experiments.tracking import Track, Tracking, make_trackers

if TYPE_CHECKING:
    from fedlga.backends.flower.ray import MessageGrid
    from fedlga.backends.pool.workers import Workers
    from fedlga.experiments.simulation import Simulation
    from fedlga.learning.datasets.sources import Progress
    from fedlga.learning.reading import TaskData
    from fedlga.learning.task import Task

CHECKPOINT_SECONDS = 30.0  # between checkpoints: a killed run loses at most this, and the round it was in
TASK = "task.py"
ASIDE = "rounds.aside.jsonl"  # rounds after the checkpoints that a run was continued from, one time after the other
MOST_DEVICES_LISTED = 1000  # partition.json is not written for more
MAY_CHANGE = (
    "rounds",
    "time_limit",
    "target",
    "stop_at_target",
    "audit",
    "record",
    "backend",
    "workers",
    "memory_limit",
    "grace",
    "patience",
    "bind_devices",
)  # when a run is resumed


def run(
    experiment: Experiment,
    out: str | Path | None = None,
    *,
    task: Task | None = None,
    resume: bool = False,
    data_dir: str | Path | None = None,
    track: Track | None = None,
) -> Run:
    """Run an experiment to its end into the folder `out`; without one, into a new folder in runs/.

    `task` is what is learned, if it is not in the experiment. `resume` continues the run that is in `out`. `track`
    names trackers that follow it: 'tensorboard', 'csv, wandb project=mine', or your own.
    """
    from fedlga.experiments.simulation import bind_task

    if resume and out is None:
        raise BadInput("resume: got it without a folder; it takes the folder of a run")
    e = bind_task(experiment, task)
    folder = choose_folder(out, "runs", f"{e.method}-{e.subject}-seed{e.seed}")
    for _ in record_rounds(experiment, folder, resume=resume, task=task, data_dir=data_dir, track=track):
        pass
    return read_run(folder)


def record_rounds(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    task: Task | None = None,
    data_dir: str | Path | None = None,
    track: Track | None = None,
) -> Generator[Record]:
    """Run an experiment round by round into a folder, or go on with the run that is there."""
    from fedlga.experiments.simulation import bind_task

    e = bind_task(experiment, task)
    if resume:
        e = load_for_resume(folder, _find_changes(experiment, folder))
    tracking = Tracking(make_trackers(track), warn) if track else None
    yield from run_and_record(e, folder, resume=resume, task=task, data_dir=data_dir, tracking=tracking)


def warn(text: str) -> None:
    """Warn a caller in Python."""
    warnings.warn(text, stacklevel=3)


def _find_changes(experiment: Experiment, folder: Path) -> dict[str, Any]:
    """Return what an experiment was given that differs from the run to be continued."""
    if not (folder / EXPERIMENT).is_file():
        return {}
    before = Experiment.load(folder / EXPERIMENT)
    given: frozenset[str] = experiment.__dict__["_given"] - {"task", "dataset", "model", "options"}
    wanted = {name: getattr(experiment, name) for name in given}
    return {name: value for name, value in wanted.items() if value != getattr(before, name) and value is not None}


def run_and_record(
    experiment: Experiment,
    folder: Path,
    *,
    resume: bool = False,
    task: Task | None = None,
    data_dir: str | Path | None = None,
    data: TaskData | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    grid: MessageGrid | None = None,
    simulation: AbstractContextManager[Simulation] | None = None,
    tracking: Tracking | None = None,
) -> Generator[Record]:
    """Run an experiment round by round and write every round into `folder`.

    The federation is built from the other arguments, or is the `simulation` that is passed in.

    If the caller stops in the middle (a `break`, Ctrl-C between rounds), `resume=True` continues from the folder, to
    the same weights as without the interruption.
    """
    from fedlga.core.round import run_rounds
    from fedlga.experiments.simulation import bind_task, simulate

    e = bind_task(experiment, task).resolved()
    if resume:
        count_rounds(folder)  # a file that cannot be understood is refused before anything else is touched
        _check_task(folder, e)
    else:
        check_free(folder)
    opening = simulation or simulate(
        e, task=task, data_dir=data_dir, data=data, workers=workers, progress=progress, grid=grid
    )
    with opening as opened, lock_folder(folder, new=not resume):
        e = opened.experiment
        origin = _find_origin(e, opened)
        words = list[str]()  # for the first record of a run that is continued
        end = EndWatch(e)
        state = opened.start
        if resume:
            state, words = _resume(folder, e, opened, origin, end)
        if tracking is not None:  # before anything is written: it may refuse
            tracking.start(e, folder, state.round)
        if not resume:
            _create(folder, e, opened)
        # Real devices keep the memory of their last two rounds, so at most one may have to be repeated.
        between = 0.0 if grid is not None or simulation is not None else CHECKPOINT_SECONDS
        saved = time.monotonic()
        try:
            with _open_lines(folder) as lines:
                if not end.over:
                    for after, record in run_rounds(opened.federation, state, e.rounds):
                        state = state if record.diverged else after  # the last weights that are numbers are kept
                        if words:
                            record = _add_note(record, f"continued: {', '.join(words)}")  # noqa: PLW2901
                            words = []
                        end.add(record)
                        with _writing(folder):
                            lines.write(json.dumps(record.as_dict(), allow_nan=False) + "\n")
                            lines.flush()
                            if time.monotonic() - saved > between:
                                sync(folder / ROUNDS)  # a checkpoint never goes beyond the records on the disk
                                save_checkpoint(folder, state, opened.federation.backend, origin)
                                saved = time.monotonic()
                        if tracking is not None:
                            tracking.log(record)
                        yield record
                        if end.over:
                            break
        except GeneratorExit:
            _close(folder, e, state, opened, origin)
            raise
        except Exception:  # what was done before it is kept, if that can still be written
            with suppress(Exception):
                _close(folder, e, state, opened, origin)
            raise
        else:
            _close(folder, e, state, opened, origin)
        finally:
            if tracking is not None:
                tracking.end(_summarise_if_readable(folder, e))


def load_for_resume(folder: Path, changes: Mapping[str, Any]) -> Experiment:
    """Return the experiment of a folder to continue; only what does not change the past may be changed."""
    if not (folder / EXPERIMENT).is_file():
        raise BadInput(f"--resume: {str(folder)!r} holds no run; it takes the folder of one")
    if fixed := [name for name in changes if name not in MAY_CHANGE]:
        raise BadInput(
            f"--resume: {', '.join(fixed)} cannot change in the middle of a run; only {', '.join(MAY_CHANGE)}"
        )
    e = Experiment.load(folder / EXPERIMENT)
    if missing := {"dataset", "method", "rounds", "seed", "backend"} - set(e.__dict__["_given"]):
        raise BadInput(
            f"--resume: {str(folder / EXPERIMENT)!r} is not whole (no {sorted(missing)[0]}); it cannot be continued"
        )
    if e.lr_schedule == "cosine" and changes.get("rounds", e.rounds) != e.rounds:
        raise BadInput("--resume: rounds cannot change with lr_schedule 'cosine', which depends on them")
    changed = e.changed(changes)  # raises BadInput for a value of a wrong type
    done = count_rounds(folder)
    if "rounds" in changes and changed.rounds < done:
        raise BadInput(f"--resume: got rounds {changed.rounds}, and {done} are done; it takes {done} or more")
    try:
        try_writing(folder)
    except OSError as error:
        raise BadInput(f"--resume: cannot write to {str(folder)!r} ({error.strerror})") from error
    return changed


def _create(folder: Path, e: Experiment, simulation: Simulation) -> None:
    split = simulation.split
    try:
        if split is not None and e.devices <= MOST_DEVICES_LISTED:
            counts = [[len(part)] for part in split.parts] if split.held is None else split.held.tolist()
            write_atomically(folder / PARTITION, json.dumps({"counts": counts}) + "\n")
        if e.task is not None and Path(e.task).is_file():
            write_atomically(folder / TASK, Path(e.task).read_bytes())
        write_atomically(folder / INPUTS, describe_inputs(e, split).as_text())
        write_atomically(folder / EXPERIMENT, e.to_toml())
    except OSError as error:
        raise BadInput(f"--out: cannot write to {str(folder)!r} ({error.strerror})") from error


def _check_task(folder: Path, e: Experiment) -> None:
    """Refuse to continue with a task's file that is not the one that the run was started with."""
    if e.task is None or not (folder / TASK).is_file() or not Path(e.task).is_file():
        return
    if Path(e.task).read_bytes() != (folder / TASK).read_bytes():
        raise BadInput(
            f"--resume: {Path(e.task).name} has changed since the run was started; the run's copy is {folder / TASK}"
        )


@contextmanager
def _writing(folder: Path) -> Generator[None]:
    """Turn what the file system refuses into one line that says what to do: the folder can be continued."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise Stopped(
            f"cannot write to {str(folder)!r} ({reason}); once that is mended, "
            f"fedlga run --resume {shlex.quote(str(folder))} goes on"
        ) from error


@contextmanager
def _open_lines(folder: Path) -> Generator[TextIO]:
    """Open rounds.jsonl to add to it. What could not be written when it failed is not tried again when it is closed."""
    with _writing(folder):
        lines = (folder / ROUNDS).open("a", encoding="utf-8")
    try:
        yield lines
    finally:
        with suppress(OSError):
            lines.close()


def _find_origin(e: Experiment, simulation: Simulation) -> Origin:
    """Return what makes this run's weights. Its values are plain, as they come back from a file."""
    values = json.loads(json.dumps(tomllib.loads(e.to_toml())))
    may_change = {*MAY_CHANGE, "task"}  # the task's file is compared by its content
    devices = simulation.devices
    kernel = "nodes" if devices is None else "torch" if devices.kernel is None else "the compiled kernel"
    return Origin({name: value for name, value in values.items() if name not in may_change}, kernel, find_versions())


def _add_note(record: Record, words: str) -> Record:
    return replace(record, note=f"{record.note}; {words}" if record.note else words)


def _resume(
    folder: Path, e: Experiment, simulation: Simulation, origin: Origin, watch: EndWatch
) -> tuple[ServerState, list[str]]:
    """Go back to the last checkpoint, and put the rounds after it aside: they will be the same again."""
    state, words = load_checkpoint(folder, simulation.start, simulation.federation.backend, origin)
    kept, end = 0, 0
    for record, position in itertools.islice(read_lines(folder), state.round):
        kept, end = record.round, position
        watch.add(record)
    if kept < state.round:
        raise BadInput(
            f"--resume: {str(folder / ROUNDS)!r} holds {kept} rounds, and the checkpoint is of round "
            f"{state.round}; the files are left as they are"
        )
    if (folder / ROUNDS).exists():
        with (folder / ROUNDS).open("rb") as lines:
            lines.seek(end)
            after = lines.read()
        if after:
            with (folder / ASIDE).open("ab") as aside:  # what was put there before may be all that is left of it
                aside.write(after if after.endswith(b"\n") else after + b"\n")
            sync(folder / ASIDE)
            sync(folder)
            os.truncate(folder / ROUNDS, end)
    write_atomically(folder / EXPERIMENT, e.to_toml())
    return state, words


def remove_weights(folder: Path) -> None:
    """Remove what only an unfinished run needs: the weights of hundreds of runs would fill a disk."""
    shutil.rmtree(folder / "checkpoint", ignore_errors=True)
    (folder / "model.safetensors").unlink(missing_ok=True)


def _close(
    folder: Path,
    e: Experiment,
    state: ServerState,
    simulation: Simulation,
    origin: Origin,
) -> None:
    with _writing(folder):
        sync(folder / ROUNDS)  # an error if the folder is gone: it must not come back with a part of the run
        save_checkpoint(folder, state, simulation.federation.backend, origin)
        simulation.model.load(state.w, state.buffers)
        weights = {name: tensor.clone() for name, tensor in simulation.model.module.state_dict().items()}
        save_tensors(folder / "model.safetensors", weights, durable=True)
        kernel = simulation.devices is not None and simulation.devices.kernel is not None
        compiled = kernel or e.compile == "on"  # its last bits are its own
        summary = {**summarise_run(e, iterate_records(folder)), "compiled": compiled}
        finite = {name: _as_json(value) for name, value in summary.items()}
        write_atomically(folder / SUMMARY, json.dumps(finite, indent=2, allow_nan=False) + "\n")


def _summarise_if_readable(folder: Path, e: Experiment) -> dict[str, Any]:
    """Return the summary for trackers; that of no rounds if the folder is gone, which another error reports."""
    try:
        return summarise_run(e, iterate_records(folder))
    except BadInput:
        return summarise_run(e, [])


def _as_json(value: Any) -> Any:
    """Return a value of the summary for JSON, which has no NaN and no infinity."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
