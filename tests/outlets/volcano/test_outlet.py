"""The whole outlet on a real Kubernetes: attempts of several pods, and what becomes of those that others end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from beds.volcano import VolcanoBed
from fleet import wait_until
from outlets.places import VolcanoPlace

from dispatcher.outlets.base import CANCELLED, PREEMPTED, Ended, Key, Pending, Request, Running

TWO = Request(0, nodes=2)
GATED = (
    'echo "$DISPATCHER_PROCESS_ID of $DISPATCHER_NUM_PROCESSES"; echo begun >>begun;'
    ' until [ -e "go.$DISPATCHER_PROCESS_ID" ]; do sleep 0.1; done; exit $(cat "go.$DISPATCHER_PROCESS_ID")'
)


@pytest.fixture
def place(volcano: VolcanoBed, tmp_path: Path) -> Iterator[VolcanoPlace]:
    made = VolcanoPlace(tmp_path / "a'; echo foo", volcano)
    yield made
    made.close()


def submit(place: VolcanoPlace, script: str = GATED, request: Request = TWO) -> Key:
    bundle = place.claim("a", script, request)
    place.outlet.submit([bundle])
    return bundle.key


def wait_for_all(place: VolcanoPlace, key: Key, count: int) -> str:
    """The Job, as soon as so many processes of the attempt have begun."""
    place.wait([key], Running)
    wait_until(lambda: place.outlet.poll([key]) and len(place.begun()) == count, f"{count} processes have begun")
    placement = place.outlet.poll([key])[key].placement
    assert placement is not None
    assert placement.handle is not None
    return placement.handle


def let_end(place: VolcanoPlace, index: int, status: int) -> None:
    place.there(f"go.{index}.new").write_text(str(status))
    place.there(f"go.{index}.new").rename(place.there(f"go.{index}"))


def test_two_pods_run_one_attempt(place: VolcanoPlace) -> None:
    key = submit(place)
    wait_for_all(place, key, 2)
    let_end(place, 1, 0)
    let_end(place, 0, 0)
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (0, "")
    assert place.paths(key).log.read_text() == "0 of 2\n"
    # That of the second pod comes home as well.
    assert (place.paths(key).directory / "output.1.log").read_text() == "1 of 2\n"


def test_one_of_two_that_fails_ends_the_attempt(place: VolcanoPlace) -> None:
    key = submit(place)
    wait_for_all(place, key, 2)
    let_end(place, 1, 9)
    ended = place.end(key)
    assert (ended.exit_code, ended.exit_reason) == (9, "")
    told = "the end of output.1.log:\n1 of 2\ndispatcher: error: pod 1: exit status 9"
    assert told in place.paths(key).log.read_text()


@pytest.mark.parametrize("nodes", [1, 2])
def test_preempted(place: VolcanoPlace, nodes: int) -> None:
    """Whatever the command makes of it: it goes back to the queue."""
    script = "echo begun >>begun; trap 'exit 0' TERM; while :; do sleep 0.1; done"
    key = submit(place, script, Request(0, nodes=nodes))
    job = wait_for_all(place, key, nodes)
    place.bed.preempt(job)
    ended = place.end(key)
    assert (ended.exit_reason, ended.by_scheduler) == (PREEMPTED, True)


def test_a_job_that_somebody_deletes(place: VolcanoPlace) -> None:
    """A process of it may live on where nobody sees it, so it is superseded before it counts as ended."""
    key = submit(place, "echo begun >>begun; trap '' TERM; while :; do sleep 0.1; done", Request(0))
    job = wait_for_all(place, key, 1)
    pod = f"/api/v1/namespaces/{place.bed.namespace}/pods/{job}-worker-0"
    # The dispatcher does not see how it ended.
    with place.away():
        # With no time to leave an exit status.
        place.bed.api.delete(pod, {"gracePeriodSeconds": 1})
        place.bed.lose(job)
        wait_until(lambda: not place.bed.pods(job), "its pod is gone", place.patience_s)
    ended = place.end(key)
    assert ended.exit_code is None
    assert "its Job is gone" in (ended.error or "")
    assert place.paths(key).superseded.exists()
    assert place.there("run_state/jobs/a/1/superseded").exists()


def test_a_quota_that_lets_a_part_of_a_batch_in(place: VolcanoPlace) -> None:
    """The others wait with the server's own reason, and run when there is room: no dispatcher is blamed."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"}}
    place.bed.create({**quota, "spec": {"hard": {"count/jobs.batch.volcano.sh": "1"}}})
    path = f"/api/v1/namespaces/{place.bed.namespace}/resourcequotas/q"
    wait_until(lambda: place.bed.api.get(path).get("status", {}).get("used"), "the quota is counted")
    bundles = [place.claim(job, f"echo {job} >>ran", Request(0)) for job in ("a", "b")]
    place.outlet.submit(bundles)
    first, second = (bundle.key for bundle in bundles)

    def why() -> str:
        status = place.outlet.poll([first, second])[second].status
        return status.why if isinstance(status, Pending) else ""

    assert place.end(first).exit_code == 0
    wait_until(lambda: "exceeded quota: q" in why(), "the reason is told", place.patience_s)
    place.bed.api.delete(path)
    assert place.end(second).exit_code == 0
    assert place.there("ran").read_text() == "a\nb\n"


def test_what_was_cancelled_before_it_ran_ends_at_once(place: VolcanoPlace) -> None:
    """There is no wrapper that would have to notice it."""
    with place.holding():
        key = submit(place, request=Request(0))
        place.wait([key], Pending)
        wait_until(lambda: place.outlet.poll([key])[key].placement, "it is accepted")
        place.outlet.cancel([key])
        ended = place.end(key)
    assert isinstance(ended, Ended)
    assert (ended.exit_code, ended.exit_reason) == (None, "")


def test_what_was_suspended_before_it_ran_does_not_begin_when_it_is_resumed(place: VolcanoPlace) -> None:
    """Its job may run elsewhere by then: what is resumed is a retry, and `maxRetry` allows none."""
    with place.holding():
        key = submit(place, "echo begun >>begun", Request(0))
        wait_until(lambda: place.outlet.poll([key])[key].placement, "it is accepted")
        placement = place.outlet.poll([key])[key].placement
        assert placement is not None
        assert placement.handle is not None
        job = placement.handle
        place.bed.command("AbortJob", job)
        assert place.end(key).exit_reason == CANCELLED
    place.bed.command("ResumeJob", job)
    wait_until(lambda: place.bed.job_phase(job) in ("Failed", "Terminated", "Completed"), "its pod has ended")
    assert not place.there("begun").exists()
