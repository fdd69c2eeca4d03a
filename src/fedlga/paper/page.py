"""An item's page: its table with the paper's numbers beside ours, and whether its claims hold here."""

from __future__ import annotations

from pathlib import Path

from fedlga.core.files import format_csv, write_atomically
from fedlga.experiments.measures import describe_machine
from fedlga.experiments.records import read_summary
from fedlga.experiments.run import remove_weights
from fedlga.experiments.statistics import FEWEST
from fedlga.paper.claims import judge
from fedlga.paper.items import Item
from fedlga.paper.runs import ItemRuns
from fedlga.paper.settings import Setting
from fedlga.report.seed_curves import write_curves
from fedlga.report.style import METHOD_NAMES

RAW = (
    *("point", "method", "stragglers", "seed", "rounds", "rounds_to_target", "seconds_to_target", "seconds_per_round"),
    *("seconds", "simulated_seconds_to_target", "simulated_seconds", "best_accuracy", "last_accuracy"),
    *("last_train_loss", "final_train_objective"),
    *("approximation_error", "best_scale_error", "aggregate_error"),
)  # columns of the CSV


def make_table(runs: ItemRuns) -> list[dict[str, str]]:
    """Return the item's table: ours with intervals, the paper's numbers beside."""
    return [
        {
            "method": METHOD_NAMES[method],
            "stragglers": policy,
            **runs.item.label(point),
            **runs.item.columns(runs, point, method, policy),
        }
        for point in runs.points
        for method, policy in runs.kinds
    ]


def describe_origin(runs: ItemRuns, command: str) -> str:
    """Return the last line of the page: the command, the versions and the machine."""
    versions: dict[str, str] = runs.rows[0]["versions"] if runs.rows else {}
    packages = " ".join(f"{name} {version}" for name, version in versions.items())
    return f"`{command}`; {packages}; {describe_machine()}."


def make_page(runs: ItemRuns, origin: str) -> str:
    """Return the item as Markdown: setting, table, claims, how it was made."""
    rows, claims, seeds = make_table(runs), runs.item.claims(runs), len({row["seed"] for row in runs.rows})
    item, setting = runs.item, runs.setting
    lines = [f"# {item.title}: {setting.name}", ""]
    lines += [_introduce(item, setting), ""]
    lines += [f"**{judge(claims, seeds)}**", ""]
    lines += [f"Setting: {setting.note}. Target {setting.base.target:.0%}.", ""]
    lines += ["| " + " | ".join(rows[0]) + " |", "|" + "---|" * len(rows[0])]
    lines += ["| " + " | ".join(row.values()) + " |" for row in rows]
    lines += [
        "",
        f"{_describe_numbers(seeds)} 'k of n within r': k of n seeds reached the target in r",
        "rounds; the others are censored, so there is no mean, and differences are taken as far as both runs went.",
        "",
        "## Does it hold here?",
        "",
        "A minus B over the same seeds; p: exact one-sided test of paired differences by flipping signs.",
        "",
        *(f"- {claim.sentence()}" for claim in claims if claim.judged),
    ]
    others = [f"- {claim.sentence()}" for claim in claims if not claim.judged]
    lines += ["", "Besides, of what the paper does not speak of:", "", *others] if others else []
    lines += ["", origin, ""]
    return "\n".join(lines)


def _introduce(item: Item, setting: Setting) -> str:
    """Return what the paper says, or what we ask."""
    if item.ours:
        return f"Not in the paper: {item.says}"
    if item.is_claimed(setting):
        return f"The paper: {item.quote(setting)}."
    return f"The paper, of {' and '.join(item.claimed_of)} alone: {item.quote(setting)}."


def _describe_numbers(seeds: int) -> str:
    """Return what the numbers of a table are."""
    if seeds < FEWEST:
        return "One seed." if seeds == 1 else f"Mean over {seeds} seeds."
    return f"Mean and 95 % interval over {seeds} seeds."


def write_item(runs: ItemRuns, command: str) -> list[Path]:
    """Write the item's table (Markdown, CSV) and figure (SVG, PNG, PDF), from the runs that are done."""
    for _, folder in runs.all():
        if read_summary(folder):
            remove_weights(folder)
    folder = runs.out / runs.item.name
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / f"{runs.setting.name}.{ending}" for ending in ("md", "csv", "svg", "png", "pdf")]
    write_atomically(files[0], make_page(runs, describe_origin(runs, command)))
    write_atomically(files[1], format_csv([{name: row.get(name) for name in RAW} for row in runs.rows]))
    if runs.item.curves:
        write_curves(runs.curves_file, runs.read_runs(), runs.item.curves)
        files.append(runs.curves_file)
    runs.item.draw(runs, files[2:5])
    return files
