"""A matrix of 1,200 jobs, of which 30 are in flight on two hosts and a cluster.

Failures of five causes, a job that has stalled, a paused method, jobs that wait for others, for a retry and for a
person.
"""

from __future__ import annotations

import json
import os
import time

import crowded

from dispatcher.run_state.change import Change, split
from dispatcher.run_state.events import Event
from dispatcher.run_state.facets.pauses import Paused
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import SlotInfo
from dispatcher.run_state.states import State

REFERENCE = "_lr3e-4_warmup2000_cosine_bs256_accumulate4_reference"
LANGUAGES = ("greek", "hindi", "finnish", "turkish", "swahili", "korean")
JOBS_OF = {"fft": 70, "lora": 60, "distill": 50}
CAUSES = (
    ("out of memory", "RESOURCE_EXHAUSTED: Out of memory while trying to allocate {n} bytes on device 0", 17),
    ("exit 1", "FileNotFoundError: [Errno 2] No such file or directory: '/data/{job}/shard-{n}.npy'", 9),
    ("exit 1", "FloatingPointError: loss is nan at step {n}", 8),
    ("time limit", "stopped after 4h00m", 5),
    ("signal 9 (SIGKILL)", "killed from outside, most likely by the host's out-of-memory killer", 3),
)
STEPS = 5000
STALLED = 3


def name_of(method, language, seed):
    """Every second id is too long for a column."""
    return f"{method}_{language}_s{seed}{REFERENCE if seed % 2 else ''}"


def entries():
    """The trainings of all languages; of each language 20 evaluations of trainings."""
    made = []
    for language in LANGUAGES:
        for method, count in JOBS_OF.items():
            made += [
                {"job_id": name_of(method, language, seed), "method": method, "lang": language, "seed": seed}
                for seed in range(count)
            ]
        made += [
            {
                "job_id": f"eval_fft_{language}_s{seed}", "method": "eval", "lang": language, "seed": seed,
                "needs": [name_of("fft", language, seed)],
            }
            for seed in range(20)
        ]  # fmt: skip
    return made


class Filling:
    """Writes the records and the files of the attempts; `tx` is one transaction for all records."""

    def __init__(self, lab, listed):
        self._lab = lab
        self._entries = {entry["job_id"]: entry for entry in listed}
        self.now_s = time.time()

    def change(self, tx, job, event, **fields):
        known, extra = split(fields)
        tx.change(job, event, known, extra=extra)

    def claim(self, tx, job, started_s, **fields):
        started = {"state": "running", "attempt": 1, "pod": "gpu-a", "outlet": "local", "host": "node-17.example"}
        self.change(tx, job, Event.CLAIMED, **{**started, "started_at": now_text(started_s), **fields})
        self.attempt(job, entry=json.dumps(self._entries[job]))

    def end(self, tx, job, event, ended_s, code, **fields):
        finished = {"state": event.value, "finished_at": now_text(ended_s), "exit_code": code}
        self.change(tx, job, event, **finished, **fields)
        self.attempt(job, exit=json.dumps({"exit_code": code, "ended_at": finished["finished_at"]}))

    def attempt(self, job, **files):
        return self._lab.attempt(job, **files)

    def report(self, job, share, silent_s):
        step = int(STEPS * share)
        progress = {"step": step, "of": STEPS, "longest_gap_s": 40.0, "metrics": {"loss": 2.1}}
        path = self.attempt(job, progress=json.dumps(progress)) / "progress.json"
        os.utime(path, (self.now_s - silent_s, self.now_s - silent_s))


def fill(lab):
    listed = entries()
    lab.write_manifest(listed)
    for method in ("fft", "lora", "distill", "eval"):
        lab.layout.training_template(method).write_text("PARAMS = {'lang': '', 'seed': 0}\n")
    jobs = {method: [one["job_id"] for one in listed if one["method"] == method] for method in (*JOBS_OF, "eval")}
    running = [*jobs["fft"][300:316], *jobs["distill"][230:244]]
    filling = Filling(lab, listed)
    with lab.workspace.transaction() as tx:
        for entry in listed:
            tx.change(entry["job_id"], Event.QUEUED, Change(state=State.QUEUED))
    with lab.workspace.transaction() as tx:
        _ended(filling, tx, jobs)
        _running(filling, tx, running)
        _waiting(filling, tx, jobs)
    for number, job in enumerate(running[:26]):
        filling.report(job, 0.1 + 0.03 * number, 5400 if number == STALLED else 4)
    _pods(lab, running)


def _ended(filling, tx, jobs):
    done = [*jobs["fft"][:260], *jobs["distill"][:200], *jobs["lora"][:120], *jobs["eval"][:40]]
    for number, job in enumerate(done):
        ended_s = filling.now_s - 30 - 55 * number
        filling.claim(tx, job, ended_s - 1200 - 30 * (number % 40), gpu=number % 8)
        filling.end(tx, job, Event.DONE, ended_s, 0)
        bpc = 1 + number % 97 / 97
        filling.attempt(job, result=json.dumps({"test_bpc": round(bpc, 4), "val_loss": round(bpc + 1, 4)}))
    failed = iter([*jobs["fft"][260:285], *jobs["distill"][200:225]])
    for place, (reason, error, count) in enumerate(CAUSES):
        for number in range(count):
            job = next(failed)
            filling.claim(tx, job, filling.now_s - 9000 - 60 * number, gpu=number % 8)
            ended_s = filling.now_s - 520 - 900 * place - 60 * number
            filling.end(tx, job, Event.FAILED, ended_s, 1, reason=reason, error=error.format(n=1000 + number, job=job))


def _running(filling, tx, running):
    """16 on GPUs of two hosts, ten on a cluster, where four more are queued."""
    for number, job in enumerate(running):
        started_s = filling.now_s - 900 - 40 * number - (7200 if number == STALLED else 0)
        if number < 16:
            pod, host = (("gpu-a", "node-17.example"), ("gpu-b", "node-18.example"))[number // 8]
            filling.claim(tx, job, started_s, pod=pod, host=host, gpu=number % 8)
        elif number < 26:
            filling.claim(tx, job, started_s, pod="login", outlet="grid", host=f"grid-node-{number}")
        else:
            filling.change(tx, job, Event.SUBMITTED, state="submitted", pod="login", outlet="grid", attempt=1)


def _waiting(filling, tx, jobs):
    for job in jobs["distill"][290:296]:
        filling.change(tx, job, Event.HELD, state="held")
    for job in jobs["fft"][400:404]:
        filling.change(tx, job, Event.ABANDONED, state="abandoned")
    for job in jobs["distill"][250:253]:
        filling.change(tx, job, Event.QUEUED, state="queued", retry_at=now_text(filling.now_s + 3600), reason="lost")
    alike = ", ".join(jobs["lora"][120:125])
    tx.note(Paused(scope="lora", why=f"5 jobs failed alike: exit 1: ValueError: rank 64 is larger than 32 ({alike})"))


def _pods(lab, running):
    gpu = {
        "outlet": "local",
        "gpu_name": "NVIDIA H100 80GB HBM3",
        "memory_used_mib": 61_000,
        "memory_total_mib": 81_559,
    }
    for pod, host, first in (("gpu-a", "node-17.example", 0), ("gpu-b", "node-18.example", 8)):
        slots = [SlotInfo(name=f"gpu{n}", jobs=[f"{running[first + n]}/1"], **gpu) for n in range(8)]
        crowded.write_pod(lab, pod, "running", slots, host=host)
    grid = [SlotInfo(name="grid", outlet="grid", room=20, jobs=[f"{job}/1" for job in running[16:]])]
    pending = dict.fromkeys(running[26:], "PENDING: Priority")
    crowded.write_pod(lab, "login", "running", grid, host="login.example", outlets={"grid": {}}, pending=pending)
    crowded.write_pod(lab, "gpu-old", "ended", [])
    crowded.write_pod(lab, "desk", "ended", [])
