"""What the runs say: tables with the paper's numbers beside ours, and whether its claims hold here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evidence import Difference, Estimate, difference
from ..figures import METHOD_NAMES as NAMES
from ..runs import table_as_csv, write_atomically
from .items import Point, papers_number
from .work import Work


@dataclass(frozen=True)
class Claim:
    """One sentence of the paper's, tested here."""

    text: str
    found: Difference | None
    form: str = "+.1f"

    def sentence(self) -> str:
        """What it says, and whether it holds here."""
        return f"{self.text}: {'no runs to tell' if self.found is None else self.found.text(self.form)}"


def claims(work: Work) -> list[Claim]:
    """The item's claim, taken apart into differences that a paired test can tell."""
    item, kinds = work.item, work.kinds
    lga = next((kind for kind in kinds if kind[0] == "fedlga"), kinds[0])
    others = [kind for kind in kinds if kind != lga]

    def rounds(a: tuple[str, str], b: tuple[str, str], at: Point | None = None, bt: Point | None = None) -> Any:
        one, two = work.values("rounds_to_target", *a, at), work.values("rounds_to_target", *b, bt or at)
        return difference(one, two, limit=min(work.limit(at), work.limit(bt or at)))

    def less(measure: str, a: tuple[str, str], b: tuple[str, str]) -> Difference | None:
        one, two = (_known(work.values(measure, *kind)) for kind in (a, b))
        return difference(one, two)

    if item.name == "accuracy":
        return [Claim(f"FedLGA needs fewer rounds than {NAMES[o[0]]}", rounds(lga, o)) for o in others]
    if item.name == "loss":
        return [
            Claim(f"FedLGA ends with a lower training loss than {NAMES[o[0]]}", less("last_train_loss", lga, o), "+.3f")
            for o in others
        ]
    if item.name == "best":
        return [
            Claim(f"{NAMES[o[0]]}'s best accuracy is below FedLGA's", less("best_accuracy", o, lga), "+.2%")
            for o in others
        ]
    if item.name == "runtime":
        each = [
            Claim(
                f"a round of FedLGA takes fewer seconds than one of {NAMES[o[0]]}",
                less("seconds_per_round", lga, o),
                "+.4f",
            )
            for o in others
        ]
        return each + [
            Claim(
                f"FedLGA takes fewer seconds to the target than {NAMES[o[0]]}",
                less("seconds_to_target", lga, o),
                "+.2f",
            )
            for o in others
        ]
    if item.name == "time":
        return _time_claims(work)
    if item.name == "audit":
        ones = [(point, _known(work.values("approximation_error", *lga, point))) for point in work.points]
        return [
            Claim(f"{point.value}: the error is below 1", difference(seen, dict.fromkeys(seen, 1.0)), "+.3f")
            for point, seen in ones
        ]
    first, last = work.points[0], work.points[-1]
    made: list[Claim] = []
    for kind in kinds:  # does the sweep go the way the paper says?
        low, high = (first, last) if item.name in ("tau-max", "rho") else (last, first)
        text = f"{NAMES[kind[0]]} needs fewer rounds at {item.short} {low.value:g} than at {high.value:g}"
        made.append(Claim(text, rounds(kind, kind, low, high)))
    for point in work.points:
        made += [
            Claim(
                f"at {item.axis} {point.value:g}, FedLGA needs fewer rounds than {NAMES[o[0]]}", rounds(lga, o, point)
            )
            for o in others
        ]
    return made


def verdict(made: list[Claim]) -> str:
    """All claims in a sentence."""
    seen = [claim.found for claim in made if claim.found is not None]
    shown, refuted = sum(d.shown for d in seen), sum(d.refuted for d in seen)
    if not seen:
        return "There are no runs to tell."
    if shown == len(seen):
        return f"It holds here, in all {len(seen)} of its parts." if len(seen) > 1 else "It holds here."
    open_ = len(seen) - shown - refuted
    said = f"{shown} of {len(seen)} parts hold here, of {refuted} the opposite holds, {open_} are not shown"
    return f"It does not hold here: {said}." if refuted or not shown else f"It holds in part: {said}."


def _time_claims(work: Work) -> list[Claim]:
    method = work.item.methods[0]

    def seconds(policy: str) -> dict[int, float | None]:
        return work.values("simulated_seconds_to_target", method, policy)

    every = [v for policy in work.item.policies for v in seconds(policy).values() if v is not None]
    total = [row["simulated_seconds"] for row in work.found]
    latest = max([*every, *total], default=0.0)
    return [
        Claim(
            f"completing takes fewer simulated seconds to the target than to {other}",
            difference(seconds("complete"), seconds(other), limit=latest),
            "+.0f",
        )
        for other in work.item.policies
        if other != "complete"
    ]


def _known(values: Mapping[int, float | None]) -> dict[int, float | None]:
    return {seed: value for seed, value in values.items() if value is not None}


def table(work: Work) -> list[dict[str, str]]:
    """The item's table: ours with intervals, the paper's numbers beside."""
    item, name = work.item, work.setting.name
    rows: list[dict[str, str]] = []
    for point in work.points:
        for method, policy in work.kinds:

            def estimate(measure: str, at: Point = point, m: str = method, p: str = policy) -> Estimate:
                return Estimate.of(list(work.values(measure, m, p, at).values()))

            row = {"method": NAMES[method], "stragglers": policy}
            if item.axis:
                row[item.axis] = point.value if isinstance(point.value, str) else f"{point.value:g}"
            if item.kind == "audit":
                row["error"] = estimate("approximation_error").text(".2f")
                row["best multiple"] = estimate("best_scale_error").text(".2f")
                row["averaged update"] = estimate("aggregate_error").text(".2f")
                rows.append(row)
                continue
            row["rounds to target"] = estimate("rounds_to_target").text(".0f", work.limit(point))
            if item.name == "loss":
                row["training loss at the end"] = estimate("last_train_loss").text(".3f")
            if item.kind in ("bars", "curves", "time") and item.name != "loss":
                row["best accuracy"] = estimate("best_accuracy").text(".1%")
            if item.kind == "time":
                row["simulated seconds to target"] = estimate("simulated_seconds_to_target").text(".0f")
                row["accuracy at the end"] = estimate("last_accuracy").text(".1%")
            if item.kind == "runtime":
                row["seconds a round"] = estimate("seconds_per_round").text(".3f")
                row["seconds to target"] = estimate("seconds_to_target").text(".1f")
            if item.kind != "time":
                beside = "the paper" if work.setting.exact else "the paper, in its setting"
                row[beside] = papers_number(item.name, name, method, point.value)
            rows.append(row)
    return rows


def markdown(work: Work, command: str, machine: str) -> str:
    """The item as a page: setting, table, claims, how it was made."""
    rows, seeds = table(work), len({row["seed"] for row in work.found})
    versions: dict[str, str] = work.found[0]["versions"] if work.found else {}
    lines = [f"# {work.item.title}: {work.setting.name}", ""]
    says = work.item.says
    lines += [
        f"Not in the paper: {says.removeprefix('ours: ')}" if says.startswith("ours") else f"The paper: {says}.",
        "",
    ]
    lines += [f"**{verdict(claims(work))}**", ""]
    lines += [f"Setting: {work.setting.note}. Target {work.setting.base.target:.0%}.", ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    lines += ["", f"Mean and 95 % interval over {seeds} seeds. 'k of n within r': k of n seeds reached the target in r"]
    lines += [
        "rounds; the others are censored, so there is no mean, and in the tests they count with the rounds they had."
    ]
    lines += ["", "## Does it hold here?", ""]
    lines += ["A minus B over the same seeds; p: exact one-sided test of paired differences by flipping signs.", ""]
    lines += [f"- {claim.sentence()}" for claim in claims(work)]
    made = " ".join(f"{name} {version}" for name, version in versions.items())
    lines += ["", f"`{command}`; {made}; {machine}.", ""]
    return "\n".join(lines)


RAW = (
    *("point", "method", "stragglers", "seed", "rounds", "rounds_to_target", "seconds_to_target", "seconds_per_round"),
    *("simulated_seconds_to_target", "best_accuracy", "last_accuracy", "last_train_loss"),
    *("approximation_error", "best_scale_error", "aggregate_error"),
)


def write(work: Work, command: str, machine: str) -> list[Path]:
    """The item's table (Markdown, CSV) and figure (SVG, PNG, PDF), of the runs that are done."""
    from ..figures import draw_item

    folder = work.out / work.item.name
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / work.setting.name
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("md", "csv", "svg", "png", "pdf")]
    write_atomically(files[0], markdown(work, command, machine))
    write_atomically(files[1], table_as_csv([{name: row.get(name) for name in RAW} for row in work.found]))
    draw_item(work, files[2:])
    return files
