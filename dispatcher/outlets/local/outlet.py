"""Attempts as processes of this host."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from dispatcher import contract
from dispatcher.errors import OutletError
from dispatcher.outlets.base import Attempt, Ended, Outcome, Running, Unknown
from dispatcher.outlets.local import processes

# How long strays that ignore TERM are waited for before KILL.
_STRAY_GRACE_S: Final = 5.0
# Far more than a wrapper writes.
_LONGEST_EXIT: Final = 65536
# Which task of a step of SLURM, or which pod of a job of Volcano, the dispatcher is. Its jobs are none of them.
_MEMBERSHIP: Final = re.compile(r"SLURM_PROCID|VC_.+_HOSTS")


class _Tree:
    """The processes of one attempt: the wrapper, until it ends, then whatever it leaves."""

    def __init__(self, directory: Path, pid: int, popen: subprocess.Popen[bytes] | None) -> None:
        self.directory = directory
        self.pid = pid
        self.popen = popen
        self.pidfd = processes.open_pidfd(pid)
        self.wrapper_gone = False
        self.group_gone = False
        self.strays_since_s: float | None = None

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1


class LocalOutlet:
    """Starts wrappers on this host. A handle is `pid:directory`, which finds an attempt again after a restart."""

    def __init__(self) -> None:
        self._trees: dict[str, _Tree] = {}

    def submit(self, attempt: Attempt, liveness_fd: int | None = None) -> str:
        """Start the wrapper in a session of its own; raises OutletError when it cannot be started.

        `liveness_fd` is the locked liveness lock, for the whole tree to inherit.
        """
        environment = {name: value for name, value in os.environ.items() if not _MEMBERSHIP.fullmatch(name)}
        for name, value in attempt.environment.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
        try:
            child = subprocess.Popen(
                ["/bin/bash", os.fspath(attempt.wrapper), "none" if liveness_fd is None else str(liveness_fd)],
                cwd=attempt.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=() if liveness_fd is None else (liveness_fd,),
            )
        except OSError as error:
            raise OutletError(f"{attempt.job_id}: /bin/bash cannot be started: {error.strerror or error}") from error
        handle = make_handle(child.pid, attempt.directory)
        self._trees[handle] = _Tree(attempt.directory, child.pid, child)
        return handle

    def adopt(self, handle: str) -> None:
        """Watch an attempt that another dispatcher process started on this host."""
        if handle not in self._trees:
            pid, directory = parse_handle(handle)
            known = pid if pid and processes.is_of_attempt(pid, directory) else 0
            self._trees[handle] = _Tree(directory, known, None)

    def poll(self, handles: Sequence[str]) -> Mapping[str, Outcome]:
        return {handle: self._poll(handle) for handle in handles}

    def cancel(self, handle: str, *, force: bool = False) -> None:
        tree = self._tree(handle)
        if not force and tree.pid and not tree.wrapper_gone:
            processes.send(tree.pid, signal.SIGTERM)
            # One that was stopped (SIGSTOP) hears nothing until it goes on, and nor do its children.
            processes.send_group(tree.pid, signal.SIGCONT)
            return
        if tree.popen is None and tree.pid and not tree.wrapper_gone:
            processes.send_group(tree.pid, signal.SIGKILL)
        self._signal_strays(tree, signal.SIGKILL)

    def log(self, handle: str) -> Path:
        return parse_handle(handle)[1] / contract.LOG_FILE

    def wait_descriptors(self) -> list[int]:
        """Descriptors that become readable when a wrapper ends."""
        return [tree.pidfd for tree in self._trees.values() if tree.pidfd >= 0 and not tree.wrapper_gone]

    def needs_polling(self) -> bool:
        """Whether something goes on that no descriptor tells: strays, or an attempt without a known wrapper."""
        return any(tree.wrapper_gone or tree.pidfd < 0 for tree in self._trees.values())

    def _poll(self, handle: str) -> Outcome:
        tree = self._tree(handle)
        if not tree.wrapper_gone and not self._wrapper_has_ended(tree):
            return Running()
        tree.wrapper_gone = True
        if self._something_is_left(tree):
            return self._stop_strays(tree)
        tree.close()
        del self._trees[handle]
        ended = read_exit(tree.directory)
        if isinstance(ended, Ended) and ended.exit_code is None and tree.popen is not None:
            return msgspec.structs.replace(ended, error=_how_wrapper_ended(tree.popen.returncode))
        return ended

    def _tree(self, handle: str) -> _Tree:
        if handle not in self._trees:
            self.adopt(handle)
        return self._trees[handle]

    def _wrapper_has_ended(self, tree: _Tree) -> bool:
        if tree.popen is not None:
            return tree.popen.poll() is not None
        return not tree.pid or not processes.is_of_attempt(tree.pid, tree.directory)

    def _something_is_left(self, tree: _Tree) -> bool:
        """Whether any process of the tree still lives; cheap where this process would have inherited it."""
        if tree.popen is not None:
            own = {other.pid for other in self._trees.values() if other.popen is not None and not other.wrapper_gone}
            if not _orphans(own) and not self._group_is_left(tree):
                return False
        # A process that forks and ends while the list is read is missed with its child: so nothing must be there twice.
        left = processes.of_attempt(tree.directory) or processes.of_attempt(tree.directory)
        return bool(left) or self._group_is_left(tree)

    def _group_is_left(self, tree: _Tree) -> bool:
        # The number stays taken for as long as the group has members, and may be another's as soon as it has none:
        # so it is only asked for until it was once found gone.
        if tree.popen is None or tree.group_gone:
            return False
        tree.group_gone = not _group_exists(tree.pid)
        return not tree.group_gone

    def _stop_strays(self, tree: _Tree) -> Outcome:
        now = time.monotonic()
        if tree.strays_since_s is None:
            tree.strays_since_s = now
            self._signal_strays(tree, signal.SIGTERM)
        elif now - tree.strays_since_s > _STRAY_GRACE_S:
            self._signal_strays(tree, signal.SIGKILL)
        return Running("stopping what the job has left behind")

    def _signal_strays(self, tree: _Tree, number: signal.Signals) -> None:
        if self._group_is_left(tree):
            processes.send_group(tree.pid, number)
        for pid in processes.of_attempt(tree.directory):
            processes.send(pid, number)


def _how_wrapper_ended(status: int) -> str:
    return f"signal {-status} killed its wrapper" if status < 0 else f"its wrapper ended with status {status}"


def make_handle(pid: int, directory: Path) -> str:
    return f"{pid}:{directory}"


def parse_handle(handle: str) -> tuple[int, Path]:
    pid, _, directory = handle.partition(":")
    return int(pid or 0), Path(directory)


def read_exit(directory: Path) -> Outcome:
    """How an attempt ended by its own account; call it only when nothing of the attempt is left."""
    path = directory / contract.EXIT_FILE
    try:
        # Without O_NONBLOCK a named pipe in its place would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                # It stays so, however often one looks.
                return Ended(None, f"{path} is no file: the job has put something else in its place")
            text = os.read(fd, _LONGEST_EXIT).decode(errors="replace")
        finally:
            os.close(fd)
    except FileNotFoundError:
        return Ended(None)
    except OSError as error:
        return Unknown(f"{path}: {error.strerror}")
    if not text.endswith("\n"):
        # The wrapper was killed while it wrote.
        return Ended(None)
    try:
        status = json.loads(text)
        return Ended(int(status["exit_code"]), str(status.get("reason", "")), str(status["ended_at"]))
    except (ValueError, KeyError, TypeError):
        return Ended(None, "unreadable exit status")


def _orphans(own: set[int]) -> set[int]:
    """The children that this process has inherited and that live; those that have ended are collected."""
    while True:
        orphans = {pid for pid in processes.children() - own if not _is_helper(pid)}
        alive = {pid for pid in orphans if not _reap(pid)}
        # One that had ended may have left us a child of its own after the list was read.
        if alive == orphans:
            return alive


def _is_helper(pid: int) -> bool:
    """Whether a child is of this process's own session: every wrapper begins one, and nothing can come back from it."""
    with contextlib.suppress(ProcessLookupError):
        return os.getsid(pid) == os.getsid(0)
    return False


def _reap(pid: int) -> bool:
    """Whether this child has ended, and is collected now."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    return True


def _group_exists(pid: int) -> bool:
    try:
        os.killpg(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
