"""The blocks of code in README.md and docs/, and running them as a reader would.

The blocks of a page run in their order, in one empty folder. By its language a block is

- ```python: run; names stay for the page's later blocks. If its first line is `# NAME.py`, it is written as that file.
- ``` without a language, or ```console: commands, a line each. If lines begin with `$`, only those are commands.
- ```toml with the first line `# NAME.toml`: written as that file.
- ```text, ```math: no code.

Comments directly above a block say what else is to be known:

    <!-- not run: the reason -->                of the whole block
    <!-- not run (words): the reason -->        of the commands that contain these words
    <!-- file: NAME -->                         the block is this file
    <!-- more of: NAME -->                      the block is added to this file
    <!-- continues: NAME.py -->                 the block goes on with the names of this file
    <!-- with: NAME -->                         something that the test prepares: PREPARATIONS in tests/docs
    <!-- in full -->                            commands run as they stand, and print what is shown, but for numbers

Without `in full`, training is shortened: one round, one seed, in one process, and on digits where the page has another
dataset.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt

COMMENT = re.compile(
    r"<!-- (?P<what>not run|file|more of|continues|with|in full)(?: \((?P<part>[^)]*)\))?(?:: (?P<text>.*\S))? -->"
)
NO_CODE = ("text", "math")
COMMANDS = ("", "console")
SERVERS = ("watch",)  # commands that go on until they are stopped


@dataclass(frozen=True)
class Block:
    """A block of code in a page."""

    page: str
    line: int
    language: str
    code: str
    comments: list[tuple[str, str, str]] = field(default_factory=list[tuple[str, str, str]])  # what, part, text

    def says(self, what: str) -> str | None:
        """Return the text of a comment above the block; None if there is no such comment."""
        return next((text for name, part, text in self.comments if name == what and not part), None)

    @property
    def name(self) -> str | None:
        """The file that the block is."""
        if named := self.says("file"):
            return named
        match = re.match(r"# ([\w.-]+\.(?:py|toml))\b", self.code) if self.language in ("python", "toml") else None
        return match[1] if match else None

    def is_left_out(self, command: str) -> bool:
        """Return whether a comment gives a reason why a command is not run."""
        return any(name == "not run" and part and part in command for name, part, _ in self.comments)

    def find_fault(self) -> str | None:
        """Return why nobody could say whether this block works; None if it is run, or says why not."""
        for name, part, text in self.comments:
            if name != "in full" and not text:
                return f"the comment {name!r} has no text"
            if name == "not run" and part and part not in self.code:
                return f"a comment is about {part!r}, which is not in the block"
        if self.language in (*NO_CODE, "python", *COMMANDS) or self.says("not run") or self.name:
            return None
        return f"nothing runs {self.language!r}, and no comment above the block says why"


def read_blocks(page: str, text: str) -> list[Block]:
    """Return the blocks of a page, with the comments above each."""
    blocks: list[Block] = []
    comments: list[tuple[str, str, str]] = []
    for token in MarkdownIt("commonmark").parse(text):
        if token.type == "html_block":
            comments += [(m["what"], m["part"] or "", m["text"] or "") for m in COMMENT.finditer(token.content)]
        elif token.type in ("fence", "code_block"):
            line = (token.map or [0])[0] + 1
            language = token.info.split()[0] if token.info.strip() else ("" if token.type == "fence" else "text")
            blocks.append(Block(page, line, language, token.content, comments))
            comments = []
        elif token.type.endswith("_open"):
            comments = []
    return blocks


@dataclass(frozen=True)
class Call:
    """A command of a block, and what the page says it prints."""

    text: str
    shown: list[str]

    @property
    def words(self) -> list[str]:
        """The words of the command, without its comment."""
        return shlex.split(self.text, comments=True)


def read_calls(code: str) -> list[Call]:
    """Return the commands of a block."""
    lines = re.sub(r"\\\n\s*", "", code).splitlines()
    if not any(line.startswith("$ ") for line in lines):
        return [Call(line, []) for line in lines if line.strip() and not line.startswith("#")]
    calls: list[Call] = []
    for line in lines:
        if line.startswith("$ "):
            calls.append(Call(line.removeprefix("$ "), []))
        elif calls:
            calls[-1].shown.append(line)
    return calls


def shorten(words: Sequence[str]) -> list[str]:
    """Return a command that trains as one that takes a moment."""
    command, short = words[1], list(words)
    trains = command in ("run", "compare", "tune", "audit")
    if (not trains and command != "theory" and words[1:3] != ["data", "show"]) or "--run" in short:
        return short
    if "--resume" in short:
        _replace(short, "--rounds", "2", add=False)
        return short
    own = any(word.endswith((".py", ".toml")) for word in short[2:])
    small = "digits" in short or any(word.startswith("dataset=") for word in short)
    if not own and not small and "--tuned" not in short:
        short += ["--dataset", "digits"]
    if trains:
        _replace(short, "--rounds", "1", add=True)
    if trains and command != "tune":  # which says itself where its runs are computed
        _replace(short, "--backend", "serial", add=True)
    if command in ("compare", "tune"):
        _replace(short, "--seeds", "7", add=True)
    if command == "tune":
        _replace(short, "--held-out", "8", add=True)
        _replace(short, "--widen", "0", add=True)
    return short


def _replace(words: list[str], option: str, value: str, *, add: bool) -> None:
    if option in words:
        words[words.index(option) + 1] = value
    elif add:
        words += [option, value]


def find_missing(shown: Sequence[str], printed: str) -> list[str]:
    """Return the lines that a page shows and a command did not print; numbers may differ, `...` is anything."""
    lines = {_without_numbers(line) for line in printed.splitlines()}
    return [line for line in shown if line.strip() not in ("", "...") and _without_numbers(line) not in lines]


def _without_numbers(line: str) -> str:
    return " ".join(re.sub(r"[+-]?\d[\d.,]*", "#", line).split())


def list_pages(root: Path) -> list[Path]:
    """Return the pages whose blocks are run."""
    return [root / "README.md", *sorted((root / "docs").rglob("*.md"))]
