"""An experiment: one dataclass that says everything about a run, to and from TOML, and the presets."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .settings import BadInput, checked, choose, nearest, setting

OWN = "own"  # the dataset, and model, of real devices that bring theirs: see fedlga.flower.server_app
FLEETS = ("equal", "paper", "speeds", "trace", "real")
Options = Mapping[str, Mapping[str, Any]]  # settings of methods and policies by name: {"fedprox": {"mu": 0.1}}


@dataclass(frozen=True)
class Experiment:
    """The defaults are the preset `paper`: the FedLGA paper's setting on Fashion-MNIST."""

    # What is learned
    dataset: str = setting("fashion-mnist", "fashion-mnist, cifar-10, cifar-100 or digits")
    model: str = setting("mlp", "mlp, cnn, resnet20, or your own as package.module:function")
    normalise: bool = setting(True, "subtract the training pixels' mean and divide by their deviation")
    augment: bool = setting(False, "random crop and mirror image of every training image")
    resize: int = setting(0, "side of the images the model gets; 0: as they are", least=0, most=1024)
    # By whom
    devices: int = setting(50, "N, devices in the federation", least=1)
    partition: str = setting("classes", "who holds what", choices=("classes", "dirichlet", "iid", "quantity"))
    classes_per_device: int = setting(2, "P, for partition classes", least=1)
    partition_alpha: float = setting(0.5, "for partitions dirichlet and quantity: smaller is more unequal", above=0)
    examples_per_device: int = setting(
        0, "drawn with replacement for each device, so devices may share; 0: the data is dealt out", least=0
    )
    # How
    method: str = setting("fedlga", "fedavg, fedprox, fednova, scaffold, feddyn, fedlga, or package.module:Class")
    stragglers: str | None = setting(None, "wait, drop, keep or complete; unset: the method's own, keep for most")
    averaging: str = setting("uniform", "weight of an update in the mean", choices=("uniform", "examples"))
    rounds: int = setting(200, "T, rounds to train", least=1)
    cohort: int = setting(10, "K, devices selected in a round", least=1)
    sampling: str = setting("without-replacement", "of the cohort", choices=("without-replacement", "with-replacement"))
    epochs: int = setting(5, "E, units of local work in a round", least=1)
    steps_per_epoch: int = setting(1, "SGD steps in a unit (1: Eq. 2 to the letter); 0: a pass over the data", least=0)
    batch_size: int = setting(10, "examples in a batch", least=1)
    lr: float = setting(0.00075, "eta_l, local learning rate", above=0)
    lr_decay: float = setting(0.0, "gamma: eta_l <- (1 - gamma) eta_l each round", least=0, below=1)
    momentum: float = setting(0.0, "of local SGD; starts anew each round", least=0, below=1)
    clip: float = setting(0.0, "largest norm of a gradient; 0: any", least=0)
    # On what
    fleet: str = setting("paper", "who is slow; real: the devices themselves, on backend flower", choices=FLEETS)
    rho: float = setting(0.5, "fleet paper: share of the selected that is slow", least=0, most=1)
    tau_min: int = setting(1, "fleet paper: a slow device does E - tau + 1 units, tau from tau_min", least=1)
    tau_max: int | None = setting(None, "fleet paper: to tau_max; unset: E - 1", least=1)
    deadline: float | None = setting(None, "seconds a round gives, simulated or real; unset: a second a unit", above=0)
    speeds: tuple[float, ...] = setting(
        (), "fleet speeds: SGD steps a second of each device; empty: log-normal", above=0
    )
    speed_median: float = setting(1.0, "fleet speeds: median of log-normal speeds", above=0)
    speed_sigma: float = setting(0.7, "fleet speeds: deviation of the speeds' logarithm", least=0)
    slow_classes: tuple[int, ...] = setting(
        (), "fleet speeds: whoever holds one of these is slow, the rest fast", least=0
    )
    slow_speed: float = setting(0.2, "fleet speeds: a slow device's speed, in medians", above=0, most=1)
    trace: str | None = setting(None, "fleet trace: a CSV file with round, device, and epochs or seconds")
    dropout: float = setting(0.0, "chance that a device sends nothing in a round", least=0, below=1)
    # And the run
    seed: int = setting(0, "of all draws", least=0)
    target: float = setting(0.65, "test accuracy to reach", least=0, most=1)
    stop_at_target: bool = setting(False, "end the run there")
    evaluate_every: int = setting(1, "rounds between evaluations", least=1)
    audit: bool = setting(False, "measure how close completed updates come to the true ones; changes nothing else")
    backend: str = setting("pool", "where devices run", choices=("serial", "pool", "flower"))
    workers: int = setting(0, "processes of the pool, or of Flower's simulation; 0: one a core", least=0)
    grace: float = setting(30.0, "backend flower: seconds after the deadline that a reply may take", least=0)
    patience: float = setting(3600.0, "backend flower: seconds to wait for replies where there is no deadline", above=0)
    memory_limit: float = setting(
        4.0, "gigabytes of what devices remember (Scaffold, FedDyn) in memory; the rest goes to disk", least=0
    )
    fast: bool = setting(True, "compiled local training for the models it serves, built on first use; off: torch")
    options: Options = field(default_factory=dict[str, Mapping[str, Any]])

    def __post_init__(self) -> None:
        values = {f.name: getattr(self, f.name) for f in settings()}
        for name, value in checked("", Experiment, values).items():
            object.__setattr__(self, name, value)
        _check_together(self)

    @property
    def policy(self) -> str:
        """The answer to stragglers, the method's own where none was asked for."""
        from .methods import method_class

        return self.stragglers or method_class(self.method).policies[0]

    def resolved(self) -> Experiment:
        """With everything filled in that was left to a default, the settings of method and policy included."""
        from .methods import make_method
        from .stragglers import make_policy

        method = make_method(self.method, dict(self.options.get(self.method, {})))
        policy = make_policy(self.policy, dict(self.options.get(self.policy, {})))
        chosen = {self.method: _settings_of(method), self.policy: _settings_of(policy)}
        return dataclasses.replace(
            self,
            stragglers=self.policy,
            tau_max=self.tau_max or max(1, self.epochs - 1),
            deadline=self.deadline or float(self.epochs),
            options={**self.options, **{name: values for name, values in chosen.items() if values}},
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values; what is unset is left out, the tables of methods and policies stand at the end."""
        plain = {f.name: getattr(self, f.name) for f in settings()}
        plain |= {"speeds": list(self.speeds), "slow_classes": list(self.slow_classes)}
        tables = {name: {k: v for k, v in own.items() if v is not None} for name, own in self.options.items()}
        return {name: value for name, value in plain.items() if value is not None} | tables

    def to_toml(self) -> str:
        """All of it as TOML."""
        import tomli_w

        return tomli_w.dumps(self.as_dict())

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Experiment:
        """The experiment that `as_dict` wrote, or a user did."""
        options: dict[str, Mapping[str, Any]] = {n: v for n, v in values.items() if isinstance(v, Mapping)}
        plain = {name: value for name, value in values.items() if name not in options}
        known = [f.name for f in settings()]
        for name in plain:
            if name not in known:
                raise BadInput(f"{name}: there is no such field; {nearest(name, known)}")
        return cls(**plain, options=options)

    @classmethod
    def from_toml(cls, text: str, source: str = "TOML") -> Experiment:
        """The experiment that a TOML text describes."""
        try:
            return cls.from_dict(tomllib.loads(text))
        except tomllib.TOMLDecodeError as error:
            raise BadInput(f"{source}: not valid TOML ({error})") from error

    @classmethod
    def load(cls, path: Path) -> Experiment:
        """The experiment in a TOML file."""
        try:
            return cls.from_toml(path.read_text(encoding="utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(
                f"experiment: cannot read {str(path)!r} ({getattr(error, 'strerror', None) or error})"
            ) from error

    def changed(self, changes: Mapping[str, Any]) -> Experiment:
        """With some settings changed: a field, 'method.field', or a bare field of the method or policy in use."""
        fields = {name: value for name, value in changes.items() if name in {f.name for f in settings()}}
        experiment = dataclasses.replace(self, **fields)
        options = {name: dict(values) for name, values in self.options.items()}
        for name, value in changes.items():
            if name not in fields:
                owner, key = experiment.owner(name)
                options.setdefault(owner, {})[key] = value
        return dataclasses.replace(experiment, options=options)

    def has(self, name: str) -> bool:
        """Whether `changed` knows a name with this method and policy."""
        return "." in name or name in {f.name for f in settings()} or name in self._own()

    def owner(self, name: str) -> tuple[str, str]:
        """Whose setting a name is that is not the experiment's own: 'mu' or 'fedprox.mu' is ('fedprox', 'mu')."""
        owner, dot, key = name.rpartition(".")
        if dot:
            return owner, key
        own = self._own()
        if name not in own:
            raise BadInput(f"{name}: there is no such field; {nearest(name, [f.name for f in settings()] + list(own))}")
        return own[name], name

    def _own(self) -> dict[str, str]:
        """The settings of the method and the policy in use, and whose they are."""
        from .methods import method_class
        from .stragglers import POLICIES

        classes: dict[str, Any] = {self.method: method_class(self.method), self.policy: POLICIES[self.policy]}
        return {name: who for who, cls in classes.items() for name in _names(cls)}


def settings() -> list[dataclasses.Field[Any]]:
    """The fields of an experiment, in order."""
    return [f for f in dataclasses.fields(Experiment) if "meaning" in f.metadata]


def parsed(text: str) -> tuple[str, Any]:
    """'key=value' as given to --set; a value that is not TOML is a text."""
    key, equals, raw = text.partition("=")
    if not equals or not key.strip():
        raise BadInput(f"--set: got {text!r}; it takes key=value")
    try:
        return key.strip(), tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), raw.strip()


def preset(name: str) -> Experiment:
    """A preset by name."""
    return Experiment().changed(PRESETS[choose("preset", name, PRESETS)])


_CIFAR = {"model": "resnet20", "augment": True, "steps_per_epoch": 0, "lr": 0.01, "rounds": 400}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {},
    "paper-epochs": {"steps_per_epoch": 0, "lr": 0.01, "rounds": 20, "target": 0.7},
    "cifar10": {**_CIFAR, "dataset": "cifar-10", "target": 0.55},
    "cifar100": {**_CIFAR, "dataset": "cifar-100", "target": 0.40, "classes_per_device": 20},
    "digits": {
        "dataset": "digits",
        "devices": 20,
        "cohort": 5,
        "steps_per_epoch": 0,
        "lr": 0.05,
        "rounds": 30,
        "target": 0.85,
        "backend": "serial",
    },
}
PRESETS["fleet"] = {
    "method": "fedavg",
    "stragglers": "complete",
    "fleet": "speeds",
    "slow_classes": (0, 1, 2, 3),
    "deadline": 5.0,
    "lr": 0.003,
    "rounds": 150,
    "target": 0.7,
    "evaluate_every": 3,
}
PRESET_MEANINGS = {
    "paper": "the FedLGA paper on Fashion-MNIST, one unit of work = one batch (the default)",
    "paper-epochs": "the same, one unit of work = one pass over the device's data",
    "fleet": "the same devices are always slow, and hold what the others do not: four classes of ten",
    "cifar10": "the paper on CIFAR-10 with ResNet-20 (hours on a CPU)",
    "cifar100": "the paper on CIFAR-100 with ResNet-20 (hours on a CPU)",
    "digits": "small data that comes with the package: a first step, in seconds",
}


def _names(thing: Any) -> list[str]:
    return (
        [f.name for f in dataclasses.fields(thing) if "meaning" in f.metadata]
        if dataclasses.is_dataclass(thing)
        else []
    )


def _settings_of(thing: Any) -> dict[str, Any]:
    return {name: getattr(thing, name) for name in _names(thing)}


def _check_together(e: Experiment) -> None:
    """What no field can say alone."""
    from .data.datasets import DATASETS
    from .methods import make_method, method_class
    from .stragglers import POLICIES, make_policy

    if e.dataset != OWN:
        choose("dataset", e.dataset, DATASETS)
    elif e.fleet != "real":
        raise BadInput(f"dataset: got {OWN!r} with fleet {e.fleet!r}; only real devices have data of their own")
    allowed = method_class(e.method).policies
    if e.stragglers is not None and choose("stragglers", e.stragglers, POLICIES) not in allowed:
        raise BadInput(
            f"stragglers: got {e.stragglers!r}; method {e.method} takes {', '.join(allowed)}"
            + (" (it is averaging with complete: for another policy use method fedavg)" if e.method == "fedlga" else "")
        )
    for name, values in e.options.items():
        if name in POLICIES:
            make_policy(name, dict(values))
        else:
            make_method(name, dict(values))
    if e.cohort > e.devices and e.sampling == "without-replacement":
        raise BadInput(f"cohort: got {e.cohort}; it takes at most the {e.devices} devices there are")
    classes = DATASETS[e.dataset].classes if e.dataset != OWN else len(e.slow_classes) + e.classes_per_device
    if e.partition == "classes" and e.classes_per_device > classes:
        raise BadInput(
            f"classes_per_device: got {e.classes_per_device}; it takes 1 to {classes}, the classes of {e.dataset}"
        )
    if e.tau_max is not None and e.tau_max > e.epochs:
        raise BadInput(f"tau_max: got {e.tau_max}; it takes 1 to epochs, which is {e.epochs}")
    if e.fleet == "paper" and e.tau_min > (top := e.tau_max or max(1, e.epochs - 1)):
        raise BadInput(f"tau_min: got {e.tau_min}; it takes 1 to tau_max, which is {top}")
    if e.speeds and len(e.speeds) != e.devices:
        raise BadInput(f"speeds: got {len(e.speeds)} of them; it takes one for each of the {e.devices} devices")
    if e.slow_classes and (e.speeds or max(e.slow_classes) >= classes):
        raise BadInput(
            f"slow_classes: got {list(e.slow_classes)}; it takes classes from 0 to {classes - 1}, and no speeds"
        )
    if e.fleet == "speeds" and e.deadline is None:
        raise BadInput("deadline: fleet 'speeds' needs one; it takes a number of seconds above 0")
    if e.fleet == "real" and e.backend != "flower":
        raise BadInput(f"fleet: got 'real' with backend {e.backend!r}; real devices are there on backend 'flower'")
    if e.fleet == "real" and (e.audit or e.dropout):
        raise BadInput("fleet: got 'real' with audit or dropout; nobody simulates what a real device does")
    if (e.fleet == "trace") != (e.trace is not None):
        raise BadInput(
            f"trace: got {e.trace!r} with fleet {e.fleet!r}; fleet 'trace' takes a CSV file, others take none"
        )


def seeds(text: str) -> Sequence[int]:
    """'0-4' or '0,3,7' or both."""
    found: list[int] = []
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        if not first.isdigit() or (dash and not last.isdigit()):
            raise BadInput(f"--seeds: got {text!r}; it takes numbers and ranges, such as 0-4 or 0,3,7")
        found += range(int(first), int(last if dash else first) + 1)
    if not found or len(set(found)) < len(found):
        raise BadInput(f"--seeds: got {text!r}; it takes at least one seed, each once")
    return found
