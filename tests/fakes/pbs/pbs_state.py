"""What the server knows: one file that is changed under a lock, and the rules by which jobs are started."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pickle
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SERVER = "pbs"
# Those of a fresh server; sites add their own, GPUs among them.
RESOURCES = ("ncpus", "mem", "vmem", "walltime", "cput", "host", "vnode", "arch", "mpiprocs", "ompthreads")
FINISHED = "FMX"


class Refusal(Exception):
    """What a command prints before it exits with the low byte of an error number of PBS."""

    def __init__(self, number, text):
        super().__init__(text)
        self.number = number
        self.text = text


def fresh(nodes, **config):
    """The state of a new server; `nodes` has the resources of each by name."""
    return {
        "next": 1,
        "config": {
            "down": False,
            "history": True,
            "kill_delay_s": 10.0,
            "queues": {"workq": {"enabled": True, "started": True}},
            "default_queue": "workq",
            "resources": list(RESOURCES),
            "max_queued": None,
            # As OpenPBS since December 2023: of several ids, qstat without -E prints the first one in JSON.
            "shows_first_only": True,
            "lossy": False,
            **config,
        },
        "nodes": {name: {"up": True, "has": has} for name, has in nodes.items()},
        "jobs": {},
    }


class State:
    """The directory of a server: `state`, `calls`, and a folder for each job (script, spool, node file)."""

    def __init__(self, directory):
        self.directory = directory
        self._path = os.path.join(directory, "state")

    def note_call(self, program, arguments):
        with open(os.path.join(self.directory, "calls"), "a", encoding="utf-8") as calls:
            calls.write(json.dumps([program, *arguments]) + "\n")

    def read(self):
        with self._lock(), open(self._path, "rb") as file:
            return pickle.load(file)

    @contextlib.contextmanager
    def change(self):
        with self._lock():
            with open(self._path, "rb") as file:
                data = pickle.load(file)
            yield data
            self.write(data)

    def write(self, data):
        with open(self._path + ".new", "wb") as file:
            pickle.dump(data, file)
        os.replace(self._path + ".new", self._path)

    def job_folder(self, job_id):
        return os.path.join(self.directory, "jobs", job_id)

    @contextlib.contextmanager
    def _lock(self):
        with open(os.path.join(self.directory, "lock"), "w", encoding="utf-8") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def schedule(self):
        """Start what fits, in the order of the queue, each under a mom of its own."""
        begun = []
        with self.change() as data:
            for job_id, job in data["jobs"].items():
                if job["job_state"] == "Q" and data["config"]["queues"][job["queue"]]["started"]:
                    placed = place(data, job)
                    if placed is None:
                        job["comment"] = waiting_comment(data, job)
                        continue
                    job |= {"job_state": "R", "substate": 41, "placed": placed, "comment": ""}
                    job["run_count"] += 1
                    job["stime"] = time.time()
                    begun.append(job_id)
        for job_id in begun:
            log = os.path.join(self.job_folder(job_id), "mom.log")
            # The module subprocess would cost each command more than all the rest of it.
            os.posix_spawn(
                sys.executable,
                [sys.executable, "-S", os.path.join(HERE, "pbs_mom.py"), self.directory, job_id],
                os.environ,
                setsid=True,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                ],
            )


def free(data, name):
    """What is left of a node's resources; None when a job has it for itself."""
    node = data["nodes"][name]
    left = dict(node["has"])
    for job in data["jobs"].values():
        if job["job_state"] in "RES" and job["placed"]:
            for chunk in job["placed"]:
                if chunk["node"] == name:
                    if "excl" in job["place"]:
                        return None
                    for resource, amount in chunk["takes"].items():
                        left[resource] = left.get(resource, 0) - amount
    return left


def place(data, job):
    """The nodes of the job's chunks; None when there is no room now."""
    room = {name: free(data, name) for name, node in data["nodes"].items() if node["up"]}
    placed = []
    for count, wanted in job["select"]:
        for _ in range(count):
            for name, left in room.items():
                used = [chunk["node"] for chunk in placed]
                if left is None or ("scatter" in job["place"] and name in used):
                    continue
                if "excl" in job["place"] and name not in used and left != data["nodes"][name]["has"]:
                    continue
                if fits(wanted, left):
                    takes = {key: amount for key, amount in wanted.items() if isinstance(amount, int)}
                    for resource, amount in takes.items():
                        left[resource] = left.get(resource, 0) - amount
                    placed.append({"node": name, "takes": takes})
                    break
            else:
                return None
    return placed


def fits(wanted, left):
    for resource, amount in wanted.items():
        if isinstance(amount, int):
            if left.get(resource, 0) < amount:
                return False
        elif left.get(resource) != amount:
            return False
    return True


def waiting_comment(data, job):
    if place({**data, "jobs": {}}, job) is None:
        return f"Can Never Run: Insufficient amount of resource: {next(iter(job['select'][0][1]))}"
    return "Not Running: Insufficient amount of resource: ncpus"
