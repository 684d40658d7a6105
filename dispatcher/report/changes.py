"""Which jobs a person's wish (queued, held, abandoned, done, failed) is about, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.matrix.condition import Where
from dispatcher.report.ran import is_unknown
from dispatcher.report.selection import is_glob, parse_states, select
from dispatcher.report.snapshot import Snapshot
from dispatcher.run_state.change import NOTHING, Change, Decision
from dispatcher.run_state.edits import desire, desired_after_end
from dispatcher.run_state.events import Event
from dispatcher.run_state.external import Presence, is_unwatched, presence
from dispatcher.run_state.states import BY_HAND, DESIRABLE, VERDICTS, Record, State

# What a glob, or nothing but --where, stands for. `requeue '*'` must not run again what is done, nor stop what runs:
# who means these names them, or says --state.
BY_GLOB: Final[Mapping[State, frozenset[State]]] = {
    State.QUEUED: frozenset({State.FAILED, State.ABANDONED, State.HELD}),
    State.HELD: frozenset({State.QUEUED}),
    State.ABANDONED: frozenset({State.QUEUED, State.HELD, State.FAILED, State.SUBMITTED, State.RUNNING}),
    State.DONE: frozenset({State.QUEUED, State.HELD, State.FAILED, State.ABANDONED}),
    State.FAILED: frozenset({State.QUEUED, State.HELD, State.ABANDONED}),
}


class Plan(msgspec.Struct, frozen=True):
    """A wish for some jobs: `jobs` are their records as they were seen, `left_alone` what a glob does not mean.

    `unknown` are jobs that were to be taken where their parameters have changed, of which nobody knows what they ran
    with.
    """

    state: State
    jobs: Mapping[str, Record]
    left_alone: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()


class Changes(msgspec.Struct, frozen=True):
    """What a command did: `changed` job -> what happened, `unchanged` job -> why nothing had to, `refused` job -> why.

    `left_alone` are jobs that a glob matched but does not mean.
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
) -> Plan:
    """The jobs that `state` is wished for; UsageError for a name, state or key that nobody knows.

    `changed`: only those that ran with other parameters than the manifest has now.
    """
    wanted = parse_states(states)
    chosen = select(snapshot, names, wanted, where)
    unknown = [job for job in chosen if is_unknown(snapshot.records[job])] if changed else []
    if changed:
        chosen = [job for job in chosen if snapshot.differs(job)]
    exact = {name for name in names if not is_glob(name)}
    meant = wanted or (BY_GLOB[state] | {State.DONE} if changed else BY_GLOB[state])
    jobs = {job: snapshot.records[job] for job in chosen if job in exact or snapshot.records[job].state in meant}
    return Plan(state, jobs, tuple(job for job in chosen if job not in jobs), tuple(unknown))


def decide(wish: State, seen: Record, now: Record | None) -> Decision:
    """What the wish does to a job that was `seen` so and is `now` so (None: no dispatcher has queued it yet)."""
    if now is not None and is_unwatched(now) and wish in DESIRABLE and presence(now) is not Presence.HERE:
        # As far as this host can see, it has ended; whoever asks knows more.
        return desired_after_end(wish)
    if now is None and wish in VERDICTS:
        return Decision(Event.MARKED, Change(state=wish, reason=BY_HAND))
    if now is None:
        return NOTHING if wish is State.QUEUED else desired_after_end(wish)
    return desire(wish, seen, now)


def what_happened(event: Event, seen: Record) -> str:
    """The event of a change of a record, which was `seen` before, in a person's words."""
    if event is Event.REQUESTED and seen.external:
        return f"waits until pid {seen.pid} has ended, which runs on this host and which nobody watches"
    return {Event.REQUESTED: "stop requested", Event.MARKED: BY_HAND}.get(event, event.value)
