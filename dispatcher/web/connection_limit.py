"""Connections of those who have not shown a session: bounded, so that they never keep out those who have one.

The other accounts of the host can open as many connections as they like, and leave them without a request or in the
middle of one (as slowloris does). The oldest of such connections makes room for a new one, and none stays for long.
"""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol

MOST_STRANGERS: Final = 128
# How long a connection may take until a request with a session has come.
PATIENCE_S: Final = 10.0
Address = tuple[str, int]


class ConnectionLimit:
    """The connections of strangers, the oldest first."""

    def __init__(self, most: int = MOST_STRANGERS, patience_s: float = PATIENCE_S) -> None:
        self._most = most
        self._patience_s = patience_s
        self._strangers: dict[Address, tuple[asyncio.Transport, asyncio.TimerHandle]] = {}

    def protocol(self) -> type[asyncio.Protocol]:
        """The protocol of uvicorn whose connections pass here."""
        connection_limit = self

        class Passing(H11Protocol):
            def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
                super().connection_made(transport)
                if self.client is not None:
                    connection_limit._opened(self.client, transport)

            def connection_lost(self, exc: Exception | None) -> None:
                if self.client is not None:
                    connection_limit.let_in(self.client)
                super().connection_lost(exc)

        return Passing

    def let_in(self, client: Address) -> None:
        """The connection from this address has shown a session, or is gone."""
        found = self._strangers.pop(client, None)
        if found is not None:
            found[1].cancel()

    def _opened(self, client: Address, transport: asyncio.Transport) -> None:
        if len(self._strangers) >= self._most:
            oldest = next(iter(self._strangers))
            others, timer = self._strangers.pop(oldest)
            timer.cancel()
            others.abort()
        timer = asyncio.get_running_loop().call_later(self._patience_s, self._close, client)
        self._strangers[client] = transport, timer

    def _close(self, client: Address) -> None:
        transport, _ = self._strangers.pop(client)
        transport.close()
