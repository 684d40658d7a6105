"""Connections of the other accounts of the host keep nobody out, however many they open and however slow they are."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket

import psutil
import uvicorn
from uvicorn.server import ServerState
from web_requests import Answer

from dispatcher.web.connection_limit import MOST_STRANGERS, ConnectionLimit


def connect(web):
    return socket.create_connection(("127.0.0.1", web.port), timeout=20)


def answered(connection):
    """Whether the next answer is a 200; all of it is read."""
    data = b""
    while b"\r\n\r\n" not in data:
        data += connection.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    length = int(re.search(rb"(?i)content-length: (\d+)", head)[1])
    while len(body) < length:
        body += connection.recv(65536)
    return head.startswith(b"HTTP/1.1 200")


def test_a_viewer_is_answered_while_strangers_hold_all_the_connections_they_can(serve):
    web = serve()
    web.get("/api/overview")
    request = f"GET /api/overview HTTP/1.1\r\nHost: {web.host}\r\nCookie: {web.cookie}\r\n\r\n".encode()
    with contextlib.ExitStack() as opened:
        own = opened.enter_context(connect(web))
        own.sendall(request)
        assert answered(own)
        for number in range(2 * MOST_STRANGERS + 40):
            stranger = opened.enter_context(connect(web))
            if number % 2:
                # One may have been closed at once.
                with contextlib.suppress(OSError):
                    stranger.sendall(f"GET / HTTP/1.1\r\nHost: {web.host}\r\nX-Slow: ".encode())
        assert web.get("/api/overview").status == 200
        assert web.send("GET", f"/login?token={web.token}").status == 303
        # The connection of before is one of those that were let in.
        own.sendall(request)
        assert answered(own)
        held = [one for one in psutil.Process(web.process.pid).net_connections() if one.status == "ESTABLISHED"]
        assert len(held) <= MOST_STRANGERS + 3


async def closed_within(reader, seconds):
    with contextlib.suppress(TimeoutError, OSError):
        return not await asyncio.wait_for(reader.read(1), seconds)
    return False


KNOWN = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


@contextlib.asynccontextmanager
async def served(connection_limit):
    """Opens connections to a server that lets in each who ends a request."""

    async def app(scope, receive, send):
        connection_limit.let_in(scope["client"])
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    async def opened(data):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(data)
        writers.append(writer)
        return reader

    writers = []
    config = uvicorn.Config(app, lifespan="off", log_config=None, http=connection_limit.protocol())
    config.load()
    protocol = config.http_protocol_class
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=ServerState(), app_state={}), "127.0.0.1", 0
    )
    port = server.sockets[0].getsockname()[1]
    async with server:
        yield opened


def test_one_that_asks_for_nothing_or_never_ends_its_request_is_closed():
    async def main():
        async with served(ConnectionLimit(patience_s=0.3)) as opened:
            silent, slow, known = (
                await opened(b""),
                await opened(b"GET / HTTP/1.1\r\nHost: x\r\nX-"),
                await opened(KNOWN),
            )
            assert Answer(await known.readuntil(b"\r\n\r\n")).status == 204
            assert await closed_within(silent, 30)
            assert await closed_within(slow, 30)
            assert not await closed_within(known, 0.5)

    asyncio.run(main())


def test_nobody_waits_until_strangers_are_closed():
    async def main():
        async with served(ConnectionLimit(most=3, patience_s=3600.0)) as opened:
            strangers = [await opened(b"") for _ in range(10)]
            known = await opened(KNOWN)
            assert Answer(await asyncio.wait_for(known.readuntil(b"\r\n\r\n"), 60)).status == 204
            assert not await closed_within(strangers[-1], 0.1)

    asyncio.run(main())
