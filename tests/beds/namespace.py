"""A machine within this one: processes, mounts and a host name of its own, on this machine's network or its own.

    with Namespace("h1", mounts=["mount -t tmpfs tmpfs /mnt"]) as machine:
        machine.run("ps", "ax")

Its first process is `cat`, which reads from a pipe that only this process has open. However this process ends, `cat`
ends with it, and then the kernel kills all that runs in the namespace: daemons, job steps, detached jobs.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .bed import BedError, wait_for
from .needs import SEARCH_PATH

UNSHARE = ["unshare", "--fork", "--kill-child", "--mount-proc", "--propagation", "slave"]
# While the first process ignores SIGCHLD, the kernel collects orphans itself.
INIT = "{steps}echo ready && exec env --ignore-signal=CHLD cat >/dev/null"
INIT_AND_END = "{steps}echo ready && cat >/dev/null; {at_end}"


class Namespace:
    """`mounts` are shell commands that run inside before anything else, `at_end` one that runs after everything."""

    def __init__(
        self,
        hostname: str | None = None,
        mounts: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        *,
        has_network: bool = False,
        at_end: str = "",
    ) -> None:
        self._own = ["--mount", "--pid", "--uts", *(["--net"] if has_network else [])]
        self.env = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8", **(env or {})}
        steps = [f"hostname {hostname}"] if hostname else []
        script = (INIT_AND_END if at_end else INIT).format(
            steps="".join(f"{step} && " for step in [*steps, *mounts]), at_end=at_end
        )
        self._unshare = subprocess.Popen(
            [*UNSHARE, *self._own, "sh", "-c", script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.env,
            # An interrupt from the terminal is for the test run.
            start_new_session=True,
        )
        if self._unshare.stdout.readline() != b"ready\n":
            raise BedError(f"no namespace: {self._unshare.communicate()[1].decode(errors='replace').strip()}")
        (self.init_pid,) = children(self._unshare.pid)
        self._daemons: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Namespace:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """End all that runs inside; returns when nothing is left."""
        self._resume()
        self._unshare.stdin.close()
        self._unshare.wait(30)
        self._unshare.stdout.close()
        self._unshare.stderr.close()
        for daemon in self._daemons:
            daemon.wait(30)

    def path(self, inside: str | os.PathLike[str]) -> Path:
        """Where this process finds a path of the namespace."""
        return Path(f"/proc/{self.init_pid}/root{os.fspath(inside)}")

    def run(self, *argv: str, check: bool = True, timeout_s: float = 60) -> str:
        done = subprocess.run(
            self._enter(argv), env=self.env, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise BedError(f"{' '.join(argv)}: exit status {done.returncode}: {(done.stdout + done.stderr).strip()}")
        return done.stdout

    def start(self, *argv: str, log: Path) -> Daemon:
        """Start a program that stays in the foreground."""
        with open(log, "ab") as out:
            entered = subprocess.Popen(
                self._enter(argv),
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._daemons.append(entered)
        return Daemon(entered, argv, log)

    def _enter(self, argv: Sequence[str]) -> list[str]:
        return ["nsenter", f"--target={self.init_pid}", *self._own, "--", *argv]

    def processes(self, name: str | None = None) -> list[int]:
        """Pids, as this process sees them, of what runs inside; `name` is what /proc/PID/comm says (15 characters)."""
        inside = os.readlink(f"/proc/{self.init_pid}/ns/pid")
        return [
            pid
            for pid in map(int, filter(str.isdigit, os.listdir("/proc")))
            if pid != self.init_pid and _is_in(pid, inside) and (name is None or _comm(pid) == name)
        ]

    def kill(self, pids: Sequence[int], number: int = signal.SIGKILL) -> None:
        """Signal processes of the namespace; after SIGKILL, return when they are gone."""
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if number == signal.SIGCONT:
            self._resume()
        if number == signal.SIGKILL:
            inside = os.readlink(f"/proc/{self.init_pid}/ns/pid")
            wait_for(lambda: not any(_is_in(pid, inside) for pid in pids), f"{pids} survive SIGKILL")

    def _resume(self) -> None:
        # nsenter stops itself when its child is stopped, and then nobody would collect the child.
        for daemon in self._daemons:
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGCONT)


class Daemon:
    def __init__(self, entered: subprocess.Popen[bytes], argv: Sequence[str], log: Path) -> None:
        self.argv, self.log = argv, log
        self._entered = entered
        self.pid = 0
        wait_for(self._has_begun, lambda: f"{argv[0]} did not start:\n{tail(log)}", every_s=0.002)

    def _has_begun(self) -> bool:
        if self._entered.poll() is not None:
            raise BedError(f"{self.argv[0]} ended with {self._entered.returncode}:\n{tail(self.log)}")
        with contextlib.suppress(ValueError):
            (self.pid,) = children(self._entered.pid)
        return self.pid != 0

    def is_running(self) -> bool:
        return self._entered.poll() is None

    def end(self, number: int = signal.SIGTERM, limit_s: float = 10) -> None:
        """Signal it and wait for its end; SIGKILL when it does not end in time."""
        for each in (number, signal.SIGKILL):
            if self._entered.poll() is not None:
                return
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, each)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._entered.wait(limit_s)


def accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2):
            return True
    except OSError:
        return False


def children(pid: int) -> list[int]:
    """Processes whose parent is `pid`."""
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def tail(path: Path, lines: int = 25) -> str:
    try:
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""


def _is_in(pid: int, namespace: str) -> bool:
    """Whether a process lives there; a zombie does not."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") == namespace
    except OSError:
        return False


def _comm(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""
