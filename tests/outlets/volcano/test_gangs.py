"""Jobs of several pods on a real Kubernetes: how they end when one of them does."""

from __future__ import annotations

from pathlib import Path

import pytest
from beds.volcano import VolcanoBed
from volcano_jobs import VolcanoJobs

from dispatcher.outlets.base import PREEMPTED, Request
from dispatcher.outlets.batch.scheduler import Phase

# A wrapper that starts the command as the real one does, on every pod, and ends it with its whole group.
COMMAND = """
: >taken
exec >>output.log 2>&1
trap 'trap "" TERM; kill -TERM -- "-$$"' TERM
bash "$DISPATCHER_SUBMISSION_DIR/nodes.sh" bash -c '
cd -- "$DISPATCHER_ATTEMPT_DIR"
echo "$DISPATCHER_PROCESS_ID of $DISPATCHER_NUM_PROCESSES at $DISPATCHER_COORDINATOR on $HOSTNAME"
touch "begun.$DISPATCHER_PROCESS_ID"
trap "exit 143" TERM
while :; do sleep 0.1; [ ! -e "go.$DISPATCHER_PROCESS_ID" ] || exit $(cat "go.$DISPATCHER_PROCESS_ID"); done' &
while kill -0 $! 2>/dev/null; do wait $!; status=$?; done
exit "$status"
"""
BOTH = Request(gpus=0, nodes=2)


@pytest.fixture
def jobs(volcano: VolcanoBed, tmp_path: Path) -> VolcanoJobs:
    return VolcanoJobs(volcano, tmp_path, grace_s=5)


def begin(jobs: VolcanoJobs) -> None:
    jobs.submit(COMMAND, request=BOTH)
    for index in (0, 1):
        jobs.wait_for_file(f"begun.{index}")


def let_end(jobs: VolcanoJobs, index: int, status: int) -> None:
    jobs.file(f"go.{index}.new").write_text(str(status))
    jobs.file(f"go.{index}.new").rename(jobs.file(f"go.{index}"))


def test_both_end_well(jobs: VolcanoJobs) -> None:
    begin(jobs)
    state = jobs.wait(Phase.RUNNING)
    assert set((state.host or "").split(",")) <= set(jobs.bed.node_names)
    for index in (1, 0):
        let_end(jobs, index, 0)
    assert jobs.wait(Phase.ENDED).exit_code == 0
    first, second = jobs.file("output.log").read_text(), jobs.file("output.1.log").read_text()
    coordinator = f"{jobs.pod()}.{jobs.job()}:"
    assert first.startswith(f"0 of 2 at {coordinator}")
    assert second.startswith(f"1 of 2 at {coordinator}")
    assert second.strip().endswith(f"on {jobs.pod(1)}")


def test_the_first_that_fails_is_the_end(jobs: VolcanoJobs) -> None:
    begin(jobs)
    let_end(jobs, 1, 9)
    ended = jobs.wait(Phase.ENDED)
    assert (ended.exit_code, ended.was_preempted) == (9, False)
    assert jobs.pod(1) in ended.why
    assert "dispatcher: error: pod 1: exit status 9" in jobs.file("output.log").read_text()


def test_one_that_is_preempted_takes_the_other_with_it(jobs: VolcanoJobs) -> None:
    begin(jobs)
    jobs.bed.preempt(jobs.job(), 1)
    ended = jobs.wait(Phase.ENDED)
    assert (ended.reason, ended.was_preempted) == (PREEMPTED, True)
    assert jobs.details().was_preempted


def test_one_that_is_killed_takes_the_other_with_it(jobs: VolcanoJobs) -> None:
    begin(jobs)
    jobs.bed.oom_kill(jobs.pod(1))
    ended = jobs.wait(Phase.ENDED)
    assert (ended.exit_code, ended.reason) == (137, "out of memory")


def test_cancelling_ends_both(jobs: VolcanoJobs) -> None:
    begin(jobs)
    jobs.cancel("j0")
    jobs.wait(None)
    assert jobs.file("node.1.exit").read_text() == "143\n"
