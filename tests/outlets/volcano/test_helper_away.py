"""Helpers that cannot be, that go away, and dispatchers that do: nothing is lost, and nothing is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from fleet import wait_until
from outlets.remote.calls import ask, unreached, wait
from outlets.volcano.helpers import MOUNT, Site, archive

from dispatcher.outlets.remote.connection import Lane, NoAnswer
from dispatcher.outlets.remote.operations import Hello, Run, Stored

pytestmark = pytest.mark.slow

# Runs until the test lets it go on.
GATE = Run(words=["sh", "-c", f"touch {MOUNT}/begun; until [ -e {MOUNT}/go ]; do sleep 0.05; done; echo gone"])


def begun(site: Site) -> None:
    wait_until((site.volume / "begun").exists, "the call is under way in the helper")


def test_a_pod_that_was_deleted_is_made_anew_in_the_same_call(site: Site) -> None:
    connection = site.connect()
    ask(connection, Hello())
    site.k8s.kubectl("delete", "pod", *site.pods(), "--wait=true")
    assert ask(connection, Run(words=["echo", "yes"])).out == "yes\n"


def test_one_that_was_idle_for_too_long_is_made_anew(site: Site) -> None:
    connection = site.connect(idle_s=3)
    ask(connection, Hello())
    (pod,) = site.pods()
    wait_until(lambda: site.k8s.pod(pod)["status"]["phase"] == "Succeeded", "the helper has ended")
    assert ask(connection, Run(words=["echo", "yes"])).out == "yes\n"
    connection.close()
    assert site.jobs() == []


def test_a_call_whose_helper_is_deleted_is_repeated(site: Site) -> None:
    connection = site.connect()
    call = connection.call([GATE], timeout_s=60)
    wait_until(lambda: call.outcome() is not None or (site.volume / "begun").exists(), "the call is under way")
    site.k8s.kubectl("delete", "job", *site.jobs())
    (site.volume / "go").touch()
    outcome = wait(connection, call)
    assert not isinstance(outcome, NoAnswer), outcome.why
    assert outcome[0].out == "gone\n"


def test_an_interrupted_transfer_leaves_no_helper_and_no_file(site: Site, tmp_path: Path) -> None:
    connection = site.connect()
    store = archive(tmp_path, 1)
    os.mkfifo(tmp_path / "never")
    endless = msgspec.structs.replace(store, source=os.fspath(tmp_path / "never"))
    call = connection.call([GATE, endless], timeout_s=60, lane=Lane.TRANSFER)
    wait_until(lambda: call.outcome() is not None or (site.volume / "begun").exists(), "the call is under way")
    for pid in kubectls_of(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    # What it was sent stops there.
    with contextlib.suppress(BrokenPipeError), open(endless.source, "wb") as pipe:
        pipe.write(bytes(store.size))
    outcome = wait(connection, call)
    assert isinstance(outcome, NoAnswer)
    assert "gave no answer" in outcome.why
    assert site.jobs() == []
    (site.volume / "go").touch()
    assert ask(connection, store, lane=Lane.TRANSFER) == Stored()


def test_a_transfer_that_takes_too_long_leaves_no_helper(site: Site, tmp_path: Path) -> None:
    connection = site.connect()
    ask(connection, Hello())
    os.mkfifo(tmp_path / "never")
    endless = msgspec.structs.replace(archive(tmp_path, 1), source=os.fspath(tmp_path / "never"))
    assert "no answer within" in unreached(connection, [endless], timeout_s=1)
    assert site.jobs() == []


def test_a_failed_call_does_not_take_the_helper_from_another_one(site: Site, tmp_path: Path) -> None:
    connection = site.connect()
    ask(connection, Hello())
    call = connection.call([GATE], timeout_s=60, lane=Lane.TRANSFER)
    begun(site)
    assert "no answer within" in unreached(connection, [Run(words=["sleep", "60"])], timeout_s=1)
    (site.volume / "go").touch()
    outcome = wait(connection, call)
    assert not isinstance(outcome, NoAnswer), outcome.why
    assert outcome[0].out == "gone\n"


KILLED = """
import sys
sys.path[:0] = {path!r}
import time
from collections.abc import Callable
from pathlib import Path
from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.remote.connection import Connection
from dispatcher.outlets.remote.operations import Run
from dispatcher.outlets.volcano.helper import HelperTransport
from dispatcher.workspace import Layout
workspace, namespace, kubeconfig = sys.argv[1:]
host = VolcanoHost(
    name="cloud", cluster="cloud", image="python:3.12", pvc_name="data", pvc_mount_path={mount!r},
    namespace=namespace, kubeconfig=kubeconfig,
)
call = Connection("cloud", HelperTransport(host, Layout(Path(workspace)), "killed", idle_s=3)).call(
    [Run(words=["sh", "-c", {gate!r}])], timeout_s=60
)
while call.outcome() is None:
    time.sleep(0.05)
"""


def test_the_helper_of_a_killed_dispatcher_ends_by_itself(site: Site) -> None:
    program = KILLED.format(path=sys.path, gate=GATE.words[-1], mount=MOUNT)
    words = [sys.executable, "-c", program, os.fspath(site.layout.root), site.k8s.namespace, site.k8s.kubeconfig]
    with subprocess.Popen(words, start_new_session=True) as dispatcher:
        try:
            begun(site)
            (pod,) = site.pods()
            kubectls = kubectls_of(dispatcher.pid)
        finally:
            dispatcher.kill()
    # A dispatcher that dies does not end its programs: here its machine went down.
    for pid in kubectls:
        os.kill(pid, signal.SIGKILL)
    assert site.k8s.pod(pod)["status"]["phase"] == "Running"
    (site.volume / "go").touch()
    wait_until(lambda: site.k8s.pod(pod)["status"]["phase"] == "Succeeded", "the helper has ended")


def kubectls_of(ancestor: int) -> list[int]:
    """The processes of kubectl below this one."""
    table = subprocess.run(["ps", "-eo", "pid=,ppid=,comm="], capture_output=True, text=True, check=True).stdout
    rows = [(int(pid), int(parent), name) for pid, parent, name in (line.split(None, 2) for line in table.splitlines())]
    below = {ancestor}
    while more := {pid for pid, parent, _ in rows if parent in below} - below:
        below |= more
    return [pid for pid, _, name in rows if pid in below and name.strip() == "kubectl"]


def test_a_node_that_is_lost_with_the_helper(site: Site) -> None:
    connection = site.connect()
    first = ask(connection, Run(words=["uname", "-n"])).out.strip()
    node = site.k8s.pod(first)["spec"]["nodeName"]
    site.k8s.node_away(node)
    # The call that hangs there is ended, and repeated where another helper is.
    other = ask(connection, Run(words=["uname", "-n"]), timeout_s=300).out.strip()
    assert other != first
    assert site.k8s.pod(other)["spec"]["nodeName"] != node
