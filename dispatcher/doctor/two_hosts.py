"""What only two hosts can prove together: the list of proofs, and how they are run. A new proof is a line of PROOFS.

A proof is a function from a Pair to findings. Both doctors run it at the same time, and both must get the same result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from dispatcher.base.mounts import mount_of
from dispatcher.doctor import two_host_clocks, two_host_files, two_host_locks
from dispatcher.doctor.findings import OK, UNKNOWN, Finding, Findings
from dispatcher.doctor.meeting import Meeting, PeerGoneError
from dispatcher.doctor.pair import Pair
from dispatcher.workspace import Layout

# In this order: what follows `exclusion` uses the kinds of lock that it has found to exclude.
PROOFS: Final[tuple[Callable[[Pair], Findings], ...]] = (
    two_host_clocks.clock_skew,
    two_host_locks.exclusion,
    two_host_locks.hand_over,
    two_host_files.mkdir_race,
    two_host_files.renames_and_appends,
    two_host_files.attribute_cache,
    two_host_locks.transactions,
)


def prove_together(meeting: Meeting, layout: Layout, wanted: str) -> list[Finding]:
    """All proofs and measurements with the doctor of another host."""
    pair = Pair(meeting, layout, wanted)
    found = [Finding("other host", OK, f"{pair.there} answers")]
    try:
        with meeting.here():
            for prove in PROOFS:
                for finding in prove(pair):
                    found.append(finding)
            meeting.end()
    except PeerGoneError as error:
        meeting.remove()
        found.append(Finding("other host", UNKNOWN, str(error), "run `dispatcher doctor` on both hosts again"))
    return found


def not_proved(layout: Layout, wait_s: float) -> list[Finding]:
    """What one doctor alone leaves open."""
    mount = mount_of(layout.root)
    if not mount.is_network:
        return [Finding("other hosts", OK, f"none can see {mount.point} ({mount.fstype}): nothing to prove")]
    what = (
        f"no doctor started on another host within {wait_s:g} s: it is not proved that locks exclude and that both see "
        "the same"
    )
    return [Finding("other hosts", UNKNOWN, what, "run `dispatcher doctor` on two hosts at the same time")]
