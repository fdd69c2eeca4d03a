"""Many runs at once, one a core: each run is one process that trains its devices one after the other.

For many short runs this is faster than the pool, where the processes of one run wait for each other in every round.
The results are the same to the last bit.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedlga.core.process import count_cores, keep_freed_memory
from fedlga.core.settings import BadInput
from fedlga.experiments.config import OWN, Experiment
from fedlga.experiments.records import EXPERIMENT, read_summary
from fedlga.experiments.run import remove_weights, run_and_record
from fedlga.experiments.tracking import Track, Tracking, make_trackers

if TYPE_CHECKING:
    from fedlga.learning.reading import TaskData


@dataclass(frozen=True)
class Job:
    """One run and its folder."""

    experiment: Experiment
    folder: Path


@dataclass(frozen=True)
class Outcome:
    """A run that is over; `summary` is empty if it was stopped before its end."""

    job: Job
    summary: dict[str, Any]
    notes: Sequence[str] = ()  # of its trackers


class RunPool:
    """Processes that do runs, one run at a time each. Use as a context manager.

    At its end, the runs that are going on stop after their round; they can be continued.
    """

    def __init__(self, processes: int = 0, data_dir: str | Path | None = None, track: Track | None = None) -> None:
        """Start `processes` when they are first needed; 0: one a core. `track` names what follows every run."""
        context = multiprocessing.get_context("spawn")
        self._stop = context.Event()
        self._executor = ProcessPoolExecutor(
            processes or count_cores(), context, _prepare_process, (self._stop, data_dir, track)
        )

    def __enter__(self) -> RunPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._executor.shutdown(cancel_futures=True)

    def run(self, jobs: Sequence[Job]) -> Iterator[Outcome]:
        """Do the runs, and yield each when it is over.

        A run that is there and finished is not run again; one that was interrupted continues.
        """
        missing: list[Job] = []
        for job in jobs:
            if summary := read_summary(job.folder):
                yield Outcome(job, summary)
            else:
                missing.append(job)
        try:
            with _delay_signals():
                job_of = {self._executor.submit(_run_job, job): job for job in missing}
            for future in as_completed(job_of):
                yield Outcome(job_of[future], *future.result())
        except BrokenProcessPool as error:
            raise BadInput("a process that ran an experiment was killed; --resume continues") from error


_SIGNALS = [signal.SIGINT, signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else [])]
_stop: Event | None = None
_data_dir: str | Path | None = None
_track: Track | None = None


@contextmanager
def _delay_signals() -> Generator[None]:
    """Let Ctrl-C wait while processes are started: here it comes afterwards, there it cannot interrupt the imports."""
    if not hasattr(signal, "pthread_sigmask") or threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []  # another thread of this process may take the signal: blocking it here is not enough
    handlers = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _SIGNALS}
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)  # a new process begins with the same ones blocked
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for number in received:
            signal.raise_signal(number)


def _prepare_process(stop: Event, data_dir: str | Path | None, track: Track | None) -> None:
    global _stop, _data_dir, _track
    _stop, _data_dir, _track = stop, data_dir, track
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the process that started this one says when to stop
    if hasattr(os, "setsid"):
        os.setsid()  # a Ctrl-C in the terminal does not come here, so the executor's SIGTERM need not be ignored
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()


def _end_with_parent() -> None:
    """End this process when the one that started it was killed: nobody would stop it, and it keeps its folder."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run_job(job: Job) -> tuple[dict[str, Any], list[str]]:
    """Return the summary of a run, empty if it was stopped, and what its trackers had to say."""
    notes: list[str] = []
    assert _stop is not None
    if _stop.is_set():  # the executor had handed it to this process already
        return {}, notes
    e, folder = job.experiment, job.folder
    trackers = make_trackers(_track)
    tracking = Tracking(trackers, notes.append) if trackers else None
    records = run_and_record(e, folder, resume=(folder / EXPERIMENT).exists(), data=_load(e), tracking=tracking)
    for _ in records:
        if _stop.is_set():
            break
    records.close()
    if summary := read_summary(folder):
        remove_weights(folder)
    return summary, notes


def _load(e: Experiment) -> TaskData:
    """Return the data of an experiment; the last one is kept, for the next run with the same data."""
    names = ("task", "dataset", "model", "normalise", "resize")
    own = {} if e.dataset == OWN else e.settings("dataset")
    return _load_for((*(getattr(e, name) for name in names), tuple(sorted(own.items()))), _Ignored(e))


@dataclass(frozen=True, eq=False)
class _Ignored:
    """An argument that is no part of a cache's key."""

    experiment: Experiment

    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


@lru_cache(maxsize=1)
def _load_for(key: tuple[Any, ...], ignored: _Ignored) -> TaskData:
    from fedlga.experiments.simulation import load_data

    return load_data(ignored.experiment, _data_dir)
