"""Pictures of a partition: who holds what, as text and as a figure."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedlga.core.settings import BadInput
from fedlga.report.figures import load_pyplot

if TYPE_CHECKING:
    from fedlga.core.types import Array

SHADES = " ░▒▓█"
MOST_COLUMNS = 60  # of classes; more are put together
MOST_ROWS = 60  # of devices; of more, only the number is shown


def format_partition(counts: Array) -> str:
    """Return a row a device, a column a class, darker for more; then the number of examples."""
    devices, classes = counts.shape
    together = -(-classes // MOST_COLUMNS)
    columns = np.stack([counts[:, c : c + together].sum(1) for c in range(0, classes, together)], axis=1)
    top = max(int(columns.max()), 1)
    title = f"classes 0 to {classes - 1}" + (f", {together} a column" if together > 1 else "") + "; examples"
    lines = [f"device   {title}" if classes > 1 else "device   examples"]
    for device in range(min(devices, MOST_ROWS)):
        # Any example at all shows: the lightest shade is for few, blank for none.
        shades = [SHADES[int(np.ceil(c / top * (len(SHADES) - 1)))] * 2 for c in columns[device]]
        lines.append(f"{device:>6}  |{''.join(shades)}| {counts[device].sum():>6}")
    if devices > MOST_ROWS:
        lines.append(f"   ...  and {devices - MOST_ROWS} more devices")
    sizes = counts.sum(1)
    lines.append(
        f"{sizes.sum()} examples; a device holds {sizes.min()} to {sizes.max()}, in the middle {int(np.median(sizes))}"
    )
    if classes == 1:
        return "\n".join(lines)
    held = (counts > 0).sum(1)
    lines.append(f"classes a device: {held.min()} to {held.max()}; a full block is {top} examples")
    return "\n".join(lines)


def draw_partition(counts: Array, title: str, file: Path) -> None:
    """Draw the same as a figure."""
    plt = load_pyplot()
    devices, classes = counts.shape
    height = min(max(2.5, 0.12 * devices + 1.2), 9.0)
    figure, (held, sizes) = plt.subplots(
        1, 2, figsize=(7, height), sharey=True, width_ratios=[4, 1], layout="constrained"
    )
    image = held.imshow(counts, aspect="auto", cmap="YlGnBu", interpolation="nearest")
    held.set(xlabel="class" if classes > 1 else "", ylabel="device")
    held.set_title(title, loc="left", fontsize=9)
    if classes <= 20:  # noqa: PLR2004
        held.set_xticks(range(classes))
    figure.colorbar(image, ax=held, label="examples of the class", location="left", fraction=0.05, pad=0.02)
    sizes.barh(np.arange(devices), counts.sum(1), color="#444444", height=1.0)
    sizes.set(xlabel="examples")
    try:
        figure.savefig(file, dpi=150)
    except OSError as error:
        raise BadInput(f"--out: cannot write {str(file)!r} ({error.strerror})") from error
    finally:
        plt.close(figure)
