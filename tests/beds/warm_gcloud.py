"""A gcloud that has started already: `gcloud_server.py` forks for each call, instead of the second that a start takes.

A call has its caller's arguments, environment, directory and descriptors, and ends as the forked process does. One that
is killed takes its children with it, as where its whole process group is killed; what becomes of the ssh of a gcloud
that alone is killed is seen with the real program only.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from .bed import BedError

HERE = os.path.dirname(os.path.abspath(__file__))
# With few modules, because it starts for each call: the server's socket, the network namespace, the arguments.
CLIENT = """\
import array, os, signal, sys
from _socket import AF_UNIX, SCM_RIGHTS, SOCK_STREAM, SOL_SOCKET, socket
server, network, factor, *words = map(os.fsencode, sys.argv[1:])
environment = [name + b"=" + value for name, value in os.environb.items()]
message = b"\\0".join([network, os.getcwdb(), factor, b"%d" % len(words), *words, *environment])
connection = socket(AF_UNIX, SOCK_STREAM)
connection.connect(b"\\0" + server)
connection.sendmsg([b"%20d" % len(message)], [(SOL_SOCKET, SCM_RIGHTS, array.array("i", [0, 1, 2]))])
connection.sendall(message)
status = int(connection.recv(20) or b"70")
if status < 0:
    signal.signal(-status, signal.SIG_DFL)
    os.kill(os.getpid(), -status)
os._exit(status)
"""


class WarmGcloud:
    """A context manager; the server ends with this process, however that comes about."""

    def __init__(self, program: str) -> None:
        """`program` is the path of the real gcloud."""
        self._name = f"dispatcher-gcloud-{os.getpid()}-{os.urandom(8).hex()}"
        # What its modules look for there when they are imported must not be the user's.
        self._home = tempfile.TemporaryDirectory(prefix="gcloud-")
        own = {"CLOUDSDK_PYTHON_ARGS": "-S -m gcloud_server", "PYTHONPATH": HERE, "HOME": self._home.name}
        self._server = subprocess.Popen(
            [program, self._name],
            env={**os.environ, **own},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        assert self._server.stdout is not None
        if self._server.stdout.readline() != b"ready\n":
            raise BedError(f"{program} does not start as a server: exit status {self._server.wait(30)}")

    def __enter__(self) -> WarmGcloud:
        return self

    def __exit__(self, *error: object) -> None:
        self._server.communicate(timeout=30)
        self._home.cleanup()

    def words(self, network: str, sleep_factor: float) -> list[str]:
        """The command that is gcloud in the network namespace with this path; gcloud's arguments follow.

        Its waits between attempts take `sleep_factor` of what they usually take.
        """
        return [sys.executable, "-IS", "-c", CLIENT, self._name, network, str(sleep_factor)]
