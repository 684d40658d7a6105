"""A cluster with PBS that is reached by ssh and does not see the workspace."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from beds.pbs import PbsBed
from beds.sshd import SshBed
from fleet import printed
from outlets.places import LONG, PbsPlace

from dispatcher.outlets.base import Ended, Key, Request


@pytest.fixture
def place(
    pbs: PbsBed, start_ssh: Callable[..., SshBed], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[PbsPlace]:
    # A command that comes by ssh does not read /etc/profile.d, where PBS puts its programs on PATH.
    ssh = start_ssh(["login"], shared=[pbs.directory], env={"PBS_CONF_FILE": os.fspath(pbs.conf)})
    monkeypatch.setenv("DISPATCHER_SSH_CONFIG", os.fspath(ssh.config))
    made = PbsPlace(tmp_path / "a'; echo foo", pbs, ssh="login")
    made.working = ssh["login"].path(made.outlet.site(made.outlet.capacity.take(Request(0)), Request(0)).layout.root)
    made.working.mkdir(parents=True, exist_ok=True)
    try:
        yield made
    finally:
        made.close()
        ssh["login"].power_cut()


def test_what_comes_home(place: PbsPlace) -> None:
    key = place.submit("a", "echo said; exit 3")
    assert place.end(key).exit_code == 3
    assert printed(place.paths(key).log) == "said\n"
    assert place.paths(key).taken.exists()


def test_several_nodes(place: PbsPlace) -> None:
    bundle = place.claim(
        "a", 'echo "$DISPATCHER_PROCESS_ID"; ((DISPATCHER_PROCESS_ID == 0)) || exit 7', Request(8, nodes=2)
    )
    place.outlet.submit([bundle])
    assert place.end(bundle.key).exit_code == 7
    assert "dispatcher: error: node2: exit status 7" in place.paths(bundle.key).log.read_text()


def test_cancelled_there(place: PbsPlace) -> None:
    key = place.submit("a", f"trap 'echo saved; exit 75' TERM; {LONG} & wait")
    place.wait_begun(key)
    place.outlet.cancel([key])
    assert place.end(key).exit_code == 75
    # PBS and the wrapper both tell it.
    assert set(printed(place.paths(key).log).splitlines()) == {"saved"}


def test_one_call_for_many(place: PbsPlace) -> None:
    """However many attempts are in flight."""
    keys: list[Key] = []
    with place.holding():
        bundles = [place.claim(f"job{number}", "true") for number in range(place.many // 2)]
        place.outlet.submit(bundles)
        keys = [bundle.key for bundle in bundles]
        before = len(place.bed.calls("qstat"))
        place.wait(keys, object)
    place.wait(keys, Ended)
    assert max(len(words) for words in place.bed.calls("qstat")[before:]) >= len(keys)
