"""State changes that a person requests: which jobs they apply to, and what each does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.base.times import Clock, ago, parse_time
from dispatcher.errors import UsageError
from dispatcher.matrix.condition import Where
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.query.ran import is_unknown
from dispatcher.query.selection import is_glob, parse_states, select
from dispatcher.query.snapshot import Snapshot
from dispatcher.run_state.change import NOTHING, Change, Decision
from dispatcher.run_state.events import Event
from dispatcher.run_state.external import Presence, presence, runs_externally
from dispatcher.run_state.requests import decide_at_rest, decide_state
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, MARKABLE, REQUESTABLE, STATES, WAITING, Record, State

# The states of jobs that `--downstream` runs again: the others wait for what they need, or were given up.
_MADE: Final = frozenset({State.DONE, State.FAILED})

_FILTERS: Final = "--state, --user or --where key=value"
# What a request does to a job that runs: a pod has to end it. More may follow this text.
STOP_REQUESTED: Final = "stop requested"


class Plan(msgspec.Struct, frozen=True):
    """A requested state for some jobs.

    jobs: the selected jobs and their records at that moment.
    left_alone: those of jobs that matched a glob but are in a state that it does not select.
    unknown: jobs left out of `--changed` because it is unknown what they ran with.
    dependents: jobs that need some of those that were done, and that keep what these gave them.
    copied: those that run a copy of the code.
    """

    state: State
    jobs: Mapping[str, Record]
    left_alone: Mapping[str, Record] = {}
    unknown: tuple[str, ...] = ()
    dependents: tuple[str, ...] = ()
    copied: frozenset[str] = frozenset()


class Changes(msgspec.Struct, frozen=True):
    """What a request did.

    changed: job -> what happened.
    unchanged: job -> why nothing had to change.
    refused: job -> why.
    left_alone: jobs that matched a glob but are in a state that it does not select.
    """

    changed: dict[str, str]
    unchanged: dict[str, str]
    refused: dict[str, str]
    left_alone: tuple[str, ...] = ()


def plan(
    snapshot: Snapshot,
    state: State,
    names: Sequence[str],
    states: Sequence[str],
    where: Where,
    *,
    changed: bool = False,
    no_result: bool = False,
    downstream: bool = False,
) -> Plan:
    """The jobs for which `state` is requested. Raises UsageError for an unknown name, state or key.

    `changed`: only jobs that ran with other parameters than the manifest has now, or began before what they need was
    done again. `no_result`: only done jobs whose results are lost, or not where their methods say. `downstream`: also
    the jobs that need the selected ones, directly or through others, if they have ended.
    """
    if not (names or states or where or changed or no_result):
        more = "; --downstream adds those that need them" if downstream else ""
        also = ", --changed, --no-result" if state is State.QUEUED else ""
        raise UsageError(f"name the jobs: ids, globs such as 'fft_*'{also}, {_FILTERS}{more}")
    wanted = parse_states(states)
    chosen = select(snapshot, names, wanted, where)
    unknown = [job for job in chosen if is_unknown(snapshot.records[job])] if changed else []
    if changed:
        chosen = [job for job in chosen if snapshot.differs(job) or job in snapshot.newer_inputs]
    if no_result:
        chosen = [job for job in chosen if snapshot.lost_result(job) or snapshot.records[job].result_lacks]
    exact = {name for name in names if not is_glob(name)}
    meant = wanted or (STATES[state].selects | {State.DONE} if changed or no_result else STATES[state].selects)
    records = {job: snapshot.records[job] for job in chosen}
    jobs = {job: record for job, record in records.items() if job in exact or record.state in meant}
    left_alone = {job: records[job] for job in chosen if job not in jobs}
    dependents: dict[str, Record] = {}
    if state is State.QUEUED:
        remade = [job for job, record in jobs.items() if downstream or record.state is State.DONE]
        below = snapshot.downstream(remade) if remade else []
        dependents = {job: snapshot.records[job] for job in below if job not in jobs}
    if downstream:
        jobs |= {job: record for job, record in dependents.items() if record.state in _MADE}
        left_alone |= {job: record for job, record in dependents.items() if record.state in IN_FLIGHT}
    entries = snapshot.entries if state is State.QUEUED else {}
    copied = frozenset(job for job in jobs if job in entries and snapshot.wants_copy(entries[job]))
    keep = tuple(job for job, record in dependents.items() if record.state is State.DONE and job not in jobs)
    return Plan(state, jobs, left_alone, tuple(unknown), keep, copied)


def plan_update(snapshot: Snapshot, names: Sequence[str], states: Sequence[str], where: Where) -> Plan:
    """The jobs whose priority or time limit is to change. A glob or --where alone selects those that wait."""
    if not (names or states or where):
        raise UsageError(f"name the jobs: ids, globs such as 'fft_*', {_FILTERS}")
    wanted = parse_states(states)
    records = {job: snapshot.records[job] for job in select(snapshot, names, wanted, where)}
    exact = {name for name in names if not is_glob(name)}
    meant = wanted or WAITING
    jobs = {job: record for job, record in records.items() if job in exact or record.state in meant}
    return Plan(State.QUEUED, jobs, {job: record for job, record in records.items() if job not in jobs})


def decide_update(asked: Change, now: Record | None) -> Decision:
    """The change of a job's priority or time limit; nothing where it has them already."""
    if now is None:
        return Decision(Event.QUEUED, asked | Change(state=State.QUEUED))
    known, fields = now.fields(), asked.fields()
    return NOTHING if all(known.get(key) == value for key, value in fields.items()) else Decision(Event.EDITED, asked)


def what_changed(asked: Change, now: Record | None) -> str:
    """The fields of an update for people: `priority 5, time_limit 8h`."""
    words = ", ".join(f"{key} {value}" for key, value in asked.fields().items())
    return f"{words}, from its next attempt on" if now is not None and now.state in IN_FLIGHT else words


def decide(desired: State, seen: Record, now: Record | None, *, force: bool = False) -> Decision:
    """The change that brings a job to the desired state, as `requests.decide_state` decides it.

    `seen` is the record that the person saw, `now` the current one (None: no dispatcher has queued the job yet).
    `force`: what runs is killed at once, also when it was asked to end before.
    """
    if now is not None and runs_externally(now) and desired in REQUESTABLE and presence(now) is not Presence.HERE:
        # As far as this host can tell, it has ended.
        return decide_at_rest(desired)
    if now is None and desired in MARKABLE:
        return Decision(Event.MARKED, Change(state=desired, reason=BY_HAND))
    if now is None:
        return NOTHING if desired is State.QUEUED else decide_at_rest(desired)
    decision = decide_state(desired, seen, now)
    if force and now.state in IN_FLIGHT and not now.external and not decision.refused:
        return Decision(Event.REQUESTED, Change(desired=desired, force=True))
    return decision


def takes_copy(plan: Plan, job: str, decision: Decision) -> bool:
    """Whether the job is queued again with a new copy of the code. One that runs gets it when it has ended."""
    return job in plan.copied and decision.event is Event.REQUEUED


def what_happened(event: Event, seen: Record, killed_at: str | None = None) -> str:
    """A short text for people about an event. `seen` is the record before it.

    `killed_at`: when its kill was first requested, a journal time.
    """
    if event is Event.REQUESTED and killed_at is not None and seen.force:
        return f"{STOP_REQUESTED} again: {_why_not_killed(seen, killed_at)}"
    if event is Event.REQUESTED and seen.external:
        return f"takes effect when pid {seen.pid} on this host has ended; no dispatcher started it"
    return {Event.REQUESTED: STOP_REQUESTED, Event.MARKED: BY_HAND}.get(event, event.value)


def _why_not_killed(record: Record, killed_at: str) -> str:
    """What is waited for, where and since when, for an attempt that was to be killed at once."""
    outlet = record.outlet or LOCAL
    now_s = time.time()
    age_s = now_s - (parse_time(killed_at) or now_s)
    since = f"its kill was requested at {Clock(now_s)(killed_at)} ({ago(age_s)})"
    at = f" on {record.host}" if record.host else ""
    if outlet == LOCAL:
        return f"{since}, and no pod has recorded yet that attempt {record.attempt} has ended{at}"
    return f"{since}, and {outlet} does not report yet that {record.handle or 'its submission'} has ended{at}"
