"""Ports of jobs on real hosts behind ssh: h1 is a login node, h2 a node behind it."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections.abc import Iterator

import pytest
from beds.sshd import SshBed
from fleet import wait_until

from dispatcher.errors import OutletError
from dispatcher.outlets.remote import forwarding
from dispatcher.outlets.remote import ssh as ssh_client
from dispatcher.outlets.remote.forwarding import forwarded

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def configured(ssh: SshBed, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv(ssh_client.CONFIG_VARIABLE, os.fspath(ssh.config))
    # Names of sockets are short.
    with tempfile.TemporaryDirectory(dir="/tmp") as sockets:
        monkeypatch.setattr(tempfile, "tempdir", sockets)
        yield
        assert os.listdir(sockets) == []


@pytest.fixture
def service() -> Iterator[int]:
    """A server on the hosts' loopback interface, which they have in common; it answers with what it is sent."""

    def serve() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection:
                connection.sendall(b"it was: " + connection.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield int(server.getsockname()[1])
        server.shutdown(socket.SHUT_RDWR)


def talk(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"hello")
        return connection.makefile("rb").read()


def is_closed(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=20).close()
    except ConnectionRefusedError:
        return True
    return False


def test_a_port_of_a_host(service: int) -> None:
    with forwarded("h1", service) as port:
        assert port != service
        assert [talk(port), talk(port)] == [b"it was: hello"] * 2
    wait_until(lambda: is_closed(port), "the port is closed")


def test_a_port_of_a_node_behind_a_login_node(ssh: SshBed, service: int) -> None:
    with forwarded("h1", service, node="h2") as port:
        assert talk(port) == b"it was: hello"
        assert "h2" in ssh["h2"].run("hostname")
        # Both are on the way.
        sessions = [len(ssh[name].processes("sshd")) for name in ("h1", "h2")]
        assert min(sessions) > 1
    wait_until(lambda: is_closed(port), "the port is closed")


@pytest.mark.parametrize("gone", ["h1", "h2"])
def test_one_of_them_cannot_be_reached(ssh: SshBed, service: int, gone: str) -> None:
    with ssh[gone].away(), pytest.raises(OutletError, match=f"ssh {gone}: "), forwarded("h1", service, node="h2"):
        pytest.fail("it has no way to the node")


def test_a_port_that_the_login_node_reaches(ssh: SshBed, service: int) -> None:
    """Where nobody may log in on nodes."""
    with ssh["h2"].away(), forwarded("h1", service, node="127.0.0.1", over_ssh=False) as port:
        assert talk(port) == b"it was: hello"


def test_a_port_here_that_is_in_use(service: int) -> None:
    with (
        pytest.raises(OutletError, match=f"127.0.0.1:{service}:.*(in use|failed)"),
        forwarded("h1", service, local_port=service),
    ):
        pytest.fail("the port is another server's")


def test_a_free_port_that_another_process_takes_first(service: int, monkeypatch: pytest.MonkeyPatch) -> None:
    free = forwarding._free_port
    ports = [service]
    monkeypatch.setattr(forwarding, "_free_port", lambda: ports.pop() if ports else free())
    with forwarded("h1", service) as port:
        assert port != service and talk(port) == b"it was: hello"


def test_a_node_whose_key_is_not_known(ssh: SshBed, service: int) -> None:
    ssh["h2"].replace_key()
    with pytest.raises(OutletError, match="the host key of h2 has changed"), forwarded("h1", service, node="h2"):
        pytest.fail("it may be another host")


def test_what_the_users_configuration_forwards_is_not_asked_for(ssh: SshBed, service: int) -> None:
    ssh.config.write_text(ssh.config.read_text().replace("Host h1\n", f"Host h1\n  LocalForward {service} x:1\n"))
    with forwarded("h1", service) as port:
        assert talk(port) == b"it was: hello"
