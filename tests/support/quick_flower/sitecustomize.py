"""Make Flower's processes quicker in a test. Python imports this file at start if its folder is on PYTHONPATH.

1. They poll more often. A Flower node asks the SuperLink for messages every 3 seconds, looks for the reply of its app
   twice a second, and waits up to 20 seconds before it tries again to reach a SuperLink that was away. A ServerApp with
   a Flower strategy looks for replies every 3 seconds. Flower 1.41 has no settings for these.
2. With QUICK_FLOWER_FORK=1 the process that works on a message is forked from the one that starts it (SuperExec), which
   has imported Flower, torch and fedlga. Otherwise every message costs three seconds of CPU time for these imports. The
   forked process does what the command `flwr-clientapp` does, and has the same parent. The app is loaded in it.

Messages, their checks and their order are Flower's. test_wire.py runs without the second.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

POLLING = {"flwr.supernode.start_client_internal", "flwr.superlink.grid.http_grid"}
POLL_SECONDS = 0.4
COMMAND = "flwr-clientapp"

_sleep = time.sleep


def sleep(seconds):
    """Sleep, but not long between two polls of Flower."""
    caller = sys._getframe(1).f_globals.get("__name__")
    _sleep(min(seconds, POLL_SECONDS) if caller in POLLING else seconds)


def start(args, **options):
    """Fork what works on a message; start all else as usual."""
    if args[0] != COMMAND:
        return subprocess.Popen(args, **options)
    import fedlga.experiments.flower_client  # noqa: F401  # with Flower and torch, once: forked processes have them

    while True:  # let processes that have ended go
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                break
        except ChildProcessError:
            break
    sys.stdout.flush()
    sys.stderr.flush()
    process = os.fork()
    if process == 0:
        os._exit(work(args))
    return process


def work(args):
    """Do what the command does; return its exit code."""
    from flwr.supercore.exit import exit_handler
    from flwr.supernode.cli import flwr_clientapp

    Path("/proc/self/comm").write_text(COMMAND)  # the name that other processes see
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    exit_handler.registered_exit_handlers.clear()  # they are the parent's
    sys.argv = list(args)
    try:
        flwr_clientapp()
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


command = next((Path(word).name for word in sys.orig_argv[1:2]), "")
time.sleep = sleep
if command == "flower-supernode":
    from flwr.common import constant

    constant.MAX_RETRY_DELAY = 1  # seconds
if command == "flower-superexec" and os.environ.get("QUICK_FLOWER_FORK") == "1":
    from flwr.supercore.superexec.executor import subprocess_executor

    subprocess_executor.subprocess = SimpleNamespace(Popen=start, DEVNULL=subprocess.DEVNULL)
