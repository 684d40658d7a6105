"""Runs on each host of a bed and does there what a test asks for: one JSON line in, one JSON line out, per connection.

    python agent.py ADDRESS PORT SCRATCH     as the first process of its process namespace or kernel

It never touches the shared directory in a thread that others wait for: on a host that is cut off, such a call hangs.
Standard library only, because it starts before anything else is known to work.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import select
import signal
import socketserver
import subprocess
import sys
import tempfile
import time

PF_KTHREAD = 0x00200000
# The shell changes directory, not Python: while Python starts a child it holds every thread of this agent, and
# entering a directory on a mount whose server is out of reach takes for ever.
ENTER_AND_EXEC = 'cd -- "$0" && exec "$@"'


class Started:
    """A process that leads its own session; its output goes to files, so that nobody waits for its grandchildren."""

    def __init__(self, argv: list[str], cwd: str, env: dict[str, str], stdin: str | None, scratch: str) -> None:
        self.out = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115 - open for as long as it may be asked for
        self.err = tempfile.TemporaryFile(dir=scratch)  # noqa: SIM115
        with tempfile.TemporaryFile(dir=scratch) as typed:
            typed.write((stdin or "").encode())
            typed.seek(0)
            self.process = subprocess.Popen(
                ["/bin/sh", "-c", ENTER_AND_EXEC, cwd, *argv],
                cwd="/",
                env=env,
                stdin=typed,
                stdout=self.out,
                stderr=self.err,
                start_new_session=True,
            )
        self.pid = self.process.pid
        self.pidfd = os.pidfd_open(self.pid)

    def wait(self, timeout_s: float) -> int | None:
        # A pidfd wakes at once; Popen.wait(timeout) looks every 50 ms.
        if self.process.returncode is None:
            select.select([self.pidfd], [], [], timeout_s)
        return self.process.poll()

    def output(self) -> dict[str, str]:
        return {"stdout": _all_of(self.out), "stderr": _all_of(self.err)}

    def close(self) -> None:
        self.out.close()
        self.err.close()
        os.close(self.pidfd)


class Agent:
    def __init__(self, scratch: str) -> None:
        self.scratch = scratch
        self.started: dict[int, Started] = {}
        # Whatever runs before the first request belongs to the host itself.
        self.of_the_host = set(_pids())

    def run(self, argv, cwd, env, stdin, timeout_s):
        one = Started(argv, cwd, env, stdin, self.scratch)
        returncode = one.wait(timeout_s)
        if returncode is None:
            os.killpg(one.pid, signal.SIGKILL)
            # Bounded: a process that waits for a file server which is out of reach does not die.
            one.wait(1)
        answer = {"returncode": returncode, **one.output()}
        one.close()
        return answer

    def start(self, argv, cwd, env, stdin):
        one = Started(argv, cwd, env, stdin, self.scratch)
        self.started[one.pid] = one
        return {"pid": one.pid}

    def wait(self, pid, timeout_s):
        return {"returncode": self.started[pid].wait(timeout_s)}

    def output(self, pid):
        return self.started[pid].output()

    def wait_for_output(self, pid, text, timeout_s):
        """Both streams, as soon as the text is in one of them, or else at its end or when the time is over."""
        one, end = self.started[pid], time.monotonic() + timeout_s
        while True:
            returncode = one.wait(0)
            said = one.output()
            if returncode is not None or text in said["stdout"] + said["stderr"] or time.monotonic() > end:
                return {"returncode": returncode, **said}
            one.wait(0.05)

    def signal(self, pid, number, tree):
        if not tree and self.started[pid].process.poll() is not None:
            return {}
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if tree else os.kill)(pid, number)
        return {}

    def read(self, path):
        with open(path, "rb") as file:
            return {"data": base64.b64encode(file.read()).decode()}

    def write(self, path, data):
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
        return {}

    def names(self, path):
        return {"names": sorted(os.listdir(path))}

    def make_directory(self, path):
        os.makedirs(path)
        return {}

    def attempts(self):
        """Attempts that run here, as JOB/NUMBER, by the environment of their processes."""
        found = set()
        for pid in _pids():
            with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as environ:
                for word in environ.read().split(b"\0"):
                    if word.startswith(b"DISPATCHER_ATTEMPT_DIR="):
                        found.add("/".join(os.fsdecode(word).split("/")[-2:]))
        return {"attempts": sorted(found)}

    def reset(self):
        """Kill everything that a test has left running here; tell which processes would not die within 3 s."""
        end = time.monotonic() + 3
        while left := [pid for pid in _pids() if pid not in self.of_the_host]:
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > end:
                break
            time.sleep(0.02)
            for one in self.started.values():
                one.process.poll()
        for pid in [pid for pid in self.started if pid not in left]:
            self.started.pop(pid).close()
        return {"left": left}


def _all_of(file) -> str:
    size = os.fstat(file.fileno()).st_size
    return os.pread(file.fileno(), size, 0).decode(errors="backslashreplace")


def _pids():
    """Living processes of people's programs: no zombies, no kernel threads and no helpers that a kernel thread runs."""
    parents, kernel = {}, {0}
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stat:
                fields = stat.read().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[6]) & PF_KTHREAD:
            kernel.add(int(name))
        elif fields[0] not in "ZX":
            parents[int(name)] = int(fields[1])
    return [pid for pid, parent in parents.items() if pid == 1 or parent not in kernel]


class Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    request_queue_size = 64


def serve(address: str, port: int, agent: Agent) -> None:
    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline()
            if not line:
                return
            request = json.loads(line)
            try:
                answer = getattr(agent, request.pop("op"))(**request)
            except KeyError as error:
                answer = {
                    "errno": errno.ESRCH,
                    "error": f"process {error} was not started since this host is up",
                    "path": None,
                }
            except OSError as error:
                answer = {"errno": error.errno, "error": error.strerror, "path": error.filename}
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    with Server((address, port), Handler) as server:
        server.serve_forever()


def reap_until(child: int) -> int:
    """What the first process owes to all others: collect the orphans."""
    while True:
        pid, status = os.wait()
        if pid == child:
            return os.waitstatus_to_exitcode(status)


def main() -> None:
    address, port, scratch = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    if os.getpid() == 1 and (child := os.fork()):
        sys.exit(reap_until(child))
    serve(address, port, Agent(scratch))


if __name__ == "__main__":
    main()
