"""A server of PBS with its nodes: the stand-ins of tests/fakes/pbs, because there is no package of PBS.

Jobs run as processes of this machine, whatever node they are on. Unlike the other beds this one needs no namespaces and
no privileges: `bin` has the programs, to be put on PATH, and everything is killed when the bed is closed.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

FAKES = Path(__file__).parents[1] / "fakes" / "pbs"
PROGRAMS = ("qsub", "qstat", "qselect", "qdel", "qsig", "qhold", "qrls", "qrerun", "pbsnodes", "pbs_tmrsh")
PATIENCE_S = 30.0
# Hosts of the ssh bed have a home directory of their own, in which this process's interpreter may stand.
PYTHON = shutil.which("python3", path="/usr/bin:/bin") or sys.executable
NODES = {f"node{number}": {"ncpus": 4, "ngpus": 4, "mem": 64 << 30} for number in (1, 2)}

sys.path.insert(0, os.fspath(FAKES))
try:
    import pbs_mom
    import pbs_state
finally:
    sys.path.remove(os.fspath(FAKES))


class PbsBed:
    """A server with these nodes; further words are fields of its configuration, as in pbs_state.fresh."""

    def __init__(self, nodes: Mapping[str, Mapping[str, Any]] = NODES, **config: Any) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="pbs-"))
        self.bin = self.directory / "bin"
        self.conf = self.directory / "pbs.conf"
        self.conf.write_text(f"PBS_EXEC={self.directory}\nPBS_SERVER={pbs_state.SERVER}\nPBS_HOME=/var/spool/pbs\n")
        self._state = pbs_state.State(os.fspath(self.directory))
        # An administrator defines what the nodes have beyond a fresh server's resources, GPUs for example.
        resources = dict.fromkeys([*pbs_state.RESOURCES, *(name for has in nodes.values() for name in has)])
        self._state.write(pbs_state.fresh(nodes, **{"resources": list(resources), **config}))
        (self.directory / "calls").touch()
        self.bin.mkdir()
        for program in PROGRAMS:
            path = self.bin / program
            path.write_text(f'#!/bin/sh\nexec "{PYTHON}" -S "{FAKES}" "{self.directory}" {program} "$@"\n')
            path.chmod(0o755)

    @property
    def env(self) -> dict[str, str]:
        return {"PATH": f"{self.bin}:{os.environ['PATH']}"}

    def run(self, *words: str) -> str:
        """One of the programs, as a user runs it; it must work."""
        return subprocess.run(
            words, env={**os.environ, **self.env}, capture_output=True, text=True, check=True, timeout=PATIENCE_S
        ).stdout

    def calls(self, program: str) -> list[list[str]]:
        """The arguments of each call of a program."""
        lines = (self.directory / "calls").read_text().splitlines()
        return [words[1:] for line in lines if (words := json.loads(line))[0] == program]

    def jobs(self) -> dict[str, dict[str, Any]]:
        found: dict[str, dict[str, Any]] = self._state.read()["jobs"]
        return found

    def wait_for(self, job_id: str, states: str) -> dict[str, Any]:
        """Until the job has one of these states (letters)."""
        end_s = time.monotonic() + PATIENCE_S
        while (job := self.jobs().get(job_id, {})).get("job_state", "-") not in states:
            assert time.monotonic() < end_s, f"{job_id} is not {states} within {PATIENCE_S:g} s: {job}"
            time.sleep(0.02)
        return job

    def wait_for_file(self, job_id: str, name: str) -> None:
        """Until the job's folder on its node has this file."""
        end_s = time.monotonic() + PATIENCE_S
        while not (self.directory / "jobs" / job_id / name).exists():
            assert time.monotonic() < end_s, f"{job_id}: no {name} within {PATIENCE_S:g} s"
            time.sleep(0.01)

    def configure(self, **config: Any) -> None:
        with self._state.change() as data:
            data["config"] |= config
        self._state.schedule()

    def stop_queue(self, name: str = "workq") -> None:
        """Jobs are accepted and do not begin."""
        self._set_queue(name, started=False)

    def start_queue(self, name: str = "workq") -> None:
        self._set_queue(name, started=True)
        self._state.schedule()

    def _set_queue(self, name: str, **fields: Any) -> None:
        with self._state.change() as data:
            data["config"]["queues"][name] |= fields

    @contextlib.contextmanager
    def without_server(self) -> Iterator[None]:
        self.configure(down=True)
        try:
            yield
        finally:
            self.configure(down=False)

    @contextlib.contextmanager
    def hanging(self) -> Iterator[None]:
        """Programs never answer."""
        kept = {name: (self.bin / name).read_text() for name in PROGRAMS}
        for name in PROGRAMS:
            (self.bin / name).write_text("#!/bin/sh\nexec sleep 600\n")
        try:
            yield
        finally:
            for name, text in kept.items():
                (self.bin / name).write_text(text)

    def _tell(self, job_id: str, told: str, by: str = "") -> None:
        self._set_job(job_id, told=told, told_by=by)
        os.kill(self._mom(job_id), signal.SIGUSR1)

    def _mom(self, job_id: str) -> int:
        """The process that watches a running job, once it has begun to."""
        end_s = time.monotonic() + PATIENCE_S
        while (pid := self.jobs()[job_id]["mom"]) is None:
            assert time.monotonic() < end_s, f"{job_id} does not begin: {self.jobs()[job_id]}"
            time.sleep(0.01)
        return int(pid)

    def rerun(self, job_id: str) -> None:
        """As an administrator forces it, also with `-r n`: the run is killed, and the job begins again."""
        self._tell(job_id, "rerun")

    def preempt(self, job_id: str, by: str) -> None:
        """A job with a higher priority takes the nodes: by `delete`, `requeue` or `suspend`."""
        if by == "requeue":
            self.rerun(job_id)
        elif by == "suspend":
            self._tell(job_id, "suspend")
            self._set_job(job_id, job_state="S")
        else:
            self._tell(job_id, "delete", "Job was preempted by a job of queue high")

    def resume(self, job_id: str) -> None:
        self._tell(job_id, "resume")
        self._set_job(job_id, job_state="R")

    def lose_node(self, name: str, *, kill: bool = True) -> None:
        """The node answers no more; without `kill` what runs on it runs on, as behind a broken network."""
        lost = []
        with self._state.change() as data:
            data["nodes"][name]["up"] = False
            for job_id, job in data["jobs"].items():
                if job["job_state"] == "R" and any(chunk["node"] == name for chunk in job["placed"]):
                    lost.append(job_id)
        for job_id in lost:
            pbs_mom.send({self._mom(job_id)}, signal.SIGKILL)
            if kill:
                pbs_mom.end_all(set(self.jobs()[job_id]["sessions"]))
            is_rerun = self.jobs()[job_id]["Rerunable"]
            self._set_job(
                job_id, job_state="Q" if is_rerun else "F", Exit_status=-20, placed=[], mom=None, told="", comment=""
            )
        self._state.schedule()

    def repair_node(self, name: str) -> None:
        """It answers again, and nothing runs on it."""
        with self._state.change() as data:
            data["nodes"][name]["up"] = True
        self._state.schedule()

    def move(self, job_id: str) -> None:
        """To another server, which runs it: this one does not hear of it any more."""
        pbs_mom.send({self._mom(job_id)}, signal.SIGKILL)
        self._set_job(job_id, job_state="M", mom=None)

    def give_away(self, job_id: str) -> None:
        """It belongs to another user."""
        self._set_job(job_id, user="somebody")

    def purge(self) -> None:
        """The history of finished jobs expires."""
        with self._state.change() as data:
            data["jobs"] = {one: job for one, job in data["jobs"].items() if job["job_state"] != "F"}

    def reuse_ids(self) -> None:
        """Numbers begin again, as on a server that was set up anew."""
        with self._state.change() as data:
            data["next"] = 1

    def end_job(self, job_id: str, status: int) -> None:
        """A waiting job ends without having run, such as with -1: its node could not start it."""
        self._set_job(job_id, job_state="F", Exit_status=status, run_count=1)

    def _set_job(self, job_id: str, **fields: Any) -> None:
        with self._state.change() as data:
            data["jobs"][job_id] |= fields

    def close(self) -> None:
        with self._state.change() as data:
            jobs, data["jobs"] = data["jobs"], {}
            data["config"]["down"] = True
        for job in jobs.values():
            if job["mom"] is not None:
                pbs_mom.send({job["mom"]}, signal.SIGKILL)
        pbs_mom.end_all({session for job in jobs.values() for session in job["sessions"]})
        end_s = time.monotonic() + PATIENCE_S
        while self._is_in_use():
            assert time.monotonic() < end_s, f"{self.directory} is in use"
            time.sleep(0.01)
        shutil.rmtree(self.directory)

    def _is_in_use(self) -> bool:
        """Whether a job is about to begin, which notices that the server was closed."""
        mark = os.fsencode(self.directory) + b"\0"
        for name in os.listdir("/proc"):
            if name.isdigit():
                with contextlib.suppress(OSError):
                    if mark in Path(f"/proc/{name}/cmdline").read_bytes():
                        return True
        return False

    def __enter__(self) -> PbsBed:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
