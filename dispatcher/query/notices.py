"""Notices as rows: those that were sent and to which target, pending ones, and those that may not have arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dispatcher.base.messages import counted, first_names
from dispatcher.notify.notifier import sender_is_gone
from dispatcher.notify.schedule import due, zone_of
from dispatcher.notify.text import headline
from dispatcher.notify_config import Notify
from dispatcher.run_state.facets.notices import DOUBTFUL, FAILED, SENDING, Cause, Notice, Notices
from dispatcher.run_state.journal import now_text

WAITING = "waiting"


def notice_rows(notices: Notices, notify: Notify | None, now_s: float) -> list[dict[str, Any]]:
    """The notices in the journal, oldest first, then what is pending for each target.

    `state` is `sent`, `sending`, `failed`, `doubtful` or `waiting`; `until` is when a notice is tried again, or what
    waits is sent at the earliest.
    """
    rows = [notice_row(notice) for notice in as_known(notices, now_s)]
    targets = {} if notify is None else notify.targets
    zone = None if notify is None else zone_of(notify.zone)
    for name, state in notices.targets.items():
        if not state.pending:
            continue
        turn = due(notices, targets[name], zone, now_s) if name in targets else None
        waits = "another notice to it is under way" if turn is None or turn.notice is not None else turn.why
        rows.append(
            {
                "notice": None,
                "target": name,
                "state": WAITING,
                "at": min(cause.first_at for cause in state.pending.values()),
                "until": None if turn is None else now_text(turn.at_s),
                "what": headline(list(state.pending.values())),
                "why": waits or None,
                "tries": 0,
                "by": None,
                "events": _events(state.pending),
            }
        )
    return rows


def rows_that_name(job: str, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows that name this job. A notice names the first few jobs of each cause, and the number of all."""
    return [row for row in rows if any(job in event["jobs"] for event in row["events"])]


def as_known(notices: Notices, now_s: float) -> list[Notice]:
    """The notices, those as doubtful whose sender is gone although no pod has recorded that."""
    return [
        msgspec.structs.replace(one, state=DOUBTFUL, why="the process that sent it is gone")
        if one.state == SENDING and sender_is_gone(one, now_s)
        else one
        for one in notices.sent
    ]


def attention_texts(notices: Notices, now_s: float) -> list[str]:
    """What `status` says of notices that a person should know of."""
    known = [one for one in as_known(notices, now_s) if one.wants_attention]
    texts = []
    for state, what in ((FAILED, "could not be sent"), (DOUBTFUL, "may not have arrived")):
        alike = [one for one in known if one.state == state]
        if alike:
            targets = first_names(sorted({one.target for one in alike}))
            last = alike[-1]
            texts.append(
                f"{counted(len(alike), 'notice')} to {targets} {what} ({headline(list(last.causes.values()))}; "
                f"{last.why or state}): `dispatcher notify` lists them, `dispatcher notify --clear` dismisses them"
            )
    return texts


def notice_row(notice: Notice) -> dict[str, Any]:
    return {
        "notice": notice.number,
        "target": notice.target,
        "state": f"{notice.state}, cleared" if notice.is_cleared else notice.state,
        "at": notice.ended_at or notice.claimed_at,
        "until": notice.retry_at,
        "what": headline(list(notice.causes.values())),
        "why": notice.why or None,
        "tries": notice.tries,
        "by": notice.by,
        "events": _events(notice.causes),
    }


def _events(causes: Mapping[str, Cause]) -> list[dict[str, Any]]:
    return [
        {"event": one.topic, "cause": one.text, "count": one.count, "jobs": list(one.jobs),
         "first_at": one.first_at, "last_at": one.last_at}
        for one in causes.values()
    ]  # fmt: skip
