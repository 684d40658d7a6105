"""Calls of the agent over real ssh: what gets there, what comes back, and what is known when nothing does."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from beds.sshd import SshBed
from fleet import wait_until
from outlets.remote.calls import ask, unreached, wait

from dispatcher.errors import OutletError
from dispatcher.outlets.remote import ssh as ssh_client
from dispatcher.outlets.remote.connection import Connection, Lane, NoAnswer, Pace
from dispatcher.outlets.remote.follow import over_ssh, rest_command
from dispatcher.outlets.remote.operations import Deliver, Has, Hello, Ran, Run, Store, Stored, Tail, Write
from dispatcher.outlets.remote.transport import LocalTransport, SshTransport

pytestmark = pytest.mark.slow

# For tests of what follows a failure.
QUICK = Pace(first_pause_s=0.1, longest_pause_s=0.2)
ODD = "it's; $(touch pwned)\n\"'\\ ä !history %d {a,b} *"


@pytest.fixture
def connect(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Connection]]:
    """Makes connections to hosts of a bed, which leave nothing behind."""
    made: list[Connection] = []

    def make(bed: SshBed, name: str, pace: Pace = QUICK, **rest: Any) -> Connection:
        monkeypatch.setenv(ssh_client.CONFIG_VARIABLE, os.fspath(bed.config))
        made.append(Connection(name, SshTransport(name, name, **rest), pace))
        return made[-1]

    yield make
    for connection in made:
        assert isinstance(connection.transport, SshTransport)
        socket = connection.transport.shared.socket
        connection.close()
        assert not socket.parent.exists()


def next_call(connection: Connection) -> None:
    """Until the pause after a failure is over."""
    wait_until(lambda: connection.free_in_s() == 0.0, "the next call is allowed")


def test_two_hosts(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1, h2 = connect(ssh, "h1"), connect(ssh, "h2")
    first, second = ask(h1, Hello()), ask(h2, Hello(directories={"base": "~/.dispatcher"}))
    assert (first.host, second.host) == ("h1", "h2")
    assert first.boot_id != second.boot_id
    assert second.directories == {"base": ssh.ssh("h2", "echo ~/.dispatcher").stdout.strip()}


def test_names_and_values_arrive_as_they_are(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    directory = f"/root/{ODD.replace('/', '')}"
    echo = Run(words=["printf", "%s", ODD], environment={"ODD": ODD}, stdin=ODD)
    delivered = Deliver(directory=directory, files={"a'b\n": ODD.encode()})
    told, _, tail = ask(h1, echo, delivered, Tail(path=f"{directory}/a'b\n"))
    assert told.out == ODD
    assert tail.content == ODD.encode()


def test_255_of_a_program_is_not_that_of_ssh(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    assert ask(h1, Run(words=["sh", "-c", "exit 255"])) == Ran(exit_code=255)


def test_what_a_login_prints_is_skipped(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    ssh["h1"].greet("Welcome to \x1b[31m h1!\n0123456789abcdef 12\nUnauthorised access ...")
    assert ask(connect(ssh, "h1"), Hello()).host == "h1"


@pytest.mark.parametrize(
    ("start_file", "cause"),
    [
        ("read -t 5 x", "reads from standard input"),
        ("cat >/dev/null", "reads from standard input"),
        ("exec sh", "replaces the shell by another one"),
        ("exec bash --norc -s", "replaces the shell by another one"),
        ("exit 0", "the login ended with status 0 and no answer: a start file"),
        ("exec python3", "replaces the shell by another one"),
        ("exec perl", "replaces the shell by another one, or by a program"),
        ("exec tee /dev/null", "replaces the shell by another one, or by a program"),
        ("set -e; echo It is closed >&2; false", "and no answer: a start file of the login (~/.bashrc"),
    ],
)
def test_a_start_file_that_takes_the_login_over_is_named(
    ssh: SshBed, connect: Callable[..., Connection], start_file: str, cause: str
) -> None:
    """What gets the request in place of the agent carries nothing of it out."""
    ssh["h1"].path(".bashrc").write_text(f"{start_file}\n")
    h1 = connect(ssh, "h1")
    write = Write(path="/root/x", content=b"$(touch /root/was-here)\ntouch /root/was-here\n" * 1000)
    why = unreached(h1, [write])
    assert why.startswith("h1: ") and cause in why and ".bashrc" in why
    assert ("It is closed" in why) == ("closed" in start_file)
    ssh["h1"].path(".bashrc").unlink()
    next_call(h1)
    assert ask(h1, Run(words=["ls", "/root"])).out == ""


def test_a_start_file_that_never_comes_to_the_command_is_named(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    """As with `exec script`, which waits for a terminal. An agent that has begun and hangs is another matter."""
    h1 = connect(ssh, "h1")
    assert unreached(h1, [Run(words=["sleep", "600"])], timeout_s=3.0) == "h1: no answer within 3 s"
    ssh["h1"].path(".bashrc").write_text("exec tail -f /dev/null\n")
    next_call(h1)
    why = unreached(h1, [Hello()], timeout_s=3.0)
    assert why.startswith("h1: no answer within 3 s") and "The agent has not begun" in why and ".bashrc" in why
    ssh["h1"].path(".bashrc").unlink()


def test_calls_share_a_connection(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    pids = {ask(h1, Run(words=["sh", "-c", 'echo "$SSH_CONNECTION"'])).out for _ in range(3)}
    assert len(pids) == 1
    assert h1.calls == 3
    assert 0 < h1.transport.sent_bytes < 3 * 20_000


def test_megabytes_both_ways(ssh: SshBed, connect: Callable[..., Connection], tmp_path: Path) -> None:
    h1 = connect(ssh, "h1")
    content = os.urandom(8 << 20)
    (tmp_path / "archive").write_bytes(content)
    store = Store(
        path="/root/share/code.tar", source=os.fspath(tmp_path / "archive"), size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )  # fmt: skip
    upload = h1.call([store], timeout_s=60, lane=Lane.TRANSFER)
    # A poll goes on beside it.
    assert ask(h1, Hello()).host == "h1"
    assert wait(h1, upload) == [Stored()]
    tail, has = ask(h1, Tail(path=store.path, most_bytes=len(content)), Has(paths=[store.path]))
    assert tail.content == content
    assert has.sizes == [len(content)]
    assert h1.transport.sent_bytes > len(content)


def test_the_directory_of_its_socket_is_removed(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    assert isinstance(h1.transport, SshTransport)
    h1.transport.shared.remove()
    assert ask(h1, Hello()).host == "h1"


def test_directories_of_dispatchers_that_were_killed_are_removed(
    ssh: SshBed, connect: Callable[..., Connection], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        monkeypatch.setattr(tempfile, "tempdir", parent)
        gone = subprocess.Popen(["true"])
        gone.wait()
        ours, dead = f"dispatcher-ssh-{os.getpid()}-x", f"dispatcher-ssh-{gone.pid}-x"
        # Anybody may create the last two in /tmp.
        others = ["dispatcher-ssh-1a-x", "dispatcher-ssh-\u00b2-x"]
        for name in (ours, dead, *others):
            os.mkdir(f"{parent}/{name}")
        connect(ssh, "h1").close()
        assert set(os.listdir(parent)) == {ours, *others}


def test_one_call_at_a_time(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    call = h1.call([Run(words=["sleep", "0.3"])], timeout_s=30)
    assert h1.free_in_s() is None
    assert h1.free_in_s(Lane.TRANSFER) == 0.0
    with pytest.raises(ValueError, match="no call is allowed now"):
        h1.call([Hello()], timeout_s=30)
    assert wait(h1, call) == [Ran(exit_code=0)]
    assert h1.free_in_s() == 0.0
    assert h1.wait_fds() == []
    assert h1.due_in_s() is None


def test_calls_per_minute_are_limited(tmp_path: Path) -> None:
    here = Connection("here", LocalTransport("here"), Pace(calls_per_minute=2))
    begun_s = time.monotonic()
    for _ in range(2):
        ask(here, Hello())
    free_in_s = here.free_in_s()
    assert free_in_s is not None
    assert 60 - (time.monotonic() - begun_s) <= free_in_s <= 60
    here.close()


def test_a_host_that_goes_away_and_comes_back(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    ask(h1, Hello())
    with ssh["h1"].away():
        why = unreached(h1, [Hello()])
        assert why.startswith("ssh h1: ")
        assert h1.unreached == why
        pause_s = h1.free_in_s()
        assert pause_s is not None
        assert 0 < pause_s <= QUICK.first_pause_s
        next_call(h1)
        assert "refused" in unreached(h1, [Hello()]) or "closed" in h1.unreached
    next_call(h1)
    assert ask(h1, Hello()).host == "h1"
    assert h1.unreached == ""


def test_the_pause_grows(connect: Callable[..., Connection], ssh: SshBed) -> None:
    h1 = connect(ssh, "h1", Pace(first_pause_s=0.02, longest_pause_s=0.5))
    pauses = []
    with ssh["h1"].away():
        for _ in range(7):
            unreached(h1, [Hello()])
            pauses.append(h1.free_in_s() or 0.0)
            next_call(h1)
    assert pauses[0] <= 0.02
    assert 0.2 < max(pauses) <= 0.5


def test_a_host_that_is_silent_is_given_up(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    """The shared connection hangs with it, so the next call makes a new one."""
    h1 = connect(ssh, "h1")
    ask(h1, Hello())
    with ssh["h1"].silent():
        assert unreached(h1, [Hello()], timeout_s=1.0).startswith("h1: no answer within 1 s")
    next_call(h1)
    assert ask(h1, Hello()).host == "h1"


def test_a_call_that_is_given_up_leaves_the_other_lane_alone(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    ask(h1, Hello())
    long = h1.call([Run(words=["sleep", "2"])], timeout_s=30, lane=Lane.TRANSFER)
    assert "no answer within 1 s" in unreached(h1, [Run(words=["sleep", "600"])], timeout_s=1.0)
    assert wait(h1, long) == [Ran(exit_code=0)]


def test_nothing_here_waits_for_a_host_that_hangs(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    with ssh["h1"].hanging():
        call = h1.call([Hello()], timeout_s=4.0)
        for _ in range(20):
            # One of these calls that waited for the host would know by now that it does not answer.
            assert call.outcome() is None
            h1.free_in_s(), h1.wait_fds(), h1.due_in_s()
        assert isinstance(wait(h1, call), NoAnswer)


def test_a_slow_host(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    with ssh["h1"].slow(0.15):
        assert ask(connect(ssh, "h1"), Hello()).host == "h1"


def test_a_host_key_that_has_changed(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    ssh["h1"].replace_key()
    why = unreached(h1, [Run(words=["touch", "/root/was-here"])])
    assert why.startswith("the host key of h1 has changed; nothing was sent there")
    assert f"known from {ssh.known_hosts}:1" in why
    assert "(now SHA256:" in why
    assert len(why.splitlines()) == 1
    ssh["h1"].trust_key()
    next_call(h1)
    assert ask(h1, Run(words=["ls", "/root"])).out == ""


def test_a_host_key_that_is_not_known(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    # Whoever has switched the check off for logins by hand.
    ssh.config.write_text(ssh.config.read_text().replace("StrictHostKeyChecking yes", "StrictHostKeyChecking no"))
    ssh.known_hosts.write_text("")
    why = unreached(h1, [Hello()])
    assert why.startswith("the host key of h1 is not known: connect once by hand, `ssh h1`.")


def test_one_session_for_each_connection(start_ssh: Callable[..., SshBed], connect: Callable[..., Connection]) -> None:
    """MaxSessions 1: what the shared connection refuses gets one of its own."""
    bed = start_ssh(["h1"], max_sessions=1)
    h1 = connect(bed, "h1")
    ask(h1, Hello())
    long = h1.call([Run(words=["sleep", "1"])], timeout_s=30, lane=Lane.TRANSFER)
    assert ask(h1, Hello()).host == "h1"
    assert wait(h1, long) == [Ran(exit_code=0)]


def test_a_host_without_python(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1", python="python3.99")
    why = unreached(h1, [Hello()])
    assert "h1 has no python3 on PATH" in why
    assert "python3.99" in why


def test_an_old_python(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    ssh["h1"].install("python3", "#!/bin/sh\necho \"  File 'agent'\nSyntaxError: invalid syntax\" >&2\nexit 1\n")
    assert unreached(connect(ssh, "h1"), [Hello()]).startswith("python3 of h1 is older than 3.6: ")


def test_a_full_disk_there(
    start_ssh: Callable[..., SshBed], connect: Callable[..., Connection], tmp_path: Path
) -> None:
    bed = start_ssh(["h1"], disk_mib=4)
    h1 = connect(bed, "h1")
    (tmp_path / "archive").write_bytes(bytes(1 << 20))
    store = Store(path="/root/code.tar", source=os.fspath(tmp_path / "archive"), size=1 << 20, sha256="0" * 64)
    with bed["h1"].full_disk():
        delivered, uploaded, told = ask(
            h1, Deliver(directory="/root/1", files={"job.sh": b"x" * 100}), store, Run(words=["echo", "on"]),
            lane=Lane.TRANSFER,
        )  # fmt: skip
    assert "No space left on device" in delivered.error
    assert "No space left on device" in uploaded.error
    assert told.out == "on\n", "what comes behind the upload is read right"
    assert ask(h1, Run(words=["ls", "/root"])).out == "1\n"


def test_an_upload_over_a_connection_that_breaks(
    ssh: SshBed, connect: Callable[..., Connection], tmp_path: Path
) -> None:
    h1 = connect(ssh, "h1")
    (tmp_path / "archive").write_bytes(bytes(64 << 20))
    store = Store(path="/root/share/a.tar", source=os.fspath(tmp_path / "archive"), size=64 << 20, sha256="0" * 64)
    with ssh["h1"].slow(0.05):
        call = h1.call([store], timeout_s=60, lane=Lane.TRANSFER)
        wait_until(lambda: list(ssh["h1"].path("share").glob("*.part")), "it is under way")
    with ssh["h1"].away():
        assert isinstance(wait(h1, call), NoAnswer)
    wait_until(lambda: not list(ssh["h1"].path("share").iterdir()), "nothing of it is left")


def test_a_connection_that_was_opened_by_hand(
    ssh: SshBed, connect: Callable[..., Connection], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where a login needs a one-time password; it is left open."""
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        by_hand = ["ssh", "-F", os.fspath(ssh.config), "-S", f"{sockets}/%h-%p"]
        subprocess.run([*by_hand, "-M", "-f", "-N", "h1"], check=True, stderr=subprocess.DEVNULL)
        try:
            ssh.config.write_text(re.sub("IdentityFile .*", "IdentityFile /nonexistent", ssh.config.read_text()))
            h1 = connect(ssh, "h1")
            assert "Permission denied" in unreached(h1, [Hello()])
            monkeypatch.setenv(ssh_client.SOCKET_VARIABLE, f"{sockets}/%h-%p")
            next_call(h1)
            assert ask(h1, Hello()).host == "h1"
            h1.close()
            # What `logs -f` runs, too.
            ssh["h1"].path("output.log").write_text("last line\n")
            followed = subprocess.run(
                over_ssh("h1", rest_command("/root", 5, "output.log")), capture_output=True, check=True
            )
            assert followed.stdout == b"line\n"
            subprocess.run([*by_hand, "-O", "check", "h1"], check=True, stderr=subprocess.DEVNULL)
        finally:
            subprocess.run([*by_hand, "-O", "exit", "h1"], check=True, stderr=subprocess.DEVNULL)


@pytest.mark.parametrize("target", ["", "-oProxyCommand=touch pwned", "a b", "a\nb"])
def test_what_is_no_host(target: str) -> None:
    with pytest.raises(OutletError, match="is not the name of a host"):
        SshTransport("x", target)


def test_a_dispatcher_that_ends_lets_a_call_come_to_its_end(ssh: SshBed, connect: Callable[..., Connection]) -> None:
    h1 = connect(ssh, "h1")
    call = h1.call([Run(words=["sh", "-c", "sleep 0.3; touch /root/done"])], timeout_s=30)
    h1.close()
    assert call.outcome() == [Ran(exit_code=0)]
    assert ssh["h1"].path("done").exists()


def test_here_the_agent_needs_no_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    here = Connection("here", LocalTransport("here"))
    assert ask(here, Hello()).python == ".".join(str(part) for part in sys.version_info[:3])
    here.close()
