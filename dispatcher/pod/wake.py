"""Waits until a process ends, a signal arrives, the run state changes, or the time is over."""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

_IN_MODIFY: Final = 0x2
_IN_CLOSE_WRITE: Final = 0x8
_IN_MOVED_TO: Final = 0x80
_IN_NONBLOCK: Final = 0o4000
_IN_CLOEXEC: Final = 0o2000000
_EVENT: Final = struct.Struct("iIII")
# Other dispatchers may change the run state hundreds of times a second; it is read this often at most.
_QUIET_S: Final = 0.05


class FileWatch:
    """Reports changes of files, as far as this host's kernel knows them (inotify).

    Changes by other hosts on network filesystems are not reported: the poll interval covers them.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.inotify_init1(_IN_NONBLOCK | _IN_CLOEXEC)
        self._names: dict[int, set[str]] = {}
        self._added: set[Path] = set()

    def add(self, path: Path) -> bool:
        """Watch the file `path` through its directory, so that renames over it are noticed.

        Returns False when it is watched already, and when its directory does not exist yet: then add it again later.
        """
        if self.fd < 0 or path in self._added:
            return False
        mask = _IN_MODIFY | _IN_CLOSE_WRITE | _IN_MOVED_TO
        number = self._libc.inotify_add_watch(self.fd, os.fsencode(path.parent), mask)
        if number < 0:
            return False
        self._names.setdefault(number, set()).add(path.name)
        self._added.add(path)
        return True

    def changed(self) -> bool:
        """Whether one of the files has changed since the last call."""
        found = False
        while self.fd >= 0:
            try:
                data = os.read(self.fd, 65536)
            except BlockingIOError:
                break
            offset = 0
            while offset < len(data):
                number, _, _, length = _EVENT.unpack_from(data, offset)
                name = data[offset + _EVENT.size : offset + _EVENT.size + length].rstrip(b"\0")
                found |= os.fsdecode(name) in self._names.get(number, ())
                offset += _EVENT.size + length
        return found

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class Signals:
    """Counts SIGINT and SIGTERM, notes SIGHUP, and wakes the wait. Use as a context manager.

    The handler does nothing else: it may run in the middle of a write to the terminal or to the journal.
    """

    def __init__(self) -> None:
        self.count = 0
        self.hung_up = False
        self._old: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        self.receiver, self._sender = socket.socketpair()
        self.receiver.setblocking(False)
        self._sender.setblocking(False)
        self._old_wakeup = signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            self._old[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(self._old_wakeup)
        self.receiver.close()
        self._sender.close()

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.receiver.recv(4096):
                pass

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            self.hung_up = True
        else:
            self.count += 1


class LoopWait:
    """One wait of the loop."""

    def __init__(self, signals: Signals, watch: FileWatch) -> None:
        self._signals = signals
        self._watch = watch
        self._quiet_until_s = 0.0

    def wait(self, timeout_s: float, descriptors: Sequence[int], *, for_changes: bool) -> bool:
        """Wait until a descriptor is readable, a signal arrives, a watched file changes, or `timeout_s` is over.

        Returns whether a watched file has changed. Files are watched only with `for_changes`.
        """
        end_s = time.monotonic() + timeout_s
        while True:
            now = time.monotonic()
            left_s = max(0.0, end_s - now)
            watching = for_changes and self._watch.fd >= 0 and now >= self._quiet_until_s
            if for_changes and not watching and self._quiet_until_s > now:
                left_s = min(left_s, self._quiet_until_s - now)
            poll = select.poll()
            for fd in descriptors:
                poll.register(fd, select.POLLIN)
            poll.register(self._signals.receiver, select.POLLIN)
            if watching:
                poll.register(self._watch.fd, select.POLLIN)
            ready = {fd for fd, _ in poll.poll(left_s * 1000)}
            if self._signals.receiver.fileno() in ready:
                self._signals.drain()
                return False
            if watching and self._watch.fd in ready and self._watch.changed():
                self._quiet_until_s = time.monotonic() + _QUIET_S
                return True
            if ready - {self._watch.fd} or time.monotonic() >= end_s:
                return False
