"""What SLURM's words mean. The rows were recorded from SLURM 22.05."""

from __future__ import annotations

import pytest

from dispatcher.outlets.base import CANCELLED, CANNOT_START, OUT_OF_MEMORY, PREEMPTED, TIME_LIMIT
from dispatcher.outlets.batch.scheduler import JobState, Phase
from dispatcher.outlets.slurm.states import (
    PHASES,
    SlurmJob,
    best,
    job_state,
    status_of_pair,
    status_of_wait,
)

AT = "2026-11-22T12:16:58"


def state(word: str, reason: str = "None", status: str | None = "0:0", **fields: object) -> JobState:
    pair = None if status is None else status_of_pair(status)
    return job_state(SlurmJob(handle="7", name="d-1", index=0, state=word, reason=reason, status=pair, **fields))


@pytest.mark.parametrize(
    ("found", "code", "reason", "preempted"),
    [
        (state("COMPLETED"), 0, "", False),
        (state("FAILED", "NonZeroExitCode", "3:0"), 3, "", False),
        # The batch shell was killed, although SLURM speaks of the launch.
        (state("FAILED", "JobLaunchFailure", "0:9"), 137, "", False),
        (state("CANCELLED", status="0:9"), 137, CANCELLED, False),
        (state("CANCELLED", status="143:0"), 143, CANCELLED, False),
        # While its node launches it. A script may end with 255 itself.
        (state("CANCELLED", status="255:0"), None, CANCELLED, False),
        (state("FAILED", status="255:0"), 255, "", False),
        (state("CANCELLED by 1000"), None, CANCELLED, False),
        (state("CANCELLED+"), None, CANCELLED, False),
        (state("TIMEOUT", "TimeLimit", "0:9"), 137, TIME_LIMIT, False),
        (state("TIMEOUT"), None, TIME_LIMIT, False),
        (state("DEADLINE", "DeadLine"), None, TIME_LIMIT, False),
        (state("OUT_OF_MEMORY", "OutOfMemory", "0:125"), 253, OUT_OF_MEMORY, False),
        (state("PREEMPTED", status="0:9", preempted_at=AT), 137, PREEMPTED, True),
        (state("PREEMPTED"), None, PREEMPTED, True),
        # With a grace period.
        (state("COMPLETED", preempted_at=AT), 0, PREEMPTED, True),
        (state("TIMEOUT", "TimeLimit", preempted_at=AT), None, PREEMPTED, True),
        (state("CANCELLED", status="0:15", preempted_at=AT), 143, PREEMPTED, True),
        (state("FAILED", "NonZeroExitCode", "143:0", preempted_at=AT), 143, PREEMPTED, True),
        (state("NODE_FAIL", "NodeDown", "0:0"), None, "", False),
        (state("BOOT_FAIL", "None", "1:0"), None, CANNOT_START, False),
        (state("LAUNCH_FAILED", "None", "1:0"), 1, CANNOT_START, False),
        (state("FAILED", "BadConstraints", "0:1"), None, CANNOT_START, False),
        (state("CANCELLED", "DependencyNeverSatisfied"), None, CANNOT_START, False),
        # Its script has refused to run again.
        (state("FAILED", "NonZeroExitCode", "1:0", restarts=1), None, PREEMPTED, True),
    ],
)
def test_ends(found: JobState, code: int | None, reason: str, preempted: bool) -> None:
    assert found.phase is Phase.ENDED
    assert (found.exit_code, found.reason, found.was_preempted) == (code, reason, preempted)


def test_only_a_node_that_failed_may_still_run_it() -> None:
    assert [word for word in PHASES if state(word).may_still_run] == ["NODE_FAIL"]


@pytest.mark.parametrize(
    ("found", "phase", "why"),
    [
        (state("PENDING", "Resources"), Phase.PENDING, "Resources"),
        (state("PENDING"), Phase.PENDING, "PENDING"),
        (state("PENDING", "JobHeldUser"), Phase.PENDING, "JobHeldUser (held: scontrol release)"),
        (
            state("PENDING", "DependencyNeverSatisfied"),
            Phase.PENDING,
            "DependencyNeverSatisfied (what it depends on has failed)",
        ),
        (state("CONFIGURING"), Phase.PENDING, "CONFIGURING"),
        (state("REQUEUED", "BeginTime"), Phase.PENDING, "REQUEUED BeginTime"),
        (state("SPECIAL_EXIT"), Phase.PENDING, "SPECIAL_EXIT"),
        (state("RUNNING"), Phase.RUNNING, ""),
        (state("RUNNING", preempted_at=AT), Phase.RUNNING, "preempted: its grace period runs"),
        (state("SIGNALING", preempted_at=AT), Phase.RUNNING, "preempted: its grace period runs"),
        (state("COMPLETING"), Phase.RUNNING, "COMPLETING"),
        (state("SUSPENDED"), Phase.RUNNING, "SUSPENDED"),
        (state("REVOKED"), Phase.UNKNOWN, "REVOKED"),
        (state("HIBERNATING"), Phase.UNKNOWN, "state 'HIBERNATING', which this version does not know"),
        (state(""), Phase.UNKNOWN, "state '', which this version does not know"),
        (state("FAILED", "NonZeroExitCode", "3:0"), Phase.ENDED, "FAILED NonZeroExitCode"),
        (state("TIMEOUT", "TimeLimit", "0:9"), Phase.ENDED, "TIMEOUT TimeLimit signal 9 (SIGKILL)"),
        (
            state("FAILED", "JobLaunchFailure", "0:53"),
            Phase.ENDED,
            "FAILED JobLaunchFailure signal 53 (its node cannot open its output file: does it see the workspace, and "
            "may it write there?)",
        ),
    ],
)
def test_what_people_read(found: JobState, phase: Phase, why: str) -> None:
    assert (found.phase, found.why) == (phase, why)


# Job state codes and flags of squeue(1) and sacct(1), 20.11 to 25.05.
DOCUMENTED = """
BOOT_FAIL CANCELLED COMPLETED CONFIGURING COMPLETING DEADLINE FAILED NODE_FAIL OUT_OF_MEMORY PENDING PREEMPTED RUNNING
RESV_DEL_HOLD REQUEUE_FED REQUEUE_HOLD REQUEUED RESIZING REVOKED SIGNALING SPECIAL_EXIT STAGE_OUT STOPPED SUSPENDED
TIMEOUT LAUNCH_FAILED RECONFIG_FAIL POWER_UP_NODE UPDATE_DB EXPEDITING
"""


def test_every_documented_state_is_known() -> None:
    assert set(DOCUMENTED.split()) == set(PHASES)


@pytest.mark.parametrize(
    ("raw", "pair"), [("0", (0, 0)), ("768", (3, 0)), ("9", (0, 9)), ("32512", (127, 0)), ("", None)]
)
def test_wait_statuses(raw: str, pair: tuple[int, int] | None) -> None:
    assert status_of_wait(raw) == pair


def test_the_one_that_lives_counts() -> None:
    ended, running, pending = state("FAILED", status="1:0"), state("RUNNING"), state("PENDING")
    assert best([ended, pending, running]) is running
    assert best([ended, pending]) is pending
    first = state("COMPLETED")
    assert best([first, ended]) is first
    assert best([ended, state("PREEMPTED")]).reason == PREEMPTED
