"""What test_cgroups.py runs in a guest kernel: a pod in a delegated cgroup, whose jobs ask for memory and CPUs.

The pod is killed and started again meanwhile. Prints what it finds, as JSON, in its last line.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path("/run/lab")
LAB = Path("/sys/fs/cgroup/lab")
MAIN = "import sys; from dispatcher.cli.main import main; sys.exit(main())"
# A line without an end, which `tail` keeps: a child of the job, whose parent would live on if only it were killed.
GREEDY = "head -c 100m /dev/zero | tail"
NEIGHBOUR = "cat /sys/fs/cgroup$(cut -d: -f3 /proc/self/cgroup)/cpu.max; until [ -e go ]; do sleep 0.1; done"
ENTRIES = [
    {"job_id": "greedy", "command": ["bash", "-c", GREEDY], "resources": {"memory": "32M"}},
    {"job_id": "neighbour", "command": ["bash", "-c", NEIGHBOUR], "resources": {"memory": "32M", "cpus": 2}},
    {"job_id": "unlimited", "command": ["bash", "-c", "cut -d: -f3 /proc/self/cgroup"]},
]


def dispatcher(*words: str) -> list[str]:
    return [sys.executable, "-P", "-c", MAIN, *words]


def start(cgroup: Path, *words: str) -> subprocess.Popen[bytes]:
    """A pod that begins in this cgroup."""
    enter = f"echo $$ >{cgroup}/cgroup.procs && exec "
    return subprocess.Popen(["sh", "-c", f'{enter}"$@"', "sh", *dispatcher("--pod", "desk", *words)], cwd=ROOT)


def until(condition: Callable[[], Any], what: str) -> Any:
    end_s = time.monotonic() + 60
    while not (value := condition()):
        assert time.monotonic() < end_s, what
        time.sleep(0.05)
    return value


def notes(pid: int) -> list[str] | None:
    """What the pod's file says is unusual; None until it is that of this process, which watches the neighbour."""
    path = ROOT / "run_state" / "pods" / "desk.json"
    pod = json.loads(path.read_text()) if path.exists() else {}
    watched = [job for slot in pod.get("slots", ()) for job in slot.get("jobs", ())]
    return pod["notes"] if pod.get("pid") == pid and "neighbour/1" in watched else None


def of_attempts() -> list[str]:
    return sorted(path.stem for path in LAB.glob("attempt.*"))


def prepare() -> None:
    (LAB.parent / "cgroup.subtree_control").write_text("+cpu +memory")
    LAB.mkdir()
    (ROOT / "matrix").mkdir(parents=True)
    (ROOT / "dispatcher.yaml").write_text("heartbeat: 0.5\nmethods: {m: {gpus: 0}}\n")
    entries = [{"method": "m", **entry} for entry in ENTRIES]
    (ROOT / "matrix" / "matrix.json").write_text(json.dumps(entries))


def attempt(job: str, name: str) -> str:
    path = ROOT / "run_state" / "jobs" / job / "1" / name
    return path.read_text() if path.exists() else ""


# Prints why there are no cgroups here, and where this process is then.
REFUSED = """
from dispatcher.outlets.base import Key
from dispatcher.outlets.local.cgroups import Cgroups
cgroups = Cgroups()
cgroups.open()
print(cgroups.why_not(Key("a", 1)), open("/proc/self/cgroup").read(), sep="\\n")
"""


def beside_another_process() -> list[str]:
    """What a pod would say in a cgroup that it does not have for itself, and what it leaves there."""
    shared = LAB.parent / "shared"
    shared.mkdir()
    enter = f"echo $$ >{shared}/cgroup.procs; sleep 60 & "
    words = [sys.executable, "-P", "-c", REFUSED]
    done = subprocess.run(
        ["sh", "-c", f'{enter}"$@"; kill $!', "sh", *words], capture_output=True, text=True, check=True
    )
    return [*done.stdout.split("\n")[:2], *(path.name for path in shared.iterdir() if path.is_dir())]


def main() -> None:
    prepare()
    found: dict[str, Any] = {}
    room = ("--slots", "3", "--cpus", "2", "--memory", "64M")
    pod = start(LAB, *room)
    until(lambda: attempt("greedy", "exit.json"), "the greedy job did not end")
    until(lambda: attempt("neighbour", "output.log"), "the neighbour did not begin")
    until(lambda: of_attempts() == ["attempt.neighbour.1"], f"cgroups: {of_attempts()}")
    found["greedy"] = json.loads(attempt("greedy", "exit.json"))
    found["pod"] = (Path("/proc") / str(pod.pid) / "cgroup").read_text().strip()
    found["notes"] = notes(pod.pid)
    # Its job runs on, held to its limits, until one is there that finds it.
    pod.send_signal(signal.SIGKILL)
    pod.wait()
    again = start(LAB / "dispatcher", *room, "--until-empty")
    until(lambda: notes(again.pid) is not None, "no second pod")
    found["notes_again"] = notes(again.pid)
    found["limit_again"] = next(LAB.glob("attempt.neighbour.1.*/memory.max")).read_text().strip()
    (ROOT / "go").touch()
    again.wait(60)
    shown = subprocess.run(dispatcher("status", "--json"), cwd=ROOT, capture_output=True, text=True, check=True).stdout
    found["jobs"] = {row["job"]: row for row in json.loads(shown)["jobs"]}
    found["logs"] = {job: attempt(job, "output.log").splitlines() for job in ("greedy", "neighbour", "unlimited")}
    found["left"] = of_attempts()
    found["shared"] = beside_another_process()
    print(json.dumps(found))


main()
