"""Starts the server: a port of the loopback interface, the link, and an end at once with Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Final

import uvicorn

from dispatcher.base.host import host_name
from dispatcher.base.users import user_at_host
from dispatcher.errors import UsageError
from dispatcher.web.app import Server
from dispatcher.web.board import Board
from dispatcher.web.connection_limit import MOST_STRANGERS, ConnectionLimit
from dispatcher.web.follower import INTERVAL_S, Follower
from dispatcher.web.guard import LOGIN, Sessions

ADDRESS: Final = "127.0.0.1"
FIRST_PORT: Final = 8642
_PORTS: Final = 20
# Of those who are let in and of strangers together: see connection_limit.py.
_MOST_CONNECTIONS: Final = 2 * MOST_STRANGERS
# So many connections are accepted before the requests of those before them are read.
_BACKLOG: Final = MOST_STRANGERS // 2
_LONGEST_HEAD: Final = 32 * 1024


def bound(port: int | None) -> socket.socket:
    """A socket that listens at this port, None: at the first free one from FIRST_PORT on. Raises UsageError."""
    wanted = range(FIRST_PORT, FIRST_PORT + _PORTS) if port is None else (port,)
    for one in wanted:
        found = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        # A server that has just ended leaves connections behind that would keep its port.
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            found.bind((ADDRESS, one))
            found.listen(_BACKLOG)
        except OSError as error:
            found.close()
            problem = error
        else:
            return found
    if port is None:
        raise UsageError(f"no free port from {FIRST_PORT} to {wanted[-1]}: choose one with --port N, 0 for any")
    raise UsageError(f"port {port} of {ADDRESS}: {problem.strerror}. Choose another with --port N, or leave it out")


def serve(
    root: Path,
    listener: socket.socket,
    *,
    allows_changes: bool,
    tell: Callable[[str], object],
    interval_s: float = INTERVAL_S,
) -> None:
    """Show the workspace until SIGINT or SIGTERM. `tell` is given the link, when it can be opened."""
    port = listener.getsockname()[1]
    # Tunnels bring servers of several hosts to one browser.
    sessions = Sessions(port, f"{host_name()}\0{os.path.realpath(root)}")
    facts = {"workspace": root.name, "root": str(root), "user": user_at_host(), "changes_allowed": allows_changes}
    follower = Follower(lambda: Board(root, facts), interval_s)
    server = Server(follower, sessions, root, allows_changes=allows_changes)
    _run(server, listener, lambda: tell(f"http://{ADDRESS}:{port}{LOGIN}?token={sessions.token}"))


def _run(server: Server, listener: socket.socket, tell: Callable[[], object]) -> None:
    connection_limit = ConnectionLimit()
    config = uvicorn.Config(
        server.app(connection_limit.let_in),
        # Its log would have the token, which is in the address of the login.
        access_log=False,
        log_config=None,
        log_level="warning",
        loop="asyncio",
        http=connection_limit.protocol(),
        backlog=_BACKLOG,
        ws="none",
        lifespan="on",
        # A client is on this host, and could claim any address.
        proxy_headers=False,
        server_header=False,
        limit_concurrency=_MOST_CONNECTIONS,
        h11_max_incomplete_event_size=_LONGEST_HEAD,
        timeout_graceful_shutdown=1,
    )
    with contextlib.suppress(KeyboardInterrupt):
        _Server(config, tell).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Tells when it can be asked."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[], object]) -> None:
        super().__init__(config)
        self._tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()
