"""Matplotlib's figures as SVG inside a page. Their lines take the page's text colour, in light and dark mode."""

from __future__ import annotations

import html
import io
import re
import zlib
from collections.abc import Callable
from typing import Any

from fedlga.report.figures import load_pyplot

INK = "#010203"  # replaced by the page's text colour
FAINT = "#010204"


def draw_svg(draw: Callable[[Any], None], text: str, height: float = 2.6, width: float = 4.4) -> str:
    """Return a figure in the page's text colour, with a text for those who cannot see it."""
    plt = load_pyplot()
    style = {"font.size": 8, "svg.fonttype": "none", "svg.hashsalt": "fedlga", "text.color": INK, "legend.fontsize": 7}
    style |= {"axes.edgecolor": INK, "axes.labelcolor": INK, "xtick.color": INK, "ytick.color": INK}
    with plt.rc_context(style):
        figure, panel = plt.subplots(figsize=(width, height), layout="constrained")
        panel.spines[["top", "right"]].set_visible(False)
        draw(panel)
        file = io.StringIO()
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
        plt.close(figure)
    drawn = file.getvalue()[file.getvalue().index("<svg") :]
    drawn = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', "", drawn, count=1)
    drawn = re.sub(r"<metadata>.*?</metadata>", "", drawn, flags=re.DOTALL)
    drawn = drawn.replace(INK, "currentColor").replace(FAINT, "var(--faint)")
    label = html.escape(text, quote=True)
    # Several figures in a page: their ids must differ.
    own = f"f{zlib.crc32(text.encode()):08x}-"
    drawn = re.sub(r'(id="|url\(#|href="#)', lambda match: match[1] + own, drawn)
    return drawn.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)
