"""Packs: jobs of one claim that share a slot and run in one submission, one after the other."""

from __future__ import annotations


class Pack:
    """What the members of a pack have in common. The slot is free when the last of them has left."""

    def __init__(self) -> None:
        # Members that still need the slot.
        self._members = 0
        # Whether a member runs or has run: the others wait for their turn, not in a queue.
        self.has_begun = False

    def join(self) -> None:
        """One more member."""
        self._members += 1

    def leave(self) -> bool:
        """A member has ended or is not started; whether it was the last."""
        self._members -= 1
        return self._members == 0


def is_last(pack: Pack | None) -> bool:
    """Let a member of `pack`, or an attempt alone, leave its slot; whether the slot is free then."""
    return pack is None or pack.leave()
