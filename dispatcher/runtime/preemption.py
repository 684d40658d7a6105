"""Preemption: on a signal finish the step, save, and exit with 75 in time.

The signals are SIGTERM and the early warnings of schedulers, which precede a SIGTERM: SIGUSR1 (SLURM's
`--signal=USR1@60`, LSF) and SIGUSR2 (Grid Engine, HTCondor). A second SIGTERM exits at once.

As long as there is nothing to save, a signal interrupts the job as Ctrl-C does, but with exit status 75. After
`defer_exit` it only sets `requested`, which the training loop checks.

A thread receives the signals, through the file descriptor that the C handler writes to: Python's handlers wait until
the main thread runs Python again, which may never happen while it waits for a device or for a process that is gone. If
other code has replaced a handler, the signal is left to that handler.
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
_SIGNALS: Final = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
SAVE_TIMEOUT_S: Final = 60.0
# A signal to a process group whose leading wrapper passes it on arrives twice, and counts once.
_REPEAT_S: Final = 1.0
# Fraction of the time from TERM to KILL: a job that the wrapper kills counts as failed, not as preempted.
_GRACE_FRACTION: Final = 0.8

_CLOSE: Final = 0
_active: Final[list[Preemption]] = []
_callbacks: Final[list[Callable[[], None]]] = []
_log = logging.getLogger(__name__)


class Preemption:
    """Whether this process was preempted. Some seconds after a signal it exits, whatever it is doing.

        with Preemption() as preemption:
            prepare()
            preemption.defer_exit(timeout_s=60)
            while not preemption.requested:
                ...

    Enter it in the main thread; in another one, as under some notebooks, it ignores signals. `exit_process` ends the
    process at once with an exit status. A SIGTERM within `repeat_s` of the first one is the same signal.
    """

    def __init__(self, *, exit_process: Callable[[int], Any] = os._exit, repeat_s: float = _REPEAT_S) -> None:
        self._timeout_s = _within_grace(SAVE_TIMEOUT_S)
        self._exit_process = exit_process
        self._repeat_s = repeat_s
        self._deferring = False
        self._interrupted = False
        # Signals that our handler got: it may be uninstalled before the thread reads them.
        self._handled: set[int] = set()
        self._requested = threading.Event()
        self._restore = contextlib.ExitStack()

    @property
    def requested(self) -> bool:
        """Whether it is time to save and exit."""
        return self._requested.is_set()

    @property
    def exit_deferred(self) -> bool:
        """Whether a signal waits for the job to save."""
        return self._deferring

    def defer_exit(self, timeout_s: float) -> None:
        """From now on let the job run for at most `timeout_s` seconds after a signal, so that it can save."""
        # A timer with a longer interval raises an error.
        timeout_s = min(timeout_s, threading.TIMEOUT_MAX)
        self._timeout_s = _within_grace(timeout_s)
        if self._timeout_s < timeout_s:
            _log.warning(
                "a preemption has %g s to save, not %g: kill_grace in dispatcher.yaml is %s s",
                *(self._timeout_s, timeout_s, os.environ[contract.KILL_GRACE]),
            )
        self._deferring = True

    def __enter__(self) -> Self:
        if threading.current_thread() is not threading.main_thread():
            _log.warning("not in the main thread: a SIGTERM ends this job without saving")
            return self
        read, write = os.pipe()
        os.set_blocking(write, False)
        self._restore.callback(os.close, read)
        watcher = threading.Thread(target=self._watch, args=(read,), name="preemption", daemon=True)
        watcher.start()
        # On exit, in reverse order: restore the signals, end the thread, close the pipe.
        self._restore.callback(watcher.join)
        self._restore.callback(os.close, write)
        self._restore.callback(os.write, write, bytes([_CLOSE]))
        self._restore.callback(signal.set_wakeup_fd, signal.set_wakeup_fd(write, warn_on_full_buffer=False))
        for number in _SIGNALS:
            self._restore.callback(signal.signal, number, signal.signal(number, self._handle))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore.close()
        if self._interrupted and error is not None:
            if not isinstance(error, SystemExit):
                # An error that replaced the SystemExit on its way out, such as a wrapper that JAX raises around it.
                traceback.print_exception(error)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError, AttributeError):
                    stream.flush()
            # Not through the interpreter's shutdown, which would free the interrupted frames of JAX after the modules
            # that they need: a segmentation fault.
            self._exit_process(contract.EXIT_PREEMPTED)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        """The Python signal handler, in the main thread."""
        self._handled.add(number)
        if not self._deferring and not self._interrupted:
            # Only once: do not interrupt the cleanup on the way out.
            self._interrupted = True
            raise SystemExit(contract.EXIT_PREEMPTED)

    def _watch(self, pipe: int) -> None:
        """The thread: note the first signal, exit on the second SIGTERM or at the timeout."""
        last_term_s: float | None = None
        while (number := os.read(pipe, 1)[0]) != _CLOSE:
            if number not in _SIGNALS or not (number in self._handled or signal.getsignal(number) == self._handle):
                continue
            if number == signal.SIGTERM:
                now_s = time.monotonic()
                if last_term_s is not None and now_s - last_term_s > self._repeat_s:
                    self._report("second SIGTERM: exiting at once, without saving")
                    self._exit_process(contract.EXIT_PREEMPTED)
                last_term_s = now_s if last_term_s is None else last_term_s
            if not self._requested.is_set():
                name = signal.Signals(number).name
                what = "finishing the step, saving, exiting" if self._deferring else "nothing to save, exiting"
                self._report(f"{name}: {what} within {self._timeout_s:g} s")
                self._requested.set()
                # It also bounds what runs after the block, so __exit__ does not cancel it.
                deadline = threading.Timer(self._timeout_s, self._give_up)
                deadline.daemon = True
                deadline.start()
                for callback in tuple(_callbacks):
                    callback()

    def _give_up(self) -> None:
        self._report(f"not saved within {self._timeout_s:g} s: exiting; the last committed checkpoint counts")
        self._exit_process(contract.EXIT_PREEMPTED)

    def _report(self, what: str) -> None:
        # Not through logging, whose locks the main thread may hold.
        with contextlib.suppress(OSError):
            os.write(sys.__stderr__.fileno() if sys.__stderr__ else 2, f"preempted: {what}\n".encode())


@contextlib.contextmanager
def watch() -> Iterator[Preemption]:
    """Handle signals in the block; a job that runs inside another one shares its Preemption."""
    if _active:
        # Its own would end the process although the outer job has something to save.
        yield _active[-1]
        return
    with Preemption() as preemption:
        _active.append(preemption)
        try:
            yield preemption
        finally:
            _active.remove(preemption)


@contextlib.contextmanager
def notifying(callback: Callable[[], None]) -> Iterator[None]:
    """In the block call `callback` when this process is preempted, in the thread that receives the signals.

    It must return at once: a second signal waits for it.
    """
    _callbacks.append(callback)
    try:
        yield
    finally:
        _callbacks.remove(callback)


def _within_grace(timeout_s: float) -> float:
    """`timeout_s`, or less if the wrapper kills sooner."""
    grace = os.environ.get(contract.KILL_GRACE, "")
    return min(timeout_s, _GRACE_FRACTION * int(grace)) if grace.isdigit() else timeout_s


# A forked child inherits the pipe, so a signal to a worker would look like one to this process. Signals are blocked
# around a fork until the child has its own handlers.


def _before_fork() -> None:
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)


def _in_parent() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def _in_child() -> None:
    for number in _SIGNALS:
        if isinstance(getattr(signal.getsignal(number), "__self__", None), Preemption):
            signal.set_wakeup_fd(-1)
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


_masks: Final = threading.local()
os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
