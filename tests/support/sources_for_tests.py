"""Stand-ins for the sources of datasets: a publisher's server on this machine, and package clients as scripts."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


class FileServer(BaseHTTPRequestHandler):
    """Serves a folder. It can break off, and it may or may not continue a download."""

    folder: Path
    breaks_after: int | None = None
    resumes = True
    ranges: list[str | None]  # the Range header of every request

    def do_GET(self) -> None:
        file = self.folder / self.path.lstrip("/")
        self.ranges.append(self.headers.get("Range"))
        if not file.exists():
            self.send_error(404)
            return
        content, start = file.read_bytes(), 0
        if self.resumes and (wanted := self.headers.get("Range")):
            start = int(wanted.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                self.send_error(416)
                return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        self.wfile.write(content[start : type(self).breaks_after])

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def serve(folder: Path) -> Generator[tuple[str, type[FileServer]]]:
    """Serve a folder on loopback; return its address and the handler, whose class attributes can be changed."""
    handler = type("ThisFileServer", (FileServer,), {"folder": folder, "ranges": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", handler
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def write_script(folder: Path, name: str, text: str) -> None:
    """Write an executable shell script."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/bin/sh\nset -e\n" + text)
    (folder / name).chmod(0o755)


def write_debian_clients(folder: Path, files: Path) -> None:
    """Write an apt-get that downloads into its working folder, and a dpkg-deb that unpacks, as the real ones do."""
    write_script(folder, "apt-get", 'for last; do :; done\n[ "$last" = update ] || touch thing_1_all.deb\n')
    write_script(folder, "dpkg-deb", f'mkdir -p "$3/usr/share" && cp "{files}"/*.gz "$3/usr/share"\n')


def names_in(folder: Path) -> set[str]:
    """Return everything in a folder, by relative path."""
    return {str(p.relative_to(folder)) for p in folder.rglob("*")}
