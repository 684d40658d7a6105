"""The days of the week: what people do, and what must come of it."""

from __future__ import annotations

import json
import os
import signal
from typing import Final

from lab import ADA, GRACE, PODS, Lab
from page import cost
from table import Table
from views import compare

from dispatcher.outlets.local.processes import of_session

FFT: Final = [f"fft_{lang}_s{seed}" for lang in ("greek", "hindi", "basque", "czech") for seed in (1, 2, 3)]
ONLY_THESIS: Final = {"running": 1, "queued": 1, "done": 1}
CZECH: Final = [job for job in FFT if "czech" in job]
LORA: Final = [f"lora_{lang}_s{seed}" for lang in ("greek", "hindi") for seed in (1, 2, 3, 4)]
TRAIN: Final = ("--", "python", "train.py")


def monday(lab: Lab, table: Table) -> None:
    """ada makes a sweep, grace submits single commands, three pods are started."""
    made = lab.run(ADA, "matrix", "make", "matrix/sweep.yaml").partition(": ")[2].strip()
    table.check("ada makes the sweep", made, "20 jobs (fft 12, lora 8)")
    thesis = lab.run(GRACE, "submit", "--name", "thesis", *TRAIN, "waits", "sunday").split()
    thesis += lab.run(GRACE, "submit", "--name", "report", "--needs", "thesis", *TRAIN).split()
    table.check("grace submits her thesis, and a report on it", thesis, ["thesis", "report"])
    for pod in PODS:
        lab.start_pod(pod)
    broken = lab.try_(GRACE, "submit", "--wait", "--name", "broken", *TRAIN, "exits", "4")
    table.check("grace waits for a command that fails: exit status", broken.returncode, 4)
    census = lab.run(GRACE, "submit", "--name", "census", "--param", "seed=1..3", *TRAIN).split()
    table.check("grace submits three with a parameter", census, [f"census_seed{seed}" for seed in (1, 2, 3)])
    table.wait("the sweep runs; the Czech data are not there", lambda: lab.states(FFT), {"done": 9, "failed": 3})
    owned = {user: lab.json("status", "--user", user)["total"] for user in (ADA, GRACE)}
    table.check("whose jobs they are", owned, {ADA: 20, GRACE: 6})
    table.wait("the submitted jobs", lambda: lab.states(["broken", *census]), {"done": 3, "failed": 1})


def tuesday(lab: Lab, table: Table) -> None:
    """All lora jobs fail alike: after five of them the method is paused, and ada mends the sweep."""

    def failed() -> bool:
        states = lab.states(LORA)
        return states.keys() == {"failed", "queued"} and states["failed"] >= 5

    table.wait("five fail alike, the others wait", failed, True)
    said = [note.partition(" is paused")[0] for note in lab.notes() if " is paused" in note]
    table.check("status says so", said, ["method lora"])
    compare(lab, table)
    sweep = lab.root / "matrix" / "sweep.yaml"
    sweep.write_text(sweep.read_text().replace("rank: 64", "rank: 32"))
    lab.run(ADA, "matrix", "make", "matrix/sweep.yaml")
    lab.run(ADA, "requeue", "--where", "method=lora", "--state", "failed")
    lab.run(ADA, "unpause", "lora")
    table.wait("with a smaller rank all are done", lambda: lab.states(LORA), {"done": 8})


def wednesday(lab: Lab, table: Table) -> None:
    """A job of grace hangs. She sees it, and cancels it."""
    lab.run(GRACE, "submit", "--name", "align", "--method", "align", *TRAIN, "hangs")
    table.wait("people are told that it has stalled", lambda: "job_stalled" in lab.told_events("log"), True)
    table.check("status says so", lab.row("align")["stalled_s"] is not None, True)
    compare(lab, table)
    lab.run(GRACE, "cancel", "align")
    table.wait("grace cancels it", lambda: lab.states(["align"]), {"abandoned": 1})


def thursday(lab: Lab, table: Table) -> None:
    """A notebook leaves its GPU idle, which its method does not allow."""
    lab.run(ADA, "submit", "--name", "notebook", "--method", "notebook", "--gpus", "1", *TRAIN, "hangs")
    lab.fleet.wait_running("notebook")
    record = lab.fleet.record("notebook")
    lab.set_gpus(record.host or "", *[0 if gpu == record.gpu else 90 for gpu in (0, 1)])
    table.wait("it is stopped", lambda: lab.states(["notebook"]), {"failed": 1})
    table.check("the reason", lab.row("notebook")["reason"], "GPU idle for 2 s")
    table.check("the journal", [lab.fleet.events("notebook").count("gpu_idle")], [1])
    lab.set_gpus(record.host or "", 90, 90)
    compare(lab, table)


def friday(lab: Lab, table: Table) -> None:
    """The pod gpu-b is killed while two jobs run there. One of them ends by itself, the other one is killed, too."""
    lab.run(GRACE, "pause", "host:gpu-a", "--why", "a demo for visitors")
    for name, file in (("one", "friday"), ("two", "saturday")):
        lab.run(ADA, "submit", "--name", name, "--gpus", "1", *TRAIN, "waits", file)
        lab.fleet.wait_running(name)
    hosts = {lab.row(name)["host"] for name in ("one", "two")}
    table.check("gpu-a is paused: both run on gpu-b", hosts, {"gpu-b"})
    lab.pods["gpu-b"].kill()
    table.wait("people are told that it is dead", lambda: "pod_dead" in lab.told_events("log"), True)
    table.check("pods says so", lab.pod("gpu-b")["state"], "dead")
    compare(lab, table)
    (lab.root / "friday").touch()
    table.wait("the job that goes on ends", lambda: lab.states(["one"]), {"done": 1})
    for pid in of_session(lab.fleet.record("two").pid or 0):
        os.kill(pid, signal.SIGKILL)
    table.wait("the other one is queued again", lambda: lab.fleet.events("two")[-1], "auto_requeued")
    lab.run(GRACE, "unpause", "host:gpu-a")
    lab.fleet.wait_running("two", 2)
    table.check("gpu-a runs it again", lab.row("two")["host"], "gpu-a")
    lab.start_pod("gpu-b")


def saturday(lab: Lab, table: Table) -> None:
    """The Czech data have come: ada edits the status file. grace mends her code while a job waits for its retry."""
    (lab.root / "saturday").touch()
    (lab.root / "czech.csv").write_text("kniha,book\n")
    status_file = lab.root / "run_state" / "matrix_status.json"
    status = json.loads(status_file.read_text())
    for job in CZECH:
        status[job]["state"] = "queued"
    status_file.write_text(json.dumps(status))
    table.wait("the jobs that ada has edited run", lambda: lab.states(CZECH), {"done": 3})
    lab.run(GRACE, "submit", "--name", "probe", "--method", "probe", *TRAIN, "needs", "2")
    table.wait("grace's job fails, and is to be tried again", lambda: "retried" in lab.fleet.events("probe"), True)
    script = lab.root / "train.py"
    script.write_text(script.read_text().replace("VERSION = 1", "VERSION = 2"))
    table.wait("the retry fails for good", lambda: lab.states(["probe"]), {"failed": 1})
    table.check("diff: the retry ran the same code", code_of(lab, "probe:1", "probe:2"), "the same")
    lab.run(GRACE, "requeue", "probe")
    table.wait("grace queues it again", lambda: lab.states(["probe"]), {"done": 1})
    table.check("diff: that ran the new code", code_of(lab, "probe:2", "probe:3"), "different")
    table.wait("all but the thesis has ended", lambda: lab.states(["thesis", "report", "two"]), ONLY_THESIS)
    cost(lab, table)
    compare(lab, table)


def sunday(lab: Lab, table: Table) -> None:
    """The thesis ends, the report follows, and the pods are drained."""
    (lab.root / "sunday").touch()
    table.wait("all have ended", lab.states, {"done": 28, "failed": 2, "abandoned": 1})
    table.wait("people are told", lambda: "matrix_done" in lab.told_events("log"), True)
    for pod in PODS:
        lab.run(ADA, "drain", pod)
    for pod in PODS:
        lab.pods[pod].end()
    compare(lab, table)


def code_of(lab: Lab, *attempts: str) -> str:
    """What `dispatcher diff` says of the code of two attempts."""
    lines = lab.try_(GRACE, "diff", *attempts).stdout.splitlines()
    return next(line.removeprefix("code: ") for line in lines if line.startswith("code: "))


DAYS: Final = (monday, tuesday, wednesday, thursday, friday, saturday, sunday)
