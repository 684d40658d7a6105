"""What is paused: by ends of attempts (breaker.py decides), and what this pod does and says about pauses."""

from __future__ import annotations

from collections.abc import Mapping

from dispatcher.base.host import host_name
from dispatcher.config import Method
from dispatcher.matrix.entry import Entry
from dispatcher.pod.backlog import Backlog
from dispatcher.pod.breaker import Breaker
from dispatcher.pod.participant import End, Participant, Pass, Shared
from dispatcher.pod.recording import gpu_of, is_local
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.pauses import (
    Pause,
    Paused,
    Unpaused,
    host_scope,
    pause_of_method,
    unpause_command,
)
from dispatcher.run_state.states import Record
from dispatcher.run_state.store import Transaction


class Pauses(Participant):
    """Pauses what failures are to be blamed on, and ends the pauses that a success speaks against."""

    def __init__(self, shared: Shared, backlog: Backlog) -> None:
        self._shared = shared
        self._store = shared.store
        self._log = shared.log
        self._breaker = Breaker(self._method, lambda: backlog.manifest.entries, self._record)
        self._lines: list[str] = []
        # What was last logged about a pause of this host.
        self._reported = ""

    def after_end(self, tx: Transaction, end: End) -> None:
        if end.event is Event.DONE:
            self._end_pauses(tx, end)
        else:
            self._trip(tx, end)

    def commit(self, tx: Transaction) -> None:
        lines, self._lines = self._lines, []
        for line in lines:
            self._log(line)

    def roll_back(self) -> None:
        self._lines = []

    def after(self, now: Pass) -> None:
        """Log that this host is paused, or may claim again, whichever pod has caused it."""
        note = self._host_note()
        if note == self._reported:
            return
        self._reported = note
        command = unpause_command(host_scope(host_name()))
        self._log(f"{note}. Continue with `{command}`" if note else "this host may claim again")

    def held(self) -> Mapping[str, str]:
        return {pause.scope: pause.why for pause in self._store.fold.pauses.values()}

    def notes(self) -> list[str]:
        return [note] if (note := self._host_note()) else []

    def _method(self, name: str) -> Method:
        return self._shared.config.now.method(name)

    def _record(self, job: str) -> Record | None:
        return self._shared.records.get(job)

    def _host_note(self) -> str:
        pause = self._store.fold.pauses.get(host_scope(host_name()))
        return "" if pause is None else f"no claims: {pause.scope} is paused: {pause.why}"

    def _trip(self, tx: Transaction, end: End) -> None:
        """Pause what the failures so far, this one among them, are to be blamed on."""
        streaks, host, blame = self._store.fold.pauses.streaks, end.record.host or "", end.blame
        if end.event is Event.FAILED and end.entry is not None:
            paused = self._breaker.after_failure(end.job, end.entry, streaks[end.entry.method])
            self._pause(tx, paused, end.entry)
        if end.event is Event.FAILED and blame.gpu is not None:
            self._pause(tx, self._breaker.on_gpu(blame.gpu, host, end.record.gpu, streaks[blame.gpu]))
        if blame.suspect and blame.host is not None:
            self._pause(tx, self._breaker.on_host(host, streaks[blame.host]))

    def _pause(self, tx: Transaction, paused: Paused | None, entry: Entry | None = None) -> None:
        """`entry`: the pause is one of its method, which one that covers more makes needless."""
        pauses = self._store.fold.pauses
        if paused is None or paused.scope in pauses:
            return
        if entry is not None and paused.values and pause_of_method(pauses, entry) is not None:
            return
        tx.note(paused)
        if entry is not None:
            for scope in _covered(paused, entry.method, pauses):
                tx.note(Unpaused(scope=scope, why=f"{paused.scope} is paused"))
        # That of this host is logged in `after`.
        if paused.scope != host_scope(host_name()):
            command = unpause_command(paused.scope)
            self._lines.append(f"paused {paused.scope}: {paused.why}. Continue with `{command}`")

    def _end_pauses(self, tx: Transaction, end: End) -> None:
        """A success within the scope of a pause shows that it is not, or no longer, to blame."""
        record, entry = end.record, end.entry
        self._breaker.after_success(end.job)
        places = {gpu_of(record)}
        if record.host is not None and is_local(record):
            places |= {host_scope(record.host), host_scope(record.host, "" if entry is None else entry.method)}
        for pause in list(self._store.fold.pauses.values()):
            if pause.until_success and (pause.scope in places or (entry is not None and pause.covers(entry))):
                tx.note(Unpaused(scope=pause.scope, why=f"{end.job} has succeeded"))
                if pause.scope != host_scope(host_name()):
                    self._lines.append(f"unpaused {pause.scope}: {end.job} has succeeded")


def _covered(paused: Paused, method: str, pauses: Mapping[str, Pause]) -> list[str]:
    """The pauses of some jobs of the method that a pause of more of them covers."""
    return [
        scope
        for scope, pause in pauses.items()
        if pause.until_success
        and pause.values
        and scope != paused.scope
        and scope.partition(":")[0] == method
        and paused.values.items() <= pause.values.items()
    ]
