"""Flower's own commands: how they are started, and what they said in one line."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from fedlga.core.settings import BadInput
from fedlga.core.text import clean_text

FRAME = " \n│╭╮╰╯─"  # Flower draws frames around its errors
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1"}
_STAMP = re.compile(r"^\d{4}-\d\d-\d\dT\S+ \S+ ")  # of log_file.py
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")
_EMPTY = ("Usage", "Try", "Error ─")


def find_command(name: str) -> str:
    """Return where one of the programs is that are installed with this Python."""
    return str(Path(sys.executable).with_name(name))


def run_flwr(
    *words: str, environment: Mapping[str, str] | None = None, folder: Path | None = None, seconds: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run a command of `flwr`, and return what it printed; BadInput if it cannot be started or does not end."""
    try:
        return subprocess.run(  # noqa: S603
            [find_command("flwr"), *words],
            cwd=folder,
            env={**os.environ, **QUIET, "COLUMNS": "1000", **(environment or {})},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except OSError as error:
        raise BadInput(f"cannot start flwr ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise BadInput(f"flwr {words[0]}: no answer from the SuperLink in {seconds:g} seconds") from error


def read_json(text: str) -> dict[str, Any] | None:
    """Return the JSON that a command printed, perhaps after other lines; None if it printed none."""
    try:
        values: Any = json.loads(text[text.index("{") :])
    except ValueError:
        return None
    return cast("dict[str, Any]", values) if isinstance(values, dict) else None


def unbox(text: str) -> str:
    """Return what Flower printed in one line: without frames, colours, and words on how to call it."""
    answer = read_json(text)
    if answer is not None and isinstance(answer.get("error-message"), str):
        text = answer["error-message"]
    lines = [_STAMP.sub("", _COLOURS.sub("", line)).strip(FRAME) for line in text.splitlines()]
    words = " ".join(line for line in lines if line and not line.startswith(_EMPTY) and line != "Error")
    return clean_text(words)


def explain(output: subprocess.CompletedProcess[str]) -> str:
    """Return why a command failed, in one line."""
    return unbox(output.stdout + output.stderr) or f"flwr ended with {output.returncode}"
