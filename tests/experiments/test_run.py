"""Runs: what a folder holds, that a run repeats, and that it continues after an interruption to the same bits."""

from __future__ import annotations

import errno
import gc
import json
import subprocess
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

import fedlga
from commands import start, wait_until, with_startup_code
from fedlga.backends.pool.workers import Workers
from fedlga.core.settings import BadInput
from fedlga.core.types import Record
from fedlga.experiments.config import Experiment
from fedlga.experiments.folder import check_free
from fedlga.experiments.measures import summarise_run
from fedlga.experiments.presets import preset
from fedlga.experiments.records import read_run
from fedlga.experiments.run import load_for_resume, remove_weights, run_and_record
from fedlga.experiments.simulation import fit_experiment, load_data
from fedlga.learning.evaluation import TestSet
from run_folders import assert_same_state, read_everything, read_lines_without_seconds, read_weights

SMALL = preset("digits").changed({"rounds": 6, "steps_per_epoch": 1, "lr": 0.1, "target": 0.3})


def resume(folder: Path, changes: dict[str, object] | None = None) -> list[fedlga.Record]:
    return list(run_and_record(load_for_resume(folder, changes or {}), folder, resume=True))


def run_some_rounds(experiment: Experiment, folder: Path, rounds: int, workers: Workers | None = None) -> None:
    """Run the first rounds of an experiment, and stop as Ctrl-C does."""
    records = run_and_record(experiment, folder, workers=workers)
    list(islice(records, rounds))
    records.close()


def count_records() -> int:
    """Return how many records this process holds."""
    gc.collect()
    return sum(type(thing) is Record for thing in gc.get_objects())


@pytest.fixture(scope="module")
def workers() -> Iterator[Workers]:
    """Two processes for all tests of this file that need some: starting them takes seconds."""
    processes = Workers(2)
    yield processes
    processes.close()


def test_a_run_folder_holds_what_people_script_against(tmp_path):
    done = fedlga.run(SMALL.changed({"method": "scaffold"}), tmp_path / "run")
    assert {p.name for p in (tmp_path / "run").iterdir()} == {
        "experiment.toml",
        "partition.json",
        "inputs.json",
        "rounds.jsonl",
        "summary.json",
        "model.safetensors",
        "checkpoint",
    }
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    names = "method stragglers dataset seed rounds target rounds_to_target seconds_to_target "
    names += "simulated_seconds_to_target best_accuracy final_accuracy seconds_per_round"
    assert set(names.split()) <= summary.keys()
    line = json.loads((tmp_path / "run" / "rounds.jsonl").read_text().splitlines()[0])
    names = "round accuracy loss train_loss seconds simulated_seconds devices steps steps_asked"
    assert set(names.split()) <= line.keys()
    assert Experiment.load(tmp_path / "run" / "experiment.toml") == SMALL.changed({"method": "scaffold"}).resolved()
    assert done.summary["rounds"] == len(done.records) == 6
    reached = next(r for r in done.records if (r.accuracy or 0) >= 0.3)
    assert summary["rounds_to_target"] == reached.round
    assert summary["simulated_seconds_to_target"] == 5.0 * reached.round


def test_a_run_does_not_hold_its_records(tmp_path):
    """A long run has many. While it goes on there is the last one, twice at most; its summary is that of all."""
    kept, others = list[dict[str, object]](), count_records()
    for record in run_and_record(SMALL.changed({"rounds": 12}), tmp_path / "run"):
        kept.append(record.as_dict())
        assert count_records() <= others + 2
    records = [Record.from_dict(values) for values in kept]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary == {**summarise_run(read_run(tmp_path / "run").experiment, records), "compiled": summary["compiled"]}
    assert list(fedlga.load(tmp_path / "run").records) == records


def test_a_run_that_was_read_does_not_grow(tmp_path):
    """Its records are read when they are asked for, and are those that its summary is of."""
    run_some_rounds(SMALL, tmp_path / "run", 2)
    before = read_run(tmp_path / "run")
    resume(tmp_path / "run")
    assert len(before.records) == before.summary["rounds"] == 2
    assert len(read_run(tmp_path / "run").records) == 6


def test_the_saved_model_is_the_joint_model(tmp_path):
    done = fedlga.run(SMALL, tmp_path / "run")
    data = load_data(SMALL)
    _, problem = fit_experiment(SMALL.changed({"seed": 99}), data)
    problem.model.module.load_state_dict(read_weights(tmp_path / "run"))
    (right,) = TestSet(problem, data.test).score(problem.model.vector.clone()).values[:, :, 0]
    assert int(right.sum()) / len(right) == done.records[-1].accuracy


def test_two_runs_of_one_seed_differ_in_nothing_but_seconds(tmp_path):
    for name in ("a", "b"):
        fedlga.run(SMALL.changed({"method": "feddyn"}), tmp_path / name)
    assert_same_state(tmp_path / "a", tmp_path / "b")
    one, other = (json.loads((tmp_path / name / "summary.json").read_text()) for name in ("a", "b"))
    differing = {key for key in one if one[key] != other[key]}
    assert all("seconds" in key for key in differing)
    assert "simulated_seconds" not in differing


def test_another_seed_is_another_run(tmp_path):
    fedlga.run(SMALL, tmp_path / "a")
    fedlga.run(SMALL.changed({"seed": 1}), tmp_path / "b")
    assert read_lines_without_seconds(tmp_path / "a") != read_lines_without_seconds(tmp_path / "b")


@pytest.mark.parametrize("method", ["fedlga", "scaffold", "feddyn"])
@pytest.mark.parametrize("backend", ["serial", "pool"])
def test_a_run_that_was_stopped_goes_on_to_the_same_bits(tmp_path, workers, method, backend):
    experiment = SMALL.changed({"method": method})
    fedlga.run(experiment, tmp_path / "whole")
    stopped = tmp_path / "stopped"
    run_some_rounds(experiment.changed({"backend": backend}), stopped, 2, workers)
    assert json.loads((stopped / "summary.json").read_text())["finished"] is False
    resume(stopped, {"backend": "serial"})
    assert json.loads((stopped / "summary.json").read_text())["finished"] is True
    assert_same_state(tmp_path / "whole", stopped)


def test_rounds_after_the_last_checkpoint_are_done_again(tmp_path):
    fedlga.run(SMALL, tmp_path / "whole")
    folder = tmp_path / "killed"
    run_some_rounds(SMALL, folder, 2)  # a checkpoint of round 2, then two more rounds without one, and half a line
    lines = (tmp_path / "whole" / "rounds.jsonl").read_text().splitlines()
    (folder / "rounds.jsonl").write_text("\n".join([*lines[:4], lines[4][:20]]))
    resume(folder)
    assert_same_state(tmp_path / "whole", folder)


@pytest.mark.parametrize("cut", [1, 20, -1])
def test_a_last_line_that_was_cut_off_does_not_count(tmp_path, cut):
    """Also if only its newline is missing: half a line may look whole, as 12 does of 123."""
    fedlga.run(SMALL, tmp_path / "whole")
    folder = tmp_path / "killed"
    run_some_rounds(SMALL, folder, 2)
    third = (tmp_path / "whole" / "rounds.jsonl").read_bytes().splitlines(keepends=True)[2]
    with (folder / "rounds.jsonl").open("ab") as file:
        file.write(third[:cut])
    assert [r.round for r in read_run(folder).records] == [1, 2]
    assert [r.round for r in resume(folder)] == [3, 4, 5, 6]
    assert_same_state(tmp_path / "whole", folder)


def test_a_run_killed_before_its_first_checkpoint_starts_over(tmp_path):
    fedlga.run(SMALL, tmp_path / "whole")
    folder = tmp_path / "killed"
    folder.mkdir()
    (folder / "experiment.toml").write_text(SMALL.resolved().to_toml())
    (folder / "rounds.jsonl").write_text((tmp_path / "whole" / "rounds.jsonl").read_text()[:50])
    resume(folder)
    assert_same_state(tmp_path / "whole", folder)


def test_fewer_rounds_than_the_checkpoint_are_refused(tmp_path):
    folder = tmp_path / "run"
    run_some_rounds(SMALL, folder, 3)
    whole = (folder / "rounds.jsonl").read_bytes()
    lines = whole.splitlines(keepends=True)
    for rest in (b"", lines[0], lines[0] + lines[1], lines[0] + lines[1] + lines[2][:-1]):
        (folder / "rounds.jsonl").write_bytes(rest)
        before = read_everything(folder)
        message = rf"holds {rest.count(10)} rounds, and the checkpoint is of round 3; the files are left as they are"
        with pytest.raises(BadInput, match=message):
            resume(folder)
        assert read_everything(folder) == before
    (folder / "rounds.jsonl").unlink()
    with pytest.raises(BadInput, match="holds 0 rounds, and the checkpoint is of round 3"):
        resume(folder)
    assert not (folder / "rounds.jsonl").exists()
    (folder / "rounds.jsonl").write_bytes(whole)
    assert [r.round for r in resume(folder)] == [4, 5, 6]


def test_two_runs_cannot_share_a_folder(tmp_path):
    """Neither one that begins there while another is at work, nor one that would go on with it."""
    e = preset("digits").changed({"rounds": 5})
    first = run_and_record(e, tmp_path / "r")
    next(first)
    for again in (False, True):
        with pytest.raises(BadInput, match=r"another process is at work|already holds another run"):
            next(run_and_record(e, tmp_path / "r", resume=again))
    assert len(list(first)) == 4
    assert [r.round for r in read_run(tmp_path / "r").records] == [1, 2, 3, 4, 5]


def test_a_file_system_without_locks_will_do(tmp_path, monkeypatch):
    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr("fcntl.flock", no_locks)
    assert len(list(run_and_record(preset("digits").changed({"rounds": 2}), tmp_path / "r"))) == 2


@pytest.mark.slow
def test_a_process_killed_for_real_goes_on(tmp_path):
    experiment = SMALL.changed({"rounds": 120, "method": "scaffold"})
    fedlga.run(experiment, tmp_path / "whole")
    (tmp_path / "e.toml").write_text(experiment.to_toml())
    folder = tmp_path / "killed"
    words = ("run", str(tmp_path / "e.toml"), "--out", str(folder))
    # A checkpoint every round, so that the kill falls among them.
    code = "import fedlga.experiments.run\nfedlga.experiments.run.CHECKPOINT_SECONDS = 0.0\n"
    environment = with_startup_code(tmp_path / "startup", code)
    process = start(*words, folder=tmp_path, stdout=subprocess.DEVNULL, env=environment)
    try:
        wait_until((folder / "checkpoint").exists, "the first checkpoint")
    finally:
        process.kill()
        process.communicate()
    assert (folder / "experiment.toml").exists()
    resume(folder)
    assert_same_state(tmp_path / "whole", folder)


def test_a_finished_run_can_be_made_longer(tmp_path):
    fedlga.run(SMALL, tmp_path / "long")
    fedlga.run(SMALL.changed({"rounds": 3}), tmp_path / "short")
    resume(tmp_path / "short", {"rounds": 6})
    assert_same_state(tmp_path / "long", tmp_path / "short")


def test_resuming_a_finished_run_does_nothing(tmp_path):
    fedlga.run(SMALL, tmp_path / "run")
    before = read_lines_without_seconds(tmp_path / "run")
    assert resume(tmp_path / "run") == []
    assert read_lines_without_seconds(tmp_path / "run") == before


def test_what_may_not_change_when_a_run_is_resumed(tmp_path):
    fedlga.run(SMALL, tmp_path / "run")
    with pytest.raises(BadInput, match="--resume: lr cannot change in the middle of a run"):
        load_for_resume(tmp_path / "run", {"lr": 0.2})
    with pytest.raises(BadInput, match="holds no run"):
        load_for_resume(tmp_path, {})


def test_a_folder_that_already_holds_a_run(tmp_path):
    fedlga.run(SMALL, tmp_path / "run")
    before = (tmp_path / "run" / "rounds.jsonl").read_text()
    with pytest.raises(BadInput, match="already holds another run"):
        fedlga.run(SMALL.changed({"seed": 3}), tmp_path / "run")
    assert (tmp_path / "run" / "rounds.jsonl").read_text() == before


@pytest.mark.parametrize("file", ["experiment.toml", "rounds.jsonl", "comparison.toml", "tuning.toml"])
def test_a_folder_of_any_kind_is_not_free(tmp_path, file):
    check_free(tmp_path)
    check_free(tmp_path / "not there yet")
    (tmp_path / file).write_text("")
    with pytest.raises(BadInput, match=r"--out: .* already holds another run; take another folder, or --resume it"):
        check_free(tmp_path)


def test_stop_at_target(tmp_path):
    done = fedlga.run(SMALL.changed({"stop_at_target": True, "rounds": 50}), tmp_path / "run")
    assert done.summary["rounds"] == done.summary["rounds_to_target"] < 50
    assert done.summary["finished"] is True
    assert len(list(fedlga.rounds(SMALL.changed({"stop_at_target": True})))) == done.summary["rounds"]


def test_a_run_ends_with_the_round_that_reaches_the_time_limit(tmp_path):
    """A round lasts 5 simulated seconds: after two rounds 10 seconds are over, which is exactly the limit."""
    for limit, rounds in ((10.0, 2), (10.5, 3), (4.0, 1)):
        limited = SMALL.changed({"time_limit": limit})
        done = fedlga.run(limited, tmp_path / f"{limit}")
        assert (done.summary["rounds"], done.summary["simulated_seconds"]) == (rounds, 5.0 * rounds)
        assert done.summary["finished"] is True
        assert [r.round for r in fedlga.rounds(limited)] == list(range(1, rounds + 1))
    assert len(list(fedlga.rounds(SMALL.changed({"time_limit": 1000.0})))) == 6, "rounds are a limit too"


def test_a_longer_time_limit_goes_on_to_the_same_bits(tmp_path):
    limited = SMALL.changed({"method": "scaffold", "evaluate_every": 4})
    fedlga.run(limited.changed({"time_limit": 25.0}), tmp_path / "long")
    fedlga.run(limited.changed({"time_limit": 10.0}), tmp_path / "short")
    assert [r.round for r in resume(tmp_path / "short", {"time_limit": 25.0})] == [3, 4, 5]
    assert_same_state(tmp_path / "long", tmp_path / "short")
    assert Experiment.load(tmp_path / "short" / "experiment.toml").time_limit == 25.0
    assert resume(tmp_path / "short") == [], "the limit is reached"


def test_rounds_without_an_evaluation(tmp_path):
    done = fedlga.run(SMALL.changed({"evaluate_every": 4}), tmp_path / "run")
    assert [r.round for r in done.records if r.accuracy is not None] == [4, 6]


def test_a_run_that_diverges_stops_and_says_so(tmp_path):
    # What the paper prints, to the letter: not-a-number within a few rounds.
    printed = SMALL.changed({"method": "fedlga", "scale": "printed", "outlier_bound": 0, "lr": 0.05, "rounds": 60})
    done = fedlga.run(printed, tmp_path / "run")
    assert done.summary["diverged"] is True
    assert done.summary["rounds"] < 60
    assert done.records[-1].diverged
    assert "finite numbers" in (done.records[-1].note or "")
    assert done.records[-1].loss is None, "JSON knows no not-a-number"


def test_only_weights_are_removed(tmp_path):
    for name in ("checkpoint/devices", "other"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("model.safetensors", "rounds.jsonl", "summary.json"):
        (tmp_path / name).write_text("")
    remove_weights(tmp_path)
    remove_weights(tmp_path)
    assert {p.name for p in tmp_path.iterdir()} == {"other", "rounds.jsonl", "summary.json"}
