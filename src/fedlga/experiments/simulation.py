"""From an experiment to a federation on this machine."""

from __future__ import annotations

import dataclasses
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from fedlga.backends.pool.backend import PoolBackend
from fedlga.backends.pool.workers import Workers
from fedlga.backends.serial import SerialBackend
from fedlga.core.aggregator import Aggregator
from fedlga.core.backend import Backend
from fedlga.core.fleet import Fleet, Workload
from fedlga.core.process import count_cores, one_thread
from fedlga.core.registry import create, find
from fedlga.core.round import Federation, count_bytes, run_rounds
from fedlga.core.schedules.base import Schedule
from fedlga.core.settings import BadInput, suggest
from fedlga.core.types import Record, ServerState
from fedlga.experiments.config import DEFAULT_COHORT, DEFAULT_DEVICES, IN_PYTHON, OWN, Experiment
from fedlga.experiments.measures import EndWatch
from fedlga.learning.accelerator import choose_device
from fedlga.learning.compiled_step import choose
from fedlga.learning.datasets.cache import cache_folder, fetch_files, ignore_progress, load
from fedlga.learning.evaluation import Evaluator, TestSet, join_scores, make_device_evaluator
from fedlga.learning.examples import Examples, TensorExamples
from fedlga.learning.failures import TaskFailed
from fedlga.learning.fingerprint import take_fingerprint
from fedlga.learning.flat_model import FlatModel
from fedlga.learning.metrics import LOSS
from fedlga.learning.named import named_task
from fedlga.learning.objective import Objective
from fedlga.learning.partitions.own import OwnPartition
from fedlga.learning.problem import Problem, fit_task
from fedlga.learning.reading import TaskData, read_task_data
from fedlga.learning.splitting import Split, find_labels, find_targets, split_examples
from fedlga.learning.task import Task, describe_for_worker, load_task
from fedlga.learning.training import Devices, TrainingOptions, steps_in_epoch

if TYPE_CHECKING:
    from fedlga.backends.flower.ray import MessageGrid
    from fedlga.core.types import Array
    from fedlga.experiments.tracking import Track
    from fedlga.learning.datasets.sources import Progress


TRIED = 64  # test examples that are evaluated before the run begins


@dataclass(frozen=True)
class Simulation:
    """A federation ready to run, with its starting point and the model that its vector belongs to."""

    experiment: Experiment  # with all that the data decided: devices, cohort, partition, metric
    federation: Federation
    start: ServerState
    model: FlatModel
    devices: Devices | None  # None: real devices, which keep their data to themselves
    split: Split | None = None


def rounds(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    task: Task | None = None,
    data_dir: str | Path | None = None,
    track: Track | None = None,
) -> Iterator[Record]:
    """Run an experiment round by round. With `out`, every round is in that run folder before it is yielded.

    Without `out` nothing is written. `track` names trackers that follow the run. `resume` continues the run that is in
    `out`. A loop that is left early leaves a folder that can be continued: `fedlga.load(out).resume()`. Between rounds,
    in the caller's loop, torch has the number of threads it had before.
    """
    if resume and out is None:
        raise BadInput("resume: got it without out; it takes the folder of a run")
    if track and out is None:
        raise BadInput("track: got it without out; it takes the folder of a run")
    if out is not None:
        from fedlga.experiments.folder import check_folder
        from fedlga.experiments.run import record_rounds

        yield from record_rounds(
            experiment, check_folder(out), resume=resume, task=task, data_dir=data_dir, track=track
        )
        return
    with simulate(experiment, task=task, data_dir=data_dir) as simulation:
        end = EndWatch(simulation.experiment)
        for _, record in run_rounds(simulation.federation, simulation.start, simulation.experiment.rounds):
            yield record
            end.add(record)
            if end.over:
                return


@contextmanager
def simulate(
    experiment: Experiment,
    *,
    task: Task | None = None,
    data_dir: str | Path | None = None,
    data: TaskData | None = None,
    workers: Workers | None = None,
    progress: Progress | None = None,
    grid: MessageGrid | None = None,
) -> Generator[Simulation]:
    """Build everything that an experiment needs, for as long as the `with` lasts.

    `task` is for an experiment whose task was made in Python. A caller that runs many experiments can pass in `data`
    and `workers`. `grid` is for backend flower: the nodes of a SuperLink; without it the nodes are simulated.
    """
    e = bind_task(experiment, task).resolved()
    with ExitStack() as closing:
        if e.backend != "pool":
            workers = None
        elif workers is None:  # they import torch while the data is read
            workers = Workers(worker_count(e))
            closing.callback(workers.close)
        with one_thread():
            data = data or load_data(e, data_dir, progress, task=task)
            e, problem = fit_experiment(e, data)
            split = split_data(e, data, problem)
            fleet = make_fleet(e, split, problem.model)
        device = choose_device(e.device)
        start = make_start(problem.model)
        here = e.backend == "serial"  # otherwise other processes have the data
        devices = make_devices(e, problem.model, split.train.to(device) if here else split.train, split.parts)
        if e.compile == "auto":
            e, devices = choose_compile(e, devices)
        if here and devices.compiled is not None:  # before the first weights come, as in the pool's workers
            problem.model.load(start.w, start.buffers)
        test_set = TestSet(problem, split.test.to(device) if here else split.test, e.resize, split.ranges)
        limit = e.memory_limit * 1e9
        try_test_set(test_set, start)
        if e.backend == "flower":
            from fedlga.experiments.flower_client import connect

            backend: Backend = closing.enter_context(connect(e, data.task, test_set, data_dir, worker_count(e), grid))
        elif workers is None:
            backend = SerialBackend(devices, test_set, limit, ranges=_own_ranges(e, split))
        else:
            known = {"task": describe_task(data), "seed": e.seed, "device": str(device), "target": e.metric}
            known |= {"method": e.method, "settings": e.settings("method")}
            known["fingerprint"] = take_fingerprint(problem.model, split.train, split.test)
            schedule = make_schedule(e)
            updates = schedule.most_updates(e.cohort) + (len(workers) if schedule.is_stale else 0)
            backend = PoolBackend(
                devices,
                test_set,
                workers,
                known,
                updates,
                audit=e.audit,
                memory_limit=limit,
                starts=updates if schedule.is_stale else 1,
                ranges=_own_ranges(e, split),
                test_rows=split.test_rows,
            )
        closing.callback(backend.close)
        held = None if split.held is None else torch.from_numpy(split.held)
        evaluator = Evaluator(problem.metrics, split.test, fleet.always_slow(), held=held, ranges=split.ranges)
        if e.backend == "flower" and e.evaluate_on == "devices":
            slow = fleet.always_slow() or backend.slow
            evaluator = make_device_evaluator(problem.metrics, e.target_metric, e.devices, slow)
        federation = make_federation(e, fleet, backend, evaluator, [len(part) for part in split.parts])
        if e.record is not None:
            objective = Objective.of(devices, by_examples=e.averaging == "examples")
            measure = objective.measure if e.record == "gradient" else objective.measure_loss
            federation = dataclasses.replace(federation, measure_objective=measure)
        yield Simulation(e, federation, start, problem.model, devices, split)


def try_test_set(test_set: TestSet, start: ServerState) -> None:
    """Evaluate some test examples before anything is trained; BadInput if they do not fit the model and the metrics."""
    try:
        count = min(TRIED, len(test_set))
        halves = [(0, count - count // 2), (count - count // 2, count)]  # of sequences, they differ in length
        with one_thread():
            join_scores([test_set.score(start.w, start.buffers, *half) for half in halves if half[0] < half[1]])
    except TaskFailed as error:
        raise BadInput(f"data(): the test examples do not fit ({error})") from error


def bind_task(experiment: Experiment, task: Task | None) -> Experiment:
    """Return the experiment for a task that was made in Python; the experiment itself if there is none."""
    given: Any = experiment
    if not isinstance(given, Experiment):  # a name or a file, as on the command line
        raise BadInput(
            f"experiment: got {given!r}; it takes an Experiment, such as fedlga.preset('digits') or "
            "fedlga.Experiment(task='mine.py')"
        )
    if task is None and experiment.task is not None and not experiment.task.startswith(IN_PYTHON):
        task = load_task(experiment.task)
        return experiment.for_task(experiment.task, task.experiment)
    if task is None or experiment.task is not None:
        return experiment
    return experiment.for_task(task.source or f"{IN_PYTHON}{task.name}", task.experiment)


def make_devices(e: Experiment, model: FlatModel, examples: Examples, parts: Sequence[Array]) -> Devices:
    """Return the devices of an experiment, wherever they run."""
    options = TrainingOptions(
        batch_size=e.batch_size,
        augment=e.augment,
        resize=e.resize,
        clip=e.clip,
        fast=e.fast,
        optimizer=e.local_optimizer,
        weight_decay=e.weight_decay,
        own_batch_norm=e.batch_norm == "device",
        label_smoothing=e.label_smoothing,
        compile=e.compile == "on",
    )
    devices = Devices(create("method", e.method, e.settings("method")), model, examples, parts, options)
    if options.own_batch_norm and not model.normalises_batches:
        raise BadInput("batch_norm: got 'device', and the model has no BatchNorm; it takes average")
    if model.needs_pairs:
        single = [device for device, part in enumerate(parts) if len(part) == 1]
        if single or e.batch_size == 1:
            what = f"device {single[0]} has one example" if single else "batches have one example"
            raise BadInput(
                f"model(): {what}, and BatchNorm needs two in a batch; it takes GroupNorm or LayerNorm there"
            )
    return devices


def choose_compile(e: Experiment, devices: Devices) -> tuple[Experiment, Devices]:
    """Return the experiment and its devices with compiled steps, or without: whichever is faster here.

    The choice is part of the experiment from then on, so that a run that is resumed or repeated has the same bits.
    """
    steps = sum(local_steps(e, len(part)) for part in devices.parts) / len(devices.parts)
    processes = worker_count(e) if e.backend == "pool" else 1
    with one_thread():
        pays = devices.kernel is None and choose(
            devices.model, devices.sample_batch(), steps * e.cohort * e.rounds / processes
        )
    options = dataclasses.replace(devices.options, compile=pays)
    return dataclasses.replace(e, compile="on" if pays else "off"), dataclasses.replace(devices, options=options)


def make_aggregator(e: Experiment) -> Aggregator:
    """Return what decides what becomes of updates."""
    kinds = ("method", "policy", "aggregation", "optimizer")
    return Aggregator(*(create(kind, e.name_of(kind), e.settings(kind)) for kind in kinds))


def make_schedule(e: Experiment) -> Schedule:
    """Return when devices start, and when the aggregator steps."""
    return create("schedule", e.schedule, e.settings("schedule"))


def make_federation(
    e: Experiment, fleet: Fleet, backend: Backend, evaluator: Evaluator, examples: Sequence[int]
) -> Federation:
    """Return the federation of an experiment, wherever its devices run."""
    return Federation(
        aggregator=make_aggregator(e),
        fleet=fleet,
        backend=backend,
        evaluate=evaluator.evaluate,
        metrics=evaluator.names,
        examples=examples,
        cohort=e.cohort,
        rates=e.rates,
        momentum=e.momentum,
        seed=e.seed,
        replacement=e.sampling == "with-replacement",
        by_examples=e.averaging == "examples",
        evaluate_every=e.evaluate_every,
        audit=e.audit,
        schedule=make_schedule(e),
    )


def check_fit(experiment: Experiment, data: TaskData) -> None:
    """Raise BadInput if the experiment cannot start: its partition, fleet and model must fit its data."""
    e, problem = fit_experiment(experiment, data)
    split = split_data(e, data, problem)
    make_fleet(e, split, problem.model)
    make_devices(e, problem.model, split.train, split.parts)


def worker_count(experiment: Experiment) -> int:
    """Return the processes of the pool: as asked, or one a core; never more than devices in a round."""
    return min(experiment.workers or count_cores(), experiment.cohort or DEFAULT_COHORT)


def load_data(
    e: Experiment,
    data_dir: str | Path | None = None,
    progress: Progress | None = None,
    *,
    task: Task | None = None,
) -> TaskData:
    """Return the data of the experiment's task or dataset."""
    if e.task is None:
        settings = e.settings("dataset")
        data = load(e.dataset, cache_folder(data_dir), settings=settings, normalise=e.normalise, progress=progress)
        channels, height, width = data.shape
        shape = (channels, e.resize, e.resize) if e.resize else (channels, height, width)
        train = TensorExamples(data.train_images, data.train_labels)
        return TaskData(
            named_task(e.model, shape, data.classes), train, TensorExamples(data.test_images, data.test_labels)
        )
    if task is None:
        if e.task.startswith(IN_PYTHON):
            name = e.task.removeprefix(IN_PYTHON)
            raise BadInput(f"task: {name!r} was made in Python: continue its run there, with fedlga.run(..., task=...)")
        task = load_task(e.task)
    if task.files is None:
        return read_task_data(task)
    return read_task_data(task, fetch_files(task.name, task.files, cache_folder(data_dir), progress or ignore_progress))


def fit_experiment(experiment: Experiment, data: TaskData) -> tuple[Experiment, Problem]:
    """Return the experiment with what its data decides (devices, cohort, partition, metric), and the fitted task."""
    e = experiment
    if (e.augment or e.resize) and not _holds_images(data.train):
        raise BadInput(f"{'augment' if e.augment else 'resize'}: the inputs are not images (channels, height, width)")
    problem = fit_task(
        data.task,
        data.train,
        e.seed,
        device=choose_device(e.device),
        resize=e.resize,
        label_smoothing=e.label_smoothing,
        target=e.metric,
    )
    if e.task is not None:
        partition = e.partition
        if partition == OWN and isinstance(data.task.partition, str):
            partition = data.task.partition
        elif partition == OWN and data.parts is None and data.task.partition is None:
            partition = "iid"
        devices = e.devices or (_count_parts(data, problem) if partition == OWN else DEFAULT_DEVICES)
        cohort = e.cohort or min(DEFAULT_COHORT, devices)
        e = e.changed({"partition": partition, "devices": devices, "cohort": cohort})
    e = _choose_metric(e.resolved(), problem)
    higher = e.better == "higher"
    metrics = [dataclasses.replace(m, higher_is_better=higher) if m.name == e.metric else m for m in problem.metrics]
    return e, dataclasses.replace(problem, metrics=metrics)


def _count_parts(data: TaskData, problem: Problem) -> int:
    """Return how many devices a task's own partition is for."""
    if data.parts is not None:
        return len(data.parts)
    if not hasattr(data.task.partition, "load_partition"):
        return DEFAULT_DEVICES
    labels = find_labels(data.train, problem.classes, needed=True)
    return OwnPartition(data.task.partition, data.table).count_parts(find_targets(data, labels, needed=True))


def _choose_metric(e: Experiment, problem: Problem) -> Experiment:
    """Return the experiment with the name and the direction of its target metric."""
    known = {m.name: m.better for m in problem.metrics} | {LOSS: "lower"}
    name = e.metric or problem.metrics[0].name
    if name not in known:
        raise BadInput(f"metric: the task has no {name!r}; {suggest(name, known)}")
    taken = {f.name for f in dataclasses.fields(Record)} | set(dir(Record)) | {"version"}
    if clash := [metric.name for metric in problem.metrics if metric.name in taken]:
        raise BadInput(f"metrics(): got the name {clash[0]!r}, which a record uses for something else")
    return dataclasses.replace(e, metric=name, better=e.better or known[name])


def _holds_images(examples: Examples) -> bool:
    inputs: Any = examples.piece(0, 1)[0]
    return isinstance(inputs, torch.Tensor) and inputs.dim() == 4 and inputs.is_floating_point()  # noqa: PLR2004


def split_data(e: Experiment, data: TaskData, problem: Problem) -> Split:
    """Return who holds what, and what is tested."""
    given = {"given": data.task.partition, "table": data.table} if e.partition == OWN else {}
    partition = create("partition", e.partition, e.settings("partition"), **given)
    own_tests = e.batch_norm == "device" or e.evaluate_on == "devices"
    split = split_examples(data, partition, e.devices, e.seed, problem.classes, own_tests=own_tests)
    if own_tests and split.ranges is None:
        field = "batch_norm" if e.batch_norm == "device" else "evaluate_on"
        raise BadInput(
            f"{field}: got {getattr(e, field)!r}, and the test data belongs to no device; it takes a "
            "task whose data() returns no test set, or one a device"
        )
    return split


def make_fleet(experiment: Experiment, split: Split, model: FlatModel) -> Fleet:
    """Return who is slow."""
    e = experiment.resolved()
    return create_fleet(e, [local_steps(e, len(part)) for part in split.parts], split.held, model)


def create_fleet(e: Experiment, steps: Sequence[int], held: Array | None, model: FlatModel) -> Fleet:
    """Return the fleet of a resolved experiment whose devices are asked for these steps of this model."""
    assert e.deadline is not None
    buffers = model.read_buffers()
    down, up = count_bytes(find("method", e.method), len(model.vector), 0 if buffers is None else len(buffers))
    workload = Workload(e.seed, steps, e.epochs, e.deadline, e.dropout, held, down, up)
    return create("fleet", e.fleet, e.settings("fleet"), workload=workload)


def local_steps(e: Experiment, examples: int) -> int:
    """Return the SGD steps that a device with so many examples is asked for in a round."""
    return e.epochs * steps_in_epoch(examples, e.batch_size, e.steps_per_epoch)


def make_start(model: FlatModel) -> ServerState:
    """Return the state before the first round: the model's starting weights and buffers, in main memory."""
    buffers = model.read_buffers()
    return ServerState(
        round=0, w=model.vector.cpu().clone(), buffers=None if buffers is None else buffers.cpu().clone()
    )


def _own_ranges(e: Experiment, split: Split) -> Sequence[tuple[int, int]] | None:
    """Return which test examples each device is tested on with its own BatchNorm; None: all with the joint model."""
    return split.ranges if e.batch_norm == "device" else None


def describe_task(data: TaskData) -> dict[str, Any]:
    """Return what a worker needs to make the same task; data in memory is shared with it, and not sent."""
    task = data.task
    made_here = not task.source and not task.named
    in_memory = data.train.in_memory is not None and (data.test is None or data.test.in_memory is not None)
    return describe_for_worker(dataclasses.replace(task, data=None) if made_here and in_memory else task)
