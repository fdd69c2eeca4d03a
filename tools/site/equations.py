"""Equations: a fence ```math in a page becomes MathML, which browsers draw themselves. No script, no fonts."""

from __future__ import annotations

from typing import Any

from latex2mathml.converter import convert


def format_equation(source: str, language: str, css_class: str, options: Any, md: Any, **kwargs: Any) -> str:
    """Return the lines of a fence, each an equation in LaTeX, as MathML."""
    equations = [convert(line.strip(), display="block") for line in source.splitlines() if line.strip()]
    return f'<div class="{css_class}">{"".join(equations)}</div>'
