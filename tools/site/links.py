"""A hook of MkDocs: pages link to the rest of the repository, and the site holds what they link to.

docs/ stays readable as plain files: a page links to ../results/policies/comparison.png or ../examples/own-data/lora.py.
The site has no repository around it. So every file that a page links to becomes part of it, below repository/: pictures
as they are, Markdown and source code as pages. A link to a folder leads to the README.md in it, or above it.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

LINK = re.compile(r"(\]\()([^)\s#:]+)((?:#[^)\s]*)?\))")  # [text](path#anchor), but no address with a scheme
ELSEWHERE = "repository/"  # where files from outside docs/ are in the site
SOURCE_CODE = {".py": "python", ".toml": "toml", ".csv": "text"}
PICTURES = (".png", ".svg", ".pdf")


def on_files(files: Files, config: Any) -> Files:
    """Add every file outside docs/ that pages link to, and what those link to in turn."""
    root = find_root(config)
    waiting = [(f"docs/{file.src_uri}", file.content_string) for file in files.documentation_pages()]
    added: set[str] = set()
    while waiting:
        page, text = waiting.pop()
        for target in find_targets(root, page, text):
            if target.startswith("docs/") or target in added:
                continue
            added.add(target)
            files.append(make_file(root, target, config))
            if target.endswith(".md"):
                waiting.append((target, (root / target).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links to what is outside docs/, or comes from there."""
    root, here = find_root(config), page.file.src_uri
    source = here.removeprefix(ELSEWHERE) if here.startswith(ELSEWHERE) else f"docs/{here}"

    def rewrite(match: re.Match[str]) -> str:
        target = resolve(root, source, match[2])
        if target is None or (target.startswith("docs/") and source.startswith("docs/")):
            return match[0]
        return match[1] + posixpath.relpath(place(target), posixpath.dirname(here)) + match[3]

    return LINK.sub(rewrite, markdown)


def find_root(config: Any) -> Path:
    """Return the repository's folder."""
    return Path(config["config_file_path"]).parent


def find_targets(root: Path, page: str, text: str) -> Iterator[str]:
    """Yield the repository's files that a page links to."""
    for _, link, _ in LINK.findall(text):
        if target := resolve(root, page, link):
            yield target


def resolve(root: Path, page: str, link: str) -> str | None:
    """Return the file that a link of a page means, from the repository's root; None if there is none."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    if path.startswith(("..", "/")):
        return None
    while (root / path).is_dir():
        readme = posixpath.normpath(posixpath.join(path, "README.md"))
        if (root / readme).is_file():
            return readme
        path = posixpath.dirname(path)
    return path if (root / path).is_file() else None


def place(target: str) -> str:
    """Return where a file of the repository is among the site's sources."""
    if target.startswith("docs/"):
        return target.removeprefix("docs/")
    return ELSEWHERE + target + (".md" if Path(target).suffix in SOURCE_CODE else "")


def make_file(root: Path, target: str, config: Any) -> File:
    """Return a file of the repository as one of the site: source code as a page that shows it."""
    language = SOURCE_CODE.get(Path(target).suffix)
    if language is None:
        return File.generated(config, place(target), abs_src_path=str(root / target))
    code = (root / target).read_text(encoding="utf-8")
    return File.generated(config, place(target), content=f"# {target}\n\n````{language}\n{code}\n````\n")
