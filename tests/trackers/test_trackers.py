"""Trackers with the real packages: what they hold after a run is what the run's records say."""

from __future__ import annotations

import csv
import subprocess
import sys
from pathlib import Path

import pytest

import fedlga
from fedlga.core.settings import BadInput
from fedlga.core.tracker import list_numbers
from fedlga.experiments.tracking import make_trackers
from run_folders import make_record, read_lines_without_seconds

SMALL = fedlga.preset("digits").changed({"rounds": 4, "steps_per_epoch": 1, "lr": 0.1, "evaluate_every": 2})


@pytest.fixture(autouse=True)
def local_stores(local_trackers): ...


def run_in_two_parts(folder: Path, track: str) -> fedlga.Run:
    """Return a run that was stopped after two rounds, and continued."""
    for record in fedlga.rounds(SMALL, out=folder, track=track):
        if record.round == 2:
            break
    return fedlga.run(SMALL, folder, resume=True, track=track)


def test_the_numbers_of_a_round():
    record = make_record(
        accuracy=0.5, loss=float("nan"), devices=[1, 2], slow=[1], used=[1, 2], scales={1: 2.0}, train_loss=None
    )
    numbers = list_numbers(record)
    assert numbers["accuracy"] == 0.5
    assert (numbers["slow_devices"], numbers["used_updates"], numbers["completed_updates"]) == (1.0, 2.0, 1.0)
    assert {"loss", "train_loss", "accuracy_slow"}.isdisjoint(numbers), "what was not measured is not there"


def test_csv(tmp_path):
    run = run_in_two_parts(tmp_path / "run", "csv")
    with (tmp_path / "run" / "tracked.csv").open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [int(row["round"]) for row in rows] == [1, 2, 3, 4]
    assert [float(row["accuracy"]) if row["accuracy"] else None for row in rows] == [r.accuracy for r in run.records]


@pytest.mark.slow
def test_tensorboard(tmp_path):
    run = run_in_two_parts(tmp_path / "run", "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    tracked = {event.step: event.value for event in events.Scalars("accuracy")}
    assert tracked == pytest.approx({r.round: r.accuracy for r in run.records if r.accuracy is not None})
    assert [event.step for event in events.Scalars("simulated_seconds")] == [1, 2, 3, 4]


@pytest.mark.slow
def test_mlflow(tmp_path):
    run = run_in_two_parts(tmp_path / "run", "mlflow experiment=mine")
    import mlflow

    client = mlflow.MlflowClient()
    experiment = client.get_experiment_by_name("mine")
    (tracked,) = client.search_runs([experiment.experiment_id])  # one run, although it was continued
    assert (tracked.info.status, tracked.info.run_name) == ("FINISHED", "fedlga-digits-seed0")
    assert (tracked.data.params["lr"], tracked.data.params["method"]) == ("0.1", "fedlga")
    history = client.get_metric_history(tracked.info.run_id, "accuracy")
    assert {m.step: m.value for m in history} == pytest.approx(
        {r.round: r.accuracy for r in run.records if r.accuracy is not None}
    )


@pytest.mark.slow
def test_wandb(tmp_path):
    """Offline: the file that `wandb sync` would send holds every round."""
    run = fedlga.run(SMALL, tmp_path / "run", track="wandb mode=offline project=mine")
    (file,) = (tmp_path / "run" / "wandb").glob("offline-run-*/run-*.wandb")
    tracked = read_wandb(file)
    assert [step for step, _ in tracked] == [1, 2, 3, 4]
    values = {step: float(row["accuracy"]) for step, row in tracked if "accuracy" in row}
    assert values == pytest.approx({r.round: r.accuracy for r in run.records if r.accuracy is not None})


def read_wandb(file: Path) -> list[tuple[int, dict[str, str]]]:
    """Return the steps and values of a file of Weights & Biases: protocol buffers in a log of LevelDB.

    After seven bytes, records stand in blocks of 32 KB: checksum (4 bytes), length (2), kind (1: whole, 2 to 4: the
    first part, others, the last), content.
    """
    from wandb.proto import wandb_internal_pb2

    content, position, part = file.read_bytes(), 7, b""
    rows: list[tuple[int, dict[str, str]]] = []
    while position + 7 <= len(content):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        length, kind = int.from_bytes(content[position + 4 : position + 6], "little"), content[position + 6]
        part += content[position + 7 : position + 7 + length]
        position += 7 + length
        if kind not in (1, 4):
            continue
        record = wandb_internal_pb2.Record.FromString(part)
        part = b""
        if record.WhichOneof("record_type") == "history":
            items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
            rows.append((int(items.get("_step", record.history.step.num)), items))
    return rows


def test_a_run_is_the_same_with_a_tracker(tmp_path):
    fedlga.run(SMALL, tmp_path / "plain")
    fedlga.run(SMALL, tmp_path / "tracked", track=["csv", "plugins_for_tests:Lines every=2"])
    assert read_lines_without_seconds(tmp_path / "plain") == read_lines_without_seconds(tmp_path / "tracked")
    lines = (tmp_path / "tracked" / "lines.txt").read_text().splitlines()
    assert [line.split()[0] for line in lines] == ["2", "4", "finished"]


def test_a_tracker_that_fails_does_not_end_the_run(tmp_path):
    """Round 1 is not evaluated, and this tracker wants an accuracy."""
    with pytest.warns(UserWarning, match="WantsAccuracy failed .KeyError: 'accuracy'.; the run goes on without it"):
        run = fedlga.run(SMALL, tmp_path / "run", track="plugins_for_tests:WantsAccuracy")
    assert run.summary["finished"]


def test_a_tracker_that_cannot_start_costs_nothing(tmp_path):
    with pytest.raises(BadInput, match=r"--track: NotHere cannot start \(ConnectionError: nobody answers\)"):
        fedlga.run(SMALL, tmp_path / "run", track="plugins_for_tests:NotHere")
    assert list((tmp_path / "run").iterdir()) == []
    with pytest.raises(BadInput, match="track: got it without out"):
        next(iter(fedlga.rounds(SMALL, track="csv")))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tensorbord", "--track: there is no 'tensorbord'; did you mean 'tensorboard'?"),
        ("csv fil=x", "csv.fil: there is no such field; did you mean 'file'?"),
        ("csv file=rounds.jsonl", "csv.file: got 'rounds.jsonl'; it takes a name that ends with .csv"),
        ("csv file=../other.csv", "csv.file: got '../other.csv'; it takes a name that ends with .csv"),
        ("tensorboard subfolder=checkpoint", "tensorboard.subfolder: got 'checkpoint'; it takes the name of a folder"),
        ("tensorboard subfolder=../..", "tensorboard.subfolder: got '../..'; it takes the name of a folder"),
        ("wandb mode=of", "wandb.mode: got 'of'; it takes one of online, offline, disabled"),
        ("plugins_for_tests:Pulled", "it takes a class that extends fedlga.core.tracker.Tracker"),
    ],
)
def test_a_wrong_name_is_refused_before_the_run(text, message):
    with pytest.raises(BadInput) as caught:
        make_trackers(text)
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb"])
def test_a_package_that_is_missing_is_named_with_its_extra(monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    with pytest.raises(BadInput) as caught:
        make_trackers(name)
    assert str(caught.value) == f"--track: {name} is not installed; pip install 'fedlga[{name}]'"


@pytest.mark.slow
def test_from_the_command_line(tmp_path):
    words = ["run", "--preset", "digits", "--rounds", "2", "--out", "r", "--track", "csv file=a.csv"]
    subprocess.run([sys.executable, "-m", "fedlga", *words], cwd=tmp_path, check=True, capture_output=True)
    words = ["compare", "--preset", "digits", "--rounds", "1", "--methods", "fedavg,fedprox", "--seeds", "0"]
    words += ["--out", "c", "--track", "csv"]
    subprocess.run([sys.executable, "-m", "fedlga", *words], cwd=tmp_path, check=True, capture_output=True)
    assert (tmp_path / "r" / "a.csv").exists()
    assert len(list(tmp_path.glob("c/*/seed-0/tracked.csv"))) == 2


@pytest.mark.slow
def test_every_run_of_a_search_is_followed(tmp_path):
    """In processes of their own: two points on a tuning seed, one of them on a held-out one; a failure is told here."""
    with pytest.warns(UserWarning, match="WantsAccuracy failed .KeyError: 'accuracy'.; the run goes on without it"):
        fedlga.tune(
            SMALL,
            grid={"lr": [0.05, 0.1]},
            arms=["fedavg keep"],
            seeds=[100],
            held_out=[0],
            widen=0,
            out=tmp_path / "t",
            track=["csv", "plugins_for_tests:WantsAccuracy"],
        )
    followed = sorted(str(file.parent.relative_to(tmp_path / "t")) for file in tmp_path.rglob("tracked.csv"))
    assert [name.split("/")[0] for name in followed] == ["held-out", "search", "search"]
    assert len((tmp_path / "t" / followed[0] / "tracked.csv").read_text().splitlines()) == 1 + SMALL.rounds


@pytest.mark.slow
def test_a_search_from_the_command_line(tmp_path):
    words = ["tune", "--preset", "digits", "--rounds", "2", "--arm", "fedavg keep", "--grid", "lr=0.1", "--widen", "0"]
    words += ["--seeds", "100", "--held-out", "0", "--out", "t", "--track", "csv file=a.csv"]
    subprocess.run([sys.executable, "-m", "fedlga", *words], cwd=tmp_path, check=True, capture_output=True)
    assert len(list(tmp_path.glob("t/**/a.csv"))) == 2
    done = subprocess.run(
        [sys.executable, "-m", "fedlga", *words[:-4], "--out", "u", "--track", "cvs"],
        cwd=tmp_path,
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (
        2,
        "fedlga: --track: there is no 'cvs'; there is: csv, mlflow, tensorboard, wandb\n",
    )
    assert not (tmp_path / "u").exists()


def test_two_processes_that_begin_at_once_share_one_experiment_of_mlflow():
    """Neither finds the experiment, both create it: the second is refused, and finds what the first one made."""
    from types import SimpleNamespace

    from fedlga.trackers.mlflow import MLflow

    class Client:
        found = iter([None, SimpleNamespace(experiment_id="7")])

        def get_experiment_by_name(self, _):
            return next(self.found)

        def create_experiment(self, _):
            raise ValueError("it is there already")

    tracker = MLflow()
    tracker._client = Client()
    assert tracker._find_experiment() == "7"
