"""Told to leave: finish the step, save, and exit with 75 in time.

SIGTERM says so, and so do the early warnings of schedulers, SIGUSR1 (SLURM's `--signal=USR1@60`, LSF) and SIGUSR2
(Grid Engine, HTCondor), which come some time before a SIGTERM. A second SIGTERM means at once.

As long as there is nothing to save, a signal ends what is going on, as Ctrl-C does, but with 75. From `hold` on it is
a request that the training loop looks at.

Signals are noticed by a thread of their own, through the file descriptor that the C handler writes to: Python's
handlers wait until the main thread runs Python again, which it may never do while it waits for a device or for another
process that is gone. A handler that somebody else has put in the place of ours counts instead of it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, Final, Self

from dispatcher import contract

# SIGUSR1 and SIGUSR2 are early warnings.
_HEARD: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
BOUND_S: Final = 60.0
# Who signals a process group that a wrapper also leads signals the job twice: that is one wish, not two.
REPEAT_S: Final = 1.0
# Of the time from TERM to KILL; what is killed by the wrapper counts as failed, not as preempted.
_OF_GRACE: Final = 0.8

_CLOSE: Final = 0
_at_work: Final[list[Preemption]] = []
_log = logging.getLogger(__name__)


class Preemption:
    """Whether this process was told to leave. Some seconds after that it leaves, whatever it is doing.

        with Preemption() as preemption:
            prepare()
            preemption.hold(bound_s=60)
            while not preemption.requested:
                ...

    To be entered in the main thread; in another one, as under some notebooks, it notices nothing. `leave` is what ends
    the process without further ado; it is given the exit status.
    """

    def __init__(self, *, leave: Callable[[int], Any] = os._exit) -> None:
        self._bound_s = _within_grace(BOUND_S)
        self._leave = leave
        self._holding = False
        self._interrupted = False
        # Signals that came to our handler: it may be gone again before the watching thread hears of them.
        self._handled: set[int] = set()
        self._requested = threading.Event()
        self._restore = contextlib.ExitStack()

    @property
    def requested(self) -> bool:
        """Whether it is time to save and leave."""
        return self._requested.is_set()

    @property
    def holding(self) -> bool:
        """Whether something is saved before leaving."""
        return self._holding

    def hold(self, bound_s: float) -> None:
        """From now on go on when told to leave, for at most `bound_s` seconds: there is something to save first."""
        # A timer cannot wait longer, and would end with an error instead.
        bound_s = min(bound_s, threading.TIMEOUT_MAX)
        self._bound_s = _within_grace(bound_s)
        if self._bound_s < bound_s:
            _log.warning(
                "a preemption has %g s to save, not %g: kill_grace in dispatcher.yaml is %s s",
                *(self._bound_s, bound_s, os.environ[contract.KILL_GRACE]),
            )
        self._holding = True

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            _log.warning("not in the main thread: a SIGTERM ends this job without saving")
            return self
        read, write = os.pipe()
        os.set_blocking(write, False)
        self._restore.callback(os.close, read)
        watcher = threading.Thread(target=self._watch, args=(read,), name="preemption", daemon=True)
        watcher.start()
        # In this order at the end: signals as they were, then the thread, then the pipe.
        self._restore.callback(watcher.join)
        self._restore.callback(os.close, write)
        self._restore.callback(os.write, write, bytes([_CLOSE]))
        self._restore.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write, warn_on_full_buffer=False))
        for number in _HEARD:
            self._restore.callback(signal.signal, number, signal.signal(number, self._handle))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore.close()
        if self._interrupted and error is not None:
            if not isinstance(error, SystemExit):
                # What came upon the signal on its way out, a wrapper of JAX around it for one.
                traceback.print_exception(error)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            # Not by way of the interpreter's end: it would free the frames of JAX in which the signal came after the
            # modules that they need, and that is a segmentation fault.
            self._leave(contract.EXIT_PREEMPTED)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """In the main thread, when it runs Python next."""
        self._handled.add(number)
        if not self._holding and not self._interrupted:
            # Once: what tidies up on the way out is not interrupted again.
            self._interrupted = True
            raise SystemExit(contract.EXIT_PREEMPTED)

    def _watch(self, pipe: int) -> None:
        """In its own thread: note the first wish, end the process on the second or when time is over."""
        last_term_s: float | None = None
        while (number := os.read(pipe, 1)[0]) != _CLOSE:
            if number not in _HEARD or not (number in self._handled or signal.getsignal(number) == self._handle):
                continue
            if number == signal.SIGTERM:
                now_s = time.monotonic()
                if last_term_s is not None and now_s - last_term_s > REPEAT_S:
                    self._say("a second SIGTERM: leaving at once, without saving")
                    self._leave(contract.EXIT_PREEMPTED)
                last_term_s = now_s if last_term_s is None else last_term_s
            if not self._requested.is_set():
                name = signal.Signals(number).name
                what = "finishing the step, saving, leaving" if self._holding else "nothing to save, leaving"
                self._say(f"{name}: {what} within {self._bound_s:g} s")
                self._requested.set()
                # Goes on when this watch has ended: what comes after the block has no more time than the block.
                deadline = threading.Timer(self._bound_s, self._give_up)
                deadline.daemon = True
                deadline.start()

    def _give_up(self) -> None:
        self._say(f"not done within {self._bound_s:g} s: leaving; the last checkpoint that was committed counts")
        self._leave(contract.EXIT_PREEMPTED)

    def _say(self, what: str) -> None:
        # Not through logging, whose locks the main thread may hold.
        with contextlib.suppress(OSError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"preempted: {what}\n".encode())


@contextlib.contextmanager
def watch() -> Iterator[Preemption]:
    """Notice signals in the block, with the Preemption that is at work where one job runs another."""
    if _at_work:
        # One of its own would end the process while the outer job has something to save.
        yield _at_work[-1]
        return
    with Preemption() as preemption:
        _at_work.append(preemption)
        try:
            yield preemption
        finally:
            _at_work.remove(preemption)


def _within_grace(bound_s: float) -> float:
    """`bound_s`, or less where the wrapper kills sooner."""
    grace = os.environ.get(contract.KILL_GRACE, "")
    return min(bound_s, _OF_GRACE * int(grace)) if grace.isdigit() else bound_s


# A forked child writes into the same pipe: what ends a worker would be taken for a wish to this process. So whoever
# forks has the signals wait until the child's are its own affair.


def _before_fork() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _HEARD)


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:
    for number in _HEARD:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), Preemption):
            signal.set_wakeup_fd(-1)
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


_masks: Final = threading.local()
os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
