"""What experiments are, in few words: for headings over several of them, and for trackers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedlga.experiments.config import Experiment


def list_settings(e: Experiment) -> dict[str, Any]:
    """Return all settings in one dict; those of the method and policy with their owner's name."""
    own = {name: value for name, value in e.as_dict().items() if name != "options"}
    by_name = {e.method, e.policy}
    options = {
        f"{owner}.{name}" if owner in by_name else name: value
        for owner, values in e.options.items()
        for name, value in values.items()
    }
    return own | {name: value for name, value in options.items() if name not in own}


def describe_all(experiments: Sequence[Experiment]) -> str:
    """Return on what and by whom experiments were run; what differs among them is listed, not taken from the first."""
    subjects = join_words(_distinct(experiments, lambda e: e.subject), "and")
    devices = join_words(_distinct(experiments, lambda e: str(e.devices)), "or")
    cohorts = join_words(_distinct(experiments, lambda e: str(e.cohort)), "or")
    fleets = _distinct(experiments, Experiment.describe_fleet)
    fleet = fleets[0] if len(fleets) == 1 else f"{len(fleets)} fleets ({'; '.join(fleets)})"
    models = _distinct([e for e in experiments if not e.task], lambda e: e.model)
    model = f"; model{'s' if len(models) > 1 else ''} {', '.join(models)}" if models else ""
    return f"{subjects} on {devices} devices, {cohorts} a round, {fleet}{model}"


def _distinct(experiments: Iterable[Experiment], describe: Callable[[Experiment], str]) -> list[str]:
    return list(dict.fromkeys(describe(e) for e in experiments))


def join_words(words: Sequence[str], last: str) -> str:
    """Return a list as one writes it: 'a, b and c'."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"
