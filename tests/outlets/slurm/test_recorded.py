"""What real SLURM printed in every situation (tests/outlets/record_slurm.py), and what the outlet reads in it."""

from __future__ import annotations

import pytest
from recordings import answers, moments

from dispatcher.errors import OutletError
from dispatcher.outlets.base import CANCELLED, PREEMPTED, TIME_LIMIT, Key
from dispatcher.outlets.batch.scheduler import Accepted, Doubtful, JobState, Phase, Refused, Submitted
from dispatcher.outlets.remote.operations import Ran
from dispatcher.outlets.slurm import questions, submitting

PENDING, RUNNING, ENDED = Phase.PENDING, Phase.RUNNING, Phase.ENDED
# What the table of states in the outlet's page promises: phase, exit code, reason, whether it was preempted.
ROWS = {
    "exit-0": (ENDED, 0, "", False),
    "exit-3": (ENDED, 3, "", False),
    "batch-shell-killed": (ENDED, 137, "", False),
    "running": (RUNNING, None, "", False),
    "held": (PENDING, None, "", False),
    "begins-later": (PENDING, None, "", False),
    "beyond-the-time-limit": (PENDING, None, "", False),
    "dependency-never-satisfied": (PENDING, None, "", False),
    "cancelled-held": (ENDED, None, CANCELLED, False),
    "cancelled-pending": (ENDED, None, CANCELLED, False),
    "cancelled-running-completing": (RUNNING, None, "", False),
    "cancelled-running": (ENDED, 143, CANCELLED, False),
    "time-limit": (ENDED, 143, TIME_LIMIT, False),
    "requeued-pending": (PENDING, None, "", True),
    "requeued-running": (RUNNING, None, "", True),
    "preempted-requeue": (PENDING, None, "", True),
    "preempted-no-requeue": (ENDED, 143, PREEMPTED, True),
    "preempted-cancel": (ENDED, 143, PREEMPTED, True),
    "preempted-grace-step": (ENDED, 0, PREEMPTED, True),
    "preempted-grace-batch": (ENDED, 143, PREEMPTED, True),
    "preempted-grace-obedient": (ENDED, None, PREEMPTED, True),
    "node-fail": (ENDED, None, "", False),
    "node-fail-requeued": (PENDING, None, "", True),
    "unaccounted": (ENDED, 3, "", False),
}
# What waits says why, so that a person can do something about it.
WHY = {
    "held": "JobHeldUser (held: scontrol release)",
    "begins-later": "BeginTime",
    "beyond-the-time-limit": "PartitionTimeLimit (its time limit is more than the partition allows)",
    "dependency-never-satisfied": "DependencyNeverSatisfied (what it depends on has failed)",
    "node-fail": "NODE_FAIL NodeDown",
    "preempted-requeue": "BeginTime started again by SLURM 1 times, which its script refuses",
}
KEY = Key("j0", 1)


def recorded(moment: str, tasks: int = 1) -> tuple[list[Submitted], list[Ran], list[Ran]]:
    """The attempts, and the answers to the query and to the detailed questions, as asked today."""
    found = answers("slurm", moment)
    row = next(word for words, _ in found for word in words if word.startswith("--name=")).removeprefix("--name=")
    handle = next(words[-1] for words, _ in found if words[:2] == ["scontrol", "show"])
    attempts = [
        Submitted(key=Key(f"j{index}", 1), name=row, index=index, directory="/", handle=handle)
        for index in range(tasks)
    ]
    asked = [list(run.words) for run in (*questions.query(attempts), *questions.detail(attempts))]
    assert [words for words, _ in found[: len(asked)]] == asked, "what is asked has changed: record again"
    count = len(questions.query(attempts))
    return attempts, [ran for _, ran in found[:count]], [ran for _, ran in found[count : len(asked)]]


def state_of(moment: str) -> JobState:
    attempts, queried, _ = recorded(moment)
    return questions.select(attempts, questions.read_query(queried))[KEY]


@pytest.mark.parametrize("moment", ROWS)
def test_states_in_the_queue(moment: str) -> None:
    state = state_of(moment)
    assert (state.phase, state.exit_code, state.reason, state.was_preempted) == ROWS[moment]
    assert state.may_still_run == (moment == "node-fail")


@pytest.mark.parametrize("moment", WHY)
def test_reasons_for_people(moment: str) -> None:
    assert state_of(moment).why == WHY[moment]


@pytest.mark.parametrize("moment", [moment for moment, row in ROWS.items() if row[0] is ENDED])
def test_the_details_agree_with_the_queue(moment: str) -> None:
    attempts, _, detailed = recorded(moment)
    state = questions.read_detail(attempts, detailed)[KEY]
    assert (state.phase, state.exit_code, state.reason, state.was_preempted) == ROWS[moment]


def test_every_task_of_an_array() -> None:
    attempts, queried, _ = recorded("array", tasks=10)
    found = questions.select(attempts, questions.read_query(queried))
    phases = [found[attempt.key].phase for attempt in attempts if attempt.key in found]
    assert [phases.count(phase) for phase in (ENDED, RUNNING, PENDING)] == [2, 4, 3]
    assert (found[Key("j0", 1)].exit_code, found[Key("j2", 1)].exit_code) == (0, 5)
    # A task that was cancelled before it was split off the array is in no list of the controller's any more.
    assert Key("j9", 1) not in found


def test_accounting_remembers_what_the_controller_has_purged() -> None:
    attempts, queried, detailed = recorded("purged")
    assert questions.select(attempts, questions.read_query(queried)) == {}
    assert questions.read_detail(attempts, detailed)[KEY].exit_code == 3


def test_nothing_is_known_of_a_job_that_never_was() -> None:
    attempts, queried, detailed = recorded("unknown-job")
    assert questions.select(attempts, questions.read_query(queried)) == {}
    assert questions.read_detail(attempts, detailed) == {}


def test_a_controller_that_is_down_says_nothing_about_jobs() -> None:
    attempts, queried, detailed = recorded("controller-down")
    with pytest.raises(OutletError, match="Unable to contact slurm controller"):
        questions.read_query(queried)
    assert questions.read_detail(attempts, detailed)[KEY].phase is Phase.UNKNOWN
    submitted = next(ran for words, ran in answers("slurm", "controller-down") if words[0] == "sbatch")
    assert isinstance(submitting.accepted(submitted), Doubtful)


def test_what_sbatch_refuses_is_refused_for_good() -> None:
    for words, ran in answers("slurm", "refused"):
        meant = submitting.accepted(ran)
        if "--test-only" in words:
            continue
        if ran.exit_code == 0:
            # Accepted, although it will never run: only its reason in the queue tells.
            assert isinstance(meant, Accepted)
        else:
            assert isinstance(meant, Refused), words
            assert not meant.is_transient, words


def test_limits_of_a_site() -> None:
    config = next(ran for words, ran in answers("slurm", "site") if words == ["scontrol", "show", "config"])
    assert submitting.limits([config], None).array_size == 1001


def test_all_that_was_recorded_is_read_here() -> None:
    others = {"array", "purged", "unknown-job", "controller-down", "refused", "site"}
    assert set(moments("slurm")) == set(ROWS) | others
