"""Submissions to a real API server with Volcano's definitions and admission, and what becomes of them when it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from beds.bed import wait_for
from beds.volcano import VolcanoBed
from outlets.volcano.test_manifest import ALL_KEYS, CASES, HOSTILE
from volcano_jobs import NAME, VolcanoJobs, make_host, make_submission

from dispatcher.outlets.base import Request
from dispatcher.outlets.batch.scheduler import Accepted, Doubtful, NoRoom, Phase, Refused
from dispatcher.outlets.remote.operations import Run
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout


@pytest.fixture
def jobs(volcano: VolcanoBed, tmp_path: Path) -> VolcanoJobs:
    return VolcanoJobs(volcano, tmp_path)


def count(bed: VolcanoBed) -> int:
    return len(bed.kubectl("get", "jobs.batch.volcano.sh", "-o", "name").stdout.split())


def dry_run(bed: VolcanoBed, keys: dict[str, Any], words: dict[str, Any]) -> Any:
    """What the server makes of a manifest: validated, defaulted, with nothing dropped in silence."""
    host = make_host(**{**keys, "namespace": bed.namespace})
    operation = VolcanoScheduler(host, Layout(Path("/nonexistent")), 30).submit(make_submission(**words))
    assert isinstance(operation, Run)
    answer = bed.kubectl("create", "--dry-run=server", "-f", "-", "-o", "json", input=operation.stdin)
    return json.loads(operation.stdin)["items"][0], json.loads(answer.stdout)


def within(sent: Any, kept: Any) -> bool:
    """Whether all of what was sent is in what the server has kept."""
    if isinstance(sent, dict):
        return isinstance(kept, dict) and all(
            name in kept and within(value, kept[name]) for name, value in sent.items()
        )
    if isinstance(sent, list):
        return isinstance(kept, list) and len(sent) == len(kept) and all(map(within, sent, kept))
    return bool(sent == kept)


def check_dry_runs(bed: VolcanoBed) -> None:
    bed.make_queue("lab")
    for keys, words in CASES.values():
        sent, kept = dry_run(bed, keys, words)
        assert within(sent, kept), (sent, kept)
    hostile = {f"V{number}": value for number, value in enumerate(HOSTILE)}
    sent, kept = dry_run(bed, {"env": hostile}, {})
    assert within(sent, kept), (sent, kept)


def test_the_server_takes_what_is_made(volcano: VolcanoBed) -> None:
    volcano.create(PRIORITY)
    check_dry_runs(volcano)


def test_the_server_of_the_newest_volcano_does_too(new_volcano: VolcanoBed, tmp_path: Path) -> None:
    """And a Job runs there."""
    new_volcano.create(PRIORITY)
    check_dry_runs(new_volcano)
    jobs = VolcanoJobs(new_volcano, tmp_path)
    jobs.submit("exit 3", request=Request(gpus=1))
    assert jobs.wait(Phase.ENDED).exit_code == 3


PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": ALL_KEYS["priority_class"]},
    "value": 1000,
}  # fmt: skip


def test_a_second_submission_is_the_same(jobs: VolcanoJobs) -> None:
    given = jobs.prepare(NAME, "exit 3", "exit 4")
    assert jobs.send(given) == Accepted(handle=NAME)
    assert jobs.send(given) == Accepted(handle=NAME)
    assert count(jobs.bed) == 2


def test_an_answer_that_is_lost(jobs: VolcanoJobs) -> None:
    given = jobs.prepare(NAME, "exit 3")
    with jobs.bed.losing_answers(method="POST", path="/jobs"):
        assert isinstance(jobs.send(given), Doubtful)
    assert jobs.send(given) == Accepted(handle=NAME)
    jobs.follow(given)
    assert jobs.wait(Phase.ENDED).exit_code == 3


def test_a_job_of_somebody_else_with_this_name(jobs: VolcanoJobs) -> None:
    given = jobs.prepare(NAME, "exit 3")
    jobs.bed.create(
        {
            "apiVersion": "batch.volcano.sh/v1alpha1", "kind": "Job", "metadata": {"name": f"{NAME}-0"},
            "spec": {"tasks": [{"name": "w", "replicas": 1, "template": {"spec": {"containers": [
                {"name": "c", "image": "i", "command": ["true"]}], "restartPolicy": "Never"}}}]},
        }
    )  # fmt: skip
    refused = jobs.send(given)
    assert isinstance(refused, Refused)
    assert not refused.is_transient
    assert "it does not belong to this attempt" in refused.why
    jobs.follow(given)
    assert jobs.states() == {}, "nor is it taken for the attempt"


def test_what_admission_refuses(volcano: VolcanoBed, tmp_path: Path) -> None:
    jobs = VolcanoJobs(volcano, tmp_path, queue="nowhere")
    refused = jobs.send(jobs.prepare(NAME, "exit 3"))
    assert isinstance(refused, Refused)
    assert not refused.is_transient
    assert "validatejob.volcano.sh" in refused.why
    assert "nowhere" in refused.why


def test_admission_that_is_down(jobs: VolcanoJobs) -> None:
    given = jobs.prepare(NAME, "exit 3")
    jobs.bed.stop_volcano()
    try:
        refused = jobs.send(given)
    finally:
        jobs.bed.start_volcano()
    assert isinstance(refused, Refused)
    assert refused.is_transient
    assert "failed calling webhook" in refused.why
    assert jobs.send(given) == Accepted(handle=NAME)


def test_a_server_that_fails(jobs: VolcanoJobs) -> None:
    given = jobs.prepare(NAME, "exit 3")
    for status, kind in ((429, Refused), (500, Doubtful), (503, Doubtful), (504, Doubtful)):
        with jobs.bed.answering(status, "the reason", method="POST", path="/jobs"):
            found = jobs.send(given)
        assert isinstance(found, kind), status
        assert not isinstance(found, Refused) or found.is_transient
    assert jobs.send(given) == Accepted(handle=NAME)


def test_a_server_that_is_down(jobs: VolcanoJobs) -> None:
    given = jobs.prepare(NAME, "exit 3")
    with jobs.bed.relay.down():
        found = jobs.send(given)
    assert isinstance(found, Refused | Doubtful)
    assert not isinstance(found, Refused) or found.is_transient
    assert count(jobs.bed) == 0


def test_a_quota(jobs: VolcanoJobs) -> None:
    """It is read as a limit; what is beyond it is waited for."""
    jobs.bed.create(
        {
            "apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "q"},
            "spec": {"hard": {"count/jobs.batch.volcano.sh": "2"}},
        }
    )  # fmt: skip
    # Nothing is refused for a quota before its controller has counted what there is.
    quota = f"/api/v1/namespaces/{jobs.bed.namespace}/resourcequotas/q"
    wait_for(lambda: jobs.bed.api.get(quota).get("status", {}).get("used"), "the quota to be counted")
    (asked,) = jobs.scheduler.limits_query()
    assert jobs.scheduler.limits([jobs.carry_out(asked)]).in_flight == 2
    given = jobs.prepare(NAME, "exit 3", "exit 3", "exit 3")
    partly = jobs.send(given)
    assert isinstance(partly, NoRoom)
    assert partly.accepted == {0, 1}
    assert "exceeded quota: q" in partly.why
    rest = msgspec.structs.replace(given, accepted=partly.accepted)
    assert jobs.send(rest) == partly, "nothing is made twice"
    found = jobs.send(make_submission("d-0123456789ab-9876543210"))
    assert isinstance(found, NoRoom)
    assert "exceeded quota: q" in found.why


def test_a_user_without_rights(volcano: VolcanoBed, tmp_path: Path) -> None:
    jobs = VolcanoJobs(volcano, tmp_path, context="ordinary")
    found = jobs.send(jobs.prepare(NAME, "exit 3"))
    assert isinstance(found, Refused)
    assert found.is_transient
    assert "cannot create resource" in found.why
    assert "Role" in found.why
