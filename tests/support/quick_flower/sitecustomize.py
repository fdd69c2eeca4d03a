"""Make Flower's processes quicker in a test. Python imports this file at start if its folder is on PYTHONPATH.

They poll more often. A Flower node asks the SuperLink for messages every 3 seconds, looks for the reply of its app
twice a second, and waits up to 20 seconds before it tries again to reach a SuperLink that was away. A ServerApp with a
Flower strategy looks for replies every 3 seconds. Flower 1.41 has no settings for these.

Messages, their checks and their order are Flower's.
"""

import sys
import time
from pathlib import Path

POLLING = {"flwr.supernode.start_client_internal", "flwr.superlink.grid.http_grid"}
POLL_SECONDS = 0.4

_sleep = time.sleep


def sleep(seconds):
    """Sleep, but not long between two polls of Flower."""
    caller = sys._getframe(1).f_globals.get("__name__")
    _sleep(min(seconds, POLL_SECONDS) if caller in POLLING else seconds)


time.sleep = sleep
if next((Path(word).name for word in sys.orig_argv[1:2]), "") in ("flower-supernode", "fedlga-node"):
    from flwr.common import constant

    constant.MAX_RETRY_DELAY = 1  # seconds
