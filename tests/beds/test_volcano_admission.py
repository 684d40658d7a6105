"""What Volcano refuses when a Job is created, in its words, and what it fills in."""

from __future__ import annotations

import json
import subprocess
from typing import Any

from .volcano import VolcanoBed
from .volcano_jobs import job, on
from .volcano_schema import check

DENIED = 'admission webhook "validatejob.volcano.sh" denied the request: '


def submit(volcano: VolcanoBed, made: dict[str, Any], *words: str) -> subprocess.CompletedProcess[str]:
    return volcano.kubectl("create", "-f", "-", *words, input=json.dumps(made), check=False)


def doubled(made: dict[str, Any]) -> dict[str, Any]:
    made["spec"]["tasks"] *= 2
    return made


def with_task(**changes: Any) -> dict[str, Any]:
    made = job("a")
    made["spec"]["tasks"][0] |= changes
    return made


def without_image() -> dict[str, Any]:
    made = job("a")
    del made["spec"]["tasks"][0]["template"]["spec"]["containers"][0]["image"]
    return made


REFUSED = [
    (job("a", minAvailable=2), "job 'minAvailable' should not be greater than total replicas in tasks;"),
    (
        job("a", policies=[on("PodVanished", "RestartJob")]),
        '* spec.policies: Invalid value: "PodVanished": invalid policy event',
    ),
    (job("a", policies=[on("PodFailed", "Hope")]), 'spec.policies: Invalid value: "Hope": invalid policy action'),
    (job("a", policies=[{"exitCode": 0, "action": "AbortJob"}]), "0 is not a valid error code"),
    (job("a", queue="nowhere"), 'unable to find job queue: queues.scheduling.volcano.sh "nowhere" not found;'),
    (doubled(job("a")), "duplicated task name w;"),
    (job("a", plugins={"magic": []}), "unable to find job plugin: magic;"),
    (job("a", maxRetry=-1), "'maxRetry' cannot be less than zero."),
    (with_task(minAvailable=2), "'minAvailable' is greater than 'replicas' in task: w, job: a;"),
    (with_task(name="Task"), "a lowercase RFC 1123 label must consist of lower case"),
    (without_image(), "spec.task[0].template.spec.containers[0].image: Required value."),
    (
        job("a" * 60),
        f"create pod with name {'a' * 60}-w-0 validate failed [name part must be no more than 63 characters];",
    ),
    ({**job("a"), "spec": {}}, "No task specified in job spec"),
]


def test_what_the_definition_lets_through_is_refused(volcano: VolcanoBed) -> None:
    """All with one call, which answers one after the other."""
    for made, _ in REFUSED:
        check(made, "v1.5.1") if made["spec"] else None
    refused = submit(volcano, {"apiVersion": "v1", "kind": "List", "items": [made for made, _ in REFUSED]})
    assert refused.returncode == 1
    _, *denied = refused.stderr.split(DENIED)
    assert len(denied) == len(REFUSED)
    for (_, words), why in zip(REFUSED, denied, strict=True):
        assert words in why


def test_a_dry_run_is_admitted_or_refused_alike(volcano: VolcanoBed) -> None:
    assert submit(volcano, job("a"), "--dry-run=server").returncode == 0
    assert DENIED in submit(volcano, job("a", minAvailable=2), "--dry-run=server").stderr
    assert volcano.kubectl("get", "jobs.batch.volcano.sh", "-o", "name").stdout == ""


def test_a_closed_queue_takes_no_jobs(volcano: VolcanoBed) -> None:
    volcano.make_queue("shut")
    volcano.create(job("before", "sleep", "300", queue="shut"))
    volcano.wait_for_job("before", "Running")
    volcano.command("CloseQueue", "shut", kind="Queue")
    volcano.wait_for_queue("shut", "Closing")
    refused = submit(volcano, job("a", queue="shut"))
    words = "can only submit job to queue with state `Open`, queue `shut` status is `Closing`;"
    assert words in refused.stderr
    volcano.lose("before")
    volcano.wait_for_queue("shut", "Closed")
    volcano.command("OpenQueue", "shut", kind="Queue")
    volcano.wait_for_queue("shut", "Open")
    assert submit(volcano, job("a", queue="shut")).returncode == 0


def test_what_a_job_leaves_open_is_filled_in(volcano: VolcanoBed) -> None:
    made = job("a", "sleep", "300", replicas=2)
    del made["spec"]["tasks"][0]["name"]
    volcano.create(made)
    spec = volcano.job("a")["spec"]
    task = spec["tasks"][0]
    assert (spec["queue"], spec["schedulerName"], spec["maxRetry"], spec["minAvailable"]) == (
        "default",
        "volcano",
        3,
        2,
    )
    assert (task["name"], task["minAvailable"], task["maxRetry"]) == ("default0", 2, 3)


def test_a_job_that_is_there_is_hardly_changed(volcano: VolcanoBed) -> None:
    volcano.create(job("a", "sleep", "300"))
    patch = json.dumps({"spec": {"queue": "other"}})
    refused = volcano.kubectl("patch", "jobs.batch.volcano.sh", "a", "--type=merge", "-p", patch, check=False)
    assert "job updates may not change fields other than `minAvailable`" in refused.stderr
    patch = json.dumps({"metadata": {"labels": {"mine": "1"}}})
    volcano.kubectl("patch", "jobs.batch.volcano.sh", "a", "--type=merge", "-p", patch)
    assert volcano.job("a")["metadata"]["labels"] == {"mine": "1"}


def test_one_refused_job_of_a_list_leaves_the_others(volcano: VolcanoBed) -> None:
    listed = {"apiVersion": "v1", "kind": "List", "items": [job("a"), job("b", minAvailable=9), job("c")]}
    done = submit(volcano, listed, "-o", "name")
    assert done.returncode == 1
    assert done.stdout.split() == ["job.batch.volcano.sh/a", "job.batch.volcano.sh/c"]


def test_a_webhook_that_does_not_answer_in_time(volcano: VolcanoBed) -> None:
    with volcano.hanging_webhook():
        refused = submit(volcano, job("a"))
    assert refused.returncode == 1
    assert "Error from server (InternalError)" in refused.stderr
    assert 'failed calling webhook "mutatejob.volcano.sh"' in refused.stderr
    assert "context deadline exceeded" in refused.stderr
    assert volcano.kubectl("get", "jobs.batch.volcano.sh", "-o", "name").stdout == ""
    volcano.create(job("a"))
    volcano.wait_for_job("a", "Completed")
