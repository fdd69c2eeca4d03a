"""Tab in a shell: commands, options and values, in a real bash and as zsh and fish ask for it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def ask_bash(line: str, script: Path) -> list[str]:
    """Return what bash would offer for a line."""
    commands = f"""
source {script}
COMP_LINE={line!r}; COMP_POINT=${{#COMP_LINE}}
compopt() {{ :; }}
_fedlga_completion fedlga
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    environment = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", commands], capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    return done.stdout.split()


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("completion") / "fedlga.bash"
    file.write_bytes(subprocess.run([BIN / "fedlga", "completion", "bash"], check=True, capture_output=True).stdout)
    return file


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("fedlga com", ["compare", "completion"]),
        ("fedlga run --met", ["--method"]),
        ("fedlga run --method fedp", ["fedprox"]),
        ("fedlga run --stragglers ", ["wait", "drop", "keep", "complete"]),
        ("fedlga compare --methods fedavg,fedp", ["fedavg,fedprox"]),
        ("fedlga run --preset dig", ["digits"]),
        ("fedlga run --set local_o", ["local_optimizer="]),
        ("fedlga run --set local_optimizer=a", ["adamw"]),  # bash has cut off what is before the equals sign
        ("fedlga run --track te", ["tensorboard"]),
        ("fedlga list fle", ["fleets"]),
    ],
)
def test_bash(line, offered, script):
    assert ask_bash(line, script) == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_there_is_a_script_for_each_shell(fedlga, shell):
    code, out, err = fedlga("completion", shell)
    assert (code, err) == (0, "")
    assert "_FEDLGA_COMPLETE" in out
