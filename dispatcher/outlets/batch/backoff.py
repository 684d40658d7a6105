"""When a scheduler that refuses submissions is tried again. Pure bookkeeping: times are passed in, in seconds.

A refusal that is transient (the server is busy, the user's limit is reached) pauses the outlet at once, others when
several calls in a row were refused: then it is the outlet that is wrong and not one entry. Each pause is twice as long
as the one before. After a refusal one submission alone is the test.
"""

from __future__ import annotations

from typing import Final

# How many submissions go with one call: a call that fails leaves all of them in doubt.
MOST_AT_ONCE: Final = 50
_REFUSALS: Final = 3
_LONGEST_PAUSE_S: Final = 1800.0


class SubmissionBackoff:
    """Refusals in a row, and the pause that follows from them. `problem` is why nothing is submitted, else empty."""

    def __init__(self, first_pause_s: float) -> None:
        self._first_pause_s = first_pause_s
        self.problem = ""
        self._refusals = 0
        self._pauses = 0
        self._until_s = 0.0
        # The refusals of one call have one cause.
        self._is_counted = False

    @property
    def most_at_once(self) -> int:
        """How many submissions may go with the next call."""
        return 1 if self._refusals else MOST_AT_ONCE

    def wait_s(self, now_s: float) -> float:
        """For how long nothing is to be submitted."""
        return max(0.0, self._until_s - now_s)

    def begin_call(self) -> None:
        """Submissions are about to be sent with one call."""
        self._is_counted = False

    def accepted(self) -> None:
        """The scheduler takes submissions."""
        self._refusals = self._pauses = 0
        self._until_s = 0.0
        self.problem = ""

    def refused(self, why: str, now_s: float, *, is_transient: bool) -> None:
        """A submission was refused."""
        if self._is_counted:
            return
        self._is_counted = True
        self._refusals += 1
        if is_transient or self._refusals >= _REFUSALS:
            pause_s = min(self._first_pause_s * 2.0**self._pauses, _LONGEST_PAUSE_S)
            self._pauses += 1
            self._until_s = now_s + pause_s
            self.problem = f"{why} (tried again in {pause_s:.0f} s)"

    def doubted(self, why: str) -> None:
        """It is not known whether a submission was accepted."""
        self.problem = why

    def lift(self, now_s: float) -> None:
        """Nothing is left to be tried: the problem goes with the pause, so that there is something to try again."""
        if now_s >= self._until_s:
            self.problem = ""
