"""Hosts that end what a user leaves behind at logout (KillUserProcesses): attempts run in scopes of systemd there.

systemd cannot run on the test hosts. Its programs are stand-ins that refuse what the real ones refuse.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from beds.sshd import SshBed
from fleet import wait_until
from outlets.remote.calls import ask

from dispatcher.outlets.remote.connection import Connection
from dispatcher.outlets.remote.operations import Check, Deliver, Failed, Launch, Launched
from dispatcher.outlets.remote.transport import SshTransport

# Lingering is a file, as logind has it below /var/lib/systemd/linger.
LOGINCTL = """#!/bin/bash
case "$*" in
    'show-session -p KillUserProcesses') echo KillUserProcesses=@KILLS@ ;;
    'show-user nobody -p Linger') [[ -e ~/linger ]] && echo Linger=yes || echo Linger=no ;;
    'enable-linger nobody') @ENABLE@ ;;
    *) echo "Unknown command verb $1." >&2; exit 1 ;;
esac
"""
SYSTEMD_RUN = """#!/bin/bash
[[ $* == '--user --scope --quiet -- '* ]] || { echo "systemd-run: unrecognized option" >&2; exit 1; }
[[ $XDG_RUNTIME_DIR == /run/user/* ]] || { echo "Failed to connect to bus: No medium found" >&2; exit 1; }
shift 4
export SCOPE=yes
exec "$@"
"""
WRAPPER = b'echo "${SCOPE-no}" >"$DISPATCHER_ATTEMPT_DIR/exit.json"\n'
USER = "nobody"
DIRECTORY = f"/home/{USER}/attempts/1"


@pytest.fixture
def host(start_ssh: Callable[..., SshBed], monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[SshBed, Connection]]:
    bed = start_ssh(["h1"], user=USER)
    monkeypatch.setenv("DISPATCHER_SSH_CONFIG", os.fspath(bed.config))
    connection = Connection("h1", SshTransport("h1", "h1"))
    yield bed, connection
    connection.close()


def launch(bed: SshBed, connection: Connection, kills: str, enable: str) -> Launched | Failed:
    bed["h1"].install("loginctl", LOGINCTL.replace("@KILLS@", kills).replace("@ENABLE@", enable))
    bed["h1"].install("systemd-run", SYSTEMD_RUN)
    deliver = Deliver(directory=DIRECTORY, files={"job.sh": WRAPPER})
    _, answer = ask(connection, deliver, Launch(directory=DIRECTORY, root="/"))
    assert isinstance(answer, Launched | Failed)
    return answer


def scope(bed: SshBed, connection: Connection) -> str:
    wait_until(lambda: ask(connection, Check(directories=[DIRECTORY])).attempts[0].has_exit, "it has ended")
    return bed["h1"].path("attempts/1/exit.json").read_text().strip()


def test_a_host_that_leaves_processes_alone(host: tuple[SshBed, Connection]) -> None:
    answer = launch(*host, kills="no", enable="exit 1")
    assert isinstance(answer, Launched)
    assert scope(*host) == "no"
    assert not host[0]["h1"].path("linger").exists()


def test_a_host_that_ends_them_at_logout(host: tuple[SshBed, Connection]) -> None:
    answer = launch(*host, kills="yes", enable="touch ~/linger")
    assert isinstance(answer, Launched)
    assert scope(*host) == "yes"


def test_one_where_the_user_may_not_linger(host: tuple[SshBed, Connection]) -> None:
    answer = launch(*host, kills="yes", enable="echo 'Could not enable linger: Access denied' >&2; exit 1")
    assert isinstance(answer, Failed)
    assert answer.error.startswith("h1 ends all processes of a user at logout (KillUserProcesses=yes in logind.conf)")
    assert "loginctl enable-linger nobody" in answer.error
    (found,) = ask(host[1], Check(directories=[DIRECTORY])).attempts
    assert not found.was_launched
