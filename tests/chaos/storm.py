"""What every storm has: dispatchers that die, stand still and come back, and people who ask for changes."""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import pytest
from fleet import Dispatcher, Fleet

from dispatcher.api import Workspace

Action = Callable[[], bool]
DEFAULT_S = 15.0


def weather(options: pytest.Config) -> tuple[float, int]:
    """How long a storm goes on, in seconds, and its seed."""
    seconds = options.getoption("--chaos-seconds") or DEFAULT_S
    seed = options.getoption("--chaos-seed")
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    print(f"chaos seed {seed}, {seconds:g} s (--chaos-seed {seed} makes the same choices)")
    return seconds, seed


class Storm:
    """Random blows, as `seed` has it. A subclass says which `actions` there are, each with its weight."""

    # So many dispatchers at a time.
    pods_at_once = 3
    poll = "1"
    # At most so long between two blows.
    lull_s = 0.5

    def __init__(self, fleet: Fleet, seed: int) -> None:
        self.fleet = fleet
        self.seed = seed
        self.random = random.Random(seed)
        self.done: Counter[str] = Counter()
        self.pods: list[Dispatcher] = []
        self._born = 0
        self._revive_s: list[tuple[float, str]] = []

    def actions(self) -> Mapping[Action, int]:
        """Each says whether there was anything that it could do."""
        raise NotImplementedError

    def slots(self) -> Sequence[str]:
        """The words of the command line that give a dispatcher its slots."""
        raise NotImplementedError

    def heal(self) -> None:
        """Undo what would keep jobs from running."""

    def begin(self) -> None:
        for _ in range(self.pods_at_once):
            self.start_pod()

    def blow(self, seconds: float) -> None:
        """Go on for so long."""
        actions = self.actions()
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.keep_pods_alive()
            action = self.random.choices(list(actions), list(actions.values()))[0]
            if action():
                self.done[action.__name__] += 1
            time.sleep(self.random.uniform(0.0, self.lull_s))

    def finish(self, within_s: float = 300) -> None:
        """Let the day end well: what people have put aside is put back, until all is done."""
        end_s = time.monotonic() + within_s
        while True:
            self.settle()
            self.heal()
            left = {job: record for job, record in self.fleet.records().items() if record.state != "done"}
            if not left:
                break
            assert time.monotonic() < end_s, f"not done: {left}"
            if aside := [job for job, record in left.items() if record.state in ("failed", "held", "abandoned")]:
                self.requeue(*aside)
            for scope in self.workspace().snapshot().pauses:
                self.workspace().unpause(scope)
            time.sleep(0.2)
        for pod in self.pods:
            pod.send(signal.SIGTERM)
        for pod in self.pods:
            # One that has only just been started is not listening yet.
            assert pod.end() in (0, 1, -signal.SIGTERM), pod.said
        print(f"{dict(self.done)}, {len(self.fleet.history())} lines in the journal")

    # Dispatchers.

    def start_pod(self, name: str = "") -> None:
        if not name:
            name = f"pod-{self._born}"
            self._born += 1
        self.pods.append(self.fleet.start(name, *self.slots(), poll=self.poll))

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
        pod = self._any_pod()
        if pod is not None:
            pod.send(signal.SIGKILL)
        return pod is not None

    def stop_dispatcher(self) -> bool:
        """Drain one, and mostly become impatient with it."""
        pod = self._any_pod()
        if pod is None:
            return False
        for _ in range(self.random.choice([1, 2, 2, 3])):
            if pod.is_running():
                pod.send(signal.SIGTERM)
                time.sleep(0.05)
        return True

    def freeze_dispatcher(self) -> bool:
        """One that stands still for a moment, perhaps with the lock in its hand."""
        pod = self._any_pod()
        if pod is None:
            return False
        pod.send(signal.SIGSTOP)
        time.sleep(self.random.uniform(0.1, 1.0))
        pod.send(signal.SIGCONT)
        return True

    def _any_pod(self) -> Dispatcher | None:
        running = [pod for pod in self.pods if pod.is_running()]
        return self.random.choice(running) if running else None

    # People.

    def cancel_by_command(self) -> bool:
        self.workspace().cancel(*self.some_jobs(2))
        return True

    def requeue_by_command(self) -> bool:
        self.requeue(*self.some_jobs(3))
        return True

    def requeue(self, *jobs: str) -> None:
        self.workspace().requeue(*jobs)

    def some_jobs(self, count: int) -> list[str]:
        return self.random.sample(sorted(self.fleet.records()), count)

    def workspace(self) -> Workspace:
        return Workspace(self.fleet.root, by="storm")
