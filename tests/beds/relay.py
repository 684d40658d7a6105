"""The network between a test and one of its hosts: one that delays, swallows or refuses what goes through.

with Relay(listen=12001, to=12002) as relay:
    relay.delay_s = 0.2         # each direction
    with relay.silent(): ...    # as when a cable is pulled: connections stay open and nothing comes
    with relay.down(): ...      # as when the host is off: connections break and new ones are refused
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterator


class Relay:
    """A context manager with threads of its own. `delay_s` is what each packet takes, each way.

    `to` is a port of this machine, or makes a connection to somewhere else.
    """

    def __init__(self, listen: int, to: int | Callable[[], socket.socket]) -> None:
        self.delay_s = 0.0
        self.connections = 0
        self._to = to
        self._address = ("127.0.0.1", listen)
        self._flows = threading.Event()
        self._flows.set()
        self._open: set[socket.socket] = set()
        self._turn = threading.Lock()
        self._listener: socket.socket | None = None
        self.listen()

    def __enter__(self) -> Relay:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self.refuse()
        self._flows.set()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        self._flows.clear()
        try:
            yield
        finally:
            self._flows.set()

    @contextlib.contextmanager
    def down(self) -> Iterator[None]:
        self.refuse()
        try:
            yield
        finally:
            self.listen()

    def listen(self) -> None:
        self._listener = socket.create_server(self._address, backlog=64)
        threading.Thread(target=self._accept, args=[self._listener], daemon=True).start()

    def refuse(self) -> None:
        listener, self._listener = self._listener, None
        if listener is None:
            return
        with contextlib.suppress(OSError):
            # Wakes the thread that accepts; closing alone does not.
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        with self._turn:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=[near], daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        self._flows.wait()
        try:
            far = self._dial()
        except OSError:
            near.close()
            return
        far.settimeout(None)
        with self._turn:
            self._open |= {near, far}
        back = threading.Thread(target=self._pump, args=[far, near], daemon=True)
        back.start()
        self._pump(near, far)
        back.join()
        with self._turn:
            self._open -= {near, far}
        near.close()
        far.close()

    def _dial(self) -> socket.socket:
        if callable(self._to):
            return self._to()
        return socket.create_connection(("127.0.0.1", self._to), timeout=10)

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                self._flows.wait()
                if self.delay_s:
                    time.sleep(self.delay_s)
                target.sendall(data)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_WR if end is target else socket.SHUT_RD)
