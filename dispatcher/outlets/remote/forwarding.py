"""A port of this machine that leads to a port of a job: on a host behind ssh, or on a node behind a login node.

    with forwarded("user@login1", 8888, node="gpu17") as port:
        urlopen(f"http://127.0.0.1:{port}")

For commands, which may wait; the loop of a dispatcher does not use it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from dispatcher.errors import OutletError
from dispatcher.outlets.remote import ssh
from dispatcher.outlets.remote.programs import Finished, Program

_READY: Final = b"dispatcher: connected\n"
# It keeps the connection open, which would otherwise be closed when no one has used it for a while, and ends with this
# process, whose end of the pipe is closed then.
_KEEPER: Final = f"echo {_READY.decode().strip()!r}; exec cat >/dev/null"
_CONTROL_LIMIT_S: Final = 20.0
_TRIES: Final = 3


@contextlib.contextmanager
def forwarded(
    login: str, port: int, *, node: str | None = None, over_ssh: bool = True, local_port: int = 0, timeout_s: float = 60
) -> Iterator[int]:
    """The port of 127.0.0.1 that leads to `port`, until the block is left.

    `port` is one of the host `login` itself, or of `node`, which is reached through it: by a login on the node, so that
    also what listens on the node's own 127.0.0.1 is reached, or without `over_ssh` as the login node reaches it by TCP.
    `local_port` 0: any free port. Raises OutletError with what ssh says.
    """
    with contextlib.ExitStack() as stack:
        shared = stack.enter_context(_connection(login, None, timeout_s))
        if node is not None and over_ssh:
            shared = stack.enter_context(_connection(node, shared, timeout_s))
        target = "localhost" if node is None or over_ssh else node.rpartition("@")[2]
        chosen, specification = _forward(shared, local_port, f"[{target}]:{port}")
        stack.callback(_control, shared, "cancel", specification, may_fail=True)
        yield chosen


def _forward(shared: ssh.SharedConnection, local_port: int | None, to: str) -> tuple[int, str]:
    """The port that is forwarded from here, and what ssh calls the forwarding."""
    for _ in range(_TRIES):
        chosen = local_port or _free_port()
        specification = f"127.0.0.1:{chosen}:{to}"
        try:
            _control(shared, "forward", specification)
            return chosen, specification
        except OutletError:
            # Another process may have been given the free port meanwhile.
            if local_port or _is_free(chosen):
                raise
    raise OutletError(f"of {_TRIES} ports that were free here, other programs took each before ssh did")


@contextlib.contextmanager
def _connection(target: str, jump: ssh.SharedConnection | None, timeout_s: float) -> Iterator[ssh.SharedConnection]:
    """A connection that is open until the block is left, however little it is used."""
    shared = ssh.SharedConnection(target, jump)
    reading, writing = os.pipe()
    try:
        with open(reading, "rb") as stdin:
            keeper = Program(shared.words(_KEEPER), limit_s=None, stdin=stdin)
        try:
            _wait(keeper, lambda: _READY in keeper.printed(), timeout_s, target)
            yield shared
        finally:
            if shared.is_open():
                _control(shared, "exit", may_fail=True)
            keeper.close()
    finally:
        os.close(writing)
        shared.remove()


def _control(shared: ssh.SharedConnection, request: str, specification: str = "", *, may_fail: bool = False) -> None:
    options: Sequence[str] = ("-L", specification) if specification else ()
    program = Program(shared.control_words(request, *options), limit_s=_CONTROL_LIMIT_S)
    program.close(_CONTROL_LIMIT_S)
    finished = program.poll()
    if finished is not None and finished.exit_code and not may_fail:
        raise OutletError(f"port forwarding by {shared.target} ({specification}): {_said(finished)}")


def _wait(program: Program, is_ready: Callable[[], bool], timeout_s: float, target: str) -> None:
    end_s = time.monotonic() + timeout_s
    while not is_ready():
        finished = program.poll()
        if finished is not None:
            raise OutletError(ssh.explain(finished.exit_code, _said(finished), target))
        left_s = end_s - time.monotonic()
        if left_s <= 0:
            program.close()
            raise OutletError(f"{target}: no connection within {timeout_s:g} s")
        select.select(program.wait_fds(), [], [], left_s)


def _said(finished: Finished) -> str:
    return finished.errors.strip() or f"status {finished.exit_code}"


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _is_free(port: int) -> bool:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError:
        return False
    return True
