"""The command `fedlga`.

Exit codes: 0 done, 1 the run failed, 2 the call was wrong, 130 after Ctrl-C (128 and the signal's number).
"""

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
from fedlga.cli.completion import completion
from fedlga.cli.data import data
from fedlga.cli.deadline import deadline
from fedlga.cli.doctor import doctor
from fedlga.cli.examples import EXAMPLES
from fedlga.cli.fleet import fleet
from fedlga.cli.guidance import (
    GuidedGroup,
    describe_first_steps,
    explain_missing,
    explain_option,
    refuse_empty,
    show_examples,
)
from fedlga.cli.interrupts import find_code, raise_stop
from fedlga.cli.listing import fields, list_names, presets
from fedlga.cli.paper import paper
from fedlga.cli.report import report
from fedlga.cli.run import run
from fedlga.cli.theory import theory
from fedlga.cli.tune import tune
from fedlga.cli.watch import watch
from fedlga.core.settings import BadInput, Stopped


def main() -> None:
    """Run the command; a wrong call gets one line, never a traceback."""
    if threading.current_thread() is threading.main_thread():
        for name in ("SIGTERM", "SIGHUP"):  # as after Ctrl-C: what was started is stopped, scratch files are removed
            if hasattr(signal, name):
                signal.signal(getattr(signal, name), raise_stop)
    sys.path.append(str(Path.cwd()))  # so that the user's own modules in the current folder are found
    words = sys.argv[1:]
    try:
        refuse_empty(words)
        sys.exit(cli.main(standalone_mode=False) or 0)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        sys.exit(2)
    except click.NoSuchOption as error:
        fail(explain_option(error, words))
    except click.MissingParameter as error:
        fail(explain_missing(error))
    except click.ClickException as error:
        fail(error.format_message().replace("\n", " "))
    except BadInput as error:
        fail(str(error))
    except (click.Abort, KeyboardInterrupt) as error:
        click.echo("stopped", err=True)
        sys.exit(find_code(error))
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


@click.group(
    cls=GuidedGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="fedlga")
@click.pass_context
def cli(context: click.Context) -> None:
    """Federated learning for devices that are not equal.

    \b
    fedlga run                                    FedLGA as in its paper, on Fashion-MNIST
    fedlga run --preset digits                    a first step, in seconds, without a download
    fedlga compare --methods fedavg,fedlga --seeds 0-4
    fedlga tune --preset fleet --stragglers complete,keep --grid lr=0.01,0.03,0.1
    fedlga paper tau-max                          a table of the paper, and whether it holds here
    fedlga theory --preset digits                 what the convergence theorems say of its rates
    fedlga report runs/...                        an HTML page about runs
    fedlga watch runs                             the same page, live, while runs go on
    fedlga data show --preset paper               who holds what
    fedlga list fleets                            what can be chosen, with its settings
    fedlga doctor                                 what is installed here, and what is missing
    """
    if context.invoked_subcommand is None:
        click.echo(describe_first_steps(Path.cwd()))


first = (run, compare, audit, check, completion, data, deadline, doctor)
for command in (*first, fields, fleet, list_names, paper, presets, report, theory, tune, watch):
    cli.add_command(command)
for name, examples in EXAMPLES.items():
    group, _, inner = name.partition(" ")
    outer = cli.commands[group]
    show_examples(outer.commands[inner] if isinstance(outer, click.Group) else outer, examples)
