"""Starting a wrapper on this host: its environment, and the liveness lock, which is locked before it starts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.base.kernel_locks import CANNOT_LOCK
from dispatcher.errors import OutletError
from dispatcher.outlets.base import Bundle
from dispatcher.outlets.remote.agent.names import LAUNCHERS_VARIABLE
from dispatcher.run_state import liveness
from dispatcher.workspace import AttemptPaths, Layout

# Which job of a scheduler, and which task of it, the dispatcher is: its jobs are none of that. What tells where the
# scheduler and the scratch space are stays, and the numbers of the GPUs.
_MEMBERSHIP: Final = re.compile(
    LAUNCHERS_VARIABLE
    + r"|SLURM_(?!(CONF|CONF_SERVER|CLUSTERS|TMPDIR|JOB_GPUS)$).*|PBS_(?!(CONF_FILE|SERVER|DEFAULT|EXEC)$).*"
)
_LOCALE: Final = b"LC_ALL"


class Spawner:
    """Starts wrappers, in the environment that this process has when this object is made."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # Chosen and encoded once: with a hundred variables that takes longer than all else here that is Python.
        self._environment = {
            name: value for name, value in os.environb.items() if not _MEMBERSHIP.fullmatch(os.fsdecode(name))
        }

    def spawn(self, bundle: Bundle) -> subprocess.Popen[bytes]:
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

    def _start(self, bundle: Bundle, paths: AttemptPaths, liveness_fd: int | None) -> subprocess.Popen[bytes]:
        words = ["/bin/bash", os.fspath(paths.wrapper), "none" if liveness_fd is None else str(liveness_fd)]
        environment = self._environment_with(bundle.environment)
        if _LOCALE not in environment:
            # The wrapper is bytes and ASCII. Reading the files of a locale is a fifth of the start of bash.
            environment[_LOCALE] = b"C"
            words.append("own LC_ALL")
        try:
            return subprocess.Popen(
                words,
                cwd=self._layout.root,
                env=environment,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                pass_fds=() if liveness_fd is None else (liveness_fd,),
            )
        except OSError as error:
            raise OutletError(f"{bundle.key.job_id}: /bin/bash cannot be started: {error.strerror or error}") from error

    def _environment_with(self, changes: Mapping[str, str | None]) -> dict[bytes, bytes]:
        environment = self._environment.copy()
        for name, value in changes.items():
            if value is None:
                environment.pop(os.fsencode(name), None)
            else:
                environment[os.fsencode(name)] = os.fsencode(value)
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
