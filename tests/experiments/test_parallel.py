"""Runs in processes of their own: the same records as here, and nothing is lost when one of them is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from commands import PATIENCE, find_children, wait_for_lines, wait_until
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.parallel import Job, RunPool, _delay_signals
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_run, read_summary
from fedlga.experiments.run import load_for_resume, run_and_record
from run_folders import assert_same_state, read_everything, read_lines_without_seconds

TINY = preset("digits").changed({"rounds": 3, "steps_per_epoch": 1, "devices": 5, "cohort": 2, "lr": 0.1, "target": 1})
ENDLESS = 100_000_000  # rounds: no machine gets there before it is stopped


def run_here(experiment: Experiment, folder: Path) -> Path:
    for _ in run_and_record(experiment, folder):
        pass
    return folder


def find_workers() -> list[int]:
    """Return the processes of pools that this process started."""
    commands = {child: Path(f"/proc/{child}/cmdline").read_text() for child in find_children(os.getpid())}
    return [child for child, command in commands.items() if "spawn_main" in command]


def holds_open(process: int, file: Path) -> bool:
    """Return whether a process has a file open."""
    return str(file.resolve()) in {os.path.realpath(link) for link in Path(f"/proc/{process}/fd").iterdir()}


def is_running(process: int) -> bool:
    """Return whether a process is there and not a zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.fixture
def no_worker_is_left() -> Iterator[None]:
    before = set(find_workers())
    yield
    assert set(find_workers()) == before


@pytest.mark.slow
@pytest.mark.usefixtures("no_worker_is_left")
def test_a_run_in_the_pool_has_the_records_of_a_run_here(tmp_path):
    """With and without devices' memories; weights are not kept. What is finished is not run again."""
    jobs = [
        Job(TINY.changed({"method": method, "seed": seed}), tmp_path / method / f"seed-{seed}")
        for method in ("fedlga", "scaffold")
        for seed in (0, 1)
    ]
    with RunPool(2) as pool:
        outcomes = list(pool.run(jobs))
        assert sorted(str(o.job.folder) for o in outcomes) == sorted(str(job.folder) for job in jobs)
        for outcome in outcomes:
            folder = outcome.job.folder
            here = run_here(outcome.job.experiment, tmp_path / "here" / folder.relative_to(tmp_path))
            assert read_lines_without_seconds(folder) == read_lines_without_seconds(here)
            assert outcome.summary == read_summary(folder)
            expected = read_summary(here)
            assert {k: v for k, v in outcome.summary.items() if not k.startswith("seconds")} == {
                k: v for k, v in expected.items() if not k.startswith("seconds")
            }
            kept = {"experiment.toml", "inputs.json", "partition.json", "rounds.jsonl", "summary.json"}
            assert {file.name for file in folder.iterdir()} == kept

        before = {folder: read_everything(folder) for folder in (job.folder for job in jobs)}
        changed = {job.folder: (job.folder / "rounds.jsonl").stat().st_mtime_ns for job in jobs}
        again = list(pool.run([*jobs, Job(TINY.changed({"seed": 2}), tmp_path / "new")]))
        assert [o.job.folder for o in again] == [*(job.folder for job in jobs), tmp_path / "new"], "those come first"
        assert [o.summary for o in again[:4]] == [read_summary(job.folder) for job in jobs]
        assert {folder: read_everything(folder) for folder in before} == before
        assert {folder: (folder / "rounds.jsonl").stat().st_mtime_ns for folder in changed} == changed


@pytest.mark.slow
@pytest.mark.usefixtures("no_worker_is_left")
def test_runs_that_are_left_in_the_middle_go_on_to_the_same_records(tmp_path):
    """The pool is left while two of three runs go on. They stop after their round, and the third never starts."""
    jobs = [Job(TINY.changed({"rounds": ENDLESS, "seed": seed}), tmp_path / f"seed-{seed}") for seed in (1, 2, 3)]
    short = Job(TINY.changed({"method": "scaffold"}), tmp_path / "short")
    with RunPool(2) as pool:
        outcomes = pool.run([short, *jobs])
        assert next(outcomes).job == short
        for job in jobs[:2]:
            wait_for_lines(job.folder / "rounds.jsonl", 2)
    assert not jobs[2].folder.exists()
    for job in jobs[:2]:
        assert read_summary(job.folder) == {}, "it is not finished"
        assert (job.folder / "checkpoint").is_dir()
        done = len(read_run(job.folder).records)
        longer = load_for_resume(job.folder, {"rounds": done + 2})
        assert [r.round for r in run_and_record(longer, job.folder, resume=True)] == [done + 1, done + 2]
        assert_same_state(run_here(longer, tmp_path / "whole" / job.folder.name), job.folder)


@pytest.mark.slow
@pytest.mark.usefixtures("no_worker_is_left")
def test_a_run_that_was_stopped_here_is_continued_by_the_pool(tmp_path):
    e = TINY.changed({"rounds": 5, "method": "scaffold"})
    records = run_and_record(e, tmp_path / "run")
    assert next(records).round == 1
    records.close()
    first_line = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    with RunPool(1) as pool:
        (outcome,) = pool.run([Job(e, tmp_path / "run")])
    assert outcome.summary["rounds"] == 5
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes().startswith(first_line)
    assert read_lines_without_seconds(tmp_path / "run") == read_lines_without_seconds(run_here(e, tmp_path / "whole"))


def kill_and_expect_one_line(pool: RunPool, jobs: list[Job], victim_works: bool) -> None:
    """Kill a process of a pool of two while the last job goes on: the one that runs it, or the one that has no job."""
    message = "a process that ran an experiment was killed; --resume continues"
    with pytest.raises(BadInput, match=message), pool:
        outcomes = pool.run(jobs)
        for _ in jobs[1:]:
            next(outcomes)
        file = jobs[-1].folder / "rounds.jsonl"
        wait_for_lines(file, 2)
        wait_until(lambda: len(find_workers()) == 2, "two processes")
        (working,) = [worker for worker in find_workers() if holds_open(worker, file)]
        (idle,) = [worker for worker in find_workers() if worker != working]
        os.kill(working if victim_works else idle, signal.SIGKILL)
        next(outcomes)


@pytest.mark.slow
@pytest.mark.parametrize("victim_works", [True, False], ids=["at work", "idle"])
@pytest.mark.usefixtures("no_worker_is_left")
def test_a_killed_process_is_one_line_and_its_run_can_be_continued(tmp_path, victim_works):
    """Also one that waits for its next run, while it has the lock of the queue that all wait for."""
    short = Job(TINY, tmp_path / "short")
    endless = Job(TINY.changed({"rounds": ENDLESS, "seed": 1}), tmp_path / "endless")
    kill_and_expect_one_line(RunPool(2), [short, endless], victim_works)
    assert read_summary(short.folder)["finished"]
    assert read_summary(endless.folder) == {}
    rounds = max(4, count_lines(endless.folder) + 1)  # however far it came
    longer = load_for_resume(endless.folder, {"rounds": rounds})
    with RunPool(1) as pool:
        (outcome,) = pool.run([Job(longer, endless.folder)])
    assert outcome.summary["rounds"] == rounds
    whole = run_here(longer, tmp_path / "whole")
    assert read_lines_without_seconds(endless.folder) == read_lines_without_seconds(whole)


@pytest.mark.slow
@pytest.mark.usefixtures("no_worker_is_left")
def test_a_wrong_run_is_one_line_here(tmp_path):
    """A folder in which another process is at work, which only the process that runs it can see."""
    records = run_and_record(TINY, tmp_path / "run")
    next(records)
    with pytest.raises(BadInput, match=r"--out: another process is at work in '.*run'"), RunPool(1) as pool:
        list(pool.run([Job(TINY, tmp_path / "run")]))
    records.close()


@pytest.mark.slow
def test_processes_end_when_the_one_that_started_them_is_killed(tmp_path):
    """Otherwise they go on for ever, and nobody can continue their runs."""
    script = f"""
from pathlib import Path
from fedlga.experiments.config import Experiment
from fedlga.experiments.parallel import Job, RunPool
if __name__ == "__main__":
    with RunPool(1) as pool:
        list(pool.run([Job(Experiment.load(Path("e.toml")).changed({{"rounds": {ENDLESS}}}), Path("run"))]))
"""
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "e.toml").write_text(TINY.to_toml())
    process = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path)
    workers: list[int] = []
    try:
        wait_for_lines(tmp_path / "run" / "rounds.jsonl", 2)
        workers = find_children(process.pid)
    finally:
        process.kill()
        process.wait(PATIENCE)
    assert workers
    try:
        wait_until(lambda: not any(map(is_running, workers)), "the processes end")
    finally:
        for worker in filter(is_running, workers):
            os.kill(worker, signal.SIGKILL)
    e = load_for_resume(tmp_path / "run", {"rounds": count_lines(tmp_path / "run") + 1})
    list(run_and_record(e, tmp_path / "run", resume=True))
    assert read_summary(tmp_path / "run")["finished"]


def count_lines(folder: Path) -> int:
    """Return how many rounds a run has recorded, perhaps with one that was cut off."""
    return len((folder / "rounds.jsonl").read_text().splitlines())


SHOW_BLOCKED = "import signal; print(*sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, []))))"


def test_ctrl_c_waits_until_processes_are_started():
    """Also if another thread of this process gets the signal. A process that is started meanwhile has it blocked."""
    end = threading.Event()
    other = threading.Thread(target=end.wait)
    other.start()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    descriptor, blocked = signal.set_wakeup_fd(writer.fileno()), ""
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    try:
        with pytest.raises(KeyboardInterrupt), _delay_signals():
            os.kill(os.getpid(), signal.SIGINT)
            assert reader.recv(1) == bytes([signal.SIGINT]), "it has come, to the other thread"
            blocked = subprocess.run(
                [sys.executable, "-c", SHOW_BLOCKED], capture_output=True, text=True, check=True
            ).stdout
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == handlers
    finally:
        signal.set_wakeup_fd(descriptor)
        signal.signal(signal.SIGINT, handler)
        end.set()
        other.join()
        reader.close()
        writer.close()
    assert blocked.split() == [str(int(n)) for n in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)]
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
