"""A stand-in for Volcano's controller, scheduler and admission, which are not packaged by Debian.

    python tests/fakes/volcano --kubeconfig FILE --directory DIR --release v1.5.1

It behaves as the releases do that it knows (`dialects.py`), by their documentation and by what their sources do: which
objects it makes of a Job and what they are called, which events and policies lead to which phases, what its conditions
and events say, what it refuses. Missing: volumes that it would create, tasks that depend on others, delayed policies,
changing a Job's size, plugins besides env, ssh and svc, queues within queues, and taking back what one queue lent to
another.

The custom resource definitions must be there already. Restarting it loses nothing: as the real ones it keeps all state
in the API server. `DIR/switches.json` pauses parts of it (`switches.py`); `DIR/ready` is there when it takes Jobs.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import queue
import sys
import time
from collections import deque
from pathlib import Path

from api import FAILURES, Api
from cluster import Cluster
from controller import Controller
from dialects import DIALECTS
from expiry import Expiry
from informers import Change, Informers
from queues import Queues
from scheduler import Scheduler
from switches import Switches
from webhook import Webhook

KINDS = ("nodes", "pods", "persistentvolumeclaims", "storageclasses", "priorityclasses", "queues", "podgroups", "jobs",
         "commands")  # fmt: skip
# The real scheduler's period is a second; tests wait for this one.
SESSION_EVERY_S = 0.1
EXPIRY_EVERY_S = 0.5
LONGEST_WAIT_S = 0.1


class Volcano:
    def __init__(self, options: argparse.Namespace) -> None:
        api, dialect = Api.from_kubeconfig(options.kubeconfig), DIALECTS[options.release]
        self._switches = Switches(options.directory / "switches.json")
        self._ready = options.directory / "ready"
        self._cluster = Cluster()
        self._informers = Informers(api, KINDS)
        self._controller = Controller(api, self._cluster, dialect)
        self._queues = Queues(api, self._cluster, dialect)
        self._scheduler = Scheduler(api, self._cluster, dialect)
        self._expiry = Expiry(api, self._cluster)
        self._webhook = Webhook(api.another(), dialect, self._switches, options.directory)
        self._news: deque[Change] = deque()
        self._is_session_due = False
        self._last_session_s = self._last_expiry_s = 0.0
        self._last_pause_s = -math.inf

    def run(self) -> None:
        self._queues.make_default()
        self._webhook.start()
        self._informers.start()
        while True:
            paused = self._switches.paused_in_this_turn()
            self._receive(paused)
            try:
                if "controller" not in paused:
                    self._tell_controller()
                self._work(paused)
            except FAILURES as error:
                # Such as an API server that is away: everything is looked at again.
                print(f"again: {error}", file=sys.stderr, flush=True)
                self._is_session_due = True
                time.sleep(LONGEST_WAIT_S)

    def _receive(self, paused: frozenset[str]) -> None:
        """Take what has come in; waits a little when that is nothing."""
        due_s = None if "controller" in paused else self._controller.due_in_s()
        with contextlib.suppress(queue.Empty):
            self._news.append(self._informers.changes.get(timeout=min(due_s or LONGEST_WAIT_S, LONGEST_WAIT_S)))
            while True:
                self._news.append(self._informers.changes.get_nowait())
        self._is_session_due |= bool(self._news)
        if "controller" in paused:
            # The scheduler goes on; the controller hears of it all when it is back.
            for change in self._news:
                self._cluster.apply(change)

    def _tell_controller(self) -> None:
        # What it could not finish comes before the next change.
        self._controller.work()
        while self._news:
            change = self._news[0]
            # One after the other: a pod that failed is not seen as such before its event is handled.
            self._cluster.apply(change)
            self._queues.changed(change)
            self._controller.changed(change)
            self._news.popleft()
            self._controller.work()

    def _work(self, paused: frozenset[str]) -> None:
        now_s = time.monotonic()
        if "controller" not in paused and now_s - self._last_expiry_s > EXPIRY_EVERY_S:
            self._last_expiry_s = now_s
            self._expiry.work()
        if "scheduler" in paused:
            self._last_pause_s = now_s
        # One that goes on has first heard of what came in meanwhile.
        has_rested = now_s - self._last_pause_s > SESSION_EVERY_S
        if self._is_session_due and now_s - self._last_session_s > SESSION_EVERY_S:
            self._is_session_due, self._last_session_s = not has_rested, now_s
            if "controller" not in paused:
                self._queues.work()
            if has_rested:
                self._is_session_due = not self._scheduler.session(self._switches.preempts)
            if self._queues.is_default_open():
                self._ready.touch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    parser.add_argument("--release", choices=sorted(DIALECTS), required=True)
    Volcano(parser.parse_args()).run()


if __name__ == "__main__":
    main()
