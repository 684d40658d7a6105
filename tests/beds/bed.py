"""The ground every bed stands on: namespaces and a directory of its own, and a way to reach what runs in there.

Nothing of a bed is outside of its namespaces: not its mounts, not its network addresses, not its processes. They hang
on one process (`keeper.py`), which ends when this one does, so that a test run that is interrupted or killed leaves
nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator

from .needs import SEARCH_PATH, why_not

HERE = os.path.dirname(os.path.abspath(__file__))
ENV = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8", "HOME": "/nonexistent"}
# How long a condition is waited for that becomes true at once on a calm machine.
PATIENCE_S = 60.0


class BedError(Exception):
    """A bed did not come up, or something in it did not work: no fault of what is being tested."""


def one_line(error: Exception) -> str:
    """What went wrong and the line of the log below it that tells the cause: a panic's, or else the last one."""
    what, *log = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    panics = [number for number, line in enumerate(log) if "Kernel panic" in line]
    cause = "; ".join(log[max(panics[0] - 1, 0) : panics[0] + 1]) if panics else (log or [""])[-1]
    return f"{what.rstrip(' :')}: {cause}" if cause else what


def wait_for(
    condition: Callable[[], object],
    what: str | Callable[[], str],
    *,
    limit_s: float = PATIENCE_S,
    every_s: float = 0.02,
) -> None:
    """Return as soon as `condition()` is true; raise BedError, with `what` in it, when it is not within `limit_s`."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise BedError(f"waited {limit_s:g} s in vain: {what() if callable(what) else what}")
        time.sleep(every_s)


def plain_directory() -> str:
    """Where temporary files go whose paths are part of kernel command lines, mount options or sockets' names."""
    wanted = tempfile.gettempdir()
    return wanted if wanted.replace("/", "").replace("_", "").isalnum() and len(wanted) < 40 else "/tmp"


class Bed:
    """A context manager; `name` is its row in `needs.NEEDS`.

    `directory` is the bed's own tmpfs, visible only inside. `outside(path)` is where this process finds a path of it.
    """

    name: str

    def __init__(self) -> None:
        if reason := why_not(self.name):
            raise BedError(reason)
        self.directory = tempfile.mkdtemp(prefix="bed-", dir=plain_directory())
        self._turn = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        unshare = ["unshare", "--mount", "--pid", "--net", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        with theirs:
            self._unshare = subprocess.Popen(
                [*unshare, sys.executable, "-B", f"{HERE}/keeper.py", str(theirs.fileno()), self.directory],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                env=ENV,
                # An interrupt from the terminal is for the test run, which then ends the bed in good order.
                start_new_session=True,
            )
        if not self._control.recv(100):
            raise BedError(f"{HERE}/keeper.py did not start")
        with open(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children", encoding="ascii") as children:
            self.keeper_pid = int(children.read())
        try:
            self._up()
        except BaseException:
            self.close()
            raise

    def _up(self) -> None:
        raise NotImplementedError

    def __enter__(self):
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._control.close()
        self._unshare.wait(30)

    def outside(self, path: str) -> str:
        return f"/proc/{self.keeper_pid}/root{path}"

    def write(self, path: str, text: str, mode: int = 0o644) -> str:
        os.makedirs(os.path.dirname(self.outside(path)), exist_ok=True)
        with open(self.outside(path), "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(self.outside(path), mode)
        return path

    def log_tail(self, path: str, lines: int = 25) -> str:
        with (
            contextlib.suppress(FileNotFoundError),
            open(self.outside(path), encoding="utf-8", errors="replace") as log,
        ):
            return "".join(log.readlines()[-lines:])
        return ""

    def run(self, *argv: str) -> str:
        """Run a short command inside the bed; it must succeed."""
        answer = self._ask("run", argv=argv)
        if answer["returncode"] != 0:
            raise BedError(f"{' '.join(argv)}: exit status {answer['returncode']}: {answer['output'].strip()}")
        return answer["output"]

    def start(self, argv: list[str], log: str, **env: str) -> int:
        return self._ask("start", argv=argv, log=log, env={**ENV, **env})["pid"]

    def kill(self, pid: int) -> None:
        """End a session that `start` began, outright; when this returns none of its processes is left."""
        self._ask("kill", pid=pid)

    def alive(self, pid: int) -> bool:
        return self._ask("alive", pid=pid)["alive"]

    @contextlib.contextmanager
    def connect(self, address: str, port: int) -> Iterator[socket.socket]:
        """A TCP connection to an address of the bed's network; ConnectionError where nobody answers."""
        with self.dial(address, port) as connection:
            yield connection

    def dial(self, address: str, port: int) -> socket.socket:
        """As `connect`; the caller closes it."""
        with self._turn:
            self._send("connect", address=address, port=port)
            message, fds, _, _ = socket.recv_fds(self._control, 1 << 20, 1)
        if not fds:
            raise ConnectionError(f"{address}:{port}: {json.loads(message)['error']}")
        return socket.socket(fileno=fds[0])

    def _ask(self, op: str, **fields: object) -> dict:
        with self._turn:
            self._send(op, **fields)
            return json.loads(self._control.recv(1 << 20))

    def _send(self, op: str, **fields: object) -> None:
        self._control.send(json.dumps({"op": op, **fields}).encode())
