"""Following the logs of one or several jobs, for `logs -f`: from the attempt that runs, or the next one, to the end."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
import time
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, BinaryIO, Final

from dispatcher.cli.log_lines import Choice, LastStates, Lines, Output, Sink, Stopped, copy, missing_rank, show
from dispatcher.cli.printing import draw_line, note
from dispatcher.cli.wait_notes import WaitNotes
from dispatcher.errors import StateError
from dispatcher.run_state import liveness
from dispatcher.run_state.states import IN_FLIGHT, WAITING, Record, State

if TYPE_CHECKING:
    from dispatcher.api import Workspace
    from dispatcher.cli.remote_log import RemoteLog

# Reading the file's size costs microseconds, reading the journal a little more, all that says why jobs wait the most.
_PAUSE_S: Final = 0.2
_STATE_PAUSE_S: Final = 1.0
_TELL_PAUSE_S: Final = 5.0
# How long a live dispatcher may take to record an end that the attempt's files show already.
_RECORDED_S: Final = 10.0


class Follower:
    """Follows each job with a thread of its own, from when it runs. The threads ask the workspace one at a time.

    `expected`: the reason to wait that is no news at first.
    """

    def __init__(
        self, workspace: Workspace, output: Output, choice: Choice, *, names_jobs: bool, expected: str = ""
    ) -> None:
        self._expected = expected
        self._workspace = workspace
        self._output = output
        self._choice = choice
        self._names_jobs = names_jobs
        self._asking = threading.Lock()
        self._error: BaseException | None = None
        self._notes = WaitNotes(workspace)
        self._begun_before: set[str] = set()
        # The last attempt that was followed, or that had ended before the waiting began.
        self._followed: dict[str, int] = {}
        # Jobs that are queued or run again after the attempt that was followed.
        self._again: set[str] = set()
        self._next_refresh_s = 0.0

    def follow(self, jobs: Collection[str]) -> None:
        """Copy the logs of the jobs until all of them have ended."""
        waiting, followed = dict.fromkeys(jobs), dict[str, threading.Thread]()
        next_tell_s = 0.0
        try:
            while (waiting or followed) and self._error is None:
                for job, number in self._begun(waiting).items():
                    del waiting[job]
                    if number:
                        followed[job] = self._start(job, number)
                if waiting and time.monotonic() >= next_tell_s:
                    self._tell(waiting)
                    next_tell_s = time.monotonic() + _TELL_PAUSE_S
                self._output.stopping.wait(_PAUSE_S if followed else _STATE_PAUSE_S)
                for job in [job for job, thread in followed.items() if not thread.is_alive()]:
                    del followed[job]
                    if job in self._again:
                        self._again.remove(job)
                        waiting[job], next_tell_s = None, 0.0
        finally:
            # Interrupted by a person: those that copy are stopped by their next line, or within a second.
            self._output.stopping.set()
            for thread in followed.values():
                thread.join()
        if self._error is not None:
            raise self._error

    def _begun(self, jobs: Collection[str]) -> dict[str, int]:
        """The attempt to follow of each job that has one by now; 0 for a job that is over without another one."""
        with self._asking:
            records = self._records()
            seen = {job: records.get(job) for job in jobs}
        found = {}
        for job, record in seen.items():
            attempt = 0 if record is None else record.attempt
            number = self._choice.attempt or attempt
            is_next = self._choice.attempt is None or attempt < number
            is_waiting = record is None or record.state in WAITING
            last = self._followed.get(job)
            if last is not None and attempt > last:
                # Short attempts may have ended since the last check: none is left out.
                found[job] = last + 1
            elif is_waiting and is_next:
                if self._choice.attempt is None:
                    self._followed.setdefault(job, attempt)
            elif last is None and number:
                found[job] = number
            else:
                if record is not None and not attempt:
                    note(f"{job} has not run: there is no log (state: {record.state})")
                found[job] = 0
        return found

    def _start(self, job: str, number: int) -> threading.Thread:
        if job in self._begun_before:
            note(f"{job} runs again (attempt {number})")
        self._begun_before.add(job)
        self._followed[job] = number
        self._notes.forget(job)
        thread = threading.Thread(target=self._follow, args=(job, number))
        thread.start()
        return thread

    def _tell(self, waiting: Collection[str]) -> None:
        with self._asking:
            self._notes.tell(waiting, expected=self._expected)
        self._expected = ""

    def _goes_on(self, job: str, number: int) -> bool:
        """Whether the job has not ended with this attempt: it is queued again, or runs again."""
        if self._choice.attempt is not None:
            return False
        end_s = time.monotonic() + _RECORDED_S
        while (record := self._record(job)) is not None:
            if record.state not in IN_FLIGHT or record.attempt != number:
                return record.attempt > number or record.state is State.QUEUED
            lock = self._workspace.layout.pod_lock(record.pod or "")
            if not record.pod or not liveness.is_held(lock) or time.monotonic() >= end_s:
                return False
            self._pause()
        return False

    def _record(self, job: str) -> Record | None:
        with self._asking:
            return self._records().get(job)

    def _records(self) -> Mapping[str, Record]:
        """The records, read again only after a pause: every thread asks for its own."""
        store = self._workspace.store
        if time.monotonic() >= self._next_refresh_s:
            store.refresh()
            self._next_refresh_s = time.monotonic() + _PAUSE_S
        return store.records

    def _follow(self, job: str, number: int) -> None:
        """What a thread does: copy the log of one attempt until it has ended."""
        try:
            elsewhere = self._elsewhere(job, number)
            if elsewhere is None:
                self._follow_here(job, number)
            else:
                self._follow_elsewhere(elsewhere, job, number)
            if self._goes_on(job, number):
                self._again.add(job)
        except Stopped:
            return
        except Exception as error:  # noqa: BLE001 - the main thread raises it
            self._error = error
            self._output.stopping.set()

    def _sink(self, job: str, pattern: re.Pattern[str] | None) -> Output | Lines | LastStates:
        prefix = f"{job}: ".encode() if self._names_jobs else b""
        if prefix or pattern:
            return Lines(self._output, prefix, pattern)
        return LastStates(self._output, draw_line) if sys.stdout.isatty() else self._output

    def _follow_here(self, job: str, number: int) -> None:
        file = self._open(job, number)
        if file is None:
            return
        sink = self._sink(job, self._choice.pattern)
        with file:
            show(file, sink, self._choice.tail)
            next_check_s = 0.0
            while True:
                # Checked before the rest is read, so that nothing written before the end is missed.
                has_ended = False
                if time.monotonic() >= next_check_s:
                    has_ended = self._has_ended(job, number)
                    next_check_s = time.monotonic() + _STATE_PAUSE_S
                if not copy(file, sink) and has_ended:
                    break
                if not has_ended:
                    self._pause()
        _end(sink)

    def _open(self, job: str, number: int) -> BinaryIO | None:
        """Open the log as soon as it exists; None when the attempt ends without one."""
        paths = self._workspace.layout.attempt(job, number)
        while True:
            has_ended = self._has_ended(job, number)
            with contextlib.suppress(FileNotFoundError):
                return open(paths.directory / self._choice.name, "rb", buffering=0)
            if not paths.directory.is_dir():
                raise StateError(f"{job} has no attempt {number}")
            if has_ended:
                note(f"attempt {number} of {job} has no log{missing_rank(paths, self._choice.rank)}")
                return None
            self._pause()

    def _pause(self) -> None:
        if self._output.stopping.wait(_PAUSE_S):
            raise Stopped

    def _elsewhere(self, job: str, number: int) -> RemoteLog | None:
        """Where an attempt in flight writes its log, if that is not in the workspace."""
        from dispatcher.outlets.local import NAME as LOCAL

        paths = self._workspace.layout.attempt(job, number)
        while not paths.submission.exists():
            # Claimed for a host just now: the file is written before anything is sent there.
            record = self._record(job)
            if record is None or record.outlet in (None, LOCAL) or self._is_over(job, number):
                return None
            self._pause()
        if self._is_over(job, number):
            return None
        from dispatcher.cli.remote_log import log_elsewhere
        from dispatcher.config import load_config

        hosts_file = self._choice.hosts_file
        config = self._workspace.readable_config
        config = config if hosts_file is None else load_config(config.layout, hosts_file)
        return log_elsewhere(config, paths, self._choice.rank or 0)

    def _follow_elsewhere(self, elsewhere: RemoteLog, job: str, number: int) -> None:
        """Copy what was brought home of the log, then the rest from where it is written."""
        from dispatcher.cli.remote_log import follow_elsewhere, several_logs

        def is_over() -> bool:
            return self._output.stopping.is_set() or self._is_over(job, number)

        several = several_logs(elsewhere)
        if several and self._choice.rank is not None:
            if self._choice.rank >= len(several):
                ranks = f"ranks 0 to {len(several) - 1}"
                raise StateError(
                    f"{job} runs on {len(several)} machines: there is no rank {self._choice.rank}, only {ranks}"
                )
            several = {self._choice.rank: several[self._choice.rank]}
        if several:
            from dispatcher.cli.worker_logs import follow_several

            with contextlib.closing(elsewhere.transport):
                follow_several(several, self._sink(job, None), self._choice.tail, is_over, self._choice.pattern)
            return
        sink, offset = self._sink(job, self._choice.pattern), 0
        with (
            contextlib.suppress(FileNotFoundError),
            open(self._workspace.layout.attempt(job, number).directory / self._choice.name, "rb") as file,
        ):
            show(file, sink, self._choice.tail)
            offset = file.tell()
        follow_elsewhere(elsewhere, sink, offset, is_over)
        _end(sink)

    def _has_ended(self, job: str, number: int) -> bool:
        if self._is_over(job, number):
            return True
        paths, record = self._workspace.layout.attempt(job, number), self._record(job)
        # Killed, and not recorded yet. One that was only claimed or submitted holds no lock before it begins.
        if record is None or record.state is not State.RUNNING or not os.path.exists(paths.alive):
            return False
        has_begun = record.pid is not None or os.path.exists(paths.taken) or os.path.exists(paths.log)
        return has_begun and liveness.is_held(paths.alive) is False

    def _is_over(self, job: str, number: int) -> bool:
        """Whether the workspace knows that the attempt has ended."""
        if os.path.exists(self._workspace.layout.attempt(job, number).exit):
            return True
        record = self._record(job)
        return record is None or record.attempt != number or record.state not in IN_FLIGHT


def _end(sink: Sink) -> None:
    if isinstance(sink, Lines | LastStates):
        sink.end()
