"""`fedlga-superlink`: Flower's SuperLink, whose control API asks for the fleet's secret.

It takes the arguments of `flower-superlink`, and `--control-secret FILE`. Flower's commands show the secret by
themselves if FLWR_HOME is the fleet's folder `flower/`. What is changed for it is in `flower_private.py`. With a Flower
that has none of it, nothing is started: a SuperLink that asks nobody would let every local user command the fleet.
"""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Sequence
from pathlib import Path

from fedlga.backends.flower.certificates import write_secret
from fedlga.backends.flower.flower_private import guard_superlink, run_superlink

OPTION = "--control-secret"
LEAST_LENGTH = 16  # characters


def run(arguments: Sequence[str]) -> None:
    """Run a SuperLink with the arguments of `flower-superlink`, and the file of the secret."""
    words = list(arguments)
    if OPTION not in words[:-1]:
        sys.exit(f"fedlga-superlink: {OPTION} FILE is missing: it holds what commands have to show")
    place = words.index(OPTION)
    file = Path(words[place + 1])
    del words[place : place + 2]
    try:
        secret = file.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        sys.exit(f"fedlga-superlink: {OPTION}: {str(file)!r} cannot be read ({error})")
    if len(secret) < LEAST_LENGTH:
        sys.exit(f"fedlga-superlink: {OPTION}: {str(file)!r} holds less than {LEAST_LENGTH} characters")
    executor = file.resolve().with_name("executor.secret")  # new at every start: only what this process starts needs it
    write_secret(executor, secrets.token_bytes(32))
    if not guard_superlink(secret, executor):
        sys.exit(
            "fedlga-superlink: this Flower's SuperLink is not known, and its control API would ask nobody; nothing was "
            "started. See docs/operations.md"
        )
    sys.argv = ["flower-superlink", *words]  # where Flower reads them
    os.environ.pop("FLWR_OIDC_ENABLED", None)
    run_superlink()


def main() -> None:
    """Run `fedlga-superlink`."""
    run(sys.argv[1:])


if __name__ == "__main__":
    main()
