"""The command `fedlga`. Exit codes: 0 done, 1 the run failed or was stopped, 2 the call was wrong."""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path

import click

from fedlga import __version__
from fedlga.cli.audit import audit
from fedlga.cli.check import check
from fedlga.cli.compare import compare
from fedlga.cli.data import data
from fedlga.cli.deadline import deadline
from fedlga.cli.fleet import fleet
from fedlga.cli.listing import fields, list_names, presets
from fedlga.cli.paper import paper
from fedlga.cli.report import report
from fedlga.cli.run import run
from fedlga.cli.tune import tune
from fedlga.core.settings import BadInput, Stopped


def main() -> None:
    """Run the command; a wrong call gets one line, never a traceback."""
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):  # as after Ctrl-C: what was started is stopped, scratch files are removed
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), signal.default_int_handler)
    sys.path.append(str(Path.cwd()))  # so that the user's own modules in the current folder are found
    try:
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.ClickException as error:
        fail(error.format_message().replace("\n", " "))
    except BadInput as error:
        fail(str(error))
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped", err=True)
        sys.exit(1)
    except BrokenPipeError:  # `fedlga ... | head`
        sys.stderr.close()
        sys.exit(1)
    except Exception as error:  # of a task's or a plug-in's own code, in the middle of a run, or a mistake of ours
        if os.environ.get("FEDLGA_TRACEBACK"):
            raise
        fail(f"{describe_failure(error)} (FEDLGA_TRACEBACK=1 shows where)", code=1)


def describe_failure(error: Exception) -> str:
    """Return an unexpected error in one line; a worker's is the last line of what it reported."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if isinstance(error, Stopped):
        return lines[0] if len(lines) == 1 else f"a worker failed: {lines[-1] if lines else 'no reason given'}"
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def fail(message: str, code: int = 2) -> None:
    """Print one line, and exit."""
    click.echo(f"fedlga: {message}", err=True)
    sys.exit(code)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="fedlga")
def cli() -> None:
    """Federated learning for devices that are not equal.

    \b
    fedlga run                                    FedLGA as in its paper, on Fashion-MNIST
    fedlga run --preset digits                    a first step, in seconds, without a download
    fedlga compare --methods fedavg,fedlga --seeds 0-4
    fedlga tune --preset fleet --stragglers complete,keep --grid lr=0.01,0.03,0.1
    fedlga paper tau-max                          a table of the paper, and whether it holds here
    fedlga report runs/...                        an HTML page about runs
    fedlga data show --preset paper               who holds what
    fedlga list fleets                            what can be chosen, with its settings
    """


for command in (run, compare, audit, check, data, deadline, fields, fleet, list_names, paper, presets, report, tune):
    cli.add_command(command)
