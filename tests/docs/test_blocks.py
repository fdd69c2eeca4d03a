"""Every block of code and every command in README.md and docs/ is run, or a comment above it says why not."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands import Call as FedlgaCall
from commands import fedlga
from pages import COMMANDS, NO_CODE, SERVERS, Block, find_missing, list_pages, read_blocks, read_calls, shorten

__all__ = ["fedlga"]

ROOT = Path(__file__).parents[2]
PAGES = [file.relative_to(ROOT).as_posix() for file in list_pages(ROOT)]


def prepare_rentals(folder: Path, names: dict[str, Any]) -> None:
    """Write the table that the first task of README.md reads."""
    titles = ["hour", "day", "workday", "temperature", "rain", "wind", "rentals"]
    rows = [",".join(str((i * (k + 3)) % 17 / 17) for k in range(7)) for i in range(100)]
    (folder / "rentals.csv").write_text("\n".join([",".join(titles), *rows]))


def prepare_arrays(folder: Path, names: dict[str, Any]) -> None:
    """Have x and y at hand, as a reader in a notebook has."""
    x = np.random.default_rng(0).normal(size=(200, 8))
    names |= {"x": x, "y": x[:, 0]}


PREPARATIONS: dict[str, Callable[[Path, dict[str, Any]], None]] = {
    "rentals.csv": prepare_rentals,
    "x and y": prepare_arrays,
}


def blocks_of(page: str) -> list[Block]:
    return read_blocks(page, (ROOT / page).read_text(encoding="utf-8"))


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_why_not(page):
    faults = [f"line {b.line}: {fault}" for b in blocks_of(page) if (fault := b.find_fault())]
    assert not faults


@pytest.mark.slow(seconds=40)
@pytest.mark.parametrize("page", [page for page in PAGES if any(b.language not in NO_CODE for b in blocks_of(page))])
def test_the_blocks_of_a_page_work(page, fedlga, tmp_path, monkeypatch):
    monkeypatch.setattr(socket, "create_connection", refuse_connections)
    names: dict[str, Any] = {"__name__": "a_page"}
    before = set(sys.modules)
    try:
        for block in blocks_of(page):
            if block.language not in NO_CODE and block.says("not run") is None:
                run_block(block, tmp_path, names, fedlga)
    finally:
        for name in set(sys.modules) - before:  # another page may have a file of the same name
            if str(getattr(sys.modules[name], "__file__", None) or "").startswith(str(tmp_path)):
                del sys.modules[name]


def refuse_connections(address: Any, *_: Any, **__: Any) -> None:
    """Fail: a test of a page fetches nothing."""
    pytest.fail(f"a block asks {address} for something; mark it, or let the test shorten it")


def run_block(block: Block, folder: Path, names: dict[str, Any], fedlga: FedlgaCall) -> None:
    """Write a block's file, or run it."""
    where = f"{block.page}, line {block.line}"
    if prepared := block.says("with"):
        PREPARATIONS[prepared](folder, names)
    if block.name is not None:
        (folder / block.name).write_text(block.code)
    elif more := block.says("more of"):
        (folder / more).write_text((folder / more).read_text() + "\n\n" + block.code)
    elif block.language == "python":
        if earlier := block.says("continues"):
            exec(compile((folder / earlier).read_text(), earlier, "exec"), names)
        exec(compile("\n" * block.line + block.code, block.page, "exec"), names)
    elif block.language in COMMANDS:
        for call in read_calls(block.code):
            if not block.is_left_out(call.text):
                run_command(where, call.words, call.shown, block.says("in full") is not None, folder, fedlga)


def run_command(
    where: str, words: list[str], shown: list[str], in_full: bool, folder: Path, fedlga: FedlgaCall
) -> None:
    """Run a command of a page; it has to succeed."""
    if words[0] == "fedlga" and words[1] not in SERVERS:
        words = words if in_full else shorten(words)
        code, out, err = fedlga(*words[1:])
        assert code == 0, f"{where}: {' '.join(words)}: {err}"
        assert not (missing := find_missing(shown if in_full else [], out)), f"{where}: {missing} is not in:\n{out}"
    elif words[0] in ("python", "ls"):
        program = [sys.executable] if words[0] == "python" else ["ls"]
        done = subprocess.run(
            [*program, *words[1:]], cwd=folder, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, f"{where}: {done.stderr}"
    else:
        pytest.fail(f"{where}: nothing runs {words[0]!r}, and no comment above the block says why")


# Of the test itself


@pytest.mark.parametrize(
    ("page", "fault"),
    [
        ("```yaml\na: 1\n```\n", "nothing runs 'yaml', and no comment above the block says why"),
        ("<!-- not run: -->\n\n```yaml\na: 1\n```\n", "nothing runs 'yaml', and no comment above the block says why"),
        ("<!-- not run: of another page -->\n\nText.\n\n```yaml\na: 1\n```\n", "nothing runs 'yaml', and no comment"),
        ("<!-- not run (ls): reason -->\n\n```\nfedlga fields\n```\n", "a comment is about 'ls', which is not in"),
        ("<!-- not run: it is long -->\n\n```yaml\na: 1\n```\n", None),
        ("```python\nprint()\n```\n", None),
        ("```toml\n# mine.toml\nrounds = 1\n```\n", None),
    ],
)
def test_what_is_wrong_with_a_block(page, fault):
    (block,) = read_blocks("a.md", page)
    found = block.find_fault()
    assert found is None if fault is None else found is not None and found.startswith(fault)


def test_a_block_that_fails_or_that_nothing_runs_fails_the_test(fedlga, tmp_path):
    for text in (
        "```python\n1 / 0\n```\n",
        "```\nfedlga run --preset nobody\n```\n",
        "```\nmake coffee\n```\n",
        "```\nfedlga watch .\n```\n",
    ):
        (block,) = read_blocks("a.md", text)
        with pytest.raises((ZeroDivisionError, AssertionError, pytest.fail.Exception)):
            run_block(block, tmp_path, {}, fedlga)


def test_commands_are_read_as_a_shell_reads_them():
    (first, second) = read_calls("fedlga run  # a comment\nfedlga compare \\\n    --seeds 0-4\n")
    assert (first.words, second.words) == (["fedlga", "run"], ["fedlga", "compare", "--seeds", "0-4"])
    (call,) = read_calls("$ fedlga fields\nrounds 200\n...\n")
    assert call.words == ["fedlga", "fields"]
    assert find_missing(call.shown, "rounds   150\n") == []
    assert find_missing(call.shown, "epochs 200\n") == ["rounds 200"]


def test_training_is_shortened():
    words = shorten(["fedlga", "compare", "--seeds", "0-4", "--rounds", "60"])
    assert words == ["fedlga", "compare", "--seeds", "7", "--rounds", "1", "--dataset", "digits", "--backend", "serial"]
    assert shorten(["fedlga", "data", "show"]) == ["fedlga", "data", "show", "--dataset", "digits"]
    assert shorten(["fedlga", "run", "--resume", "a", "--rounds", "10"])[-2:] == ["--rounds", "2"]
    assert shorten(["fedlga", "list", "fleets"]) == ["fedlga", "list", "fleets"]
