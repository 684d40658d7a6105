"""First process of a bed's namespaces (processes, mounts, network): starts, ends and reaches what runs in them.

    unshare --pid --mount --net ... python keeper.py FD DIRECTORY

It obeys one JSON message after another on the socket FD. When the other end of that socket closes, however that came
about, it ends, and the kernel then kills every process of the bed and drops its mounts and its network with it: there
is nothing to clean up after a test run that was killed. Its private DIRECTORY, a tmpfs, is removed too.
Standard library only.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time


def run(argv):
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return {"returncode": done.returncode, "output": done.stdout + done.stderr}


def start(argv, log, env):
    """Start a program as the leader of its own session, which `kill` ends as a whole."""
    with open(log, "ab") as out:
        # Kept out of Popen's own bookkeeping: orphans are collected below, by process group.
        pid = os.posix_spawnp(
            argv[0],
            argv,
            env,
            setsid=True,
            setsigdef=[signal.SIGPIPE],
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, out.fileno(), 1),
                (os.POSIX_SPAWN_DUP2, out.fileno(), 2),
            ],
        )
    return {"pid": pid}


def kill(pid):
    """End a whole session without warning, and return only when none of its processes is left."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-pid, 0)
    return {}


def alive(pid):
    with contextlib.suppress(ChildProcessError):
        return {"alive": os.waitpid(pid, os.WNOHANG) == (0, 0)}
    return {"alive": False}


def connect(address, port):
    """A connection made inside the bed's network, for somebody outside of it."""
    try:
        return {}, socket.create_connection((address, port), timeout=2)
    except OSError as error:
        return {"error": str(error)}, None


OPERATIONS = {"run": run, "start": start, "kill": kill, "alive": alive}


def obey(control: socket.socket) -> None:
    while message := control.recv(1 << 20):
        request = json.loads(message)
        operation = request.pop("op")
        if operation == "connect":
            answer, connection = connect(**request)
            with connection or contextlib.nullcontext():
                fds = [connection.fileno()] if connection else []
                socket.send_fds(control, [json.dumps(answer).encode()], fds)
        else:
            control.send(json.dumps(OPERATIONS[operation](**request)).encode())


def end_all(limit_s: float = 5) -> None:
    """Kill every other process of the bed; one that hangs in a filesystem is left to the kernel."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(-1, signal.SIGKILL)
    end = time.monotonic() + limit_s
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < end:
            if os.waitpid(-1, os.WNOHANG) == (0, 0):
                time.sleep(0.005)


def main() -> None:
    control, directory = socket.socket(fileno=int(sys.argv[1])), sys.argv[2]
    # The limit is no reservation: it holds the guests' memory and the exported filesystem.
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8g,mode=755", "bed", directory], check=True)
    control.send(b"{}")
    with contextlib.suppress(ConnectionError):
        obey(control)
    # Removing the directory takes the tmpfs from all namespaces: who still ran would write to this machine's disk.
    end_all()
    subprocess.run(["umount", "--lazy", directory], check=False)
    with contextlib.suppress(OSError):
        os.rmdir(directory)


if __name__ == "__main__":
    main()
