"""Ports of this host for programs that want a number: no other process of any test run gets the same one."""

from __future__ import annotations

import random
import socket

# Below the kernel's own choice for outgoing connections (32768 and above).
PORTS = range(10_000, 32_000)


class Ports:
    """Free ports; nobody else who asks gets them before `close`."""

    def __init__(self) -> None:
        self._taken: list[socket.socket] = []

    def take(self) -> int:
        while True:
            port = random.choice(PORTS)
            # A name in the abstract namespace of Unix sockets has one owner and goes with its process.
            claim = socket.socket(socket.AF_UNIX)
            try:
                claim.bind(f"\0dispatcher-bed-port-{port}")
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("", port))
            except OSError:
                claim.close()
                continue
            self._taken.append(claim)
            return port

    def close(self) -> None:
        for claim in self._taken:
            claim.close()


_OF_THIS_PROCESS = Ports()


def free_port() -> int:
    """One that is this process's until it ends."""
    return _OF_THIS_PROCESS.take()
