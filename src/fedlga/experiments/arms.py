"""Arms: what a comparison compares. An arm is a method with a policy, and settings of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fedlga.core.registry import find, names_of
from fedlga.core.settings import BadInput
from fedlga.experiments.config import Experiment
from fedlga.experiments.parsing import parse_setting


@dataclass(frozen=True)
class Arm:
    """A method with a policy, and settings that only this arm has."""

    method: str
    policy: str
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        texts: tuple[Any, ...] = (self.method, self.policy)
        if not all(isinstance(text, str) for text in texts) or not isinstance(self.settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise BadInput(f"arm: got {self.method!r} {self.policy!r}; it takes two names, and a table of settings")

    @property
    def label(self) -> str:
        """The arm in one word, for folders and tables: fedavg-complete-lr=0.03."""
        return "-".join([self.method, self.policy, *self.settings_text.split()]).replace(":", ".").replace("/", ".")

    @property
    def settings_text(self) -> str:
        """The settings as a user writes them: 'lr=0.03 mu=0.1'."""
        return format_settings(self.settings)

    def add(self, settings: Mapping[str, Any]) -> Arm:
        """Return the arm with more settings."""
        return replace(self, settings={**self.settings, **settings})

    def experiment(self, base: Experiment, seed: int) -> Experiment:
        """Return the run of this arm on one seed."""
        fields = {"method": self.method, "stragglers": self.policy, "seed": seed}
        return base.changed({**fields, **self.settings})

    def as_dict(self) -> dict[str, Any]:
        """Return plain values, for TOML."""
        return {"method": self.method, "policy": self.policy, "settings": dict(self.settings)}


def format_settings(settings: Mapping[str, Any]) -> str:
    """Return settings as a user writes them: 'lr=0.03 mu=0.1'."""
    return " ".join(f"{name}={_format_value(value)}" for name, value in settings.items())


def _format_value(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value).replace(" ", "")


def parse_arm(text: str) -> Arm:
    """Return the arm of 'METHOD [POLICY] [KEY=VALUE ...]', as given to --arm; the policy defaults to the method's."""
    words = text.split()
    names = [word for word in words if "=" not in word]
    if not 1 <= len(names) <= 2 or words[: len(names)] != names:  # noqa: PLR2004
        raise BadInput(f"--arm: got {text!r}; it takes METHOD [POLICY] [KEY=VALUE ...], such as 'fedavg keep lr=0.1'")
    method = find("method", names[0])
    policy = names[1] if len(names) > 1 else method.default_policy
    find("policy", policy)
    pairs = [parse_setting(word, "--arm") for word in words[len(names) :]]
    if fixed := {"method", "stragglers", "seed"} & {name for name, _ in pairs}:
        raise BadInput(f"--arm: got {sorted(fixed)[0]} in {text!r}; METHOD and POLICY come first, seeds with --seeds")
    return Arm(names[0], policy, dict(pairs))


def pair_arms(methods: Sequence[str], policies: Sequence[str], default: str | None = None) -> list[Arm]:
    """Return every method with every policy that it goes with; without policies, with `default` or its own."""
    for policy in policies:
        find("policy", policy)
    arms: list[Arm] = []
    for name in methods:
        method = find("method", name)
        allowed = [p for p in policies if not method.policies or p in method.policies]
        if policies and not allowed:
            takes = ", ".join(method.policies or names_of("policy"))
            raise BadInput(f"--stragglers: method {name} takes {takes}; got {','.join(policies)}")
        arms += [Arm(name, policy) for policy in allowed or [default or method.default_policy]]
    return arms


def list_left_out(methods: Sequence[str], policies: Sequence[str]) -> list[str]:
    """Return, in a line for each method, the policies that it does not go with and that are left out."""
    lines: list[str] = []
    for name in methods:
        takes = find("method", name).policies
        if takes and (left_out := [policy for policy in policies if policy not in takes]):
            lines.append(f"left out: {name} with {', '.join(left_out)}; it takes {', '.join(takes)}")
    return lines


def check_different(arms: Sequence[Arm]) -> None:
    """Raise BadInput if two arms are the same: they would share a folder."""
    labels = [arm.label for arm in arms]
    if repeated := [label for label in labels if labels.count(label) > 1]:
        raise BadInput(f"--arm: {repeated[0]} is there twice; each arm is compared once")
