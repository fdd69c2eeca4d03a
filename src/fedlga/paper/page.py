"""What the runs say: tables with the paper's numbers beside ours, and whether its claims hold here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ..evidence import Difference, Estimate, difference
from ..figures import METHOD_NAMES as NAMES
from ..runs import machine, table_as_csv, write_atomically
from .items import Point, papers_number
from .work import Work, summary_of, tidy


@dataclass(frozen=True)
class Claim:
    """One sentence, tested here."""

    text: str
    found: Difference | None
    form: str = "+.1f"
    papers: bool = True  # the paper says so (of our own items: what we ask); else it is told, and not judged

    def sentence(self) -> str:
        """What it says, and whether it holds here."""
        return f"{self.text}: {'no runs to tell' if self.found is None else self.found.text(self.form)}"


Kind = tuple[str, str]  # method and policy


def claims(work: Work) -> list[Claim]:
    """The item's claim, taken apart into differences that a paired test can tell."""
    item, kinds = work.item, work.kinds
    lga = next((kind for kind in kinds if kind[0] == "fedlga"), kinds[0])
    others = [kind for kind in kinds if kind != lga]
    if item.name == "accuracy":
        return [Claim(f"FedLGA needs fewer rounds than {NAMES[o[0]]}", _rounds(work, lga, o)) for o in others]
    if item.name == "loss":
        text = "FedLGA ends with a lower training loss than"
        return [Claim(f"{text} {NAMES[o[0]]}", _less(work, "last_train_loss", lga, o), "+.3f") for o in others]
    if item.name == "best":
        text = "best accuracy is below FedLGA's"
        return [Claim(f"{NAMES[o[0]]}'s {text}", _less(work, "best_accuracy", o, lga), "+.2%") for o in others]
    if item.name == "runtime":
        return _runtime_claims(work, lga, others)
    if item.name == "time":
        return _time_claims(work)
    if item.name == "audit":
        ones = [(point, _known(work.values("approximation_error", *lga, point))) for point in work.points]
        return [
            Claim(f"{point.value}: the error is below 1", difference(seen, dict.fromkeys(seen, 1.0)), "+.3f")
            for point, seen in ones
        ]
    return _sweep_claims(work, lga, others)


def _sweep_claims(work: Work, lga: Kind, others: list[Kind]) -> list[Claim]:
    """Does the sweep go the way the paper says, and is FedLGA ahead at every point?"""
    item, (first, last) = work.item, (work.points[0], work.points[-1])
    low, high = (first, last) if item.name in ("tau-max", "rho") else (last, first)
    of_fedlga_alone = item.name in ("devices", "cohort")
    made: list[Claim] = []
    for kind in work.kinds:
        text = f"{NAMES[kind[0]]} needs fewer rounds at {item.short} {low.value:g} than at {high.value:g}"
        papers = kind == lga or not of_fedlga_alone
        made.append(Claim(text, _rounds(work, kind, kind, low, high), papers=papers))
    for point in work.points:
        for o in others:
            text = f"at {item.short} {point.value:g}, FedLGA needs fewer rounds than {NAMES[o[0]]}"
            made.append(Claim(text, _rounds(work, lga, o, point, point), papers=not of_fedlga_alone))
    return made


def _runtime_claims(work: Work, lga: Kind, others: list[Kind]) -> list[Claim]:
    made: list[Claim] = []
    for o in others:  # third, the paper says, behind FedAvg and FedNova
        a, b = (o, lga) if o[0] in ("fedavg", "fednova") else (lga, o)
        text = f"a round of {NAMES[a[0]]} takes fewer seconds than one of {NAMES[b[0]]}"
        made.append(Claim(text, _less(work, "seconds_per_round", a, b), "+.4f"))
    for o in others:
        text = f"FedLGA takes fewer seconds to the target than {NAMES[o[0]]}"
        made.append(Claim(text, _sooner(work, "seconds", lga, o), "+.2f"))
    return made


def _time_claims(work: Work) -> list[Claim]:
    completed, made = (work.item.methods[0], "complete"), list[Claim]()
    for other in (kind for kind in work.kinds if kind != completed):
        text = f"completing takes fewer simulated seconds to the target than to {other[1]}"
        made.append(Claim(text, _sooner(work, "simulated_seconds", completed, other), "+.0f"))
        if other[1] != "wait":
            text = f"to {other[1]} ends with less accuracy than completing"
            made.append(Claim(text, _less(work, "last_accuracy", other, completed), "+.2%"))
    return made


def _rounds(work: Work, a: Kind, b: Kind, at: Point | None = None, bt: Point | None = None) -> Difference | None:
    """A needs fewer rounds than B, as far as both were watched."""
    one, two = work.values("rounds_to_target", *a, at), work.values("rounds_to_target", *b, bt)
    return difference(one, two, min(work.limit(at), work.limit(bt)))


def _sooner(work: Work, clock: str, a: Kind, b: Kind) -> Difference | None:
    """A reaches the target sooner than B by this clock, as far as both ran."""
    one, two = (work.values(f"{clock}_to_target", *kind) for kind in (a, b))
    ran, also = (_known(work.values(clock, *kind)) for kind in (a, b))
    return difference(one, two, {seed: min(ran[seed], also[seed]) for seed in ran if seed in also})


def _less(work: Work, measure: str, a: Kind, b: Kind) -> Difference | None:
    """A is below B in a measure that every run has."""
    return difference(_known(work.values(measure, *a)), _known(work.values(measure, *b)))


def verdict(made: list[Claim], seeds: int) -> str:
    """What the paper says, or we ask, in a sentence."""
    judged = [claim.found for claim in made if claim.papers]
    seen = [found for found in judged if found is not None]
    if not seen:
        return "There are no runs to tell."
    shown, refuted, blank = sum(d.shown for d in seen), sum(d.refuted for d in seen), len(judged) - len(seen)
    open_ = len(seen) - shown - refuted
    parts = [f"{shown} of {len(judged)} parts hold"]
    parts += [f"of {refuted} the opposite holds"] if refuted else []
    parts += [f"{open_} are not shown"] if open_ else []
    parts += [f"{blank} have no runs to tell"] if blank else []
    said = ", ".join(parts)
    if shown == len(judged):
        return f"It holds here, in all {shown} of its parts." if shown > 1 else "It holds here."
    if refuted:
        return f"It does not hold here: {said}."
    few = "; fewer than five seeds can show nothing" if seeds < 5 else ""  # noqa: PLR2004
    return f"It holds in part: {said}{few}." if shown else f"It is not shown here: {said}{few}."


def _known(values: Mapping[int, float | None]) -> dict[int, float]:
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


def markdown(work: Work, command: str) -> str:
    """The item as a page: setting, table, claims, how it was made."""
    rows, tested, seeds = table(work), claims(work), len({row["seed"] for row in work.found})
    versions: dict[str, str] = work.found[0]["versions"] if work.found else {}
    lines = [f"# {work.item.title}: {work.setting.name}", ""]
    says = work.item.says
    lines += [
        f"Not in the paper: {says.removeprefix('ours: ')}" if says.startswith("ours") else f"The paper: {says}.",
        "",
    ]
    lines += [f"**{verdict(tested, seeds)}**", ""]
    lines += [f"Setting: {work.setting.note}. Target {work.setting.base.target:.0%}.", ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    lines += ["", f"Mean and 95 % interval over {seeds} seeds. 'k of n within r': k of n seeds reached the target in r"]
    lines += [
        "rounds; the others are censored, so there is no mean, and differences are taken as far as both runs went."
    ]
    lines += ["", "## Does it hold here?", ""]
    lines += ["A minus B over the same seeds; p: exact one-sided test of paired differences by flipping signs.", ""]
    made, besides = ([c for c in tested if c.papers is papers] for papers in (True, False))
    lines += [f"- {claim.sentence()}" for claim in made]
    lines += (
        ["", "Besides, of what the paper does not speak of:", "", *(f"- {c.sentence()}" for c in besides)]
        if besides
        else []
    )
    packages = " ".join(f"{name} {version}" for name, version in versions.items())
    lines += ["", f"`{command}`; {packages}; {machine()}.", ""]
    return "\n".join(lines)


RAW = (
    *("point", "method", "stragglers", "seed", "rounds", "rounds_to_target", "seconds_to_target", "seconds_per_round"),
    *("simulated_seconds_to_target", "best_accuracy", "last_accuracy", "last_train_loss"),
    *("approximation_error", "best_scale_error", "aggregate_error"),
)


def write(work: Work, command: str) -> list[Path]:
    """The item's table (Markdown, CSV) and figure (SVG, PNG, PDF), of the runs that are done."""
    from ..figures import draw_item

    for _, run in work.all():
        if summary_of(run):
            tidy(run)
    folder = work.out / work.item.name
    folder.mkdir(parents=True, exist_ok=True)
    stem = folder / work.setting.name
    files = [stem.with_name(f"{stem.name}.{kind}") for kind in ("md", "csv", "svg", "png", "pdf")]
    write_atomically(files[0], markdown(work, command))
    write_atomically(files[1], table_as_csv([{name: row.get(name) for name in RAW} for row in work.found]))
    draw_item(work, files[2:])
    return files
