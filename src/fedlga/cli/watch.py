"""fedlga watch: a page that follows runs."""

from __future__ import annotations

from pathlib import Path

import click

from fedlga.cli.options import count
from fedlga.core.settings import BadInput


@click.command()
@click.argument("folders", nargs=-1, required=True, metavar="DIR...", type=click.Path(path_type=Path))
@click.option("--port", type=click.IntRange(0, 65535), metavar="P", help="Default: 8765, or any that is free.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="The address to listen at.")
@click.option("--allow-remote", is_flag=True, help="Let other machines read: there is no password.")
@click.option("--open", "open_page", is_flag=True, help="Open the page in your browser.")
def watch(folders: tuple[Path, ...], port: int | None, host: str, allow_remote: bool, open_page: bool) -> int:
    """Follow running and finished runs in a browser: curves, a table, who was slow, the time left.

    DIR is a folder of a run, a comparison or several; runs that start below it later appear too. The page is served to
    this machine only, and only reads. Ctrl-C ends it.
    """
    from fedlga.report.watch.feed import Feed
    from fedlga.report.watch.server import is_loopback, open_server

    if not is_loopback(host) and not allow_remote:
        raise BadInput(
            f"--host: {host!r} can be reached from other machines, and there is no password; "
            "--allow-remote if you mean it, or ssh -L to reach this one from afar"
        )
    feed = Feed(folders)
    with open_server(feed, host, port) as server:
        click.echo(f"{count(feed.count_runs(), 'run')}: {server.url} (Ctrl-C ends it)")
        if not is_loopback(host):
            click.echo("other machines can read these runs: there is no password", err=True)
        if open_page:
            click.launch(server.url)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            click.echo("ended")
    return 0
