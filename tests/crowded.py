"""A crowded workspace: long ids, failures of several causes, jobs that wait for many reasons, one that stalls."""

from __future__ import annotations

import json
import os
import time

from dispatcher.run_state import liveness
from dispatcher.run_state.facets.pauses import Paused
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import PodInfo, SlotInfo

LONG = "_asr0.5_lr3e-4_warmup2000_cosine_bs256_accumulate4_reference"
STALLED = f"fft_greek_s6{LONG}"
# Nobody renews the files of these pods: they show a sign of life for ten heartbeats.
HEARTBEAT_S = 360.0
CAUSES = (
    ("out of memory", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {n} bytes, 语言=希腊文 " + "x" * 60),
    ("exit 1", "FileNotFoundError: [Errno 2] No such file or directory: '/data/{job}/{n}.npy'"),
    ("exit 1", "ValueError: la pérdida no es finita en el paso {n}\x1b[31m"),
)


def entries():
    """40 trainings, an evaluation of each of the first ten, and a report on one of these."""
    made = [{"job_id": f"fft_greek_s{n}{LONG if n % 2 == 0 else ''}", "method": "fft", "seed": n} for n in range(40)]
    made += [{"job_id": f"lora_hindi_s{n}", "method": "lora", "note": "größer 语言"} for n in range(5)]
    made += [{"job_id": f"eval_{e['job_id']}", "method": "eval", "needs": [e["job_id"]]} for e in made[:10]]
    return [*made, {"job_id": "report", "method": "eval", "needs": [f"eval_{made[9]['job_id']}"]}]


def fill(lab):
    """Jobs 0 to 8 run (6 has reported nothing for an hour), 9 to 17 have failed, 18 to 24 are done, some are held."""
    now_s = time.time()
    lab.write_manifest(entries())
    for method in ("fft", "lora", "eval"):
        lab.layout.training_template(method).write_text("PARAMS = {'seed': 0}\n")
    jobs = [entry["job_id"] for entry in entries()]
    for number, job in enumerate(jobs[:9]):
        lab.put(job, "running", outlet="local", gpu=number, started_at=now_text(now_s - 4000), host="node-17.example")
        silent_s = 3600.0 if job == STALLED else 5.0
        report(lab, job, now_s - silent_s)
    for number, job in enumerate(jobs[9:18]):
        reason, error = CAUSES[number % 3]
        times = {"started_at": now_text(now_s - 900), "finished_at": now_text(now_s - 600)}
        lab.put(job, "failed", reason=reason, error=error.format(n=number * 1000, job=job), **times)
        lab.attempt(job, exit=json.dumps({"exit_code": 1, "reason": reason, "ended_at": times["finished_at"]}))
    for job in jobs[18:25]:
        lab.put(job, "done", started_at=now_text(now_s - 2000), finished_at=now_text(now_s - 200))
        report(lab, job, now_s - 200)
    lab.put(jobs[25], "held")
    for job in jobs[26:28]:
        lab.put(job, "queued", retry_at=now_text(now_s + 3600))
    with lab.workspace.transaction() as tx:
        tx.note(Paused(scope="lora", why=f"5 jobs failed alike: exit 1 ({', '.join(jobs[:5])})"))
    write_pod(
        lab, "gpu-a", "running", [SlotInfo(name=f"gpu{n}", outlet="local", jobs=[f"{jobs[n]}/1"]) for n in range(9)]
    )
    write_pod(lab, "gpu-old", "ended", [])


def report(lab, job, at_s, longest_gap_s=40.0):
    """What `report_progress` writes, as of this time."""
    progress = {"step": 3, "of": 10, "longest_gap_s": longest_gap_s}
    path = lab.attempt(job, progress=json.dumps(progress)) / "progress.json"
    os.utime(path, (at_s, at_s))


def write_pod(lab, pod, phase, slots, lock="hardlink", **facts):
    """The file of a pod on another host."""
    known = {"host": "node-17.cluster.example", "outlets": {"local": {"gpus": list(range(9)), "cpu_slots": 0}}} | facts
    info = PodInfo(
        pod=pod, boot_id="x", pid_namespace=1, pid=4000, start_ticks=1, user="ada", slots=slots, phase=phase, lock=lock,
        started_at=now_text(time.time() - 90_000), heartbeat=1, heartbeat_s=HEARTBEAT_S, **known,
    )  # fmt: skip
    lab.layout.pods_dir.mkdir(exist_ok=True)
    liveness.write_pod(lab.layout, info)
