"""Runs of tasks: from Python and from files, their target metric and its direction, and going on with them."""

from __future__ import annotations

import json
import shutil
from itertools import islice, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import fedlga
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.measures import is_finished, list_measures, summarise_run
from fedlga.experiments.records import read_run
from fedlga.experiments.run import load_for_resume, run_and_record
from fedlga.experiments.simulation import bind_task, simulate
from fedlga.learning.task import Task
from run_folders import OLD_RUNS, assert_same_state, make_record

REGRESSION = '''"""A line with some noise."""

import numpy as np
from torch import nn

experiment = {"devices": 4, "cohort": 3, "epochs": 2, "lr": 0.1, "backend": "serial"}


def model():
    return nn.Linear(2, 1)


def data():
    x = np.random.default_rng(0).standard_normal((80, 2))
    return x, x @ np.array([1.0, -2.0]) + 0.5
'''


def regression(**parts) -> Task:
    x = np.random.default_rng(0).standard_normal((80, 2))
    given = {"model": lambda: nn.Linear(2, 1), "data": (x, x @ np.array([1.0, -2.0]) + 0.5), "name": "line", **parts}
    return Task(**given)


def serial(**settings) -> Experiment:
    return Experiment(**{"rounds": 2, "backend": "serial", **settings})


def refusal(call, *given, **named) -> str:
    with pytest.raises(BadInput) as error:
        call(*given, **named)
    assert len(str(error.value).splitlines()) == 1
    return str(error.value)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "line.py"
    path.write_text(REGRESSION)
    return path


# From Python


def test_a_task_from_python_is_run_into_a_folder(tmp_path):
    done = fedlga.run(serial(), task=regression(), out=tmp_path / "run")
    assert [r.round for r in done.records] == [1, 2]
    assert done.experiment.task == "python:line"
    assert (done.experiment.devices, done.experiment.cohort, done.experiment.partition) == (10, 10, "iid")
    assert (done.experiment.metric, done.experiment.better, done.experiment.target) == ("rmse", "lower", None)
    assert done.records[0].metrics.keys() == {"rmse", "mae", "loss", "rmse_slow", "rmse_worst", "mae_slow", "mae_worst"}
    assert done.records[1].metrics["rmse"] < done.records[0].metrics["rmse"]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert (summary["metric"], summary["better"], summary["dataset"]) == ("rmse", "lower", "line")
    assert summary["final_rmse"] == done.records[-1].metrics["rmse"]
    assert not any("accuracy" in name for name in summary)
    assert not (tmp_path / "run" / "task.py").exists(), "there is no file to copy"
    # Eight each, one of them held out
    assert json.loads((tmp_path / "run" / "partition.json").read_text()) == {"counts": [[7]] * 10}


def test_the_mean_squared_error_is_the_loss_and_the_square_of_rmse(tmp_path):
    for record in fedlga.rounds(serial(), task=regression()):
        assert record.metrics["loss"] == pytest.approx(record.metrics["rmse"] ** 2, rel=1e-5)
        assert record.metrics["rmse_worst"] >= record.metrics["rmse"]


def test_rounds_are_those_of_a_run(tmp_path):
    done = fedlga.run(serial(), task=regression(), out=tmp_path / "run")
    live = list(fedlga.rounds(serial(), task=regression()))
    assert [r.metrics for r in live] == [r.metrics for r in done.records]
    assert list(tmp_path.iterdir()) == [tmp_path / "run"]


def test_the_task_s_settings_give_way_to_the_experiment_s():
    task = regression(experiment={"rounds": 7, "lr": 0.3, "devices": 5, "cohort": 5, "rho": 0.25})
    bound = bind_task(Experiment(lr=0.2), task)
    assert (bound.rounds, bound.lr, bound.devices) == (7, 0.2, 5)
    assert bound.settings("fleet")["rho"] == 0.25
    assert bound.batch_size == 32, "of a task, not of the paper"
    assert bind_task(Experiment(lr=0.2), None) == Experiment(lr=0.2)


def test_as_many_rounds_as_the_task_says():
    """Also more than the paper's 200, which the experiment has by default."""
    task = regression(experiment={"rounds": 202, "evaluate_every": 101, "epochs": 1, "steps_per_epoch": 1})
    assert len(list(fedlga.rounds(Experiment(backend="serial"), task=task))) == 202


def test_a_changed_experiment_still_leaves_the_rest_to_the_task():
    """`changed` names some settings: the others were not given, and must not become the paper's."""
    task = regression(experiment={"devices": 5, "cohort": 5})
    one, other = bind_task(serial(lr=0.2), task), bind_task(serial().changed({"lr": 0.2}), task)
    assert one == other


@pytest.mark.parametrize(
    ("settings", "name", "value"),
    [
        ({"metric": "mae"}, "metric", "mae"),  # no metric of a dataset
        ({"target": 3.0}, "target", 3.0),  # no accuracy
        ({"devices": 4}, "devices", 4),  # fewer than the paper's cohort
    ],
)
def test_settings_that_only_a_task_takes(tmp_path, settings, name, value):
    """The experiment does not know its task yet: `task=` comes with the run."""
    done = fedlga.run(serial(**settings), task=regression(), out=tmp_path / "run")
    assert getattr(done.experiment, name) == value


def test_what_is_wrong_with_a_task_is_one_line(tmp_path):
    wrong = regression(data=lambda: 3)
    assert refusal(fedlga.run, serial(), task=wrong, out=tmp_path / "a").startswith("data(): got a int")
    assert not (tmp_path / "a").exists()
    wrong = regression(model=lambda: nn.Linear(5, 1))
    assert "model() does not take these inputs" in refusal(list, fedlga.rounds(serial(), task=wrong))
    wrong = regression(experiment={"rouns": 3})
    assert "rouns" in refusal(fedlga.run, serial(), task=wrong, out=tmp_path / "b")


class Items:
    """A dataset that is read row by row; `make(i)` is example i."""

    def __init__(self, make) -> None:
        self.make = make

    def __len__(self) -> int:
        return 20

    def __getitem__(self, index):
        return self.make(index)


def fails_late(index):
    if index == 7:
        raise OSError("bad sector")
    return torch.zeros(2), 0.0


def divides_by_zero(items):
    return 1 / 0


@pytest.mark.parametrize(
    ("make", "parts", "words"),
    [
        (lambda i: ("text", 0.0), {}, ["data()"]),
        (lambda i: (torch.zeros(1 + i), 0.0), {}, ["data()"]),
        (lambda i: (torch.zeros(2), "text"), {}, ["data()"]),
        (fails_late, {}, ["data()", "bad sector"]),
        (lambda i: i, {"collate": divides_by_zero}, ["collate", "ZeroDivisionError"]),
        (lambda i: i, {"collate": lambda items: 3}, ["collate", "int"]),
    ],
    ids=["text", "other sizes", "text as target", "a late error", "collate fails", "collate gives no pair"],
)
def test_rows_that_cannot_be_read_are_one_line(make, parts, words):
    text = refusal(list, fedlga.rounds(serial(), task=regression(data=lambda: Items(make), **parts)))
    for word in words:
        assert word in text


def test_columns_of_text_are_one_line():
    datasets = pytest.importorskip("datasets")
    table = datasets.Dataset.from_dict({"x": [[1.0, 2.0]] * 20, "t": ["a", "b"] * 10, "y": [0.5] * 20})
    words = regression(data=(table.remove_columns("x"), "y"))
    assert "'t'" in refusal(list, fedlga.rounds(serial(), task=words))
    classes = regression(data=(table.remove_columns("y"), "t"))
    assert "'t'" in refusal(list, fedlga.rounds(serial(), task=classes))


@pytest.mark.parametrize(
    "kind", ["IidPartitioner", "LinearPartitioner", "DirichletPartitioner", "NaturalIdPartitioner"]
)
def test_a_partitioner_of_the_task_decides_on_the_devices(kind):
    datasets = pytest.importorskip("datasets")
    datasets.disable_progress_bars()
    make = getattr(pytest.importorskip("flwr_datasets.partitioner"), kind)
    given = {
        "DirichletPartitioner": {"num_partitions": 4, "partition_by": "label", "alpha": 5.0, "min_partition_size": 2},
        "NaturalIdPartitioner": {"partition_by": "label"},
    }.get(kind, {"num_partitions": 4})
    x = np.random.default_rng(0).standard_normal((80, 2))
    task = Task(lambda: nn.Linear(2, 4), (x, np.arange(80) % 4), partition=make(**given))
    (record,) = fedlga.rounds(serial(rounds=1), task=task)
    assert sorted(record.devices) == [0, 1, 2, 3]


def table(count=80):
    """Return examples of four owners, with the owner in a column of its own."""
    x = np.random.default_rng(0).standard_normal((count, 2)).astype(np.float32)
    owners = np.array(["ann", "bob", "cy", "di"])[np.arange(count) % 4]
    return {"a": x[:, 0], "b": x[:, 1], "owner": owners, "price": x[:, 0] + np.arange(count)}


def both_inputs():
    class Sum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(2, 1)

        def forward(self, a, b):
            return self.layer(torch.stack([a, b], 1))

    return Sum()


@pytest.mark.parametrize("kind", ["frame", "dataset"])
def test_a_partitioner_goes_by_any_column_of_the_data(kind):
    """By whose it is: a column that is no input. And by number targets: each device has its own range of them."""
    datasets, pandas = pytest.importorskip("datasets"), pytest.importorskip("pandas")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    datasets.disable_progress_bars()
    columns = table()
    data = pandas.DataFrame(columns) if kind == "frame" else datasets.Dataset.from_dict(columns)
    model = (lambda: nn.Linear(2, 1)) if kind == "frame" else both_inputs
    by_owner = Task(model, (data, "price"), partition=partitioners.NaturalIdPartitioner("owner"))
    with simulate(serial(), task=by_owner) as simulation:
        parts, rows = simulation.split.parts, simulation.split.test_rows
    assert [len(part) for part in parts] == [16] * 4, "of 20 each, 4 are held out"
    for owner, part in enumerate(parts):
        assert set(np.asarray(part) % 4) == {owner}
    assert sorted(row % 4 for row in rows) == [owner for owner in range(4) for _ in range(4)]
    no_owner = data.drop(columns="owner") if kind == "frame" else data.remove_columns("owner")
    by_price = partitioners.ContinuousPartitioner(4, "price", strictness=1.0)
    with simulate(serial(), task=Task(model, (no_owner, "price"), partition=by_price)) as simulation:
        prices = [columns["price"][np.asarray(part)] for part in simulation.split.parts]
    ends = sorted((float(part.min()), float(part.max())) for part in prices)
    assert all(before[1] < after[0] for before, after in pairwise(ends)), "devices' prices do not overlap"


def test_number_targets_of_arrays_reach_a_partitioner():
    pytest.importorskip("datasets").disable_progress_bars()
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    x = np.random.default_rng(0).standard_normal((80, 2)).astype(np.float32)
    task = Task(lambda: nn.Linear(2, 1), (x, x[:, 0]), partition=partitioners.ContinuousPartitioner(4, "label", 1.0))
    with simulate(serial(), task=task) as simulation:
        values = [x[np.asarray(part), 0] for part in simulation.split.parts]
    ends = sorted((float(part.min()), float(part.max())) for part in values)
    assert all(before[1] < after[0] for before, after in pairwise(ends))


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # of datasets
def test_a_federated_dataset_and_a_partitioner_by_owner_as_data(tmp_path):
    """Flower's own class, on files of this machine."""
    datasets = pytest.importorskip("datasets")
    flower = pytest.importorskip("flwr_datasets")
    datasets.disable_progress_bars()
    folder = tmp_path / "houses"
    folder.mkdir()
    pytest.importorskip("pandas").DataFrame(table()).to_csv(folder / "train.csv", index=False)
    partitioner = flower.partitioner.NaturalIdPartitioner("owner")
    federated = flower.FederatedDataset(dataset=str(folder), partitioners={"train": partitioner}, cache_dir=tmp_path)
    with simulate(serial(), task=Task(both_inputs, (federated, "price"))) as simulation:
        assert simulation.experiment.devices == 4
        assert [len(part) for part in simulation.split.parts] == [16] * 4
    alone = flower.partitioner.NaturalIdPartitioner("owner")
    alone.dataset = datasets.Dataset.from_dict(table())
    with simulate(serial(), task=Task(both_inputs, (alone, "price"))) as simulation:
        assert simulation.experiment.devices == 4
    missing = flower.FederatedDataset(dataset=str(tmp_path / "nowhere"), partitioners={"train": 3}, cache_dir=tmp_path)
    assert "data(): the FederatedDataset cannot be used" in refusal(
        list, fedlga.rounds(serial(), task=Task(both_inputs, (missing, "price")))
    )


@pytest.mark.parametrize("name", ["round", "seconds", "devices", "metrics", "version"])
def test_a_metric_cannot_have_the_name_of_something_else_in_a_record(tmp_path, name):
    task = regression(metrics={name: lambda outputs, targets: 1.0})
    assert f"got the name {name!r}" in refusal(fedlga.run, serial(), task=task, out=tmp_path / "run")


def test_metrics_of_the_task_s_own_are_recorded_and_read_again(tmp_path):
    metrics = {"largest": lambda o, t: (o - t).abs().max(), "near": lambda o, t: ((o - t).abs() < 1)[:, 0]}
    done = fedlga.run(serial(), task=regression(metrics=metrics), out=tmp_path / "run")
    assert done.summary["metric"] == "largest"
    again = read_run(tmp_path / "run")
    assert [r.metrics for r in again.records] == [r.metrics for r in done.records]
    assert 0 <= done.records[-1].metrics["near"] <= 1


def test_a_metric_that_is_not_a_number_later_is_none(tmp_path):
    calls = []

    def odd(outputs, targets):
        calls.append(len(outputs))
        return 1.0 if len(calls) <= 5 else float("nan")  # the first calls are the trial

    done = fedlga.run(serial(), task=regression(metrics={"odd": odd}), out=tmp_path / "run")
    assert [r.metrics["odd"] for r in done.records] == [None, None]
    assert done.summary["best_odd"] is None


def test_one_dataset_a_device_decides_on_the_devices(tmp_path):
    x = np.random.default_rng(0).standard_normal((60, 2))
    data = {f"clinic {i}": (x[i::3], x[i::3] @ np.array([1.0, 2.0])) for i in range(3)}
    done = fedlga.run(serial(), task=regression(data=data), out=tmp_path / "run")
    assert (done.experiment.devices, done.experiment.cohort, done.experiment.partition) == (3, 3, "own")
    # 20 each, 4 of them held out
    assert json.loads((tmp_path / "run" / "partition.json").read_text()) == {"counts": [[16], [16], [16]]}


# The target metric


def lower(**settings) -> Experiment:
    return Experiment(task="line.py", **{"metric": "rmse", "better": "lower", "rounds": 4, **settings})


def records(*values):
    return [
        make_record(round=i + 1, metrics={"rmse": value, "loss": 1.0, "rmse_slow": None, "rmse_worst": 2.0})
        for i, value in enumerate(values)
    ]


def test_lower_is_better():
    e, rounds = lower(target=0.5), records(2.0, 0.4, 0.3, 0.6)
    summary = summarise_run(e, rounds)
    assert summary["rounds_to_target"] == 2
    assert summary["best_rmse"] == 0.3
    assert summary["final_rmse"] == 0.6
    assert summary["last_rmse"] == pytest.approx((2.0 + 0.4 + 0.3 + 0.6) / 4)
    assert summary["last_rmse_worst"] == 2.0
    assert (e.reaches(0.5), e.reaches(0.51), e.reaches(None)) == (True, False, False)
    assert summarise_run(lower(target=0.1), rounds)["rounds_to_target"] is None
    assert summarise_run(lower(), rounds)["rounds_to_target"] is None, "no target"


def test_higher_is_better_if_the_user_says_so():
    e, rounds = lower(target=0.5, better="higher"), records(2.0, 0.4, 0.3, 0.6)
    summary = summarise_run(e, rounds)
    assert (summary["rounds_to_target"], summary["best_rmse"]) == (1, 2.0)


def test_stopping_at_a_target_that_is_low():
    e = lower(target=0.5, stop_at_target=True, rounds=9)
    assert not is_finished(e, records(2.0))
    assert is_finished(e, records(2.0, 0.5))
    assert not is_finished(lower(target=0.5, rounds=9), records(2.0, 0.5))


def test_a_run_stops_at_its_target():
    """Each round gets closer to the line; the target is what the second round reached."""
    task = regression(experiment={"lr": 0.1})
    rounds = [r.metrics["rmse"] for r in fedlga.rounds(serial(rounds=6), task=task)]
    assert rounds == sorted(rounds, reverse=True)
    e = Experiment(rounds=6, backend="serial", target=min(1.0, rounds[1]), stop_at_target=True)
    reached = next(i for i, value in enumerate(rounds, 1) if value <= min(1.0, rounds[1]))
    assert len(list(fedlga.rounds(e, task=task))) == reached < 6


@pytest.mark.parametrize(("metric", "better"), [("mae", "lower"), ("loss", "lower"), ("rmse", "lower")])
def test_the_target_metric_can_be_chosen(file, tmp_path, metric, better):
    e = Experiment(task=str(file), rounds=2, backend="serial", metric=metric)
    done = fedlga.run(e, tmp_path / "run")
    assert (done.experiment.metric, done.experiment.better) == (metric, better)
    assert done.summary[f"final_{metric}"] == done.records[-1].metrics[metric]
    assert done.summary[f"best_{metric}"] == min(r.metrics[metric] for r in done.records)


def test_a_metric_that_the_task_does_not_have_is_refused(file, tmp_path):
    e = Experiment(task=str(file), rounds=2, backend="serial", metric="rsme")
    assert refusal(fedlga.run, e, tmp_path / "run") == "metric: the task has no 'rsme'; did you mean 'rmse'?"


@pytest.mark.parametrize("target", [3.0, -1.0, 120.0])
def test_a_target_of_a_task_is_any_number(file, target):
    """Which metric it is for is known when the task is read: rmse goes beyond 1."""
    assert Experiment(task=str(file), target=target).target == target
    assert Experiment(task=str(file), target=target, metric="rmse", better="lower").target == target


def test_a_target_that_no_accuracy_has_is_refused():
    assert "as an accuracy" in refusal(Experiment, dataset="digits", target=3.0)
    assert "as an accuracy" in refusal(Experiment, task="line.py", metric="accuracy", target=3.0)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"target": 3.0}, "target: got 3; as an accuracy it takes"),
        ({"metric": "mae"}, "metric: got 'mae'; for a dataset it takes accuracy or loss"),
        ({"devices": 0}, "devices: got 0"),
        ({"cohort": 0}, "cohort: got 0"),
        ({"devices": 4}, "cohort: got 10; it takes at most the 4 devices there are"),
        ({"partition": "own"}, "partition: got 'own' without a task"),
    ],
)
def test_what_only_a_task_takes_is_refused_without_one(tmp_path, settings, message):
    """`Experiment(...)` may wait for a task; `run` does not. Nothing is fetched or written before."""
    text = refusal(lambda: fedlga.run(serial(**settings), tmp_path / "run", data_dir=tmp_path / "none"))
    assert text.startswith(message)
    assert list(tmp_path.iterdir()) == []


def test_measures_are_named_after_the_metric():
    names = [m.name for m in list_measures("rmse")]
    assert {"best_rmse", "final_rmse", "last_rmse", "last_rmse_slow", "closing_rmse"} <= set(names)
    assert not any("accuracy" in m.name + m.title for m in list_measures("rmse"))
    (best,) = [m for m in list_measures("rmse") if m.name == "best_rmse"]
    assert (best.text(0.51234567), best.text(None)) == ("0.5123", "-")


# Going on


def stop_after(count: int, experiment: Experiment, folder: Path, task: Task | None = None) -> None:
    running = run_and_record(experiment, folder, task=task)
    list(islice(running, count))
    running.close()


def test_a_task_from_a_file_is_continued_to_the_same_bits(file, tmp_path):
    e = Experiment(task=str(file), rounds=4, backend="serial", method="scaffold")
    fedlga.run(e, tmp_path / "whole")
    stop_after(2, e, tmp_path / "parts")
    assert (tmp_path / "parts" / "task.py").read_text() == REGRESSION
    rest = list(run_and_record(load_for_resume(tmp_path / "parts", {}), tmp_path / "parts", resume=True))
    assert [r.round for r in rest] == [3, 4]
    assert_same_state(tmp_path / "whole", tmp_path / "parts")


def test_a_file_that_was_changed_is_not_continued(file, tmp_path):
    e = Experiment(task=str(file), rounds=4, backend="serial")
    stop_after(1, e, tmp_path / "run")
    file.write_text(REGRESSION.replace("0.5", "0.6"))
    text = refusal(list, run_and_record(load_for_resume(tmp_path / "run", {}), tmp_path / "run", resume=True))
    assert text.startswith("--resume: line.py has changed since the run was started; the run's copy is ")
    file.write_text(REGRESSION)
    assert len(list(run_and_record(load_for_resume(tmp_path / "run", {}), tmp_path / "run", resume=True))) == 3


def test_a_file_that_is_gone_is_one_line(file, tmp_path):
    e = Experiment(task=str(file), rounds=4, backend="serial")
    stop_after(1, e, tmp_path / "run")
    file.unlink()
    again = load_for_resume(tmp_path / "run", {})
    assert "there is no file" in refusal(list, run_and_record(again, tmp_path / "run", resume=True))


def test_a_task_from_python_is_continued_in_python(tmp_path):
    e = serial(rounds=4, method="scaffold")
    fedlga.run(e, tmp_path / "whole", task=regression())
    stop_after(2, e, tmp_path / "parts", regression())
    again = load_for_resume(tmp_path / "parts", {})
    text = refusal(list, run_and_record(again, tmp_path / "parts", resume=True))
    assert text == "task: 'line' was made in Python: continue its run there, with fedlga.run(..., task=...)"
    done = fedlga.run(e, tmp_path / "parts", task=regression(), resume=True)
    assert [r.round for r in done.records] == [1, 2, 3, 4]
    assert_same_state(tmp_path / "whole", tmp_path / "parts")


def test_a_model_of_another_size_is_not_continued(tmp_path):
    e = serial(rounds=4)
    stop_after(1, e, tmp_path / "run", regression())
    wider = regression(model=lambda: nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)))
    before = (tmp_path / "run" / "rounds.jsonl").read_bytes()
    refusal(fedlga.run, e, tmp_path / "run", task=wider, resume=True)
    assert (tmp_path / "run" / "rounds.jsonl").read_bytes() == before


@pytest.mark.parametrize("changes", [{"lr": 0.5}, {"rounds": 6, "lr_schedule": "cosine"}], ids=["lr", "cosine"])
def test_what_cannot_change_in_the_middle_of_a_run_cannot_from_python(tmp_path, changes):
    """`fedlga.run(..., resume=True)` is the only way to continue a task made in Python."""
    schedule = {"lr_schedule": changes["lr_schedule"]} if "lr_schedule" in changes else {}
    stop_after(1, serial(rounds=4, **schedule), tmp_path / "run", regression())
    e = serial(**{"rounds": 4, **schedule, **changes})
    assert "cannot change" in refusal(fedlga.run, e, tmp_path / "run", task=regression(), resume=True)


def test_the_saved_model_is_the_task_s(file, tmp_path):
    done = fedlga.run(Experiment(task=str(file), rounds=40, backend="serial"), tmp_path / "run")
    from safetensors.torch import load_file

    weights = load_file(tmp_path / "run" / "model.safetensors")
    # y = x_1 - 2 x_2 + 0.5 without noise: the run finds it.
    torch.testing.assert_close(weights["weight"], torch.tensor([[1.0, -2.0]]), rtol=0, atol=0.05)
    torch.testing.assert_close(weights["bias"], torch.tensor([0.5]), rtol=0, atol=0.05)
    assert done.summary["best_rmse"] < 0.1


# Folders from before there were tasks


@pytest.mark.parametrize("name", sorted(p.parent.name for p in OLD_RUNS.glob("*/experiment.toml")))
def test_old_folders_still_have_accuracy(name, tmp_path):
    folder = Path(shutil.copytree(OLD_RUNS / name, tmp_path / name))
    run = read_run(folder)
    assert run.experiment.task is None
    assert run.experiment.target_metric == "accuracy"
    assert (run.summary["metric"], run.summary["better"]) == ("accuracy", "higher")
    assert all(0 <= r.metrics["accuracy"] <= 1 for r in run.records if r.metrics["accuracy"] is not None)
    assert run.summary["best_accuracy"] == max(r.metrics["accuracy"] for r in run.records)
