"""gcloud without its start: a process of gcloud's own interpreter that has its modules loaded, and forks for each call.

gcloud's shell script runs it, as `python -m gcloud_server .../lib/gcloud.py NAME`. It listens at the abstract socket
NAME until its stdin ends (see warm_gcloud.py). What a call has loaded, it loads for the next ones.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import ctypes
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time

CLONE_NEWNET = 0x4000_0000
# They find the user's home when they are imported. That of the server is empty.
OF_THE_HOME = ("googlecloudsdk.command_lib.util.ssh.ssh",)
# The length of what follows, in decimal digits.
HEAD_BYTES = 20


class Call:
    """One run of gcloud that a client asks for, in a process of its own."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        head, control, _, _ = connection.recvmsg(HEAD_BYTES, socket.CMSG_SPACE(3 * array.array("i").itemsize))
        self.streams = array.array("i", control[0][2])
        rest = b""
        while len(rest) < int(head):
            rest += connection.recv(1 << 20)
        self.network, self.directory, factor, count, *words = rest.split(b"\0")
        self.sleep_factor = float(factor)
        self.words = [os.fsdecode(word) for word in words[: int(count)]]
        self.environment = dict(word.split(b"=", 1) for word in words[int(count) :])
        self.pid = 0
        # Its process writes here which modules it has loaded; that this ends tells the end of the process.
        self.report, self.reported = os.pipe()

    def become(self) -> None:
        """Make this process the one that the client has asked for."""
        os.setsid()
        for fd, stream in enumerate(self.streams):
            os.dup2(stream, fd)
        before = set(sys.modules)
        atexit.register(
            lambda: os.write(self.reported, "\n".join(name for name in sys.modules if name not in before).encode())
        )
        with open(self.network, "rb") as network:
            if ctypes.CDLL(None, use_errno=True).setns(network.fileno(), CLONE_NEWNET) != 0:
                raise OSError(ctypes.get_errno(), f"setns {self.network!r}")
        os.chdir(self.directory)
        # What the shell script has set is not in the client's environment.
        own = {name: value for name, value in os.environb.items() if name.startswith(b"CLOUDSDK_")}
        os.environb.clear()
        os.environb.update({**own, **self.environment})
        for name in OF_THE_HOME:
            if name in sys.modules:
                importlib.reload(sys.modules[name])
        sleep = time.sleep
        time.sleep = lambda seconds: sleep(seconds * self.sleep_factor)
        self.close()

    def end(self) -> list[str]:
        """Tell the client how the process has ended; the names of the modules that it had loaded."""
        with open(self.report, "rb", closefd=False) as report:
            names = report.read().decode().split()
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        with contextlib.suppress(OSError):
            self.connection.sendall(b"%d" % status)
        self.close()
        return names

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        for fd in (*self.streams, self.report):
            os.close(fd)
        self.connection.close()


def serve(listener: socket.socket) -> Call | None:
    """Fork for each call: the call in its process, None in the server when stdin has ended."""
    # By the descriptors that tell the end of their processes, and that of their clients.
    calls: dict[int, Call] = {}
    clients: dict[int, Call] = {}
    while True:
        ready, _, _ = select.select([0, listener.fileno(), *calls, *clients], [], [])
        for fd in ready:
            if fd == 0:
                for call in calls.values():
                    call.kill()
                return None
            if fd == listener.fileno():
                call = Call(listener.accept()[0])
                call.pid = os.fork()
                if call.pid == 0:
                    for other in calls.values():
                        other.close()
                    call.become()
                    return call
                os.close(call.reported)
                calls[call.report] = clients[call.connection.fileno()] = call
            elif fd in calls:
                call = calls.pop(fd)
                clients.pop(call.connection.fileno(), None)
                load(call.end())
            elif fd in clients:
                # The client was killed.
                clients.pop(fd).kill()


def load(names: list[str]) -> None:
    """Import what can be imported, to be shared with all processes that are forked from now on."""
    for name in names:
        if name not in sys.modules:
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def main() -> None:
    program, name = sys.argv[1:]
    # As where gcloud.py is run itself: without this folder, which PYTHONPATH has, and the current one.
    unwanted = ("", os.getcwd(), os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [os.path.dirname(program), *(path for path in sys.path if path not in unwanted)]
    for variable in ("PYTHONPATH", "CLOUDSDK_PYTHON_ARGS"):
        del os.environ[variable]
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen(64)
        for module in ("gcloud", "googlecloudsdk.gcloud_main"):
            importlib.import_module(module)
        print("ready", flush=True)
        call = serve(listener)
    if call is not None:
        sys.argv = [program, *call.words]
        sys.modules["gcloud"].main()


if __name__ == "__main__":
    main()
