"""A batch queue for tests, as three strict programs: `qsubmit`, `qstat` and `qcancel`, told apart by their name.

$FAKE_QUEUE is the queue's directory. Each job is a file there, `<id>.json`, and starts with the next call of any
program unless the file `hold` exists. With the file `away` every program fails; with `lossy`, `qsubmit` fails after
its work is done. `calls` has one line for each call. What is not written as below is refused with exit status 2.

    qsubmit <lines      one `{"name": .., "gpus": 0, "script": .., "environment": {..}}` per job; prints `<id> <name>`.
                        A name that is known already is the same submission.
    qstat               prints `<id> <state> <host> <pid> <name>` for every job: PENDING, RUNNING, COMPLETED, CANCELLED.
    qcancel [-9] ID...  TERM, with -9 KILL; a pending job is cancelled at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

# The shell stays until the job has ended; the job itself leads a session.
RUN = 'setsid bash "$1" & echo $! >"$2.pid"; wait $!; echo $? >"$2.exit"'


def kill_session(leader: int) -> None:
    for pid in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def refuse(why: str) -> NoReturn:
    print(f"{Path(sys.argv[0]).name}: {why}", file=sys.stderr)
    sys.exit(2)


class Queue:
    def __init__(self, directory: Path) -> None:
        self.directory = directory

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        with open(self.directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def jobs(self) -> dict[int, dict[str, Any]]:
        return {int(p.stem): json.loads(p.read_text()) for p in sorted(self.directory.glob("[0-9]*.json"))}

    def put(self, number: int, job: dict[str, Any]) -> None:
        temporary = self.directory / f"{number}.tmp"
        temporary.write_text(json.dumps(job))
        temporary.replace(self.directory / f"{number}.json")

    def read(self, number: int, kind: str) -> int | None:
        """The pid or the exit status of a job, as its shell has written it."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int((self.directory / f"{number}.{kind}").read_text())
        return None

    def state(self, number: int, job: dict[str, Any]) -> str:
        if job["state"] == "STARTED":
            return "RUNNING" if self.read(number, "exit") is None else "COMPLETED"
        return str(job["state"])

    def start_pending(self) -> None:
        if (self.directory / "hold").exists():
            return
        for number, job in self.jobs().items():
            if job["state"] != "PENDING":
                continue
            self.put(number, {**job, "state": "STARTED"})
            kept = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")}
            subprocess.Popen(
                ["bash", "-c", RUN, "job", job["script"], os.fspath(self.directory / str(number))],
                env={**kept, **job["environment"]}, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip

    def submit(self, lines: list[str]) -> None:
        known = {job["name"]: number for number, job in self.jobs().items()}
        for line in lines:
            job = json.loads(line)
            if set(job) != {"name", "gpus", "script", "environment"} or not os.path.isfile(job["script"]):
                refuse(f"no job: {line!r}")
            if job["name"] not in known:
                known[job["name"]] = len(known) + 1
                self.put(known[job["name"]], {**job, "state": "PENDING"})
            print(known[job["name"]], job["name"])

    def show(self) -> None:
        for number, job in self.jobs().items():
            print(number, self.state(number, job), os.uname().nodename, self.read(number, "pid") or 0, job["name"])

    def cancel(self, words: list[str]) -> None:
        force = words[:1] == ["-9"]
        jobs = self.jobs()
        for word in words[force:]:
            if not word.isdigit() or int(word) not in jobs:
                refuse(f"no such job: {word!r}")
            number, job = int(word), jobs[int(word)]
            pid = self.read(number, "pid")
            if job["state"] == "PENDING":
                self.put(number, {**job, "state": "CANCELLED"})
            elif pid is not None and self.state(number, job) == "RUNNING":
                with contextlib.suppress(ProcessLookupError):
                    kill_session(pid) if force else os.kill(pid, signal.SIGTERM)


def main() -> None:
    name, words = Path(sys.argv[0]).name, sys.argv[1:]
    queue = Queue(Path(os.environ["FAKE_QUEUE"]))
    with open(queue.directory / "calls", "a") as calls:
        calls.write(f"{name} {' '.join(words)}\n")
    if (queue.directory / "away").exists():
        print(f"{name}: the queue cannot be reached", file=sys.stderr)
        sys.exit(1)
    with queue.locked():
        if name == "qsubmit" and not words:
            queue.submit(sys.stdin.read().splitlines())
        elif name == "qstat" and not words:
            queue.show()
        elif name == "qcancel" and words:
            queue.cancel(words)
        else:
            refuse(f"usage: see {__file__}")
        queue.start_pending()
    if name == "qsubmit" and (queue.directory / "lossy").exists():
        sys.exit(1)


if __name__ == "__main__":
    main()
