"""Create the virtual environment of a peer: `python environments.py PEER FOLDER` prints the path of its python.

Each peer has an environment of its own, because their requirements conflict. An environment that exists is used again.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

# Exact, and torch first: its constraints hold for the rest of the same call of pip.
PINS: dict[str, list[str]] = {
    "flower": ["torch==2.13.0", "numpy==2.4.6", "flwr[simulation]==1.41.0", "ray==2.55.1"],
    "pfl": ["torch==2.13.0", "numpy==2.4.6", "pfl==0.6.0"],
    "fluke": ["torch==2.13.0", "torchvision==0.28.0", "torchmetrics==1.9.0", "numpy==2.4.6", "fluke-fl==0.8.1"],
    # The last release of FedJAX calls jax.tree_map, which JAX 0.6 no longer has.
    "fedjax": ["jax==0.5.3", "jaxlib==0.5.3", "dm-haiku==0.0.17", "optax==0.2.8", "numpy==2.4.6", "fedjax==0.0.17"],
}
INSTALLED = "peer.txt"  # the list of what pip installed, written when it has finished


def make_environment(peer: str, folder: Path) -> Path:
    """Return the python of the peer's environment; create the environment if it is not there."""
    python = folder / "bin" / "python"
    installed = folder / INSTALLED
    pins = "\n".join(PINS[peer]) + "\n"
    if not installed.is_file() or installed.read_text() != pins:
        venv.create(folder, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS[peer]]
        process = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if process.returncode:
            sys.exit(f"{peer}: pip failed\n{process.stderr}")
        installed.write_text(pins)
    return python


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in PINS:  # noqa: PLR2004
        sys.exit(f"usage: environments.py {'|'.join(PINS)} FOLDER")
    print(make_environment(sys.argv[1], Path(sys.argv[2]).absolute()))
