"""The page of `fedlga watch`, served from a thread."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from fedlga.report.watch.feed import Feed
from fedlga.report.watch.server import WatchServer, open_server


@contextmanager
def serve(folder: Path) -> Generator[WatchServer]:
    """Serve the runs below a folder, on loopback, at any port that is free."""
    with open_server(Feed([folder]), "127.0.0.1", 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
