"""The processes of one attempt on this host: its wrapper, and what the wrapper leaves behind when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Collection
from typing import Final

import msgspec

from dispatcher.base import files, host
from dispatcher.base.host import host_name
from dispatcher.errors import StorageError
from dispatcher.outlets.base import CANNOT_START, Ended, Key, Placement, Running, Slot, Status
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.reaping import orphans
from dispatcher.outlets.wrapper import DID_NOT_BEGIN, DOES_NOT_KNOW, Limits, did_not_begin, read_exit
from dispatcher.workspace import AttemptPaths

# The wrapper keeps its limits itself. This much later its dispatcher checks whether it can.
MARGIN_S: Final = 5.0
# How long strays that ignore TERM are waited for before KILL.
_STRAY_GRACE_S: Final = 5.0
# Of a bash that cannot read its script: a wrapper passes no status on that it has not written down.
_CANNOT_READ: Final = (126, 127)
# 128 and SIGKILL, as shells say it.
_KILLED: Final = 137


class Tree:
    """The process tree of one attempt. `popen` None: another dispatcher process has started it, or recovers it."""

    def __init__(
        self, key: Key, paths: AttemptPaths, pid: int, slot: Slot, popen: subprocess.Popen[bytes] | None = None
    ) -> None:
        self.key = key
        self.paths = paths
        self.pid = pid
        self.slot = slot
        self.popen = popen
        self.placement = Placement(host=host_name(), pid=pid or None, gpus=slot.gpus)
        self.pidfd = host.open_pidfd(pid)
        self.wrapper_gone = False
        self.limits = Limits()
        # By the clock of the kernel's boot, which a restarted dispatcher can read too.
        self.begun_s = processes.boot_time_s()
        # Nothing of it was started before.
        self.earliest_s = 0.0
        # What the exit status of an attempt that is being stopped will tell; None: it is not.
        self.stop_reason: str | None = None
        self._stopped_s = 0.0
        # Whether it was killed because its wrapper could not do so.
        self._killed = False
        self._session_gone = False
        self._strays_since_s: float | None = None

    def status(self, own: Collection[Tree]) -> Status:
        """How it is now, strays being stopped; `own` are all trees of this process."""
        if not self.wrapper_gone and not self._wrapper_has_ended():
            return Running()
        self.wrapper_gone = True
        if self._something_is_left(own):
            self._stop_strays()
            return Running("stopping what the job has left behind")
        self.close()
        return self._judged(read_exit(self.paths.directory))

    def ask_to_stop(self, reason: str) -> None:
        """Send TERM, once. The wrapper sends KILL after the grace period."""
        if self.stop_reason is not None:
            return
        self.stop_reason = reason
        self._stopped_s = processes.boot_time_s()
        self.terminate()

    def terminate(self) -> None:
        """Send TERM to the wrapper, which passes it on; strays that outlive it are killed."""
        if self.pid and not self.wrapper_gone:
            processes.send(self.pid, signal.SIGTERM)
            # One that was stopped (SIGSTOP) notices nothing until it continues, and nor do its children.
            host.send_group(self.pid, signal.SIGCONT)
        else:
            self._signal_strays(signal.SIGKILL)

    def kill(self) -> None:
        """Kill the whole tree at once."""
        self._signal_strays(signal.SIGKILL)

    def kill_overdue(self) -> None:
        """Kill the whole tree because its wrapper cannot: the end is reported as its wrapper would have."""
        self._killed = True
        self.kill()

    def deadline_s(self) -> float | None:
        """When its wrapper should have ended it, with some margin, by `boot_time_s`; None when it may go on."""
        if self._killed:
            return None
        if self.stop_reason is not None:
            return self._stopped_s + self.limits.grace_s + MARGIN_S
        return self.begun_s + self.limits.time_limit_s + MARGIN_S if self.limits.time_limit_s else None

    def needs_polling(self) -> bool:
        """Whether something happens that no descriptor tells: strays, or an attempt without a known wrapper."""
        return self.wrapper_gone or self.pidfd < 0

    def close(self) -> None:
        if self.pidfd >= 0:
            os.close(self.pidfd)
            self.pidfd = -1

    def _judged(self, ended: Status) -> Status:
        if not isinstance(ended, Ended) or ended.exit_code is not None or ended.exit_reason == CANNOT_START:
            return ended
        if self._killed:
            # What its wrapper would have written.
            return Ended(_KILLED, self.stop_reason or "")
        status = None if self.popen is None else self.popen.returncode
        if status == DID_NOT_BEGIN:
            # Where nothing can be written, it could not say why.
            return did_not_begin(_why_no_log(self.paths))
        if status in _CANNOT_READ and not files.is_missing(self.paths.directory):
            return did_not_begin(f"bash could not read {self.paths.wrapper}")
        return ended if status is None else msgspec.structs.replace(ended, error=_how_wrapper_ended(status))

    def _wrapper_has_ended(self) -> bool:
        if self.popen is not None:
            return self.popen.poll() is not None
        return not self.pid or not processes.is_of_attempt(self.pid, self.paths.directory)

    def _something_is_left(self, own: Collection[Tree]) -> bool:
        """Whether any process of the tree still lives; cheap where this process would have inherited it."""
        if self.popen is not None:
            wrappers = {tree.pid for tree in own if tree.popen is not None and not tree.wrapper_gone}
            if not orphans(wrappers, self.earliest_s):
                return False
        directory = self.paths.directory
        # A process that forks and ends while the list is read is missed with its child: so nothing must be there twice.
        left = processes.of_attempt(directory) or processes.of_attempt(directory)
        return bool(left) or bool(self._session())

    def _session(self) -> list[int]:
        """What is left of the session that the wrapper has led, also of other users, or without any other trace."""
        # The number stays taken for as long as the session has members, and may be another's as soon as it has none:
        # so it is only asked for until it was once found gone.
        if self.popen is None or self._session_gone:
            return []
        found = processes.of_session(self.pid)
        self._session_gone = self.wrapper_gone and not found
        return found

    def _stop_strays(self) -> None:
        now = time.monotonic()
        if self._strays_since_s is None:
            self._strays_since_s = now
            self._signal_strays(signal.SIGTERM)
        elif now - self._strays_since_s > _STRAY_GRACE_S:
            self._signal_strays(signal.SIGKILL)

    def _signal_strays(self, number: signal.Signals) -> None:
        for pid in {*self._session(), *processes.of_attempt(self.paths.directory)}:
            processes.send(pid, number)


def _why_no_log(paths: AttemptPaths) -> str:
    try:
        with files.storing("opening the log", paths.log):
            os.close(os.open(paths.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666))
    except StorageError as error:
        return str(error)
    return f"{paths.log}: the log could not be opened"


def _how_wrapper_ended(status: int) -> str:
    if status == DOES_NOT_KNOW:
        return "what passes on its exit status was killed"
    return f"signal {-status} killed its wrapper" if status < 0 else f"its wrapper ended with status {status}"
