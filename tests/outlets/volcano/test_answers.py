"""What kubectl's answers to a submission mean, and what is asked. The texts are those of kubectl 1.20 and 1.32."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from volcano_jobs import NAME, make_host, make_submission

from dispatcher.errors import OutletError
from dispatcher.outlets.base import Key
from dispatcher.outlets.batch.scheduler import Accepted, Doubtful, Limits, NoRoom, Phase, Refused, Submitted
from dispatcher.outlets.remote.operations import Failed, Ran, Run
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout

SCHEDULER = VolcanoScheduler(make_host(), Layout(Path("/nonexistent")), 30)
MADE = "job.batch.volcano.sh/{}-{}\n"
EXISTS = (
    'Error from server (AlreadyExists): error when creating "STDIN": jobs.batch.volcano.sh "{}-{}" already exists\n'
)
SERVER = 'Error from server ({}): error when creating "STDIN": '
DENIED = 'admission webhook "validatejob.volcano.sh" denied the request: unable to find job queue: queues "x" not found'
QUOTA = f'jobs.batch.volcano.sh "{NAME}-0" is forbidden: exceeded quota: q, requested: count/jobs.batch.volcano.sh=1'
WEBHOOK = 'Internal error occurred: failed calling webhook "mutatejob.volcano.sh": Post "https://x": {}'


def made(*indices: int) -> str:
    return "".join(MADE.format(NAME, index) for index in indices)


def exists(*indices: int) -> str:
    return "".join(EXISTS.format(NAME, index) for index in indices)


def shown(marks: Mapping[int, Mapping[str, str]]) -> str:
    """What `kubectl get` shows of Jobs with these annotations."""
    items = [
        {"kind": "Job", "metadata": {"name": f"{NAME}-{index}", "annotations": dict(notes)}}
        for index, notes in marks.items()
    ]
    return json.dumps({"kind": "List", "items": items})


def ours(*indices: int) -> dict[int, dict[str, str]]:
    return {index: {"dispatcher/job-id": f"j{index}", "dispatcher/attempt": "1"} for index in indices}


def meant(answer: Any, count: int = 2) -> Accepted | Refused | NoRoom | Doubtful:
    return SCHEDULER.accepted(make_submission(count=count), answer)


def attempt(index: int = 0, name: str = NAME) -> Submitted:
    return Submitted(key=Key(f"{name}-{index}", 1), name=name, index=index, directory="/d")


@pytest.mark.parametrize(
    "answer",
    [
        Ran(exit_code=0, out=made(0, 1)),
        Ran(exit_code=0, out=made(0, 1), err="Warning: batch/v1beta1 is deprecated\n"),
        # An earlier call, whose answer was lost, had made one of them, or all.
        Ran(exit_code=1, out=made(1) + shown(ours(0, 1)), err=exists(0)),
        Ran(exit_code=1, out=shown(ours(0, 1)), err=exists(0, 1)),
    ],
    ids=["all", "with a warning", "one was there", "all were there"],
)
def test_accepted(answer: Ran) -> None:
    assert meant(answer) == Accepted(handle=NAME)


@pytest.mark.parametrize(
    "notes", [{}, {"dispatcher/job-id": "other", "dispatcher/attempt": "1"}], ids=["none", "other"]
)
def test_a_job_of_somebody_else_is_not_taken_over(notes: dict[str, str]) -> None:
    found = meant(Ran(exit_code=1, out=shown({0: notes}), err=exists(0)), count=1)
    assert isinstance(found, Refused)
    assert not found.is_transient
    assert f'"{NAME}-0" already exists' in found.why
    assert "it does not belong to this attempt" in found.why


@pytest.mark.parametrize(
    ("err", "is_transient", "words"),
    [
        (SERVER.format("BadRequest") + DENIED, False, DENIED),
        # As Volcano's own says it.
        (f'Error from server: error when creating "STDIN": {DENIED}', False, DENIED),
        (SERVER.format("Invalid") + 'The Job "x" is invalid: spec.queue: Too long', False, "Too long"),
        (SERVER.format("InternalError") + WEBHOOK.format("context deadline exceeded"), True, "deadline exceeded"),
        (SERVER.format("InternalError") + WEBHOOK.format("dial tcp: connection refused"), True, "failed calling"),
        (SERVER.format("TooManyRequests") + "the server has received too many requests", True, "too many requests"),
        (
            SERVER.format("Forbidden") + 'jobs.batch.volcano.sh is forbidden: User "eve" cannot create resource "jobs"',
            True,
            "administrator",
        ),
        ("error: You must be logged in to the server (Unauthorized)", True, "kubectl"),
        ('error: unable to recognize "STDIN": no matches for kind "Job" in version "batch"', True, "Volcano"),
        ("The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?", True, "VPN"),
        ("Unable to connect to the server: dial tcp: lookup k8s on 127.0.0.1:53: no such host", True, "no such host"),
    ],
)  # fmt: skip
def test_refused(err: str, is_transient: bool, words: str) -> None:
    """The server's message is told whole. What is no fault of the attempt waits until somebody has mended it."""
    found = meant(Ran(exit_code=1, err=f"{err}\n"))
    assert isinstance(found, Refused)
    assert found.is_transient == is_transient
    assert words in found.why
    assert err.splitlines()[0] in found.why


def test_a_quota_that_is_used_up_is_waited_for() -> None:
    found = meant(Ran(exit_code=1, err=SERVER.format("Forbidden") + QUOTA))
    assert isinstance(found, NoRoom)
    assert found.accepted == frozenset()
    assert "exceeded quota: q" in found.why


def test_of_a_batch_that_a_quota_lets_in_partly_the_rest_is_waited_for() -> None:
    found = meant(Ran(exit_code=1, out=made(1), err=SERVER.format("Forbidden") + QUOTA))
    assert isinstance(found, NoRoom)
    assert found.accepted == {1}
    assert found.why.startswith(SERVER.format("Forbidden") + QUOTA)


@pytest.mark.parametrize(
    "answer",
    [
        Ran(exit_code=None),
        Ran(exit_code=-9),
        Ran(exit_code=0, out=""),
        Ran(exit_code=1, err="Unable to connect to the server: net/http: TLS handshake timeout"),
        Ran(exit_code=1, err="Unable to connect to the server: EOF"),
        Ran(exit_code=1, err="error: read tcp 1.2.3.4:5->6.7.8.9:443: read: connection reset by peer"),
        Ran(exit_code=1, err=SERVER.format("Timeout") + "request did not complete within requested timeout"),
        Ran(exit_code=1, err=SERVER.format("InternalError") + "etcdserver: request timed out"),
        # It was there, and could not be shown.
        Ran(exit_code=1, err=exists(0, 1)),
        Ran(exit_code=1, out=made(0) + "{", err=exists(1)),
    ],
)
def test_doubtful(answer: Ran) -> None:
    """Some or all may have been made: they are looked for before anything is submitted again."""
    assert isinstance(meant(answer), Doubtful)


def test_kubectl_that_cannot_be_started_has_made_nothing() -> None:
    assert meant(Failed(error="bash: no such file", errno=2)) == Refused(why="bash: no such file", is_transient=True)


def run(operation: Any, folder: Path, kubectl: str) -> subprocess.CompletedProcess[str]:
    """Carry an operation out with this shell script as kubectl."""
    assert isinstance(operation, Run)
    (folder / "kubectl").write_text(f"#!/bin/bash\n{kubectl}\n")
    (folder / "kubectl").chmod(0o755)
    words, environment = list(operation.words), {"PATH": f"{folder}:/usr/bin:/bin"}
    return subprocess.run(words, input=operation.stdin, env=environment, capture_output=True, text=True, check=False)


def test_what_exists_is_looked_at_with_the_same_call(tmp_path: Path) -> None:
    """And what `create` has told stays what it was."""
    kubectl = (
        f'case "$*" in *create*) cat >"$0.given"; echo {NAME}-1; echo "(AlreadyExists)" >&2; exit 7 ;;'
        ' *get*) echo "{}"; cat ;; esac'
    )
    submit = SCHEDULER.submit(make_submission(count=2))
    done = run(submit, tmp_path, kubectl)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{NAME}-1\n{{}}\n", "(AlreadyExists)\n")
    assert isinstance(submit, Run)
    assert (tmp_path / "kubectl.given").read_text() == submit.stdin
    quiet = run(submit, tmp_path, f'[[ "$*" == *create* ]] || exit 9; echo {NAME}-0')
    assert (quiet.returncode, quiet.stdout) == (0, f"{NAME}-0\n")


def test_one_get_for_all() -> None:
    """By the label of the submission; several calls only where an answer would become too long."""
    (asked,) = SCHEDULER.query([attempt(index, name) for name in ("d-a-2", "d-a-1") for index in range(50)])
    assert isinstance(asked, Run)
    assert "dispatcher/submission in (d-a-1,d-a-2)" in asked.words
    assert "jobs.batch.volcano.sh,podgroups.scheduling.volcano.sh,pods" in asked.words
    # Jobs before the last one that is in flight are shown as well, and none is asked for twice.
    many = [attempt(59, f"d-a-{number}") for number in range(4)]
    assert [one.words[-3] for one in SCHEDULER.query([*many, *many]) if isinstance(one, Run)] == [
        f"dispatcher/submission in (d-a-{number})" for number in range(4)
    ]
    assert len(SCHEDULER.query([attempt(index) for index in range(1000)])) == 1
    assert SCHEDULER.query([]) == []


@pytest.mark.parametrize(
    "answer",
    [
        Ran(
            exit_code=1, err='Error from server (Forbidden): pods is forbidden: User "eve" cannot list resource "pods"'
        ),
        Ran(exit_code=None),
        Ran(exit_code=0, out=""),
        Ran(exit_code=0, out='{"kind": "List"}'),
        Ran(exit_code=0, out='{"kind": "List", "items": [{"kind": "Job", "metadata": {"name": 3}}]}'),
        Failed(error="kubectl: no such file", errno=2),
    ],
)
def test_a_failed_question_is_no_absence(answer: Any) -> None:
    with pytest.raises(OutletError):
        SCHEDULER.states([attempt()], [answer])


def test_nothing_is_told_of_attempts_that_are_not_there() -> None:
    assert SCHEDULER.states([attempt()], [Ran(exit_code=0, out='{"kind": "List", "items": []}')]) == {}


def test_details_without_events_and_logs() -> None:
    """They only explain: a user may have no right to read them."""
    denied = Ran(exit_code=1, err="Error from server (Forbidden): events is forbidden")
    asked = SCHEDULER.detail([attempt()])
    assert len(asked) == 3
    found = SCHEDULER.details([attempt()], [Ran(exit_code=0, out='{"items": []}'), denied, denied])
    state = found[attempt().key]
    assert (state.phase, state.exit_code, state.may_still_run) == (Phase.ENDED, None, True)


def test_cancelling_many_and_what_is_gone() -> None:
    calls = SCHEDULER.cancel([attempt(index) for index in range(450)], force=False)
    assert len(calls) == 3
    words = [word for call in calls if isinstance(call, Run) for word in call.words]
    assert "--ignore-not-found" in words
    assert "pods" not in words
    forced = SCHEDULER.cancel([attempt()], force=True)
    assert next(call.words[-3] for call in forced if isinstance(call, Run)) == f"volcano.sh/job-name in ({NAME}-0)"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Ran(exit_code=0, out="deleted"), ""),
        (Ran(exit_code=1, err=f'Error from server (NotFound): jobs.batch.volcano.sh "{NAME}-0" not found'), ""),
        (Ran(exit_code=1, err="Unable to connect to the server: EOF"), "Unable to connect to the server: EOF"),
        (Ran(exit_code=None), "kubectl gave no answer in time"),
        (Failed(error="kubectl: no such file", errno=2), "kubectl: no such file"),
    ],
)
def test_cancelled(answer: Any, expected: str) -> None:
    assert SCHEDULER.cancelled(answer) == expected


@pytest.mark.parametrize(
    ("answer", "in_flight"),
    [
        (Ran(exit_code=0, out='{"items": [{"spec": {"hard": {"count/jobs.batch.volcano.sh": "50"}}}]}'), 50),
        (Ran(exit_code=0, out='{"items": [{"spec": {"hard": {"pods": "9"}}}, {"spec": {}}]}'), None),
        (Ran(exit_code=0, out="{"), None),
        (Ran(exit_code=1, err="Error from server (Forbidden): resourcequotas is forbidden"), None),
    ],
)  # fmt: skip
def test_limits(answer: Ran, in_flight: int | None) -> None:
    assert SCHEDULER.limits([answer]) == Limits(array_size=50, in_flight=in_flight)
