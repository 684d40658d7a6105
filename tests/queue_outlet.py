"""A second outlet, for tests: a batch queue that is known by its programs alone (see fake_queue.py).

It is as different from the local outlet as a cluster is: every call is a child process that takes its time, an
attempt is pending before it runs, and what is known of it is the scheduler's word. Its attempts see the workspace.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from submissions import Submissions, SubmissionsOffer

from dispatcher.base import files
from dispatcher.errors import StorageError
from dispatcher.hosts.types import Location
from dispatcher.outlets import kinds
from dispatcher.outlets.base import (
    CANNOT_START,
    Bundle,
    Ended,
    Key,
    Orphan,
    Pending,
    Placement,
    Report,
    Request,
    Running,
    Site,
    Slot,
    Status,
    Unknown,
)
from dispatcher.outlets.bundle import deliver
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.wrapper import read_exit
from dispatcher.run_state.liveness import SlotInfo, is_held
from dispatcher.run_state.states import State
from dispatcher.workspace import AttemptPaths

NAME: Final = "queue"
LIMIT: Final = 200
# How often the queue is asked, and for how long one of its programs may run.
ASK_EVERY_S: Final = 0.2
PROGRAM_LIMIT_S: Final = 30.0
# An attempt that a dead dispatcher may have been about to submit counts as never submitted after this time.
MISSING_S: Final = 2.0


def install(directory: Path) -> dict[str, str]:
    """Put the queue's programs into a directory; the environment that finds them."""
    programs, queue = directory / "bin", directory / "queue"
    programs.mkdir(parents=True)
    queue.mkdir()
    for name in ("qsubmit", "qstat", "qcancel"):
        script = shutil.copy(Path(__file__).with_name("fake_queue.py"), directory / name)
        # Their paths may have blanks, which a first line of `#!` does not take.
        (programs / name).write_text(f'#!/bin/sh\nexec {shlex.join([sys.executable, os.fspath(script)])} "$@"\n')
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "FAKE_QUEUE": os.fspath(queue)}


def register() -> None:
    """Let pods of this process have such an outlet too."""

    def refused_by_all(request: object, offers: Sequence[Any]) -> str:
        return f"no queue can run {request}"

    def no_hardware(mine: object, theirs: object, same_host_name: bool) -> str:
        return ""

    def read_offer(data: Mapping[str, Any]) -> SubmissionsOffer:
        return msgspec.convert(data, SubmissionsOffer)

    kinds.OUTLET_KINDS[NAME] = kinds.OutletKind(read_offer, refused_by_all, no_hardware)
    kinds.MAKERS[NAME] = QueueOutlet


class Call:
    """One run of a program of the queue."""

    def __init__(self, words: list[str], done: Callable[[str | None], None], text: str = "") -> None:
        self.done = done
        self.lines = b""
        self.begun_s = time.monotonic()
        with tempfile.TemporaryFile() as given:
            given.write(text.encode())
            given.seek(0)
            # A session of its own: it goes on when the dispatcher is interrupted.
            self.child = subprocess.Popen(
                words, stdin=given, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
            )
        assert self.child.stdout is not None
        self.fd = self.child.stdout.fileno()
        os.set_blocking(self.fd, False)

    def has_ended(self) -> bool:
        """Whether it has; `done` was then called with its output, None when it has failed."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self.fd, 65536):
                self.lines += data
            # Its end of the pipe is closed, so it ends now.
            status = self.child.wait()
            self.child.stdout.close()  # type: ignore[union-attr]
            self.done(self.lines.decode() if status == 0 else None)
            return True
        if time.monotonic() - self.begun_s > PROGRAM_LIMIT_S:
            self.child.kill()
        return False


class QueueOutlet:
    """Submits attempts to the queue under names that are derived from their keys."""

    name = NAME
    first_state = State.SUBMITTED

    def __init__(self, context: PodContext) -> None:
        self._layout = context.config.layout
        self._pod = context.pod
        self.capacity = Submissions(LIMIT)
        self._watched: set[Key] = set()
        self._orphans: set[Key] = set()
        self._ended: dict[Key, Report] = {}
        # Delivered and not known to be in the queue; what the queue knows, by name: id, state, host, pid.
        self._unsent: dict[Key, Bundle] = {}
        # Those of them that `qsubmit` was given since the queue last answered.
        self._tried: set[Key] = set()
        self._known: dict[str, tuple[str, str, str, int]] = {}
        self._sending: Call | None = None
        self._asking: Call | None = None
        self._cancelling: list[Call] = []
        # What is to be cancelled as soon as its id is known, and whether by force.
        self._unwanted: dict[Key, bool] = {}
        self._asked_s = -ASK_EVERY_S
        # Why the queue did not answer last, and how often it has.
        self._problem = ""
        self._answers = 0
        # Whether it was asked since it was given the last attempt to watch.
        self._is_fresh = True
        # Since when the queue has answered without naming an attempt that was submitted by another dispatcher.
        self._missing_since_s: dict[Key, float] = {}

    def site(self, slot: Slot, request: Request) -> Site:
        return Site(layout=self._layout, group_may_write=files.group_may_write(self._layout.root))

    def submit(self, bundles: Sequence[Bundle]) -> None:
        for bundle in bundles:
            if bundle.key in self._watched or bundle.key in self._ended:
                continue
            try:
                deliver(bundle, self._layout)
            except StorageError as error:
                self._ended[bundle.key] = Report(Ended(None, CANNOT_START, error=str(error), blames_host=True))
                continue
            self._watch(bundle.key)
            self._unsent[bundle.key] = bundle
        self._work()

    def poll(self, keys: Sequence[Key]) -> Mapping[Key, Report]:
        self._work()
        return {key: self._ended.get(key) or self._report(key) for key in keys}

    def cancel(self, keys: Sequence[Key], *, reason: str = "", force: bool = False) -> None:
        for key in keys:
            if reason:
                with contextlib.suppress(OSError):
                    files.write_new(self._paths(key).stop, reason.encode() + b"\n")
            self._unwanted[key] = force
        self._work()

    def fence(self, keys: Sequence[Key]) -> None:
        for key in keys:
            with contextlib.suppress(OSError):
                files.write_new(self._paths(key).superseded, self._pod.encode() + b"\n")

    def forget(self, keys: Sequence[Key]) -> None:
        for key in keys:
            self._ended.pop(key, None)

    def adopt(self, attempts: Mapping[Key, Placement]) -> Mapping[Key, Slot]:
        for key in attempts:
            self._watch(key)
            self.capacity.adopt(Slot())
        return dict.fromkeys(attempts, Slot())

    def recover(self, orphans: Sequence[Orphan]) -> Mapping[Key, Report]:
        keys = {orphan.key for orphan in orphans}
        for key in self._orphans - keys:
            self._watched.discard(key)
            self._ended.pop(key, None)
            self._unwanted.pop(key, None)
        self._orphans = keys
        for orphan in orphans:
            if orphan.key not in self._ended:
                self._watch(orphan.key)
            if orphan.is_unwanted:
                self._unwanted[orphan.key] = False
        return self.poll([orphan.key for orphan in orphans])

    def inspect(self, orphans: Sequence[Orphan]) -> Mapping[Key, Status]:
        found: dict[Key, Status] = {}
        for orphan in orphans:
            paths = self._paths(orphan.key)
            found[orphan.key] = read_exit(paths.directory) if paths.exit.exists() else Unknown("the queue knows")
        return found

    def leads_to(self, location: Location) -> bool:
        return True

    def refresh_capacity(self) -> None:
        pass

    def capacity_due_in_s(self) -> float | None:
        return None

    def hold(self, scopes: Mapping[str, str]) -> None:
        pass

    def slot_infos(self) -> list[SlotInfo]:
        return [SlotInfo(name=NAME, outlet=NAME, jobs=sorted(map(str, self._watched)), note=self._problem)]

    def describe(self) -> str:
        return f"{LIMIT} submissions to the queue"

    def notes(self) -> Sequence[str]:
        return ()

    def is_up_to_date(self) -> bool:
        is_sent = self._sending is None and not self._cancelling
        return is_sent and not any(self._name(key) in self._known for key in self._unwanted) and self._is_fresh

    def wait_fds(self) -> list[int]:
        return [call.fd for call in self._calls()]

    def due_in_s(self) -> float | None:
        if not self._watched or self._asking is not None:
            return None
        return max(0.0, self._asked_s + ASK_EVERY_S - time.monotonic())

    def close(self) -> None:
        if self._asking is not None:
            self._asking.child.kill()
        for call in self._calls():
            call.child.stdout.close()  # type: ignore[union-attr]
            # What was submitted or cancelled at the end is still carried out, and no program is left behind.
            try:
                call.child.wait(PROGRAM_LIMIT_S)
            except subprocess.TimeoutExpired:
                call.child.kill()
                call.child.wait()

    def _watch(self, key: Key) -> None:
        self._is_fresh &= key in self._watched
        self._watched.add(key)

    def _paths(self, key: Key) -> AttemptPaths:
        return self._layout.attempt(key.job_id, key.number)

    def _name(self, key: Key) -> str:
        """What the queue calls an attempt, whoever submits it."""
        return f"{self._layout.root}:{key}"

    def _calls(self) -> list[Call]:
        return [call for call in (self._sending, self._asking, *self._cancelling) if call is not None]

    def _work(self) -> None:
        """Take in what the programs have answered, and begin what comes next; never waits for one of them."""
        if self._sending is not None and self._sending.has_ended():
            self._sending = None
        if self._asking is not None and self._asking.has_ended():
            self._asking = None
        self._cancelling = [call for call in self._cancelling if not call.has_ended()]
        self._send()
        self._ask()
        self._carry_out_cancels()

    def _send(self) -> None:
        # What was tried may have been submitted although `qsubmit` has failed: the queue is asked before the next try.
        bundles = {key: bundle for key, bundle in self._unsent.items() if key not in self._tried}
        if not bundles or self._sending is not None:
            return
        text = "".join(
            json.dumps(
                {
                    "name": self._name(key),
                    "gpus": bundle.request.gpus or 0,
                    "script": os.fspath(self._paths(key).wrapper),
                    "environment": {n: v for n, v in bundle.environment.items() if v is not None},
                }
            )
            + "\n"
            for key, bundle in bundles.items()
        )
        self._tried.update(bundles)
        self._sending = Call(["qsubmit"], self._take_in_submissions, text)

    def _take_in_submissions(self, answer: str | None) -> None:
        self._asked_s = -ASK_EVERY_S
        self._problem = "" if answer is not None else "qsubmit has failed"

    def _ask(self) -> None:
        due = time.monotonic() - self._asked_s >= ASK_EVERY_S
        if self._watched and due and self._asking is None and self._sending is None:
            self._asked_s = time.monotonic()
            self._asking = Call(["qstat"], self._take_in_states)

    def _take_in_states(self, answer: str | None) -> None:
        self._problem = "" if answer is not None else "qstat has failed"
        self._is_fresh = True
        if answer is None or self._sending is not None:
            return
        for line in answer.splitlines():
            number, state, host, pid, name = line.split(" ", 4)
            self._known[name] = number, state, host, int(pid)
        self._answers += 1
        self._tried.clear()
        self._unsent = {key: bundle for key, bundle in self._unsent.items() if self._name(key) not in self._known}

    def _carry_out_cancels(self) -> None:
        for key, force in list(self._unwanted.items()):
            known = self._known.get(self._name(key))
            if known is not None:
                del self._unwanted[key]
                words = ["qcancel", *(["-9"] if force else []), known[0]]
                self._cancelling.append(
                    Call(words, lambda answer, key=key, force=force: self._cancelled(key, force, answer))
                )

    def _cancelled(self, key: Key, force: bool, answer: str | None) -> None:
        if answer is None:
            self._unwanted[key] = force

    def _report(self, key: Key) -> Report:
        known = self._known.get(self._name(key))
        if known is None:
            return self._report_absent(key)
        number, state, host, pid = known
        handle = Placement(handle=number, code="0123456789ab+dirty 0123456789ab")
        if state == "PENDING":
            return Report(Pending("the queue has not started it"), handle)
        placement = msgspec.structs.replace(handle, host=host, pid=pid or None)
        if state == "RUNNING":
            return Report(Unknown(self._problem) if self._problem else Running(), placement)
        if state == "CANCELLED":
            why = (files.read_fresh(self._paths(key).stop) or b"").decode().strip()
            return self._end(key, Report(Ended(None, why, error="cancelled before it began"), handle))
        return self._report_completed(key, placement)

    def _report_absent(self, key: Key) -> Report:
        """Of an attempt that the queue has not named yet."""
        if key not in self._unsent and self._is_missing(key):
            error = "its dispatcher died before it was submitted"
            return self._end(key, Report(Ended(None, CANNOT_START, error=error, blames_host=True)))
        return Report(Unknown(self._problem) if self._problem else Pending("not in the queue yet"))

    def _report_completed(self, key: Key, placement: Placement) -> Report:
        ended = read_exit(self._paths(key).directory)
        if ended == Ended(None) and is_held(self._paths(key).alive):
            # What has ended is a second run of it, which found it taken.
            return Report(Running(), placement)
        return self._end(key, Report(ended, placement)) if isinstance(ended, Ended) else Report(ended, placement)

    def _is_missing(self, key: Key) -> bool:
        """Whether the queue has not named it for so long that no submission of it can be under way."""
        if not self._answers or self._problem:
            return False
        since_s = self._missing_since_s.setdefault(key, time.monotonic())
        return time.monotonic() - since_s > MISSING_S

    def _end(self, key: Key, report: Report) -> Report:
        self._watched.discard(key)
        self._ended[key] = report
        if isinstance(report.status, Ended) and report.status.exit_code is None:
            # Should it be submitted after all, its wrapper finds this and ends.
            self.fence([key])
        return report
