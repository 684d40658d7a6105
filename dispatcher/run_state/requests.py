"""What becomes of a job when a person asks for a state, with a command or in the status file. Pure."""

from __future__ import annotations

from typing import Final

from dispatcher.run_state.change import NOTHING, Change, Decision
from dispatcher.run_state.events import Event
from dispatcher.run_state.states import BY_HAND, IN_FLIGHT, MARKABLE, REQUESTABLE, STATES, WAITING, Record, State

# The fields that a requeued job begins without.
FRESH_START: Final = Change(
    pod=None, pid=None, gpu=None, started_at=None, host=None, finished_at=None, exit_code=None, reason=None, error=None,
    outlet=None, handle=None, code=None, external=None, desired=None, retries=None, requeues=None, retry_at=None,
    snapshot=None, backoff=None, furthest_step=None, furthest_checkpoint=None, has_result=None,
)  # fmt: skip


def decide_state(state: State, base: Record, record: Record) -> Decision:
    """What becomes of `record`, which was `base` when a person asked for `state`."""
    current = record.state
    if state in MARKABLE:
        return _decide_mark(state, base, record)
    if state not in REQUESTABLE:
        words = ", ".join((*REQUESTABLE, *MARKABLE))
        return Decision(refused=f"{state} cannot be set by hand (the job is {current}); write one of: {words}")
    if current in IN_FLIGHT:
        return _decide_in_flight(state, base, record)
    if current is state:
        # A person who queues a job that waits for its retry does not want to wait.
        waits = state is State.QUEUED and record.retry_at is not None
        return decide_at_rest(state) if waits else NOTHING
    return _decide_change_at_rest(state, base, current)


def _decide_change_at_rest(state: State, base: Record, current: State) -> Decision:
    if state is State.QUEUED:
        if current is State.DONE and base.state is not State.DONE:
            return Decision(refused="it has become done meanwhile; set it to queued again to run it once more")
        return decide_at_rest(state)
    if current is State.DONE:
        return Decision(refused=f"it is done; only a job that is not done can be {state}")
    return decide_at_rest(state)


def _decide_mark(state: State, base: Record, record: Record) -> Decision:
    """A person sets a job to done or failed, whatever the dispatchers have seen."""
    current = record.state
    if current in IN_FLIGHT and not record.external:
        who = f"pod {record.pod} on {record.host or 'an unknown host'}, pid {record.pid or 'unknown'}"
        return Decision(refused=f"it is {current} ({who}): set it to abandoned to stop it, then to {state}")
    if current is state:
        return NOTHING
    if current not in IN_FLIGHT and base.state is not current and (base.state in IN_FLIGHT or current is State.DONE):
        return Decision(
            refused=f"it has become {current} in the meantime; to set it to {state} anyway, do so once more"
        )
    change = Change(state=state, reason=BY_HAND, exit_code=None, error=None, desired=None, retry_at=None)
    return Decision(Event.MARKED, change)


def decide_at_rest(state: State) -> Decision:
    """What becomes of a job that does not run when a person asks for `state`, one of REQUESTABLE."""
    change = FRESH_START if state is State.QUEUED else Change(retry_at=None, desired=None)
    return Decision(STATES[state].event, change | Change(state=state))


def _decide_in_flight(state: State, base: Record, record: Record) -> Decision:
    same_attempt = base.state in IN_FLIGHT and base.attempt == record.attempt
    if not same_attempt:
        if state is State.QUEUED:
            # The new start that was asked for has happened.
            return NOTHING
        if state in WAITING:
            return Decision(refused=f"it was started meanwhile; set it to {state} again to stop it")
    if record.desired is state:
        return NOTHING
    return Decision(Event.REQUESTED, Change(desired=state))
