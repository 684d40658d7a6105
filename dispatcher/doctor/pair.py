"""This doctor and that of another host, which run the same proofs at the same time and agree on what came out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from dispatcher.base.mounts import Mount, mount_of
from dispatcher.doctor.meeting import Meeting
from dispatcher.workspace import Layout


@dataclass
class Pair:
    """What every proof gets. `wanted` is the kind of lock in dispatcher.yaml."""

    meeting: Meeting
    layout: Layout
    wanted: str
    mount: Mount = field(init=False)
    # The kinds of lock that exclude between the two hosts, as far as proved.
    excluding: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.mount = mount_of(self.meeting.directory)

    @property
    def directory(self) -> Path:
        """For these two doctors alone."""
        return self.meeting.directory

    @property
    def leads(self) -> bool:
        """True for exactly one of the two."""
        return self.meeting.leads

    @property
    def here(self) -> str:
        return self.meeting.me.host

    @property
    def there(self) -> str:
        return self.meeting.peer.host

    def sync(self) -> None:
        """Wait until the other doctor has come to this point, too."""
        self.meeting.swap()

    def agree(self, problem: str) -> str:
        """The problem that either doctor has; empty when neither has one."""
        return str(self.meeting.swap(problem=problem)["problem"]) or problem

    def times_of_leader(self, times_s: list[float]) -> list[float]:
        """What the leader measured, on both hosts."""
        theirs = self.meeting.swap(times_s=times_s)["times_s"]
        return times_s if self.leads else list(theirs)
