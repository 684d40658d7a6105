"""What happens to dispatchers that share a cluster, in random order."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter

from beds.slurm import ORDINARY, SlurmBed
from fleet import Dispatcher, Fleet

from dispatcher.api import Workspace

PODS = 3
# Other people's jobs, before which those of `low` have to make room.
URGENT = "#!/bin/sh\nexec sleep 1\n"


class ClusterStorm:
    """Kills of dispatchers, preemptions, cancellations and restarts of the controller, as `seed` has it."""

    def __init__(self, fleet: Fleet, slurm: SlurmBed, seed: int) -> None:
        self.fleet, self.slurm = fleet, slurm
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.pods: list[Dispatcher] = []
        self._born = 0
        self._revive_s: list[tuple[float, str]] = []
        self._actions = {
            self.kill_dispatcher: 6,
            self.stop_dispatcher: 2,
            self.freeze_dispatcher: 2,
            self.preempt: 6,
            self.cancel_in_slurm: 4,
            self.kill_step: 3,
            self.cancel_by_command: 2,
            self.requeue_by_command: 3,
            self.requeue_in_slurm: 2,
            self.crash_controller: 1,
            self.take_controller_away: 1,
            self.resume_nodes: 3,
        }

    def blow(self, seconds: float) -> None:
        """Go on for so long."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.keep_pods_alive()
            action = self.random.choices(list(self._actions), list(self._actions.values()))[0]
            if action():
                self.done[action.__name__] += 1
            time.sleep(self.random.uniform(0.0, 0.5))

    # Dispatchers.

    def start_pod(self, name: str = "") -> None:
        if not name:
            name = f"pod-{self._born}"
            self._born += 1
        self.pods.append(self.fleet.start(name, "--outlet", f"hpc:{self.random.choice([5, 20, 60])}", poll="1"))

    def keep_pods_alive(self) -> None:
        """As many as there should be: some come back under their name, others are left to the rest."""
        for pod in [pod for pod in self.pods if not pod.is_running()]:
            self.pods.remove(pod)
            name = pod.pod if self.random.random() < 0.6 else ""
            self._revive_s.append((time.monotonic() + self.random.uniform(0.0, 3.0), name))
        for due in [due for due in self._revive_s if due[0] <= time.monotonic()]:
            self._revive_s.remove(due)
            self.start_pod(due[1])

    def settle(self) -> None:
        """All dispatchers that should be there are."""
        self._revive_s = [(0.0, name) for _, name in self._revive_s]
        self.keep_pods_alive()

    def kill_dispatcher(self) -> bool:
        return self._signal_pod(signal.SIGKILL)

    def stop_dispatcher(self) -> bool:
        return self._signal_pod(signal.SIGTERM)

    def freeze_dispatcher(self) -> bool:
        """One that stands still for a moment, perhaps with the lock in its hand."""
        pod = self._any_pod()
        if pod is None:
            return False
        pod.send(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.1, 2.0))
        pod.send(signal.SIGCONT)
        return True

    def _signal_pod(self, number: int) -> bool:
        pod = self._any_pod()
        if pod is not None:
            pod.send(number)
        return pod is not None

    def _any_pod(self) -> Dispatcher | None:
        running = [pod for pod in self.pods if pod.is_running()]
        return self.random.choice(running) if running else None

    # The cluster.

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

    # People.

    def cancel_by_command(self) -> bool:
        self.workspace().cancel(*self.random.sample(sorted(self.fleet.records()), 2))
        return True

    def requeue_by_command(self) -> bool:
        self.requeue(*self.random.sample(sorted(self.fleet.records()), 3))
        return True

    def requeue(self, *jobs: str) -> None:
        self.workspace().requeue(*jobs)

    def workspace(self) -> Workspace:
        return Workspace(self.fleet.root, by="storm")
