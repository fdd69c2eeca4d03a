"""Make the environment of a peer: `python environments.py PEER FOLDER` prints the path of its python.

One virtual environment for each, as what they ask for doesn't go together. A second call finds it made and is quick.
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
MADE = "peer.txt"  # what was installed, written once pip is through


def environment(peer: str, folder: Path) -> Path:
    """The python of the peer's environment, which is made if it isn't there."""
    python = folder / "bin" / "python"
    made = folder / MADE
    wanted = "\n".join(PINS[peer]) + "\n"
    if not made.is_file() or made.read_text() != wanted:
        venv.create(folder, clear=True, with_pip=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PINS[peer]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
        if done.returncode:
            sys.exit(f"{peer}: pip failed\n{done.stderr}")
        made.write_text(wanted)
    return python


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in PINS:  # noqa: PLR2004
        sys.exit(f"usage: environments.py {'|'.join(PINS)} FOLDER")
    print(environment(sys.argv[1], Path(sys.argv[2]).absolute()))
