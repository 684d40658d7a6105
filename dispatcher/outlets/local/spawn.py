"""Starting a wrapper on this host: its environment, and the liveness lock, which is locked before it starts."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.kernel_locks import CANNOT_LOCK
from dispatcher.errors import OutletError
from dispatcher.outlets.base import Bundle
from dispatcher.outlets.local import processes
from dispatcher.run_state import liveness
from dispatcher.workspace import AttemptPaths, Layout

# Which task of a step of SLURM, or which pod of a job of Volcano, the dispatcher is. Its jobs are none of them.
_MEMBERSHIP: Final = re.compile(r"SLURM_PROCID|VC_.+_HOSTS")
_BASH: Final = "/bin/bash"
_STDIN: Final = ((os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),)
# Python ignores these, and a program that was started would too.
_PYTHON_IGNORES: Final = (signal.SIGPIPE, signal.SIGXFSZ)


class Child:
    """A process that this one has started. `status` is its exit status, negative for a signal; None while it runs."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.status: int | None = None

    def has_ended(self) -> bool:
        """Whether it has ended; it is collected then, and its pid may become another's."""
        if self.status is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # This process was started with SIGCHLD ignored: the kernel collects its children.
                pid, status = self.pid, 0
            self.status = os.waitstatus_to_exitcode(status) if pid else None
        return self.status is not None


class Spawner:
    """Starts wrappers, in the environment of this process as it was in the beginning."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._environment = {name: value for name, value in os.environ.items() if not _MEMBERSHIP.fullmatch(name)}

    def spawn(self, bundle: Bundle) -> Child:
        """Start the delivered wrapper in a session of its own; raises StorageError or OutletError."""
        paths = self._layout.attempt(bundle.key.job_id, bundle.key.number)
        with files.shared_umask(self._layout.root):
            liveness_fd = _take_liveness_lock(paths.alive)
        try:
            return self._start(bundle, paths, liveness_fd)
        finally:
            if liveness_fd is not None:
                # The tree has inherited it: from now on the tree alone keeps it locked.
                os.close(liveness_fd)

    def _start(self, bundle: Bundle, paths: AttemptPaths, liveness_fd: int | None) -> Child:
        # Not subprocess: with an environment to encode and a pipe for errors it takes three times as long.
        processes.keep_descriptors()
        if liveness_fd is not None:
            os.set_inheritable(liveness_fd, True)
        command = [_BASH, os.fspath(paths.wrapper), "none" if liveness_fd is None else str(liveness_fd)]
        try:
            return Child(
                os.posix_spawn(
                    _BASH,
                    command,
                    self._environment_with(bundle.environment),
                    file_actions=_STDIN,
                    setsid=True,
                    setsigdef=_PYTHON_IGNORES,
                )
            )
        except OSError as error:
            raise OutletError(f"{bundle.key.job_id}: {_BASH} cannot be started: {error.strerror or error}") from error

    def _environment_with(self, changes: Mapping[str, str | None]) -> dict[str, str]:
        environment = {**self._environment, **{name: value for name, value in changes.items() if value is not None}}
        for name, value in changes.items():
            if value is None:
                environment.pop(name, None)
        return environment


def _take_liveness_lock(path: Path) -> int | None:
    """The locked descriptor; None where flock does not work, and heartbeats must do."""
    try:
        fd = liveness.take_patiently(path)
    except OSError as error:
        if error.errno in CANNOT_LOCK:
            return None
        raise files.storage_error(error, "taking the liveness lock", path) from error
    if fd is None:
        # Without its liveness lock it would run, and count as lost when this dispatcher dies.
        raise OutletError(
            f"{path}: another process holds the liveness lock of this attempt, which has not begun; requeue the job"
        )
    return fd
