"""How the attempts of this pod ended: recorded when what they have left is on the disk, then forgotten."""

from __future__ import annotations

from dispatcher.outlets.base import CANNOT_START
from dispatcher.pod.ends_on_disk import EndsOnDisk
from dispatcher.pod.participant import Participant, Pass, Shared
from dispatcher.pod.recording import Recorder
from dispatcher.pod.running_attempts import RunningAttempt
from dispatcher.run_state.store import Transaction


class Ends(Participant):
    """`on_disk` holds ends back: those of orphans, too."""

    def __init__(self, shared: Shared, recorder: Recorder) -> None:
        self.on_disk = EndsOnDisk(shared.config.now.layout, shared.log)
        self._attempts = shared.attempts
        self._recorder = recorder
        self._log = shared.log
        self._ended: list[RunningAttempt] = []
        self._lines: list[str] = []

    def act(self, now: Pass) -> None:
        self._ended = self.on_disk.own(one for one in self._attempts if one.ended is not None)
        self._attempts.release(self._ended)
        now.may_free |= bool(self._ended)

    def has_news(self) -> bool:
        return bool(self._ended)

    def record(self, now: Pass, tx: Transaction) -> None:
        self._lines = [self._recorder.end(tx, one.key, one.ended) for one in self._ended if one.ended]

    def commit(self, tx: Transaction) -> None:
        self._attempts.drop(self._ended)
        self.on_disk.commit(one.key for one in self._ended)
        self._ended = []
        for line in self._lines:
            self._log(line)

    def has_more(self) -> bool:
        """An attempt that has ended by itself since does not count.

        Short jobs would keep the status file from being written for as long as there are any.
        """
        return any(one.ended is not None and one.ended.exit_reason == CANNOT_START for one in self._attempts)

    def is_busy(self) -> bool:
        return self.on_disk.is_busy or any(one.ended or not one.is_answered for one in self._attempts)

    def wait_fds(self) -> list[int]:
        return self.on_disk.wait_fds()

    def due_in_s(self, *, claiming: bool) -> float | None:
        is_due = any(one.ended is not None and not self.on_disk.holds(one.key) for one in self._attempts)
        return 0.0 if self.on_disk.has_news or is_due else self.on_disk.due_in_s()

    def notes(self) -> list[str]:
        return self.on_disk.notes()

    def close(self) -> None:
        self.on_disk.close()
