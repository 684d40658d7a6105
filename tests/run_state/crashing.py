"""A forked process that dies right after its n-th call that changes a file: what a power switch or a kill -9 does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any, Final

import forks

# Imported before calls are counted: filelock's import tries hard links out, and would leave half of that behind.
import portalocker  # noqa: F401
from filelock import StrictSoftFileLock  # noqa: F401

from dispatcher.run_state import projection

CRASHED: Final = 77
# What creates, changes, renames or removes files; `open` only when it may create or cut one.
_CHANGING: Final = (
    "write", "pwrite", "rename", "replace", "mkdir", "link", "unlink", "rmdir", "ftruncate", "truncate", "fsync",
    "utime", "chmod", "symlink",
)  # fmt: skip
_CREATING: Final = os.O_CREAT | os.O_TRUNC


class Countdown:
    """Ends the process after `calls` calls; with `partly`, the last one, if it writes, writes only half."""

    def __init__(self, calls: int, partly: bool) -> None:
        self.left = calls
        self.partly = partly
        self._pwrite = os.pwrite

    def wrap(self, call: Callable[..., Any], writes: bool = False) -> Callable[..., Any]:
        def counted(*args: Any, **kwargs: Any) -> Any:
            self.left -= 1
            if self.left == 0 and writes and self.partly:
                fd, data, *rest = args
                call(fd, data[: len(data) // 2], *rest)
                os._exit(CRASHED)
            try:
                return call(*args, **kwargs)
            finally:
                if self.left == 0:
                    os._exit(CRASHED)

        return counted

    def install(self) -> None:
        for name in _CHANGING:
            setattr(os, name, self.wrap(getattr(os, name), writes=name in ("write", "pwrite")))
        plain_open, counted_open = os.open, self.wrap(os.open)

        def opened(path: Any, flags: int, *args: Any, **kwargs: Any) -> int:
            chosen = counted_open if flags & _CREATING else plain_open
            return chosen(path, flags, *args, **kwargs)

        os.open = opened  # type: ignore[assignment]
        exchange = projection._renameat2()
        if exchange is not None:
            counted_exchange = self.wrap(exchange)
            projection._renameat2 = lambda: counted_exchange  # type: ignore[assignment]


def crash_after(calls: int, act: Callable[..., object], *arguments: Any, partly: bool) -> bool:
    """Run `act` in a process of its own that dies at its n-th change of a file; whether it came to its end."""
    code = forks.run(_act, calls, partly, act, *arguments)
    if code not in (0, CRASHED):
        raise AssertionError(f"the crashing process failed by itself with {code} at call {calls}")
    return code == 0


def _act(calls: int, partly: bool, act: Callable[..., object], *arguments: Any) -> None:
    # Found out by writing files, which must not be left behind.
    tempfile.gettempdir()
    Countdown(calls, partly).install()
    act(*arguments)
    # Not by way of the interpreter's end, which changes files too.
    os._exit(0)
