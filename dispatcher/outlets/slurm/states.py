"""What SLURM's words for a job's state mean. Pure.

`squeue`, `scontrol` and `sacct` use the same words; sacct adds to some (`CANCELLED by 1000`, `CANCELLED+`). A state
alone says too little: a job that was preempted with a grace period may end as COMPLETED, TIMEOUT or CANCELLED, and only
its PreemptTime tells. A job whose batch shell was killed is FAILED with the reason JobLaunchFailure, although it was
launched.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from dispatcher.outlets.base import CANCELLED, CANNOT_START, OUT_OF_MEMORY, PREEMPTED, TIME_LIMIT
from dispatcher.outlets.batch.scheduler import JobState, Phase

# Of pod.outcome: a job that ends so is not tried again on the same hardware.

# Every state in SLURM's job state codes (20.11 to 25.05), with the states' flags, which squeue shows in their place.
PHASES: Final[Mapping[str, Phase]] = MappingProxyType(
    {
        "PENDING": Phase.PENDING,
        "CONFIGURING": Phase.PENDING,
        "REQUEUED": Phase.PENDING,
        "REQUEUE_FED": Phase.PENDING,
        "REQUEUE_HOLD": Phase.PENDING,
        "RESV_DEL_HOLD": Phase.PENDING,
        "SPECIAL_EXIT": Phase.PENDING,
        "POWER_UP_NODE": Phase.PENDING,
        "EXPEDITING": Phase.PENDING,
        "RUNNING": Phase.RUNNING,
        # Its processes are being ended: they may still write.
        "COMPLETING": Phase.RUNNING,
        "RESIZING": Phase.RUNNING,
        "SIGNALING": Phase.RUNNING,
        "STAGE_OUT": Phase.RUNNING,
        "STOPPED": Phase.RUNNING,
        "SUSPENDED": Phase.RUNNING,
        "UPDATE_DB": Phase.RUNNING,
        "BOOT_FAIL": Phase.ENDED,
        "CANCELLED": Phase.ENDED,
        "COMPLETED": Phase.ENDED,
        "DEADLINE": Phase.ENDED,
        "FAILED": Phase.ENDED,
        "LAUNCH_FAILED": Phase.ENDED,
        "NODE_FAIL": Phase.ENDED,
        "OUT_OF_MEMORY": Phase.ENDED,
        "PREEMPTED": Phase.ENDED,
        "RECONFIG_FAIL": Phase.ENDED,
        "TIMEOUT": Phase.ENDED,
        # Its sibling runs in another cluster of the federation, which was not asked.
        "REVOKED": Phase.UNKNOWN,
    }
)
# Why an attempt ended that was not preempted, by state.
_REASONS: Final = {
    "BOOT_FAIL": CANNOT_START,
    "CANCELLED": CANCELLED,
    "DEADLINE": TIME_LIMIT,
    "LAUNCH_FAILED": CANNOT_START,
    "OUT_OF_MEMORY": OUT_OF_MEMORY,
    "RECONFIG_FAIL": CANNOT_START,
    "TIMEOUT": TIME_LIMIT,
}
# The reasons of jobs that FAILED before they ran: what they ask for cannot be given. One that was CANCELLED keeps the
# reason why it had waited.
_NEVER_RUN: Final = frozenset(
    ["BadConstraints", "DependencyNeverSatisfied", "PartitionDown", "ReqNodeNotAvail", "Prolog"]
)
# Reasons for which a pending job waits for ever, unless a person changes it, and what is to be done.
_STUCK: Final = {
    "BadConstraints": "no node has what it asks for",
    "DependencyNeverSatisfied": "what it depends on has failed",
    "JobHeldAdmin": "held by an administrator",
    "JobHeldUser": "held: scontrol release",
    "PartitionConfig": "its time limit or nodes are more than the partition allows",
    "PartitionNodeLimit": "more nodes than the partition allows",
    "PartitionTimeLimit": "its time limit is more than the partition allows",
    "launch_failed_requeued_held": "it could not be launched",
}
# The signal by which SLURM says that a node could not open the output file of a job; no program ends so.
_NO_OUTPUT_FILE: Final = 53
# What squeue shows of a job that runs; SIGNALING for a moment, while SLURM sends it a signal.
_RUNS: Final = frozenset(["RUNNING", "SIGNALING"])
_NOTHING: Final = frozenset(["", "None", "(null)", "N/A", "n/a", "Unknown"])


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """A job as SLURM shows it. `status`: exit code and signal, None when not told. `restarts`: by SLURM itself."""

    handle: str
    name: str
    index: int
    state: str
    reason: str = ""
    status: tuple[int, int] | None = None
    preempted_at: str = ""
    restarts: int = 0
    host: str = ""


def job_state(row: SlurmJob) -> JobState:
    """What a row means."""
    word = _state_word(row.state)
    phase = PHASES.get(word, Phase.UNKNOWN)
    # One that SLURM has started again was stopped to make room, or by an administrator, or with its node.
    was_preempted = word == "PREEMPTED" or row.preempted_at not in _NOTHING or row.restarts > 0
    common = JobState(
        phase=phase,
        handle=row.handle,
        why=_why(row, word),
        host=None if row.host in _NOTHING else row.host,
        was_preempted=was_preempted,
    )
    if phase is not Phase.ENDED:
        return common
    return msgspec.structs.replace(
        common,
        exit_code=_exit_code(row, word),
        reason=PREEMPTED if was_preempted else _reason(row, word),
        may_still_run=word == "NODE_FAIL",
    )


def status_of_wait(raw: str) -> tuple[int, int] | None:
    """The exit code and the signal in a raw wait status, as squeue prints it; None for none."""
    if not raw.isdecimal():
        return None
    return (int(raw) >> 8) & 0xFF, int(raw) & 0x7F


def status_of_pair(text: str) -> tuple[int, int] | None:
    """The exit code and the signal in `3:0`, as scontrol and sacct print them; None for none."""
    code, _, number = text.partition(":")
    return (int(code), int(number)) if code.isdecimal() and number.isdecimal() else None


def best(states: list[JobState]) -> JobState:
    """Of several jobs of one attempt (a twin, a restart by SLURM) the one that counts: what lives, else the first."""
    order = (Phase.RUNNING, Phase.PENDING, Phase.UNKNOWN, Phase.ENDED)
    chosen = min(states, key=lambda state: order.index(state.phase))
    if chosen.phase is Phase.ENDED and not chosen.was_preempted and any(state.was_preempted for state in states):
        return msgspec.structs.replace(chosen, was_preempted=True, reason=PREEMPTED)
    return chosen


def _state_word(state: str) -> str:
    """`CANCELLED` of `CANCELLED by 1000` and `CANCELLED+`."""
    words = state.split()
    return words[0].rstrip("+").upper() if words else ""


def _reason(row: SlurmJob, word: str) -> str:
    if word == "FAILED" and row.reason in _NEVER_RUN:
        return CANNOT_START
    if word == "CANCELLED" and row.reason == "DependencyNeverSatisfied":
        return CANNOT_START
    return _REASONS.get(word, "")


def _exit_code(row: SlurmJob, word: str) -> int | None:
    """That of the batch script, where it has one to tell of the attempt."""
    # One that SLURM has started again refuses to run, and its status says nothing of the first run.
    if row.status is None or row.restarts or word in ("NODE_FAIL", "BOOT_FAIL") or row.reason in _NEVER_RUN:
        return None
    code, number = row.status
    if word != "COMPLETED" and (code, number) == (0, 0):
        # What sacct shows of jobs that SLURM has ended, whatever their script returned.
        return None
    if word != "FAILED" and code == 255:
        # What SLURM gives a job that it ends while its node launches it.
        return None
    return 128 + number if number else code


def _why(row: SlurmJob, word: str) -> str:
    """What is known beyond the phase, in SLURM's words; of a running job only what is unusual."""
    reason = "" if row.reason in _NOTHING else row.reason
    known = []
    if word not in PHASES:
        known.append(f"state {row.state!r}, which this version does not know")
    elif word not in _RUNS and not (word == "PENDING" and reason):
        known.append(word)
    if word not in _RUNS:
        known.append(reason)
    if word == "PENDING" and reason in _STUCK:
        known.append(f"({_STUCK[reason]})")
    if word in _RUNS and row.preempted_at not in _NOTHING:
        known.append("preempted: its grace period runs")
    if row.restarts:
        known.append(f"started again by SLURM {row.restarts} times, which its script refuses")
    if row.status and row.status[1]:
        known.append(f"signal {row.status[1]} ({_signal_name(row.status[1])})")
    return " ".join(filter(None, known))


def _signal_name(number: int) -> str:
    if number == _NO_OUTPUT_FILE:
        return "its node cannot open its output file: does it see the workspace, and may it write there?"
    try:
        return signal.Signals(number).name
    except ValueError:
        return "unknown"
