"""What happened, in a sentence: the headline of a report."""

from __future__ import annotations

from collections.abc import Sequence

from fedlga.experiments.labels import join_words
from fedlga.experiments.measures import format_target, metric_format
from fedlga.experiments.statistics import FEWEST, find_leaders
from fedlga.report.groups import Group

MOST_NAMED = 4  # of those that are level, or that are described one by one


def make_headline(groups: Sequence[Group]) -> str:
    """Return what happened, in a sentence. One is named as best if no other's 95 % interval overlaps its own."""
    metric = groups[0].experiment.target_metric
    all_over = not any(g.unfinished for g in groups)
    seeds = {tuple(sorted(run.experiment.seed for run in g.runs)) for g in groups}
    if len(groups) == 1 or find_target(groups) is None or not all_over or len(seeds) > 1:  # they cannot be compared
        return _describe_all(groups)
    if len(groups[0].runs) < FEWEST:
        return f"{_describe_all(groups)} With fewer than three seeds, none is named as best."
    goal = format_target(metric, find_target(groups))
    reached = [g for g in groups if g.estimate("rounds_to_target").mean is not None]
    if not reached:
        lower = groups[0].experiment.better == "lower"
        best = _name_leaders(groups, f"best_{metric}", metric_format(metric), lower=lower)
        return f"None reached {goal} on every seed" + (f"; closest came {best}." if best else ".")
    rounds = _name_leaders(reached, "rounds_to_target", ".0f", lower=True)
    seconds = _name_leaders(reached, "simulated_seconds_to_target", ".0f", lower=True, unit=" s")
    others = [g.label for g in groups if g not in reached]
    missed = f"; {join_words(others, 'and')} did not reach it on every seed" if others else ""
    return f"To {goal} in the fewest rounds: {rounds}; in the least simulated time: {seconds}{missed}."


def _name_leaders(groups: Sequence[Group], measure: str, form: str, *, lower: bool, unit: str = "") -> str:
    """Return who is best in a measure, or who may be: 'A (11 ± 2)', 'A (11 ± 4) and B (12 ± 5), level'."""
    estimates = {g.label: g.estimate(measure) for g in groups}
    leaders = find_leaders(estimates, lower=lower)
    names = [f"{label} ({estimates[label].text(form)}{unit})" for label in leaders]
    if len(names) > MOST_NAMED:
        names = [*names[:MOST_NAMED], f"{len(names) - MOST_NAMED} more"]
    level = ", whose 95 % intervals overlap" if len(names) > 1 else ""
    return f"{join_words(names, 'and')}{level}" if names else ""


def find_target(groups: Sequence[Group]) -> float | None:
    """Return the target, if it is the same for all."""
    target = groups[0].experiment.target
    goals = {(g.experiment.subject, g.experiment.target_metric, g.experiment.target) for g in groups}
    return target if len(goals) == 1 else None


def _describe_all(groups: Sequence[Group]) -> str:
    """Return how each group did; only how many more there are, beyond a few: the page has a table of all."""
    texts = [_describe(group) for group in groups[:MOST_NAMED]]
    if len(groups) > MOST_NAMED:
        texts.append(f"and {len(groups) - MOST_NAMED} more, in the table below")
    return f"{'; '.join(texts)}."


def _describe(group: Group) -> str:
    rounds, metric = group.estimate("rounds_to_target"), group.experiment.target_metric
    best, goal = group.estimate(f"best_{metric}"), format_target(metric, group.experiment.target)
    value = "" if best.mean is None else f"best {metric} {best.text(metric_format(metric))}"
    ending = f"; {value}" if value else ""
    if group.unfinished:
        return f"{group.label} is not over: {_progress(group)}{ending}"
    if group.experiment.target is None:
        return f"{group.label}: {value or 'nothing was measured'}"
    if rounds.mean is None:
        of = f" on {rounds.censored} of {rounds.count} seeds" if rounds.count > 1 else ""
        return f"{group.label} did not reach {goal}{of}{ending}"
    seconds = group.estimate("simulated_seconds_to_target").text()
    return f"{group.label} reached {goal} after {rounds.text()} rounds and {seconds} simulated seconds{ending}"


def _progress(group: Group) -> str:
    """Return how far the runs of a group are. Whether one goes on or was stopped, its folder does not say."""
    done = sum(len(run.records) for run in group.runs)
    asked = sum(run.experiment.rounds for run in group.runs)
    runs = "" if len(group.runs) == 1 else f", {group.unfinished} of {len(group.runs)} runs to be finished"
    return f"{done} of {asked} rounds{runs}"
