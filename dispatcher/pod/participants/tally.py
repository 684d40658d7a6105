"""Counts how the attempts ended that a pod has recorded, by reason."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from dispatcher.pod.participant import Participant
from dispatcher.run_state.events import Event
from dispatcher.run_state.store import Transaction

# In this order. How attempts end is in the journal; each is counted when its line is there.
_ENDS: Final[Mapping[Event, str]] = {
    Event.DONE: "done",
    Event.FAILED: "failed",
    Event.RETRIED: "requeued",
    Event.AUTO_REQUEUED: "requeued",
    Event.STOPPED: "stopped",
    Event.PRUNED: "pruned",
}


class Tally(Participant):
    def __init__(self) -> None:
        self._ends: dict[str, Counter[str]] = {word: Counter() for word in _ENDS.values()}

    def commit(self, tx: Transaction) -> None:
        for line in tx.lines:
            word = _ENDS.get(line.event)
            if word is not None:
                self._ends[word][line.set.get("reason") or ""] += 1

    @property
    def failed(self) -> int:
        return self._ends["failed"].total()

    def text(self) -> str:
        """`12 done, 3 failed (exit 1: 2, out of memory: 1), 1 requeued (preempted: 1)`."""
        parts = [f"{reasons.total()} {word}{_by_reason(reasons)}" for word, reasons in self._ends.items() if reasons]
        return ", ".join(parts) or "no job has ended"


def _by_reason(reasons: Counter[str]) -> str:
    known = [f"{reason}: {number}" for reason, number in reasons.most_common() if reason]
    return f" ({', '.join(known)})" if known else ""
