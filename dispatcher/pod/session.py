"""When a pod ran and with which slots, in the journal: `dispatcher usage` counts what was used of them.

A pod that is killed cannot write its end. Its last heartbeat is in its file, which the next pod of its name replaces;
so that one writes the end of the one before it.
"""

from __future__ import annotations

import time

from dispatcher.pod.options import PodOptions
from dispatcher.pod.registration import Registration
from dispatcher.run_state.events import PodEnded, PodStarted
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import PodInfo
from dispatcher.run_state.store import Store, Transaction


class Session:
    """The time of one dispatcher, from its first transaction to its last."""

    def __init__(self, store: Store, registration: Registration, options: PodOptions) -> None:
        self._store = store
        self._registration = registration
        self._options = options
        self._has_begun = False
        self._claimed_until: str | None = None
        self._drained: list[tuple[str, str]] = []

    def begin(self, tx: Transaction) -> None:
        """Write down that the pod begins, and what became of the one before it; nothing for one without slots."""
        info, before = self._registration.info, self._registration.previous
        if not info.outlets:
            return
        if before is not None and before.phase != "ended" and before.heartbeat_at:
            end = PodEnded(pod=before.pod, started_at=before.started_at, ended_at=before.heartbeat_at, was_killed=True)
            tx.note(end)
        matrix = "" if self._options.matrix is None else str(self._options.matrix)
        tx.note(pod_started(info, matrix))
        # One that ends at once has no slots that could be idle.
        self._has_begun = not self._options.once

    def claims(self, does: bool) -> None:
        """Whether the pod claims jobs from now on."""
        if does:
            if self._claimed_until is not None:
                self._drained.append((self._claimed_until, now_text(time.time())))
            self._claimed_until = None
        elif self._claimed_until is None:
            self._claimed_until = now_text(time.time())

    def end(self) -> None:
        """Write down that the pod has ended."""
        if not self._has_begun:
            return
        info = self._registration.info
        with self._store.transaction() as tx:
            tx.note(
                PodEnded(
                    pod=info.pod,
                    started_at=info.started_at,
                    ended_at=tx.at,
                    claimed_until=self._claimed_until,
                    drained=tuple(self._drained),
                )
            )


def pod_started(info: PodInfo, matrix: str) -> PodStarted:
    """That this dispatcher began; `matrix` is the manifest that it reads, empty for the default one."""
    return PodStarted(
        pod=info.pod,
        started_at=info.started_at,
        host=info.host,
        user=info.user,
        outlets=info.outlets,
        methods=tuple(info.methods),
        where=tuple(info.where),
        matrix=matrix,
    )
