"""What happens to dispatchers that share a cluster or hosts reached by ssh, in random order."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from beds.pbs import NODES, PbsBed
from beds.slurm import ORDINARY, SlurmBed
from beds.sshd import SshBed, SshHost
from chaos.storm import Action, Storm
from fleet import Fleet, wait_until

from dispatcher.outlets.local import processes

# Other people's jobs, before which those of `low` have to make room.
URGENT = "#!/bin/sh\nexec sleep 1\n"


class OutletStorm(Storm):
    """`hosts` are the lines of dispatcher.yaml below `hosts:`, by name."""

    hosts: ClassVar[dict[str, str]]

    def actions(self) -> Mapping[Action, int]:
        return {
            self.kill_dispatcher: 6,
            self.stop_dispatcher: 2,
            self.freeze_dispatcher: 2,
            self.cancel_by_command: 2,
            self.requeue_by_command: 3,
        }

    def check(self) -> None:
        """No attempt was submitted twice, and of none is anything left."""
        raise NotImplementedError


class SlurmStorm(OutletStorm):
    """Preemptions, cancellations, killed steps and restarts of the controller."""

    hosts: ClassVar = {"hpc": "{type: slurm, partitions: [low], mem: 50M}"}

    def __init__(self, fleet: Fleet, seed: int, slurm: SlurmBed) -> None:
        super().__init__(fleet, seed)
        self.slurm = slurm
        fleet.variables = slurm.env

    def slots(self) -> Sequence[str]:
        return ["--outlet", f"hpc:{self.random.choice([5, 20, 60])}"]

    def actions(self) -> Mapping[Action, int]:
        return {
            **super().actions(),
            self.preempt: 6,
            self.cancel_in_slurm: 4,
            self.kill_step: 3,
            self.requeue_in_slurm: 2,
            self.crash_controller: 1,
            self.take_controller_away: 1,
            self.resume_nodes: 3,
        }

    def heal(self) -> None:
        self.resume_nodes()

    def preempt(self) -> bool:
        node = self.random.choice(self.slurm.node_names)
        self.slurm.submit(URGENT, "--partition=high", "--exclusive", f"--nodelist={node}", user=ORDINARY)
        return True

    def cancel_in_slurm(self) -> bool:
        """Somebody who does not know the dispatcher cancels jobs of it."""
        jobs = self._jobs()
        if jobs:
            self.slurm.run("scancel", *self.random.sample(jobs, min(2, len(jobs))), check=False)
        return bool(jobs)

    def requeue_in_slurm(self) -> bool:
        """A job that SLURM begins again by itself."""
        jobs = self._jobs("--states=RUNNING")
        if jobs:
            job = self.random.choice(jobs)
            self.slurm.run("scontrol", "update", f"JobId={job}", "Requeue=1", check=False)
            self.slurm.run("scontrol", "requeue", job, check=False)
        return bool(jobs)

    def kill_step(self) -> bool:
        """A step daemon that dies, as of memory."""
        steps = self.slurm.processes("slurmstepd")
        if steps:
            self.slurm.kill([self.random.choice(steps)])
        return bool(steps)

    def resume_nodes(self) -> bool:
        self.slurm.resume_nodes()
        return True

    def crash_controller(self) -> bool:
        self.slurm.restart_controller(signal.SIGKILL)
        return True

    def take_controller_away(self) -> bool:
        with self.slurm.without_controller():
            time.sleep(self.random.uniform(0.5, 3.0))
        return True

    def _jobs(self, *options: str) -> list[str]:
        return self.slurm.run("squeue", "--me", "--array", "-h", "-o", "%i", *options).stdout.split()

    def check(self) -> None:
        shown = self.slurm.run("squeue", "--me", "--array", "-h", "--states=all", "--Format=Name:128,ArrayTaskID:20")
        only_once([line for line in shown.stdout.splitlines() if line.startswith("d-")])
        wait_until(lambda: not self.slurm.run("squeue", "--me", "-h").stdout, "the queue is empty")
        wait_until(lambda: not self.slurm.processes("slurmstepd"), "no step is left")
        assert not self.slurm.processes("job.sh")
        assert_no_attempts(self.slurm.processes())


class PbsStorm(OutletStorm):
    """A server that takes jobs away from their nodes, loses nodes, and goes away."""

    hosts: ClassVar = {"hpc": "{type: pbs}"}
    poll = "0.3"

    def __init__(self, fleet: Fleet, seed: int, pbs: PbsBed) -> None:
        super().__init__(fleet, seed)
        self.pbs = pbs
        fleet.variables = pbs.env

    def slots(self) -> Sequence[str]:
        return ["--outlet", f"hpc:{self.random.choice([6, 20])}"]

    def actions(self) -> Mapping[Action, int]:
        return {
            **super().actions(),
            self.preempt: 8,
            self.cancel_in_pbs: 3,
            self.lose_node: 2,
            self.take_server_away: 1,
        }

    def preempt(self) -> bool:
        """One running job is preempted, in one of PBS's ways."""
        # It may end at this very moment.
        with contextlib.suppress(ProcessLookupError, AssertionError, KeyError):
            if running := self._jobs("R"):
                self.pbs.preempt(self.random.choice(running), by=self.random.choice(["delete", "requeue"]))
                return True
        return False

    def cancel_in_pbs(self) -> bool:
        """Somebody who does not know the dispatcher deletes a job of it."""
        with contextlib.suppress(subprocess.CalledProcessError):
            if jobs := self._jobs("QR"):
                self.pbs.run("qdel", self.random.choice(jobs))
                return True
        return False

    def lose_node(self) -> bool:
        node = self.random.choice(list(NODES))
        # What runs there may end at this very moment.
        with contextlib.suppress(ProcessLookupError, KeyError):
            self.pbs.lose_node(node)
        time.sleep(self.random.uniform(0.0, 2.0))
        self.pbs.repair_node(node)
        return True

    def take_server_away(self) -> bool:
        with self.pbs.without_server():
            time.sleep(self.random.uniform(0.5, 3.0))
        return True

    def _jobs(self, states: str) -> list[str]:
        return [job_id for job_id, job in self.pbs.jobs().items() if job["job_state"] in states]

    def check(self) -> None:
        only_once([words[words.index("-N") + 1] for words in self.pbs.calls("qsub")])
        wait_until(lambda: not self._jobs("QHRES"), "PBS has none of its jobs any more")
        for directory in self.fleet.layout.jobs_dir.glob("*/*"):
            assert not processes.of_attempt(directory)


class SshStorm(OutletStorm):
    """Networks that break and fall silent, restarts of sshd, power cuts, and killed processes on the hosts."""

    hosts: ClassVar = {name: f"{{type: plain, ssh: {name}}}" for name in ("h1", "h2", "h3")}

    def __init__(self, fleet: Fleet, seed: int, ssh: SshBed) -> None:
        super().__init__(fleet, seed)
        self.ssh = ssh
        fleet.variables = {"DISPATCHER_SSH_CONFIG": str(ssh.config)}

    def slots(self) -> Sequence[str]:
        return [word for name in self.hosts for word in ("--outlet", f"{name}:{self.random.choice([2, 5])}")]

    def actions(self) -> Mapping[Action, int]:
        return {
            **super().actions(),
            self.break_network: 2,
            self.silence_network: 1,
            self.restart_sshd: 2,
            self.cut_power: 1,
            self.kill_on_host: 6,
        }

    def break_network(self) -> bool:
        with self._host().away():
            time.sleep(self.random.uniform(0.2, 3.0))
        return True

    def silence_network(self) -> bool:
        with self._host().silent():
            time.sleep(self.random.uniform(0.2, 3.0))
        return True

    def restart_sshd(self) -> bool:
        """And with it all its sessions."""
        host = self._host()
        host.stop_sshd()
        host.start_sshd()
        return True

    def cut_power(self) -> bool:
        host = self._host()
        host.power_cut()
        time.sleep(self.random.uniform(0.0, 2.0))
        host.boot()
        return True

    def kill_on_host(self) -> bool:
        """A wrapper, an agent, or a job."""
        host = self._host()
        pids = [pid for name in ("job.sh", "python", "python3") for pid in host.processes(name)]
        with contextlib.suppress(ProcessLookupError):
            if pids:
                os.kill(self.random.choice(pids), signal.SIGKILL)
        return bool(pids)

    def _host(self) -> SshHost:
        return self.ssh[self.random.choice(list(self.hosts))]

    def check(self) -> None:
        for name in self.hosts:
            wait_until(lambda: not self.ssh[name].processes("job.sh"), f"no wrapper is left on {name}")  # noqa: B023
            assert_no_attempts(self.ssh[name].processes())


def only_once(names: Sequence[str]) -> None:
    assert names
    assert max(Counter(names).values()) == 1, f"submitted twice: {Counter(names).most_common(3)}"


def assert_no_attempts(pids: Sequence[int]) -> None:
    assert not [pid for pid in pids if b"DISPATCHER_ATTEMPT_DIR=" in environment(pid)]


def environment(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""
