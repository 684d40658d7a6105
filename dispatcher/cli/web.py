"""`dispatcher web`: the workspace in a browser."""

from __future__ import annotations

import click

from dispatcher.cli.common import WholeNumber, layout
from dispatcher.cli.printing import note


@click.command()
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    metavar="N",
    help="The port on this host; 0 takes any free one.  [default: the first free one from 8642 on]",
)
@click.option("--allow-changes", is_flag=True, help="Let the page requeue, hold and cancel jobs, and pause methods.")
def web(port: int | None, allow_changes: bool) -> None:
    """Show the workspace in a browser.

    Prints a link that only you should open: it has a secret token, a new one at each start. The server listens on
    127.0.0.1 of this host alone; from another machine, forward its port: ssh -L 8642:localhost:8642 HOST. It reads only
    while a page is open, and without --allow-changes it writes nothing. Needs the extra `web`. Ctrl-C ends it.
    """
    from dispatcher.web.serve import bound, serve

    where = layout()
    listener = bound(port)

    def tell(link: str) -> None:
        click.echo(link)
        changes = "The page may change the workspace." if allow_changes else "The page is read-only."
        note(f"open this link in a browser. {changes} Ctrl-C ends it")

    serve(where.root, listener, allows_changes=allow_changes, tell=tell)
