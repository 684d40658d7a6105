"""Calls of the agent on a volume of a real Kubernetes, through a helper that is made, found again and removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from fleet import wait_until
from outlets.remote.calls import ask, wait
from outlets.volcano.helpers import MOUNT, Site, archive

from dispatcher.outlets.remote.connection import Lane, NoAnswer
from dispatcher.outlets.remote.operations import AttemptRead, Deliver, Failed, Has, Hello, Read, Run, Stored, Tail

pytestmark = pytest.mark.slow


def test_files_are_written_and_read_on_the_volume(site: Site) -> None:
    connection = site.connect()
    deliver = Deliver(directory=f"{MOUNT}/jobs/a", files={"script": b"text"})
    tail = Tail(path=f"{MOUNT}/jobs/a/script")
    greeting, _, told = ask(connection, Hello(directories={"base": "~/.dispatcher"}), deliver, tail)
    assert greeting.directories == {"base": f"{MOUNT}/.dispatcher"}
    assert told.content == b"text"
    assert (site.volume / "jobs/a/script").read_bytes() == b"text"
    assert len(site.jobs()) == 1
    connection.close()
    assert site.jobs() == []
    wait_until(lambda: not site.pods(), "the helper's pod is gone")


def test_large_files_go_both_ways_and_are_sent_once(site: Site, tmp_path: Path) -> None:
    connection = site.connect()
    store = archive(tmp_path, 5)
    assert ask(connection, store, lane=Lane.TRANSFER) == Stored()
    sent_bytes = connection.transport.sent_bytes
    assert sent_bytes > store.size
    content = Path(store.source).read_bytes()
    assert (site.volume / "code/code.tar").read_bytes() == content

    assert ask(connection, Has(paths=[store.path])).sizes == [store.size]
    assert connection.transport.sent_bytes - sent_bytes < 100_000

    (site.volume / "big").mkdir()
    (site.volume / "big/output.log").write_bytes(content)
    look = AttemptRead(directory=f"{MOUNT}/big", growing={"output.log": (0, 0)})
    (seen,) = ask(connection, Read(looks=[look], names=[], most_bytes=20 << 20)).seen
    assert seen.grown["output.log"].content == content


def test_two_calls_at_once_share_one_helper(site: Site, tmp_path: Path) -> None:
    connection = site.connect()
    store = archive(tmp_path, 5)
    transfer = connection.call([store], timeout_s=60, lane=Lane.TRANSFER)
    control = connection.call([Tail(path=f"{MOUNT}/nothing")], timeout_s=60)
    (told,), (stored,) = wait(connection, control), wait(connection, transfer)
    assert told.content is None
    assert stored == Stored()
    assert len(site.jobs()) == len(site.pods()) == 1


def test_a_dispatcher_that_is_started_again_finds_its_helper(site: Site) -> None:
    ask(site.connect(), Hello())
    (pod,) = site.pods()
    ask(site.connect(), Hello())
    assert site.pods() == [pod]


def test_two_owners_have_a_helper_each(site: Site) -> None:
    first, second = site.connect("pod-a"), site.connect("pod-b")
    calls = [connection.call([Hello()], timeout_s=60) for connection in (first, second)]
    for connection, call in zip((first, second), calls, strict=True):
        assert not isinstance(wait(connection, call), NoAnswer)
    assert len(site.pods()) == 2
    first.close()
    (rest,) = site.jobs()
    assert ask(second, Run(words=["uname", "-n"])).out.startswith(rest)


def test_a_changed_configuration_has_another_helper(site: Site) -> None:
    ask(site.connect(), Hello())
    (before,) = site.jobs()
    changed = site.connect(helper_image="python:3.13", helper_resources={"memory": "300Mi"}, labels={"team": "a"})
    ask(changed, Hello())
    (now,) = set(site.jobs()) - {before}
    job = site.k8s.get("job", now)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "python:3.13"
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"] == "300Mi"
    assert job["metadata"]["labels"]["team"] == "a"


def test_a_call_that_fails_on_the_volume_is_an_answer(site: Site, tmp_path: Path) -> None:
    connection = site.connect()
    store = archive(tmp_path, 1)
    with open(store.source, "r+b") as file:
        file.write(b"other")
    answer = ask(connection, store, lane=Lane.TRANSFER)
    assert isinstance(answer, Failed)
    assert "another checksum" in answer.error
    os.truncate(store.source, 1000)
    answer = ask(connection, store, lane=Lane.TRANSFER)
    assert isinstance(answer, Failed)
    assert list((site.volume / "code").iterdir()) == []
