"""A hook of MkDocs: drawings of docs/assets/ stand in the page itself, so that they take the colours of its theme."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

DRAWING = re.compile(r"^!\[[^\]]*\]\((?:\.\./)*(assets/[\w-]+\.svg)\)$", re.MULTILINE)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Replace a picture by its drawing."""
    return DRAWING.sub(lambda match: draw(Path(config["docs_dir"]) / match[1]), markdown)


def draw(file: Path) -> str:
    """Return a drawing as one block of HTML, which Markdown leaves alone."""
    return f"<div>{' '.join(file.read_text(encoding='utf-8').split())}</div>"
