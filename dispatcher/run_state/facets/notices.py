"""What people are told: what each target has not been told yet, and what became of the notices to it. Pure.

It is a part of the fold, so every process knows the same after the same lines. Nothing is collected before a line
`notifying` has named the targets: what happened before is old. See dispatcher/notify for who sends what, and when.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from msgspec.structs import replace

from dispatcher.run_state import failures
from dispatcher.run_state.events import Event, Note
from dispatcher.run_state.facets import gpu_idle, pauses
from dispatcher.run_state.facets.facet import News, Repeated
from dispatcher.run_state.journal import Line
from dispatcher.run_state.records import Records
from dispatcher.topics import OF_ONE_JOB, Topic

_T = TypeVar("_T")

SENDING: Final = "sending"
SENT: Final = "sent"
FAILED: Final = "failed"
DOUBTFUL: Final = "doubtful"

# What a notice names of the jobs of one cause.
_FIRST_JOBS: Final = 5
# A target that cannot be reached for weeks must not make the journal's snapshots large.
_MOST_CAUSES: Final = 100
_MOST_TOLD: Final = 300
_MOST_CLAIMS: Final = 100
_MOST_SETTLED: Final = 50
_MOST_UNSETTLED: Final = 200
_LONGEST_TEXT: Final = 500


class Notifying(Note, frozen=True, kw_only=True, omit_defaults=True):
    """The targets of notices, and the topics that each is told."""

    event = Event.NOTIFYING
    targets: Mapping[str, tuple[str, ...]]


class Began(msgspec.Struct, frozen=True, omit_defaults=True):
    """What an incident is, in words; `job` where it is one job's. `cause`: alike of those that are told together."""

    text: str
    cause: str
    job: str | None = None


class Incident(Note, frozen=True, kw_only=True, omit_defaults=True):
    """Incidents of one topic that began, by their keys, and the keys of those that are over.

    `is_old`: they began before there were targets, and are not sent.
    """

    event = Event.INCIDENT
    topic: str
    began: Mapping[str, Began] = {}
    over: tuple[str, ...] = ()
    is_old: bool = False


class NoticeClaimed(Note, frozen=True, kw_only=True, omit_defaults=True):
    """A process, `sender` (see Notice), sends what `target` has not been told, within `limit_s`.

    `notice`: it is that one's next try; None: a new one, whose number is the `seq` of this line.
    """

    event = Event.NOTICE_CLAIMED
    target: str
    sender: str
    limit_s: float
    notice: int | None = None


class NoticeEnded(Note, frozen=True, kw_only=True, omit_defaults=True):
    """A notice was `sent`, has `failed`, or it is `doubtful` whether it arrived; `why`, and when it is tried again."""

    event = Event.NOTICE_ENDED
    notice: int
    state: str
    why: str = ""
    retry_at: str | None = None


class NoticesCleared(Note, frozen=True, kw_only=True, omit_defaults=True):
    event = Event.NOTICES_CLEARED
    notices: tuple[int, ...]


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """What has happened `count` times for one cause; `jobs` are the first of them, `text` is that of the last."""

    topic: str
    text: str
    count: int
    first_at: str
    last_at: str
    jobs: tuple[str, ...] = ()


class TargetState(msgspec.Struct, frozen=True, kw_only=True):
    """What one target is told: `pending` not yet, `told` when last, by cause. `claimed_at`: when its last notices were.

    A cause is named by its topic and what its jobs have in common; in `told` also by the job, where each job is news.
    """

    topics: tuple[str, ...]
    pending: Mapping[str, Cause] = {}
    told: Mapping[str, str] = {}
    claimed_at: tuple[str, ...] = ()

    def told_at(self, key: str) -> str | None:
        """When a pending cause was told before; None where something of it was not."""
        times = [self.told.get(one) for one in _told_keys(key, self.pending[key])]
        known = [at for at in times if at is not None]
        return min(known) if len(known) == len(times) else None


class Notice(msgspec.Struct, frozen=True, kw_only=True):
    """One notice to one target. `number` is the `seq` of its first claim.

    `sender` is the process that sends it: `base/host.here()`, its pid and the ticks of its start. It has `limit_s`.
    `retry_at`: it failed, and is tried again then. `is_cleared`: a person has dismissed it.
    """

    number: int
    target: str
    causes: Mapping[str, Cause]
    claimed_at: str
    by: str
    sender: str
    limit_s: float
    tries: int = 1
    state: str = SENDING
    why: str = ""
    ended_at: str | None = None
    retry_at: str | None = None
    is_cleared: bool = False

    @property
    def is_open(self) -> bool:
        """Whether it is being sent, or will be."""
        return self.state == SENDING or self.retry_at is not None

    @property
    def wants_attention(self) -> bool:
        """Whether it will not be sent again although it may not have arrived."""
        return self.state in (FAILED, DOUBTFUL) and self.retry_at is None and not self.is_cleared


class Notices(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. `since`: from when on a topic is told. `incidents`: those that are not over, and since when.

    `sent` are the notices that are known, oldest first. `is_known`: a dispatcher has recorded the targets, maybe none.
    """

    is_known: bool = False
    targets: Mapping[str, TargetState] = {}
    since: Mapping[str, str] = {}
    incidents: Mapping[str, str] = {}
    sent: tuple[Notice, ...] = ()

    events: ClassVar[frozenset[Event]]
    form: ClassVar[Any]

    def apply(self, line: Line) -> Notices:
        news_of = _NEWS.get(line.event)
        if news_of is None:
            return _FOLDS[line.event](self, line)
        news = news_of(line) if self.targets else None
        if news is None or not self.wants(news.topic):
            return self
        return _happened(self, news.topic, news.cause, text=news.text, at=line.at, job=line.job)

    def copy(self) -> Notices:
        return self

    def lines(self, records: Records) -> Iterator[Repeated]:
        if self != Notices():
            yield Repeated(SavedNotices(notices=self))

    def dump(self) -> Any:
        return self

    @classmethod
    def load(cls, dumped: Any) -> Notices:
        loaded: Notices = dumped
        return loaded

    def notice(self, number: int | None) -> Notice | None:
        return next((notice for notice in self.sent if notice.number == number), None)

    def open_to(self, target: str) -> list[Notice]:
        """The notices to a target that are under way, or will be tried again."""
        return [notice for notice in self.sent if notice.target == target and notice.is_open]

    def wants(self, topic: str) -> bool:
        return topic in self.since


class SavedNotices(Note, frozen=True, kw_only=True, omit_defaults=True):
    """The line that repeats it in a new generation."""

    event = Event.NOTICES
    notices: Notices


def _cause_key(topic: str, cause: str) -> str:
    return f"{topic}: {cause}"[:_LONGEST_TEXT]


def _happened(notices: Notices, topic: str, cause: str, *, text: str, at: str, job: str | None) -> Notices:
    """Something that the targets of this topic are told."""
    key = _cause_key(topic, cause)
    targets = dict(notices.targets)
    for name, target in notices.targets.items():
        if topic in target.topics:
            targets[name] = replace(target, pending=_with(target.pending, key, topic, text, at, job))
    return replace(notices, targets=targets)


def _with(
    pending: Mapping[str, Cause], key: str, topic: str, text: str, at: str, job: str | None
) -> Mapping[str, Cause]:
    text = text[:_LONGEST_TEXT]
    if key not in pending and len(pending) >= _MOST_CAUSES:
        key, text = _cause_key(topic, "others"), "other causes"
    old = pending.get(key)
    if old is None:
        first = () if job is None else (job,)
        return {**pending, key: Cause(topic=topic, text=text, count=1, first_at=at, last_at=at, jobs=first)}
    is_new = job is not None and job not in old.jobs and len(old.jobs) < _FIRST_JOBS
    jobs = (*old.jobs, str(job)) if is_new else old.jobs
    return {**pending, key: replace(old, text=text, count=old.count + 1, last_at=at, jobs=jobs)}


def _notifying(notices: Notices, line: Line) -> Notices:
    wanted = line.read(Notifying).targets
    targets = {
        name: TargetState(topics=tuple(topics))
        if (old := notices.targets.get(name)) is None
        else replace(
            old,
            topics=tuple(topics),
            pending={key: cause for key, cause in old.pending.items() if cause.topic in topics},
        )
        for name, topics in wanted.items()
    }
    topics = sorted({topic for one in wanted.values() for topic in one})
    since = {topic: notices.since.get(topic, line.at) for topic in topics}
    incidents = {key: at for key, at in notices.incidents.items() if topic_of(key) in since}
    # Nobody sends to a target that is gone.
    sent = tuple(
        notice if notice.target in targets else replace(notice, retry_at=None, is_cleared=True)
        for notice in notices.sent
    )
    return Notices(is_known=True, targets=targets, since=since, incidents=incidents, sent=sent)


def incident_key(topic: str, what: str) -> str:
    """The name of an incident: of that topic, and of a pod, an attempt ..., or of the workspace where that is empty."""
    return f"{topic}:{what}"


def topic_of(key: str) -> str:
    return key.partition(":")[0]


def _incident(notices: Notices, line: Line) -> Notices:
    incident = line.read(Incident)
    over = frozenset(incident.over)
    incidents = {key: at for key, at in notices.incidents.items() if key not in over}
    new = {key: began for key, began in incident.began.items() if key not in incidents}
    incidents.update(dict.fromkeys(new, line.at))
    notices = replace(notices, incidents=incidents)
    if incident_key(incident.topic, "") in over:
        notices = _withdrawn(notices, incident.topic, "")
    for began in () if incident.is_old else new.values():
        notices = _happened(notices, incident.topic, began.cause, text=began.text, at=line.at, job=began.job)
    return notices


def _withdrawn(notices: Notices, topic: str, cause: str) -> Notices:
    """`notices` without what is not so any more, where that was not told yet."""
    key = _cause_key(topic, cause)
    targets = {
        name: replace(target, pending=_without(target.pending, [key])) for name, target in notices.targets.items()
    }
    return replace(notices, targets=targets)


def _unpaused(notices: Notices, line: Line) -> Notices:
    return _withdrawn(notices, Topic.METHOD_PAUSED, line.read(pauses.Unpaused).scope)


def _claimed(notices: Notices, line: Line) -> Notices:
    claim = line.read(NoticeClaimed)
    target = notices.targets.get(claim.target)
    if target is None:
        return notices
    again = notices.notice(claim.notice)
    notice = Notice(
        number=line.seq if again is None else again.number,
        target=claim.target,
        causes=target.pending if again is None else again.causes,
        claimed_at=line.at,
        by=line.by,
        sender=claim.sender,
        limit_s=claim.limit_s,
        tries=1 if again is None else again.tries + 1,
    )
    if again is None:
        keys = [told for key, cause in target.pending.items() for told in _told_keys(key, cause)]
        told = {**_without(target.told, keys), **dict.fromkeys(keys, line.at)}
        target = replace(target, pending={}, told=_last(told, _MOST_TOLD))
    target = replace(target, claimed_at=(*target.claimed_at, line.at)[-_MOST_CLAIMS:])
    targets = {**notices.targets, claim.target: target}
    others = (one for one in notices.sent if one.number != notice.number)
    return replace(notices, targets=targets, sent=_kept((*others, notice)))


def _ended(notices: Notices, line: Line) -> Notices:
    ended = line.read(NoticeEnded)
    sent = tuple(
        replace(one, state=ended.state, why=ended.why, ended_at=line.at, retry_at=ended.retry_at)
        if one.number == ended.notice
        else one
        for one in notices.sent
    )
    return replace(notices, sent=_kept(sent))


def _cleared(notices: Notices, line: Line) -> Notices:
    numbers = frozenset(line.read(NoticesCleared).notices)
    sent = tuple(replace(one, is_cleared=True) if one.number in numbers else one for one in notices.sent)
    return replace(notices, sent=_kept(sent))


def _continued(_: Notices, line: Line) -> Notices:
    # Of a dispatcher that did not write this down.
    return replace(line.read(SavedNotices).notices, is_known=True)


def _told_keys(key: str, cause: Cause) -> list[str]:
    """What is told with a cause: it, or each of its jobs that it names."""
    if cause.topic in OF_ONE_JOB and cause.jobs:
        return [f"{key}{job}" for job in cause.jobs]
    return [key]


def _kept(sent: tuple[Notice, ...]) -> tuple[Notice, ...]:
    """Those that are under way or want attention, and the last of the others."""
    unsettled = [one.number for one in sent if one.is_open or one.wants_attention]
    settled = [one.number for one in sent if not (one.is_open or one.wants_attention)]
    kept = {*unsettled[-_MOST_UNSETTLED:], *settled[-_MOST_SETTLED:]}
    return tuple(one for one in sent if one.number in kept)


def _last(told: Mapping[str, str], most: int) -> Mapping[str, str]:
    return dict(itertools.islice(told.items(), max(0, len(told) - most), None))


def _without(causes: Mapping[str, _T], keys: Iterable[str]) -> Mapping[str, _T]:
    gone = frozenset(keys)
    return {key: value for key, value in causes.items() if key not in gone}


# What people are told of lines that are not only about notices.
_NEWS: Final[Mapping[Event, Callable[[Line], News | None]]] = {
    Event.FAILED: failures.news,
    Event.GPU_IDLE: gpu_idle.news,
    Event.PAUSED: pauses.news,
}
_FOLDS: Final[Mapping[Event, Callable[[Notices, Line], Notices]]] = {
    Event.NOTIFYING: _notifying,
    Event.INCIDENT: _incident,
    Event.NOTICE_CLAIMED: _claimed,
    Event.NOTICE_ENDED: _ended,
    Event.NOTICES_CLEARED: _cleared,
    Event.NOTICES: _continued,
    Event.UNPAUSED: _unpaused,
}
Notices.events, Notices.form = frozenset({*_NEWS, *_FOLDS}), Notices
