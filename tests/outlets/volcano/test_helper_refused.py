"""Why there can be no helper: the cluster's own words, whole, and what to do; and nothing is left behind."""

from __future__ import annotations

import pytest
from fleet import wait_until
from outlets.remote.calls import ask, unreached
from outlets.volcano.helpers import Site

from dispatcher.outlets.remote.operations import Hello, Run

pytestmark = pytest.mark.slow


def test_a_missing_claim(site: Site) -> None:
    why = unreached(site.connect(pvc_name="nosuch"), [Hello()])
    assert 'persistentvolumeclaim "nosuch" not found' in why
    assert site.jobs() == []


def test_an_image_that_is_not_there(site: Site) -> None:
    why = unreached(site.connect(helper_image="registry.example/missing:1"), [Hello()])
    assert "ErrImagePull" in why or "ImagePullBackOff" in why
    assert "registry.example/missing:1" in why
    assert site.jobs() == []


def test_no_node_that_fits_is_waited_for(site: Site) -> None:
    connection = site.connect(node_selector={"gpu": "none"})
    why = unreached(connection, [Hello()], timeout_s=4)
    assert "is not ready: Unschedulable: 0/2 nodes are available" in why
    assert "FailedScheduling" not in why
    (pod,) = site.pods()
    site.k8s.kubectl("label", "node", "n1", "gpu=none")
    try:
        assert ask(connection, Run(words=["uname", "-n"])).out.strip() == pod
    finally:
        site.k8s.kubectl("label", "node", "n1", "gpu-")


def test_a_quota_of_pods(site: Site) -> None:
    site.k8s.kubectl("create", "quota", "few", "--hard=pods=0")
    connection = site.connect()
    why = unreached(connection, [Hello()], timeout_s=4)
    assert "FailedCreate: Error creating: pods" in why
    assert "exceeded quota: few, requested: pods=1, used: pods=0, limited: pods=0" in why
    # It is the same reason at every try, so that people are warned once.
    assert unreached(connection, [Hello()], timeout_s=4) == why
    connection.close()
    assert site.jobs() == []


def test_a_quota_of_jobs(site: Site) -> None:
    site.k8s.kubectl("create", "quota", "few", "--hard=count/jobs.batch=0")
    status = "{.status.hard}"
    wait_until(lambda: site.k8s.kubectl("get", "quota", "few", "-o", f"jsonpath={status}").stdout, "the quota counts")
    why = unreached(site.connect(), [Hello()])
    assert "exceeded quota: few, requested: count/jobs.batch=1" in why
    assert "describe quota" in why


def test_no_rights(site: Site) -> None:
    why = unreached(site.connect(context="ordinary"), [Hello()])
    assert 'User "ordinary" cannot create resource "jobs" in API group "batch"' in why
    assert "RoleBinding" in why


def test_no_such_context(site: Site) -> None:
    why = unreached(site.connect(context="nosuch"), [Hello()])
    assert 'context "nosuch" does not exist' in why
    assert "--context=nosuch get pods` must work" in why


def test_the_api_server_is_away_for_a_while(site: Site) -> None:
    connection = site.connect()
    before = ask(connection, Run(words=["uname", "-n"])).out
    with site.k8s.relay.down():
        assert "refused" in unreached(connection, [Hello()])
        assert "is the API server up" in unreached(site.connect("pod-b"), [Hello()])
    assert ask(connection, Run(words=["uname", "-n"])).out == before


def test_an_answer_that_is_lost_makes_no_second_helper(site: Site) -> None:
    connection = site.connect()
    with site.k8s.losing_answers(method="POST", path="/jobs"):
        unreached(connection, [Hello()])
    ask(connection, Hello())
    assert len(site.jobs()) == len(site.pods()) == 1


def test_a_server_that_asks_to_come_back_later(site: Site) -> None:
    with site.k8s.answering(
        429, "slow down", method="POST", path="/jobs", times=1, headers={"Retry-After": "1"}
    ) as fault:
        assert ask(site.connect(), Run(words=["echo", "yes"])).out == "yes\n"
    assert fault.happened == 1


def test_a_server_that_fails_for_a_while(site: Site) -> None:
    connection = site.connect()
    for status in (403, 409, 500, 503):
        with site.k8s.answering(status, "the database is full", method="POST", path="/jobs"):
            assert "the database is full" in unreached(connection, [Hello()])
    assert ask(connection, Run(words=["echo", "yes"])).out == "yes\n"
    assert len(site.jobs()) == 1
