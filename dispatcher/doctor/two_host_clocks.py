"""How much the clocks of two hosts differ. Only times in tables depend on it."""

from __future__ import annotations

import time
from typing import Final

from dispatcher.doctor.findings import OK, WARNING, Finding, Findings
from dispatcher.doctor.pair import Pair

_ROUNDS: Final = 8
_MUCH_SKEW_S: Final = 2.0


def clock_skew(pair: Pair) -> Findings:
    """By the round trip that took least time, as NTP does: the error is at most half of it."""
    meeting = pair.meeting
    best_s, skew_s = float("inf"), 0.0
    for _ in range(_ROUNDS):
        if pair.leads:
            sent_s = time.time()
            meeting.send()
            answer_s = meeting.receive()["at"]
            back_s = time.time()
            if back_s - sent_s < best_s:
                best_s, skew_s = back_s - sent_s, answer_s - (sent_s + back_s) / 2
        else:
            meeting.receive()
            meeting.send(at=time.time())
    theirs = meeting.swap(skew_s=skew_s, best_s=best_s if pair.leads else 0.0)
    if not pair.leads:
        best_s, skew_s = theirs["best_s"], -theirs["skew_s"]
    ahead = "ahead" if skew_s > 0 else "behind"
    what = f"the clock of {pair.there} is {abs(skew_s):.2f} s {ahead} (+- {best_s / 2:.2f} s)"
    if abs(skew_s) - best_s / 2 > _MUCH_SKEW_S:
        cure = "switch on NTP: nothing else depends on clocks, but times in tables are wrong"
        yield Finding("clock skew", WARNING, what, cure, skew_s, "s")
    else:
        yield Finding("clock skew", OK, what, "", skew_s, "s")
