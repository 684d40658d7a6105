"""Tells people: watches what the journal says, claims notices under the lock, has them sent, records how that went."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import Final

from dispatcher.base import host
from dispatcher.base.mounts import SHOWN_LATE_S
from dispatcher.base.programs import wait_for_any
from dispatcher.base.times import parse_time
from dispatcher.config import Config
from dispatcher.notify.conditions import Conditions
from dispatcher.notify.process import Outcome, SendingProcess
from dispatcher.notify.schedule import Due, due, retry_at_s, zone_of
from dispatcher.notify.text import headline, payload, workspace_id
from dispatcher.notify_config import Notify
from dispatcher.run_state.facets.notices import (
    DOUBTFUL,
    FAILED,
    SENDING,
    SENT,
    Notice,
    NoticeClaimed,
    NoticeEnded,
    Notices,
    Notifying,
)
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.store import Store, Transaction


class Notifier:
    """Tells the targets of one workspace what they are to be told, in turns with the other pods.

    `conditions` finds what no line of the journal says. `clock`: seconds since 1970.
    """

    def __init__(
        self,
        store: Store,
        config: Config,
        conditions: Conditions,
        log: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._notify = config.notify or Notify(targets={})
        self._conditions = conditions
        self._log = log
        self._clock = clock
        self._zone = zone_of(self._notify.zone)
        self._sending: dict[int, SendingProcess] = {}
        self._ended: dict[int, Outcome] = {}
        self._has_begun = False
        # What `_due_s` was found for.
        self._seen: Notices | None = None
        self._due_s: float | None = None

    def begin(self) -> None:
        """Before the loop: make known who is told what, from now on."""
        self._store.refresh()
        if not self._is_registered():
            with self._store.transaction() as tx:
                self._register(tx)
        self._has_begun = True

    def follow(self, notify: Notify) -> None:
        """Tell by these settings from now on, and make known that they have changed."""
        self._notify = notify
        self._zone = zone_of(notify.zone)
        self._conditions.nothing_running_after_s = notify.nothing_running_after_s
        self._seen = self._due_s = None
        self._has_begun = False
        self.begin()

    def step(self, *, poll_is_due: bool, at_once: bool = False) -> None:
        """Do what is due; never waits. `at_once`: tell what happened without the delay that bundles."""
        if not (self._notify.targets or self.is_busy()):
            return
        self._collect()
        now_s = self._clock()
        fold = self._store.fold
        has_news = self._conditions.has_news(fold, poll_is_due=poll_is_due)
        has_news |= bool(self._ended or (poll_is_due and self._silent(now_s)))
        # An older dispatcher has begun a generation without what it does not know.
        has_news |= not fold.notices.is_known
        if not has_news and not self._is_due(now_s, at_once=at_once):
            return
        claims: list[tuple[Notice, str]] = []
        with self._store.transaction() as tx:
            # It may be another one by now: of a new generation.
            fold = self._store.fold
            self._register(tx)
            self._record(tx, now_s)
            for incident in self._conditions.news(fold):
                tx.note(incident)
            for target in self._notify.targets.values():
                turn = due(fold.notices, target, self._zone, now_s, at_once=at_once)
                if turn is not None and turn.at_s <= now_s:
                    claims.append((self._claim(tx, target.name, turn), target.name))
        for number in self._ended:
            self._say(fold.notices.notice(number))
        self._ended.clear()
        for notice, name in claims:
            self._send(notice, name)

    def due_in_s(self) -> float | None:
        """Seconds until `step` is due although nothing has happened; None when never."""
        if not (self._notify.targets or self.is_busy()):
            return None
        waits = [due_s for one in self._sending.values() if (due_s := one.due_in_s()) is not None]
        waits += [0.0] if self._ended else []
        now_s = self._clock()
        self._is_due(now_s)
        if self._due_s is not None:
            waits.append(max(0.0, self._due_s - now_s))
        soon_s = self._conditions.due_in_s()
        return min([*waits, *([] if soon_s is None else [soon_s])], default=None)

    def wait_fds(self) -> list[int]:
        """Descriptors that become readable when a sending has ended."""
        return [fd for sending in self._sending.values() for fd in sending.wait_fds()]

    def wait(self, longest_s: float) -> None:
        """Wait until there is news of a sending, or a deadline."""
        wait_for_any(self._sending.values(), 0.0 if self._ended else longest_s)

    def is_busy(self) -> bool:
        """Whether a notice is being sent, or it is not recorded how that went."""
        return bool(self._sending or self._ended)

    def give_up(self) -> None:
        """End what is being sent: its fate is unknown."""
        for sending in self._sending.values():
            sending.kill()

    def _is_registered(self) -> bool:
        known = {name: state.topics for name, state in self._store.fold.notices.targets.items()}
        return known == self._wanted()

    def _wanted(self) -> dict[str, tuple[str, ...]]:
        return {target.name: tuple(map(str, target.topics)) for target in self._notify.targets.values()}

    def _register(self, tx: Transaction) -> None:
        """At the beginning, and where an older dispatcher has begun a generation without it.

        And when its settings have changed. At no other time: another pod goes by a newer file, which may have removed
        targets, or all of them.
        """
        fold = self._store.fold
        if self._is_registered() or (fold.notices.is_known and self._has_begun):
            return
        asked = frozenset(fold.notices.since)
        tx.note(Notifying(targets=self._wanted()))
        for incident in self._conditions.news(fold, is_old=True):
            if incident.topic not in asked:
                tx.note(incident)

    def _is_due(self, now_s: float, *, at_once: bool = False) -> bool:
        """Whether a target is to be told something now."""
        notices = self._store.fold.notices
        if notices is not self._seen or at_once:
            turns = [
                due(notices, target, self._zone, now_s, at_once=at_once) for target in self._notify.targets.values()
            ]
            self._due_s = min((turn.at_s for turn in turns if turn is not None), default=None)
            self._seen = notices
        return self._due_s is not None and self._due_s <= now_s

    def _collect(self) -> None:
        for number, sending in list(self._sending.items()):
            outcome = sending.outcome()
            if outcome is not None:
                self._ended[number] = outcome
                del self._sending[number]

    def _record(self, tx: Transaction, now_s: float) -> None:
        notices = self._store.fold.notices
        for number, outcome in self._ended.items():
            notice = notices.notice(number)
            if notice is not None:
                again_s = retry_at_s(notice.tries, now_s) if outcome.state == FAILED else None
                retry_at = None if again_s is None else now_text(again_s)
                tx.note(NoticeEnded(notice=number, state=outcome.state, why=outcome.why, retry_at=retry_at))
        for notice in self._silent(now_s):
            tx.note(NoticeEnded(notice=notice.number, state=DOUBTFUL, why=_GONE))

    def _silent(self, now_s: float) -> list[Notice]:
        """The notices whose senders are gone; also those of this process that it does not send.

        After a transaction that failed, its claims may be in the journal or not.
        """
        me = sender()
        return [
            one
            for one in self._store.fold.notices.sent
            if one.state == SENDING
            and one.number not in self._sending
            and one.number not in self._ended
            and (one.sender == me or sender_is_gone(one, now_s))
        ]

    def _claim(self, tx: Transaction, name: str, turn: Due) -> Notice:
        notice = turn.notice
        limit_s = self._notify.targets[name].limit_s
        number = None if notice is None else notice.number
        tx.note(NoticeClaimed(target=name, sender=sender(), limit_s=limit_s, notice=number))
        claimed = self._store.fold.notices.notice(tx.lines[-1].seq if number is None else number)
        assert claimed is not None
        return claimed

    def _send(self, notice: Notice, name: str) -> None:
        root = self._store.layout.root
        content = payload(root.name, name, notice.number, notice.causes, notice.tries, workspace_id(root), self._zone)
        try:
            self._sending[notice.number] = SendingProcess(self._notify.targets[name], content)
        except OSError as error:
            self._ended[notice.number] = Outcome(FAILED, f"no process could be started: {error.strerror}")

    def _say(self, notice: Notice | None) -> None:
        if notice is None:
            return
        what = f"notice to {notice.target} ({headline(list(notice.causes.values()))})"
        if notice.state == SENT:
            self._log(f"{what}: sent" + (f", {notice.why}" if notice.why else ""))
        else:
            again = f"; next try at {notice.retry_at}" if notice.retry_at else "; `dispatcher notify` shows it"
            self._log(f"{what}: {notice.state}: {notice.why}{again}")


_GONE: Final = "the process that sent it is gone"


def sender() -> str:
    """This process, as a claim names it."""
    return f"{host.here()} {os.getpid()} {host.start_ticks(os.getpid()) or 0}"


def sender_is_gone(notice: Notice, now_s: float) -> bool:
    """Whether its outcome will never be reported: certain on the sender's host, elsewhere by the time."""
    where, pid, ticks = notice.sender.rsplit(" ", 2) if notice.sender.count(" ") >= 2 else ("", "", "")
    if where == host.here() and pid.isdigit() and ticks.isdigit():
        return host.is_gone(int(pid), int(ticks))
    claimed_s = parse_time(notice.claimed_at)
    # Whatever a sender on another host recorded before its deadline is shown by then.
    return claimed_s is None or now_s - claimed_s > notice.limit_s + SHOWN_LATE_S
