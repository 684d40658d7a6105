"""Stopping attempts on a host, and marking them as superseded there."""

from __future__ import annotations

import contextlib
import os
import posixpath
import time
from collections.abc import Mapping, Sequence
from typing import Any

from dispatcher import contract
from dispatcher.base import files
from dispatcher.errors import OutletError
from dispatcher.outlets.base import Key
from dispatcher.outlets.batch.agent_session import Step
from dispatcher.outlets.batch.remote_host import RemoteHost
from dispatcher.outlets.batch.scheduler import Scheduler
from dispatcher.outlets.batch.tracked import Stop, Tracked
from dispatcher.outlets.context import BatchTimes
from dispatcher.outlets.remote.operations import Failed, Operation, Write


class Stopper:
    """What is to be stopped or superseded, until the host has been told; what failed, again after a pause."""

    def __init__(
        self, scheduler: Scheduler, remote: RemoteHost, tracked: Mapping[Key, Tracked], times: BatchTimes
    ) -> None:
        self._scheduler = scheduler
        self._remote = remote
        self._tracked = tracked
        self._again_s = times.stop_again_s
        self._stops: list[Tracked] = []
        self._superseded: dict[str, Tracked] = {}
        self._not_before_s = 0.0
        self.problem = ""

    def ask(self, one: Tracked, reason: str, *, force: bool = False, by_scheduler: bool = False) -> None:
        """Stop an attempt; `force` at once, also one that was asked to end before, and again whenever that is asked."""
        if one.stop is not None and not force:
            return
        one.stop = Stop(reason or (one.stop.reason if one.stop else ""), force=force, by_scheduler=by_scheduler)
        # Its wrapper looks for this file from time to time: a signal that comes while it is being started may be lost.
        # On a full disk the attempt is stopped by the signal; then only its exit status lacks the reason.
        with contextlib.suppress(OSError):
            files.write_new(one.paths.stop, _content(one.stop))
        if one not in self._stops:
            self._stops.append(one)

    def supersede(self, one: Tracked) -> None:
        """The attempt is marked in the workspace; where the host does not see that, it is to be marked there too."""
        one.is_superseded = True
        if one.directory == os.fspath(one.paths.directory):
            one.marked_s = time.monotonic()
        elif one.directory and not one.elsewhere:
            self._superseded[one.directory] = one

    def has_work(self) -> bool:
        return bool(self._ready() or self._superseded) and time.monotonic() >= self._not_before_s

    def repeat(self) -> None:
        """A call was lost: whatever it was to do is done again."""
        for one in self._stops:
            if one.stop is not None:
                one.stop.is_sent = False

    def steps(self) -> list[Step]:
        if time.monotonic() < self._not_before_s:
            return []
        self._stops = [one for one in self._stops if not one.has_ended]
        steps: list[Step] = []
        ready = self._ready()
        alone = self._members_to_stop(ready)
        for one in alone:
            self._end_member(one)
        for force in (False, True):
            chosen = [one for one in ready if one not in alone and one.stop is not None and one.stop.force == force]
            if chosen:
                steps.append(self._cancel_step(chosen, force=force))
        return [*steps, *(self._supersede_steps() if self._superseded else [])]

    def _ready(self) -> list[Tracked]:
        """Those to be stopped that the scheduler knows and was not told about."""
        return [one for one in self._stops if one.stop and not one.stop.is_sent and one.is_known and one.is_asked_about]

    def _members_to_stop(self, ready: Sequence[Tracked]) -> list[Tracked]:
        """Those that share their job with others that are to go on: the scheduler can only stop the job."""
        if not ready:
            return []
        going_on = {(one.name, one.index) for one in self._tracked.values() if not one.has_ended and one.stop is None}
        return [one for one in ready if (one.name, one.index) in going_on]

    def _end_member(self, one: Tracked) -> None:
        """Its wrapper looks for this file, before it runs anything and from time to time while it does."""
        assert one.stop is not None
        one.stop.is_sent = True
        with contextlib.suppress(OSError):
            files.write_new(one.paths.superseded, b"stopped alone, the others of its pack go on\n")
        self.supersede(one)

    def _supersede_steps(self) -> list[Step]:
        asked = dict(self._superseded)
        writes = [
            Write(path=posixpath.join(directory, contract.SUPERSEDED_FILE), content=b"superseded\n")
            for directory in asked
        ]

        # A call that is lost leaves them to be marked.
        def take_in(answers: Sequence[Any]) -> None:
            self.problem = ""
            for directory, answer in zip(asked, answers, strict=True):
                if isinstance(answer, Failed):
                    self.problem = answer.error
                    self._not_before_s = time.monotonic() + self._again_s
                else:
                    self._superseded.pop(directory).marked_s = time.monotonic()

        return [Step(writes, take_in)]

    def _cancel_step(self, chosen: list[Tracked], *, force: bool) -> Step:
        writes: list[Operation] = []
        for one in chosen:
            assert one.stop is not None
            one.stop.is_sent = True
            if not self._remote.is_shared:
                path = posixpath.join(one.directory, contract.STOP_FILE)
                writes.append(Write(path=path, content=_content(one.stop)))
        cancels = self._scheduler.cancel([one.submitted for one in chosen], force=force)

        def take_in(answers: Sequence[Any]) -> None:
            problems = [self._problem(answer) for answer in answers[len(writes) :]]
            self.problem = next(filter(None, problems), "")
            if self.problem:
                self._not_before_s = time.monotonic() + self._again_s
                for one in chosen:
                    if one.stop is not None:
                        one.stop.is_sent = False

        return Step([*writes, *cancels], take_in)

    def _problem(self, answer: Any) -> str:
        try:
            return self._scheduler.cancelled(answer)
        except OutletError as error:
            return str(error)


def _content(stop: Stop) -> bytes:
    return stop.reason.encode() + b"\n"
