"""Why a job is not claimed: one answer for `status`, `show`, `--dry-run` and a pod's last line. Pure.

`Facts` has everything that the answer depends on. To add a reason, add it to `Waiting._own_reason` (about the job
itself), to `Waiting._pod_refusal` (about one pod at this moment), or to `Offer.refusal` (about what a pod takes).

Of many jobs whose entries are of one kind, and in whose records nothing is set, `status` asks for the reason of one. So
what a reason asks of an entry belongs to matrix/entries.py: kind_of, or to query/waiting.py: _with_kinds.
tests/query/test_waiting.py compares.

This explains, and claim.ClaimQueue decides: what makes a job wait is added there too, to ReadyJobs._is_ready (its
record and its needs), to `_set_aside` (its entry, its method), or to `choose` with `postpone` (a time until which it is
passed over).
The queue asks an Offer only `excludes`, once, so that is for what never changes while a pod runs.
tests/pod/test_any_claim_order.py compares the two. New facts are filled in by ClaimQueue.waiting and query/waiting.py;
pod/backlog.py and Participant.facts give the queue its settings.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Request
from dispatcher.pod.in_flight import InFlight
from dispatcher.pod.offers import (
    BLOCKED,
    CODE,
    DRAINING,
    HOST,
    PLACE,
    SILENT,
    STOPPED,
    Offer,
    Rejection,
    refused_by_all,
)
from dispatcher.pod.placing import RESTART, Home, home_of, stays
from dispatcher.run_state.external import runs_externally
from dispatcher.run_state.facets.pauses import Pause, host_scope, pause_of_host, pause_of_method
from dispatcher.run_state.journal import later, normalized_time
from dispatcher.run_state.states import STATES, Record, State

SLOT: Final = "waits for a free slot"
_COPY: Final = "waits for a copy of the code (snapshot)"
NO_POD: Final = "no pod is running"
UNKNOWN_JOB: Final = "no manifest lists it, so it is not claimed; its record is kept"
_SHOWN: Final = 3
_EXTERNAL: Final = "runs externally: no dispatcher watches it"


def no_fault(_: Entry) -> str:
    """No entry has a fault."""
    return ""


def no_copy(_: Entry) -> bool:
    """No entry runs a copy of the code."""
    return False


def no_limit(_: Entry, __: Record) -> float:
    """Nothing is known of pauses."""
    return math.inf


def as_written(time: str | None) -> str:
    """A time of the journal as it is."""
    return time or ""


class Reason(msgspec.Struct, frozen=True):
    """Why a job is not claimed now.

    `needs_person`: that changes only when a person does something. `root` is the root cause that is named for jobs that
    need this one; empty where they only wait for it. `kind` is what reasons have in common whose texts differ only in
    jobs or times, and `detail` in what this one differs; both empty where a text stands for itself. `is_refused`: no
    live pod takes the job as things are. `other_takes`: the pod that is asked for does not, and another one does.
    """

    text: str
    needs_person: bool = False
    root: str = ""
    kind: str = ""
    detail: str = ""
    is_refused: bool = False
    other_takes: bool = False


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a workspace at one moment.

    `now` is a journal time. `offers` are those of the live pods; `last`, where there are none, is what the outlets of
    the pod that ended last offered. `me` is the pod whose reasons are asked for, one of these pods; empty: those of
    all. `request_of` is what an attempt of an entry asks for, `fault_of` why no pod could start it, `on_move` what
    becomes of it where its checkpoint is not seen; `unknown_job` is the reason of jobs without an entry, `clock` writes
    the times of reasons. `wants_copy`: whether attempts of an entry run a copy of the code; `copies` are those that are
    there, for the queue alone. `in_flight` are the attempts that count in limits; the queue counts what it chooses
    there. `longest_pause_s` is the longest automatic pause before the next attempt. `obstacle` is why no pod can record
    a claim.
    """

    records: Mapping[str, Record]
    entries: Mapping[str, Entry]
    now: str
    request_of: Callable[[Entry], Request]
    fault_of: Callable[[Entry], str] = no_fault
    on_move: Callable[[Entry], str] = stays
    offers: Sequence[Offer] = ()
    last: Offer | None = None
    pauses: Mapping[str, Pause] = {}
    me: str = ""
    unknown_job: str = UNKNOWN_JOB
    clock: Callable[[str | None], str] = as_written
    wants_copy: Callable[[Entry], bool] = no_copy
    copies: Collection[str] = ()
    longest_pause_s: Callable[[Entry, Record], float] = no_limit
    obstacle: str = ""
    in_flight: InFlight = InFlight()


def retry_due(record: Record) -> str:
    """When the job may be tried again, as a journal time; empty (at once) where the record has none or no valid one.

    By the clock of the host that has recorded it: see `latest_retry`.
    """
    return normalized_time(record.retry_at) or ""


def latest_retry(now: str, entry: Entry, record: Record, longest_pause_s: Callable[[Entry, Record], float]) -> str:
    """The latest time to try a job again that was seen at `now` to wait, whatever clock its `retry_at` is by.

    Empty where a person has set the time: those who do so mean it.
    """
    pause_s = longest_pause_s(entry, record) if record.backoff else math.inf
    return "" if pause_s == math.inf else later(now, pause_s)


class Waiting:
    """The reasons of one moment. That of each job is computed once, also where many jobs need it."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._known: dict[str, Reason] = {}
        # Those of the job that was asked for last: to find them costs more than all else.
        self._last: tuple[str, Record | None, Entry | None] = ("", None, None)

    def why(self, job: str) -> Reason:
        """Why the job is not claimed now; SLOT when it only waits for a free slot."""
        if job not in self._known and not self._open_needs(job):
            self._known[job] = self._reason(job)
        if job in self._known:
            return self._known[job]
        # A loop instead of recursion: chains of needs may be longer than the interpreter's stack.
        pending, visited = [job], set[str]()
        while pending:
            current = pending[-1]
            if current not in visited:
                visited.add(current)
                # Entries of two manifests may need one another in a circle, so none is visited twice.
                unknown = [n for n in self._open_needs(current) if n not in self._known and n not in visited]
                if unknown:
                    pending += unknown
                    continue
            pending.pop()
            if current not in self._known:
                self._known[current] = self._reason(current)
        return self._known[job]

    def _open_needs(self, job: str) -> Sequence[str]:
        record, entry = self._find(job)
        if entry is None or not entry.needs or record is None or record.state is not State.QUEUED:
            return ()
        return [need for need in entry.needs if not self._is_done(need)]

    def _find(self, job: str) -> tuple[Record | None, Entry | None]:
        if self._last[0] != job:
            self._last = job, self._facts.records.get(job), self._facts.entries.get(job)
        return self._last[1:]

    def _is_done(self, job: str) -> bool:
        record = self._facts.records.get(job)
        return record is not None and record.state is State.DONE

    def _reason(self, job: str) -> Reason:
        facts = self._facts
        record, entry = self._find(job)
        if record is None:
            return Reason("not queued yet")
        row = STATES[record.state]
        if row.waits:
            return Reason(row.waits, needs_person=True, root=row.blocks.format(job))
        if runs_externally(record):
            # A desired state is carried out when it has ended.
            return Reason(_EXTERNAL, needs_person=record.desired is None)
        if record.state is not State.QUEUED:
            return Reason("it has failed" if record.state is State.FAILED else f"it is {record.state}")
        if entry is None:
            return Reason(facts.unknown_job)
        return self._own_reason(job, entry, record) or self._no_slot(job, entry, record)

    def _own_reason(self, job: str, entry: Entry, record: Record) -> Reason | None:
        """Why no pod could take the job now."""
        facts = self._facts
        fault = facts.fault_of(entry)
        if fault:
            return Reason(f"cannot be started: {fault}", needs_person=True, root=f"{job} cannot be started: {fault}")
        needs = [self._need(need) for need in self._open_needs(job)]
        if needs:
            # A need that will never be done is a better reason than one that is only not done yet.
            return next((reason for reason in needs if reason.needs_person), needs[0])
        pause = pause_of_method(facts.pauses, entry)
        if pause is not None:
            why = f"{'' if pause.values else 'method '}{pause.scope} is paused: {pause.why}"
            return Reason(why, needs_person=True, root=why)
        if retry_due(record) > facts.now:
            latest = latest_retry(facts.now, entry, record, facts.longest_pause_s)
            due = self._facts.clock(min(retry_due(record), latest) if latest else record.retry_at)
            after = f" after {record.reason}" if record.reason else ""
            error = f": {record.error}" if record.error else ""
            text = f"waits for a retry until {due}{after}{error}"
            # Errors differ in numbers and paths.
            return Reason(text, kind=f"waits for a retry{after}", detail=f"until {due}{error}")
        return None

    def _need(self, need: str) -> Reason:
        """Why a job waits that needs this one, which is not done."""
        record = self._facts.records.get(need)
        if record is None:
            return _dead_end(f"needs {need} (unknown job)", f"there is no job {need}", needs_person=True)
        if record.state is not State.QUEUED:
            why = f": {record.reason}" if record.state is State.FAILED and record.reason else ""
            is_left = runs_externally(record) and record.desired is not State.QUEUED
            root = f"{need} {_EXTERNAL}" if is_left else STATES[record.state].blocks.format(need)
            text = f"needs {need} ({record.state}{why})"
            return _dead_end(text, root + why, needs_person=True) if root else _not_yet(text, need)
        reason = self._known.get(need)
        if reason is None or not reason.root:
            return _not_yet(f"needs {need} (queued)", need)
        text = f"needs {need} (queued); root cause: {reason.root}"
        return _dead_end(text, reason.root, needs_person=reason.needs_person)

    def _no_slot(self, job: str, entry: Entry, record: Record) -> Reason:
        """Why a job that is ready gets no slot."""
        facts = self._facts
        if not facts.offers:
            return Reason(self._no_pod(entry))
        if facts.obstacle:
            return Reason(facts.obstacle, needs_person=True, root=facts.obstacle)
        request, home = facts.request_of(entry), home_of(entry, record)
        refusals: dict[str, Rejection] = {}
        lacks = ""
        for offer in facts.offers:
            refusal = self._pod_refusal(offer, entry, request, home) or self._lacks_code(offer, entry, record)
            if refusal is not None:
                refusals[offer.pod] = refusal
            elif not facts.me or offer.pod == facts.me:
                reason, lack = self._of_taker(offer, entry, record, home)
                if not lack:
                    return reason
                lacks = lacks or lack
        if lacks:
            return Reason(lacks)
        mine = refusals.get(facts.me)
        takers = [offer.pod for offer in facts.offers if offer.pod not in refusals]
        if mine is not None and (takers or len(refusals) == 1):
            text = f"{mine.text} (pod {takers[0]} can take it)" if takers else mine.text
            # A paused host is the same reason for all jobs.
            root = mine.text if mine.kind == HOST else f"{job} {mine.text}"
            return Reason(text, mine.needs_person, "" if takers else root, other_takes=bool(takers))
        text = refused_by_all(entry, request, refusals, facts.offers)
        needs_person = all(refusal.needs_person for refusal in refusals.values())
        return Reason(text, needs_person, f"{job}: {text}", is_refused=True)

    def _no_pod(self, entry: Entry) -> str:
        last = self._facts.last
        refusal = None if last is None else last.refusal(entry, self._facts.request_of(entry))
        if last is None or refusal is None:
            return NO_POD
        return f"{NO_POD}, and the last one ({last.pod}) could not take it: {refusal.text}"

    def _of_taker(self, offer: Offer, entry: Entry, record: Record, home: Home | None) -> tuple[Reason, str]:
        """What a job waits for that this pod can take, and what the pod lacks for it besides a slot."""
        facts = self._facts
        full = facts.in_flight.full(facts.in_flight.groups(entry))
        if full is not None:
            return Reason(facts.in_flight.text(full)), ""
        if record.snapshot is None and facts.wants_copy(entry):
            return Reason(_COPY), ""
        if home is not None:
            return Reason(self._slot_of(home, entry)), ""
        return Reason(SLOT), offer.lacks(entry, facts.request_of(entry))

    def _slot_of(self, home: Home, entry: Entry) -> str:
        """What a job with a checkpoint waits for, which some pod can take."""
        if self._facts.on_move(entry) == RESTART:
            return f"{SLOT}; it resumes on {home.place}, elsewhere it starts anew (on_move: restart)"
        sees_all = all(outlet.place == home.place for offer in self._facts.offers for outlet in offer.outlets.values())
        return SLOT if sees_all else home.text()

    def _pod_refusal(self, offer: Offer, entry: Entry, request: Request, home: Home | None) -> Rejection | None:
        """Why this pod does not take the entry, whatever is free."""
        if offer.is_silent:
            return Rejection(SILENT, "shows no sign of life")
        if offer.is_draining:
            return Rejection(DRAINING, "draining")
        if offer.stopped:
            return Rejection(STOPPED, f"no longer claims: {offer.stopped}", needs_person=True)
        pause = pause_of_host(self._facts.pauses, offer.host, entry.method)
        if pause is not None:
            of_method = "" if pause.scope == host_scope(offer.host) else f" for method {entry.method}"
            return Rejection(HOST, f"host {offer.host} is paused{of_method}: {pause.why}", needs_person=True)
        refusal = offer.refusal(entry, request)
        if refusal is None and home is not None:
            seeing = offer.that_see(entry, home, self._facts.on_move(entry))
            if not seeing.outlets:
                # One that is not known yet may turn out to see it.
                unknown = any(not offer.outlets[name].place for name in offer.outlets_for(entry))
                return Rejection(PLACE, home.text(), needs_person=not unknown)
            offer, refusal = seeing, seeing.refusal(entry, request)
        refusal = refusal or offer.refusal_now(entry, request)
        blocked = offer.blocked.get(entry.job_id)
        # The claim is tried again every few seconds, so no person is needed if the obstacle goes away.
        return Rejection(BLOCKED, f"cannot be claimed: {blocked}") if refusal is None and blocked else refusal

    def _lacks_code(self, offer: Offer, entry: Entry, record: Record) -> Rejection | None:
        """Why this pod has no copy of the code for the job."""
        if not offer.code_problems or not self._facts.wants_copy(entry):
            return None
        why = offer.code_problems.get(record.snapshot or "")
        return Rejection(CODE, f"no copy of the code (snapshot): {why}", needs_person=True) if why else None


def _dead_end(text: str, root: str, *, needs_person: bool) -> Reason:
    return Reason(text, needs_person, root, kind="needs a job that cannot run", detail=root)


def _not_yet(text: str, need: str) -> Reason:
    return Reason(text, kind="needs a job that is not done yet", detail=need)


def root_causes(reasons: Sequence[Reason]) -> list[str]:
    """Why jobs can never run, for each of them: the root cause, in one text for all jobs that have it."""
    # The job whose own fault it is says it without its name.
    own = {reason.root: reason.text for reason in reasons if reason.root and not reason.kind}
    return [own.get(reason.root, reason.root) or reason.text for reason in reasons]


def summary(texts: Iterable[str]) -> str:
    """The most frequent reasons, each with its count."""
    counts = Counter(texts).most_common()
    shown = "; ".join(f"{text} ({count})" if count > 1 else text for text, count in counts[:_SHOWN])
    return shown + (f"; {len(counts) - _SHOWN} more reasons" if len(counts) > _SHOWN else "")
