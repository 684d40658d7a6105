"""What test_power_cuts.py runs in a guest kernel until its power is cut: two pods, and a person at a terminal.

The workspace is on the guest's own disk. /run/out is on the machine, and outlives a cut: what the dispatcher has
acknowledged and which jobs have run are names of files in it, which are there at once. Its `plan.json` says what to do.
`found.json` is what the disk has when the kernel has booted, `after.json` at the end.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import dispatcher
from dispatcher.cli import main
from dispatcher.pod import run  # noqa: F401 - for both pods at once

OUT, DISK = Path("/run/out"), Path("/run/disk")
LAB = DISK / "lab"
METHODS = "heartbeat: 1\nmethods: {m: {gpus: 0, backoff: 0.1s}, command: {backoff: 0.1s}}\n"
SWEEP = """\
defaults: {{method: m, command: ["true"]}}
job_id: "made{{made}}_{{n}}"
sweeps:
  - grid: {{made: [{made}], n: [1, 2, 3]}}
"""
# Claimed last, so that it can be kept back and let go.
KEPT = "kept"
MORE = "more.json"
# Each writes its result as scripts of labs do: in place, by a rename, or with the package.
JOB = """\
me=/run/out/ran/$DISPATCHER_JOB_ID~$DISPATCHER_ATTEMPT~$$
: >$me~began
echo "log of $DISPATCHER_JOB_ID"
cd "$DISPATCHER_ATTEMPT_DIR"
case $1 in
    plain) printf '{"value": "%s"}' "$DISPATCHER_JOB_ID" >result.json ;;
    renamed) printf '{"value": "%s"}' "$DISPATCHER_JOB_ID" >new && mv new result.json ;;
    reported) "$2" -S -c "
import os, sys
sys.path.insert(0, sys.argv[1])
from dispatcher.contract import report_result
report_result(value=os.environ['DISPATCHER_JOB_ID'])" "$3" ;;
esac
: >$me~ended
"""
KINDS = ("plain", "renamed", "plain", "renamed", "plain", "reported")
DONE = re.compile(rb"[0-9:]+ done (\S+) ")
FILES = ("entry.json", "exit.json", "result.json", "output.log")


def command(number: int) -> list[str]:
    words = [sys.executable, os.fspath(Path(dispatcher.__file__).parents[1])]
    return ["bash", "job.sh", KINDS[number % len(KINDS)], *words]


def lay(jobs: int) -> None:
    (LAB / "matrix").mkdir(parents=True)
    (LAB / "dispatcher.yaml").write_text(METHODS)
    (LAB / "job.sh").write_text(JOB)
    names = [*(f"m-{n}" for n in range(jobs - 1)), KEPT]
    entries = [
        {"job_id": name, "method": "m", "command": command(n), "priority": -1 if name == KEPT else 0}
        for n, name in enumerate(names)
    ]
    (LAB / "matrix" / "matrix.json").write_text(json.dumps(entries))
    os.sync()


def mark(kind: str, name: str) -> None:
    (OUT / kind / name).touch()


def typed(*words: str) -> str:
    """What a command prints, run by this process, which has its modules already; AssertionError where it fails."""
    said = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        status = main.main(words)
    said.seek(0)
    text = said.read()
    assert status == 0, f"{words}: {status}: {text}"
    return text


def jobs_of_status() -> dict[str, Any]:
    return {row["job"]: row for row in json.loads(typed("status", "--json"))["jobs"]}


def on_disk() -> dict[str, Any]:
    """What is known of each job, the files of those that are done, and what a person has submitted and made."""
    jobs = jobs_of_status()
    return {
        "jobs": {
            job: {"state": row["state"], "files": files_of(job, row["attempt"]) if row["state"] == "done" else {}}
            for job, row in jobs.items()
        },
        "submitted": text_of(LAB / "matrix" / "submitted.jsonl"),
        "made": text_of(LAB / "matrix" / MORE),
    }


def files_of(job: str, attempt: int) -> dict[str, str | None]:
    return {name: text_of(LAB / "run_state" / "jobs" / job / str(attempt) / name) for name in FILES}


def text_of(path: Path) -> str | None:
    return path.read_text(errors="replace") if path.exists() else None


def put(name: str, value: Any) -> None:
    with open(OUT / name, "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())


class Pod:
    """A pod, forked from this process, which has imported what it needs."""

    def __init__(self, name: str) -> None:
        self._said, writing = os.pipe()
        self.pid = os.fork()
        if not self.pid:
            os.dup2(writing, 1)
            os.dup2(writing, 2)
            os._exit(main.main(["--pod", name, "--slots", "2", "--poll-interval", "2"]))
        os.close(writing)

    def relay(self) -> None:
        """Pass on which jobs the pod says are done."""
        with open(self._said, "rb") as lines:
            for line in lines:
                if found := DONE.match(line):
                    mark("done", found[1].decode())
                os.write(1, line)

    def stop(self) -> int:
        os.kill(self.pid, signal.SIGTERM)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


class Person:
    """At a terminal: submits what is missing, keeps a job back for a while, and makes a manifest now and then."""

    def __init__(self, plan: dict[str, Any], states: dict[str, str]) -> None:
        self.plan = plan
        self.submissions = plan["jobs"] - len(states) if plan["is_last"] else plan["submissions"]
        self.step = 0
        self.is_kept = states[KEPT] == "held"

    def works(self) -> None:
        for turn in range(self.submissions):
            job = f"s-{self.plan['round']}-{turn}"
            said = self.does("submit", job, "submit", "--name", job, "--", *command(turn))
            assert said.splitlines()[0] == job, said
            if turn % 3 == 1 and not self.plan["is_last"]:
                self.keeps_or_lets_go()
            if turn % 3 == 2:
                self.makes(str(1000 * self.plan["round"] + turn))
        if self.is_kept and self.plan["is_last"]:
            self.keeps_or_lets_go()

    def keeps_or_lets_go(self) -> None:
        what = "requeue" if self.is_kept else "hold"
        self.does(what, KEPT, what, KEPT)
        self.is_kept = not self.is_kept

    def makes(self, made: str) -> None:
        sweep = LAB / "matrix" / "more.yaml"
        sweep.write_text(SWEEP.format(made=made))
        self.does("make", made, "matrix", "make", os.fspath(sweep), "-o", os.fspath(LAB / "matrix" / MORE))

    def does(self, what: str, name: str, *words: str) -> str:
        self.step += 1
        mark("asked", f"{self.step:04}~{what}~{name}")
        said = typed(*words)
        mark("acknowledged", f"{self.step:04}~{what}~{name}")
        return said


def boot() -> None:
    plan = json.loads((OUT / "plan.json").read_text())
    DISK.mkdir()
    subprocess.run(["mount", "-t", "ext4", "/dev/ubda", DISK], check=True)
    if plan["round"] == 0:
        lay(plan["manifest"])
    os.chdir(LAB)
    found = on_disk()
    put("found.json", found)
    pods = [Pod(name) for name in ("a", "b")]
    for pod in pods:
        threading.Thread(target=pod.relay, daemon=True).start()
    Person(plan, {job: one["state"] for job, one in found["jobs"].items()}).works()
    while not plan["is_last"] or any(row["state"] != "done" for row in jobs_of_status().values()):
        time.sleep(0.5)
    statuses = [pod.stop() for pod in pods]
    put("after.json", on_disk())
    sys.exit(max(statuses))


boot()
