"""What kubectl's failures are taken for: texts of kubectl 1.32 and API servers 1.20, as they were printed."""

from __future__ import annotations

import os
import subprocess
import textwrap
from pathlib import Path

import msgspec
import pytest

from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.volcano.kubectl import Kubectl, Reason, cure, first_problem, problems
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout

HOST = VolcanoHost(name="cloud", cluster="cloud", image="python:3.12", pvc_name="data", pvc_mount_path="/data")

LOG = (
    'E1122 15:47:12.275579   11 memcache.go:265] "Unhandled Error" err="couldn\'t get current server API group list: '
    'Get \\"https://127.0.0.1:1/api?timeout=32s\\": dial tcp 127.0.0.1:1: connect: connection refused"\n'
)
SAID = {
    'Error from server (NotFound): jobs.batch "a" not found': Reason.NOT_FOUND,
    'Error from server (AlreadyExists): error when creating "STDIN": configmaps "a" already exists': Reason.EXISTS,
    'Error from server (AlreadyExists): error when creating "STDIN": object is being deleted: jobs.batch.volcano.sh '
    '"a" already exists': Reason.DELETING,
    'Error from server (Forbidden): error when creating "STDIN": pods "p" is forbidden: exceeded quota: q, requested: '
    "pods=1, used: pods=0, limited: pods=0": Reason.QUOTA,
    'Error from server (Forbidden): pods is forbidden: User "ordinary" cannot list resource "pods" in API group "" in '
    'the namespace "lab"': Reason.DENIED,
    'Error from server (Forbidden): error when creating "STDIN": pods "p" is forbidden: failed quota: q: must specify '
    "limits.cpu": Reason.INVALID,
    'Error from server (Forbidden): error when creating "STDIN": jobs.batch "p" is forbidden: unable to create new '
    "content in namespace lab because it is being terminated": Reason.DELETING,
    'Error from server (Invalid): error when creating "STDIN": Pod "p3" is invalid: spec.containers[0].image: Required '
    "value": Reason.INVALID,
    'The ConfigMap "B_" is invalid: metadata.name: Invalid value: "B_": a lowercase RFC 1123 subdomain': Reason.INVALID,
    'Error from server (InternalError): error when creating "STDIN": Internal error occurred: failed calling webhook '
    '"mutatejob.volcano.sh": Post "https://volcano-admission": context deadline exceeded': Reason.BUSY,
    "Error from server (TooManyRequests): the server has received too many requests": Reason.BUSY,
    "Error from server: etcdserver: request timed out": Reason.TIMED_OUT,
    "Error from server (Timeout): the server was unable to return a response in the time allotted": Reason.TIMED_OUT,
    'error: the server doesn\'t have a resource type "jobs"': Reason.NO_KIND,
    'unable to recognize no matches for kind "Job" in version "batch.volcano.sh/v1alpha1"': Reason.NO_KIND,
    "error: You must be logged in to the server (Unauthorized)": Reason.LOGIN,
    "Error in configuration: context was not found for specified context: nosuch": Reason.LOGIN,
    "error: stat /nosuch: no such file or directory": Reason.LOGIN,
    'error: error loading config file "kc4": yaml: line 1: did not find expected node content': Reason.LOGIN,
    "Unable to connect to the server: tls: failed to verify certificate: x509: certificate signed by unknown "
    "authority": Reason.LOGIN,
    # Without any kubeconfig.
    "The connection to the server localhost:8080 was refused - did you specify the right host or port?": Reason.LOGIN,
    LOG * 5 + "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?": (
        Reason.UNREACHABLE
    ),
    "Unable to connect to the server: dial tcp: lookup nosuch.invalid on 10.255.255.53:53: no such host": (
        Reason.UNREACHABLE
    ),
    'error: error validating "STDIN": error validating data: failed to download openapi: Get '
    '"https://127.0.0.1:1/openapi/v2?timeout=32s": dial tcp 127.0.0.1:1: connect: connection refused; if you choose to '
    "ignore these errors, turn validation off with --validate=false": Reason.UNREACHABLE,
    "Unable to connect to the server: net/http: request canceled while waiting for connection (Client.Timeout exceeded "
    "while awaiting headers)": Reason.TIMED_OUT,
    "Unable to connect to the server: context deadline exceeded": Reason.TIMED_OUT,
    "Something that nobody has seen": Reason.OTHER,
}


@pytest.mark.parametrize("said", SAID, ids=lambda said: said[-40:])
def test_a_failure_is_known_by_its_text(said: str) -> None:
    (problem,) = problems(1, said + "\n")
    assert problem.reason == SAID[said]
    assert problem.message == said.removeprefix(LOG * 5)


def test_several_objects_have_a_problem_each_with_all_their_lines() -> None:
    exists = 'Error from server (AlreadyExists): error when creating "STDIN": configmaps "a" already exists'
    bad = textwrap.dedent("""\
        Error from server (BadRequest): error when creating "STDIN": Pod in version "v1" cannot be handled as a Pod: \
        error found in #10 byte of ...|"cpu":"1x"}}}]}}
        |..., bigger context ...|":"y","name":"x"
        |...""")
    found = problems(1, f"Warning: something is old\n{exists}\n{bad}\n")
    assert [(one.reason, one.message) for one in found] == [(Reason.EXISTS, exists), (Reason.INVALID, bad)]


def test_a_log_of_several_lines_is_no_message() -> None:
    err = f'{LOG.rstrip()} err=<\n\tgetting credentials: exec\n >\nError from server (NotFound): pods "x" not found'
    assert [problem.reason for problem in problems(1, err)] == [Reason.NOT_FOUND]


def test_a_log_alone_is_better_than_nothing() -> None:
    problem = first_problem(1, LOG)
    assert problem is not None
    assert problem.reason is Reason.UNREACHABLE


def test_success_is_none_whatever_was_printed() -> None:
    assert problems(0, "Warning: batch/v1beta1 CronJob is deprecated") == ()
    assert first_problem(0, "") is None


@pytest.mark.parametrize(("exit_code", "how"), [(1, "status 1"), (-9, "signal 9")])
def test_no_message_is_told_as_such(exit_code: int, how: str) -> None:
    (problem,) = problems(exit_code, "")
    assert problem.reason is Reason.OTHER
    assert how in problem.message
    assert problem.is_doubtful


def test_a_call_that_was_given_up_may_have_worked() -> None:
    (problem,) = problems(None, "half a line")
    assert problem.reason is Reason.TIMED_OUT
    assert problem.is_doubtful
    assert "half a line" in problem.message


def test_what_may_pass_by_itself() -> None:
    transient = {reason for said in SAID for reason in [problems(1, said)[0]] if reason.is_transient}
    assert {problem.reason for problem in transient} == {
        *(Reason.DELETING, Reason.QUOTA, Reason.BUSY, Reason.UNREACHABLE, Reason.TIMED_OUT)
    }


def test_the_words_say_only_what_the_host_says(tmp_path: Path) -> None:
    assert Kubectl(HOST, tmp_path).words("get", "pods") == [
        *("kubectl", "--namespace=default", "--request-timeout=30s", "get", "pods")
    ]
    host = msgspec.structs.replace(HOST, kubeconfig="kube config", context="a b", namespace="lab")
    assert Kubectl(host, tmp_path).words("get", request_s=None) == [
        *("kubectl", "--namespace=lab", f"--kubeconfig={tmp_path}/kube config", "--context=a b", "get")
    ]


def test_a_kubeconfig_may_be_at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", os.fspath(tmp_path / "me"))
    monkeypatch.setenv("LAB", "/lab")
    for written, meant in {"~/.kube/lab": f"{tmp_path}/me/.kube/lab", "$LAB/kube": "/lab/kube"}.items():
        host = msgspec.structs.replace(HOST, kubeconfig=written)
        assert f"--kubeconfig={meant}" in Kubectl(host, "/").words("get")


def test_the_cure_of_a_login_is_a_command_to_try(tmp_path: Path) -> None:
    kubectl = Kubectl(msgspec.structs.replace(HOST, context="a b"), tmp_path)
    problem = first_problem(1, "error: You must be logged in to the server (Unauthorized)")
    assert problem is not None
    assert "`kubectl --namespace=default '--context=a b' get pods`" in cure(problem, kubectl)


FORBIDDEN = "get) echo 'Error from server (Forbidden): no' >&2; exit 1 ;;"


@pytest.mark.parametrize(
    ("answers", "told", "status"),
    [
        ("get) printf uid-1 ;; config) printf https://lab:6443 ;;", "uid-1 https://lab:6443", 0),
        (
            "get) echo 'E1127 09:21:22 memcache.go: no list for metrics.k8s.io' >&2; printf uid-1 ;;",
            "uid-1 10.0.0.1",
            0,
        ),
        # Not every user may read that namespace.
        (f"{FORBIDDEN} config) printf https://lab:6443 ;;", "- https://lab:6443", 0),
        # In a cluster, with no kubeconfig.
        (FORBIDDEN, "- 10.0.0.1", 0),
        ("get) echo 'Unable to connect to the server' >&2; exit 1 ;;", "Unable to connect to the server", 1),
    ],
)
def test_which_cluster_answers(tmp_path: Path, answers: str, told: str, status: int) -> None:
    (tmp_path / "kubectl").write_text(f"#!/bin/bash\nfor word; do case $word in {answers} esac; done\n")
    (tmp_path / "kubectl").chmod(0o755)
    words = VolcanoScheduler(HOST, Layout(tmp_path), 5.0).where().question.words
    variables = {"PATH": f"{tmp_path}:/usr/bin:/bin", "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
    done = subprocess.run(words, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, (done.stdout or done.stderr).strip()) == (status, told)
