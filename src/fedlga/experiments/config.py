"""An experiment: one dataclass that says everything about a run, to and from TOML."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedlga.core.rates import SCHEDULES, RateSchedule
from fedlga.core.registry import SEAMS, built_in_owners, find, find_owner
from fedlga.core.settings import BadInput, check_settings, read_toml, setting, settings_of, suggest
from fedlga.core.words import NAMES

OWN = "own"  # the dataset and model of a task, or of real devices that bring theirs: see fedlga.flower.server_app
TASK_DEFAULTS = {  # of an experiment with a task, where the paper's setting says nothing
    "dataset": OWN,
    "model": OWN,
    "devices": 0,
    "cohort": 0,
    "partition": OWN,
    "steps_per_epoch": 0,
    "batch_size": 32,
    "lr": 0.05,
    "rounds": 50,
    "target": None,
}
DEFAULT_DEVICES, DEFAULT_COHORT = 10, 10  # if neither the task's data nor the experiment says how many
BETTER = {"accuracy": "higher", "loss": "lower"}  # of the metrics that a dataset has
TASK_MODULE = "fedlga_task_"  # begins the module's name of a task's file that was sent to nodes
IN_PYTHON = "python:"  # begins the name of a task that was made in Python, and not read from a file
Options = Mapping[str, Mapping[str, Any]]  # settings of methods, policies, fleets and so on: {"fedprox": {"mu": 0.1}}
_HAD_ETA_G = ("fedavg", "fedprox", "scaffold", "fedlga")  # before there were server optimisers


@dataclass(frozen=True)
class Experiment:
    """The defaults are the preset `paper`: the FedLGA paper's setting on Fashion-MNIST.

    The settings of the method, policy, fleet and so on that are in use are in `options`, by their owner's name. They
    can be given like fields: Experiment(fleet="paper", rho=0.9).
    """

    # What is learned
    task: str | None = setting(
        None, "a Python file with model() and data(), a module, or a built-in: see fedlga list tasks; unset: a dataset"
    )
    dataset: str = setting("fashion-mnist", "see fedlga list datasets, or package.module:Class")
    model: str = setting("mlp", "see fedlga list models, or package.module:function")
    normalise: bool = setting(True, "subtract the training pixels' mean and divide by their standard deviation")
    augment: bool = setting(False, "randomly crop and mirror every training image")
    resize: int = setting(0, "side of the images that the model gets; 0: unchanged", least=0, most=1024)
    # By which devices
    devices: int = setting(50, "N, devices in the federation; 0: as many as a task's data has parts", least=0)
    partition: str = setting("classes", "who holds what: see fedlga list partitions, or package.module:Class")
    # How
    method: str = setting("fedlga", "see fedlga list methods, or package.module:Class")
    stragglers: str | None = setting(
        None, "policy for unfinished work: see fedlga list policies, or package.module:Class; unset: the method's own"
    )
    averaging: str = setting("uniform", "weight of an update in the mean", choices=("uniform", "examples"))
    aggregation: str = setting("mean", "aggregation rule: see fedlga list aggregations, or package.module:Class")
    server_optimizer: str = setting("sgd", "server optimiser: see fedlga list optimizers, or package.module:Class")
    schedule: str = setting(
        "rounds", "when devices start and the aggregator steps: see fedlga list schedules, or package.module:Class"
    )
    rounds: int = setting(200, "T, rounds to train", least=1)
    time_limit: float | None = setting(
        None, "simulated seconds to train: the run ends with the round that reaches them; unset: all rounds", above=0
    )
    cohort: int = setting(10, "K, devices selected in a round; 0: all of them, ten at most", least=0)
    sampling: str = setting(
        "without-replacement", "how the cohort is drawn", choices=("without-replacement", "with-replacement")
    )
    epochs: int = setting(5, "E, units of local work in a round", least=1)
    steps_per_epoch: int = setting(1, "SGD steps in a unit (1: the paper's Eq. 2); 0: a pass over the data", least=0)
    batch_size: int = setting(10, "examples in a batch", least=1)
    lr: float = setting(0.00075, "eta_l, local learning rate", above=0)
    lr_schedule: str | None = setting(
        None, "eta_l over the rounds; unset: exponential if lr_decay is set, else constant", choices=SCHEDULES
    )
    lr_decay: float = setting(
        0.0,
        "gamma: eta_l <- (1 - gamma) eta_l each round (exponential), or every lr_step rounds (step)",
        least=0,
        below=1,
    )
    lr_step: int = setting(10, "schedule step: rounds between two steps", least=1)
    lr_warmup: int = setting(0, "rounds in which eta_l grows from near 0, before its schedule", least=0)
    local_optimizer: str = setting(
        "sgd", "optimiser on the device; what it remembers starts at zero each round", choices=("sgd", "adamw")
    )
    momentum: float = setting(0.0, "momentum of local SGD; it starts at zero each round", least=0, below=1)
    weight_decay: float = setting(
        0.0, "weight decay on the device: SGD adds it to the gradient, AdamW to the step", least=0
    )
    clip: float = setting(0.0, "largest norm of a gradient; 0: no limit", least=0)
    label_smoothing: float = setting(0.0, "share of a label that is spread over all classes", least=0, below=1)
    batch_norm: str = setting(
        "average",
        "BatchNorm's weights and statistics: averaged, or kept on each device (FedBN)",
        choices=("average", "device"),
    )
    # On which fleet
    fleet: str = setting("paper", "who is slow: see fedlga list fleets, or package.module:Class")
    deadline: float | None = setting(
        None, "seconds that a round lasts, simulated or real; unset: one second a unit", above=0
    )
    dropout: float = setting(0.0, "chance that a device sends nothing in a round", least=0, below=1)
    # And the run
    seed: int = setting(0, "seed of the random number generators", least=0)
    metric: str | None = setting(None, "target metric; unset: the task's first, for a dataset accuracy")
    better: str | None = setting(
        None, "which values of the target metric are better; unset: as the metric says", choices=("higher", "lower")
    )
    target: float | None = setting(0.65, "value of the target metric to reach; unset: none")
    stop_at_target: bool = setting(False, "end the run when the target is reached")
    evaluate_every: int = setting(1, "rounds between evaluations", least=1)
    evaluate_on: str = setting(
        "aggregator",
        "whose test data: the aggregator's, or what each device holds out of its own",
        choices=("aggregator", "devices"),
    )
    audit: bool = setting(False, "measure how close completed updates come to the true ones; changes nothing else")
    record: str | None = setting(
        None,
        "what evaluated rounds also record; objective: the loss on all training data, gradient: its gradient too",
        choices=("objective", "gradient"),
    )
    backend: str = setting("pool", "where devices run", choices=("serial", "pool", "flower"))
    workers: int = setting(0, "processes of the pool, or of Flower's simulation; 0: one a core", least=0)
    grace: float = setting(30.0, "backend flower: seconds after the deadline that a reply may take", least=0)
    patience: float = setting(3600.0, "backend flower: seconds to wait for replies without a deadline", above=0)
    bind_devices: bool = setting(
        True, "backend flower: a device's number stays with the key of its node; false: for nodes without keys"
    )
    memory_limit: float = setting(
        4.0, "gigabytes of devices' memories (Scaffold, FedDyn) in main memory; the rest goes to disk", least=0
    )
    device: str = setting("cpu", "where tensors are computed: cpu, cuda, cuda:N, mps or auto")
    fast: bool = setting(True, "compiled local training for the models it serves, built on first use; false: torch")
    compile: str = setting(
        "off",
        "compiled training steps by torch.compile; auto: times both, if the run is long enough to pay it back",
        choices=("off", "on", "auto"),
    )
    options: Options = field(default_factory=dict[str, Mapping[str, Any]])

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in experiment_fields()}
        for name, value in check_settings("", Experiment, values).items():
            object.__setattr__(self, name, value)
        options = {owner: check_settings(owner, find_owner(owner), given) for owner, given in self.options.items()}
        object.__setattr__(self, "options", options)
        from fedlga.experiments.checks import check_together

        check_together(self)

    # What is in use

    @property
    def subject(self) -> str:
        """What is learned, in a word: the dataset's name, or the task's."""
        name = self.task or self.dataset
        name = name.removeprefix(IN_PYTHON)
        stem = Path(name).stem if name.endswith(".py") else name.rpartition(".")[2]
        return stem.removeprefix(TASK_MODULE)

    @property
    def target_metric(self) -> str:
        """The name of the target metric."""
        return self.metric or "accuracy"

    def reaches(self, value: float | None) -> bool:
        """Return whether a value of the target metric reaches the target."""
        if value is None or self.target is None:
            return False
        better = self.better or BETTER.get(self.target_metric, "higher")
        return value <= self.target if better == "lower" else value >= self.target

    @property
    def rates(self) -> RateSchedule:
        """Eta_l in each round."""
        return RateSchedule(self.lr, self._schedule, self.lr_decay, self.lr_step, self.rounds, self.lr_warmup)

    @property
    def _schedule(self) -> str:
        return self.lr_schedule or ("exponential" if self.lr_decay else "constant")

    @property
    def policy(self) -> str:
        """The policy in use: the method's own, if none was named."""
        return self.stragglers or find("method", self.method).default_policy

    def name_of(self, kind: str) -> str:
        """Return the name of the method, policy, fleet and so on that is in use."""
        return self.policy if kind == "policy" else str(getattr(self, SEAMS[kind].field))

    def settings(self, kind: str) -> dict[str, Any]:
        """Return all settings of what is in use, open defaults filled in; BadInput if they do not fit together."""
        name = self.name_of(kind)
        cls = find(kind, name)
        defaults = {f.name: f.default for f in settings_of(cls)}
        values = {**defaults, **self.options.get(name, {})}
        resolve = getattr(cls, "resolve", None)
        if resolve is None or 0 in (
            self.devices,
            self.cohort,
        ):  # a task's data decides on them, and then this is checked
            return values
        return resolve(values, self.context())

    def describe_fleet(self) -> str:
        """Return who is slow, in a few words."""
        return find("fleet", self.fleet).describe(self.settings("fleet"), self.context())

    def context(self) -> dict[str, Any]:
        """Return the experiment's own fields, and the number of classes if it is known, for checks of settings."""
        classes = None if self.dataset == OWN else find("dataset", self.dataset).classes
        return {**{f.name: getattr(self, f.name) for f in experiment_fields()}, "classes": classes}

    def resolved(self) -> Experiment:
        """Return it with everything filled in that was left to a default, for what is in use and nothing else."""
        used = {name: self.settings(kind) for kind, name in names_in_use(self.context()).items()}
        known: dict[str, Any] = {}
        if self.dataset != OWN:
            known = {"metric": self.target_metric, "better": self.better or BETTER.get(self.target_metric)}
        return dataclasses.replace(
            self,
            **known,
            stragglers=self.policy,
            lr_schedule=self._schedule,
            deadline=self.deadline or float(self.epochs),
            options={name: known for name, values in used.items() if (known := _drop_unset(values))},
        )

    # To and from plain values

    def as_dict(self) -> dict[str, Any]:
        """Return plain values; what is unset is left out, the settings of what is in use come last."""
        plain = {name: value for f in experiment_fields() if (value := getattr(self, name := f.name)) is not None}
        options = {
            owner: {name: _as_plain(value) for name, value in values.items() if value is not None}
            for owner, values in self.options.items()
        }
        return plain | ({"options": options} if options else {})

    def to_toml(self) -> str:
        """Return all of it as TOML."""
        import tomli_w

        return tomli_w.dumps(self.as_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """Return the experiment that `as_dict` wrote, of this version or an earlier one, or that a user wrote.

        Settings may stand in a table [options.OWNER], in a table [OWNER], or among the experiment's own fields.
        """
        known = {f.name for f in experiment_fields()}
        fields = {name: value for name, value in values.items() if name in known}
        tables: dict[str, Mapping[str, Any]] = {
            name: value for name, value in values.items() if name not in known and isinstance(value, Mapping)
        }
        nested = tables.pop("options", {})
        if odd := [name for name, table in nested.items() if not isinstance(table, Mapping)]:
            raise BadInput(f"options.{odd[0]}: got {nested[odd[0]]!r}; it takes a table of settings")
        tables |= nested
        options = {owner: dict(table) for owner, table in tables.items()}
        _move_eta_g(options, str(fields.get("method", cls.method)))
        names = names_in_use(fields)
        for name, value in values.items():
            if name not in fields and not isinstance(value, Mapping):
                for owner in owners_in_use(names, name) or [owner for _, owner in built_in_owners(name)]:
                    options.setdefault(owner, {}).setdefault(name, value)
                if not any(name in table for table in options.values()):
                    locate(names, name)  # raises, and says what was probably meant
        return cls(**fields, options=options)

    @classmethod
    def from_toml(cls, text: str, source: str = "TOML") -> Experiment:
        """Return the experiment that a TOML text describes."""
        return cls.from_dict(read_toml(text, source))

    @classmethod
    def load(cls, path: str | Path) -> Experiment:
        """Return the experiment in a TOML file."""
        path = Path(path)
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise BadInput(f"experiment: cannot read {str(path)!r} ({reason})") from error

    # Changes

    def changed(self, changes: Mapping[str, Any]) -> Experiment:
        """Return it with some settings changed: a field, 'owner.name', or a bare name of a setting that is in use."""
        known = {f.name for f in experiment_fields()}
        fields = {name: value for name, value in changes.items() if name in known}
        others = {name: value for name, value in changes.items() if name not in known}
        if self.task is None and fields.get("task") is not None:
            fields = {**TASK_DEFAULTS, **fields}
        if fields.get("metric", self.metric) != self.metric:  # what followed from the old one is open again
            fields.setdefault("better", None)
        if "lr_decay" in fields and self.lr_schedule in ("constant", "exponential"):
            fields.setdefault("lr_schedule", None)
        names = names_in_use({**{name: getattr(self, name) for name in known}, **fields})
        given = self.__dict__.get("_given", known) | set(fields)
        return dataclasses.replace(self, **fields, options=_add_options(self.options, names, others), _given=given)

    def for_task(self, name: str, settings: Mapping[str, Any]) -> Experiment:
        """Return the experiment for a task: what was given here, else the task's own settings, else the defaults."""
        known = {f.name for f in experiment_fields()}
        given = {field: getattr(self, field) for field in self.__dict__.get("_given", known) if field in known}
        base = Experiment(task=name).changed(settings)
        return base.changed({**given, "task": name, "dataset": OWN, "model": OWN}).with_options(self.options)

    def with_options(self, options: Options) -> Experiment:
        """Return it with more settings of what is in use."""
        return dataclasses.replace(self, options={**self.options, **options}) if options else self

    def select_known(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return those of the changes that `changed` knows, with what is in use once they are made."""
        own = {f.name for f in experiment_fields()}
        names = names_in_use({**self.context(), **{name: value for name, value in changes.items() if name in own}})
        return {
            name: value for name, value in changes.items() if "." in name or name in own or owners_in_use(names, name)
        }


def _accept_settings_as_arguments() -> None:
    """Let Experiment(fleet="paper", rho=0.9) work: names that are not fields go to `options`."""
    make: Callable[..., None] = Experiment.__init__
    known = {f.name for f in dataclasses.fields(Experiment)}

    @functools.wraps(make)
    def __init__(self: Experiment, *args: Any, **values: Any) -> None:  # noqa: N807
        fields: dict[str, Any] = {name: value for name, value in values.items() if name in known}
        # What was given, for `for_task` and `check_together`; `changed` says which of all the fields it passes were.
        object.__setattr__(self, "_given", frozenset(values.pop("_given", fields)))
        if fields.get("task") is not None:
            fields = {**TASK_DEFAULTS, **fields}
        if others := {name: value for name, value in values.items() if name not in known}:
            fields["options"] = _add_options(fields.get("options", {}), names_in_use(fields), others)
        make(self, *args, **fields)

    Experiment.__init__ = __init__


_accept_settings_as_arguments()


def experiment_fields() -> list[dataclasses.Field[Any]]:
    """Return the experiment's own fields, in order."""
    return settings_of(Experiment)


def names_in_use(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return what an experiment with these fields uses, by kind: {"method": "fedavg", "fleet": "paper", ...}."""
    defaults: dict[str, Any] = {f.name: f.default for f in experiment_fields()}
    names = {
        kind: {**defaults, **fields}[seam.field] for kind, seam in SEAMS.items() if seam.base and seam.in_experiment
    }
    names["policy"] = names["policy"] or find("method", names["method"]).default_policy
    return {kind: name for kind, name in names.items() if not (kind == "dataset" and name == OWN)}


def owners_in_use(names: Mapping[str, str], name: str) -> list[str]:
    """Return what is in use and has a setting of this name."""
    return [owner for kind, owner in names.items() if name in {f.name for f in settings_of(find(kind, owner))}]


def locate(names: Mapping[str, str], name: str) -> list[tuple[str, str]]:
    """Return whose setting a name is, given what is in use: 'mu' or 'fedprox.mu' is ('fedprox', 'mu')."""
    owner, dot, key = name.rpartition(".")
    if dot:
        if key == "eta_g" and owner in _HAD_ETA_G:
            raise BadInput(f"{name}: eta_g belongs to the server optimiser now, for every method: use sgd.eta_g")
        return [(owner, key)]
    if used := owners_in_use(names, name):
        return [(owner, name) for owner in used]
    own = {f.name for kind, owner in names.items() for f in settings_of(find(kind, owner))}
    if (others := built_in_owners(name)) and NAMES.get(name) not in own:
        kind, owner = others[0]
        field_name = SEAMS[kind].field
        raise BadInput(
            f"{name}: it is a setting of {field_name} {owner!r}, and this experiment's is {names[kind]!r}; "
            f"set {field_name}={owner} too, or {owner}.{name}"
        )
    raise BadInput(
        f"{name}: there is no such field; {suggest(name, [*(f.name for f in experiment_fields()), *sorted(own)])}"
    )


def _add_options(options: Options, names: Mapping[str, str], changes: Mapping[str, Any]) -> Options:
    """Return the options with some settings changed."""
    added = {owner: dict(values) for owner, values in options.items()}
    for name, value in changes.items():
        for owner, key in locate(names, name):
            added.setdefault(owner, {})[key] = value
    return added


def _drop_unset(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _as_plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]


def _move_eta_g(options: dict[str, dict[str, Any]], method: str) -> None:
    """Read experiments from before there were server optimisers: eta_g was a setting of four methods."""
    for owner in _HAD_ETA_G:
        eta_g = options.get(owner, {}).pop("eta_g", None)
        if owner in options and not options[owner]:
            del options[owner]
        if eta_g is not None and owner == method:
            options.setdefault("sgd", {}).setdefault("eta_g", eta_g)
