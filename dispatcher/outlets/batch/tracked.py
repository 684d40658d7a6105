"""What a batch outlet knows of one attempt."""

from __future__ import annotations

from dispatcher.base import files
from dispatcher.hosts.types import Location
from dispatcher.outlets.base import Ended, Key, Placement, Report, Request
from dispatcher.outlets.batch.scheduler import JobState, Phase, Submitted
from dispatcher.workspace import AttemptPaths


class Stop:
    """That an attempt is to be stopped: `reason` for its exit status, `force` for at once.

    `by_scheduler`: the scheduler wants it stopped and leaves it to us. `is_sent`: it was told.
    """

    def __init__(self, reason: str, *, force: bool, by_scheduler: bool = False) -> None:
        self.reason = reason
        self.force = force
        self.by_scheduler = by_scheduler
        self.is_sent = False


class Tracked:
    """One attempt, from its submission until its end is forgotten.

    `directory` is its directory on the host, `paths` the one in the workspace. Times are of the monotonic clock.
    """

    def __init__(self, key: Key, name: str, index: int, directory: str, paths: AttemptPaths) -> None:
        self.key = key
        self.name = name
        self.index = index
        self.directory = directory
        self.paths = paths
        # Where an earlier dispatcher has submitted it, and why nothing is known of it here if that is elsewhere.
        self.location: Location | None = None
        self.elsewhere = ""
        self.handle: str | None = None
        # What it asks for; None where an earlier dispatcher has submitted it.
        self.request: Request | None = None
        # The label of the code that was shipped for it.
        self.code: str | None = None
        # What the scheduler told last, and what it told of its end when it was asked for details.
        self.state: JobState | None = None
        self.detail: JobState | None = None
        self.was_detailed = False
        # Whether the scheduler has accepted it or named it, and since when it has answered without naming it.
        self.is_known = False
        self.absent_since_s: float | None = None
        # For how long an earlier dispatcher had been submitting it when this one began to watch it.
        self.given_before_s = 0.0
        self.stop: Stop | None = None
        # Which request to end it at once was carried out, see Orphan.
        self.forced = 0
        # Whether it is to be superseded, and since when it is marked so where it runs.
        self.is_superseded = False
        self.marked_s: float | None = None
        self.tail = ""
        self.report: Report | None = None
        self.is_orphan = False
        # Whether its files are on the host alone: it was submitted when that did not see the workspace.
        self.is_away = False
        # Whether it shares its job with others, which run before or after it.
        self.is_packed = False
        # Whether a wrapper has taken it, and the wrapper's pid, when its directory was last looked at.
        self.was_taken = False
        self._pid: int | None = None

    @property
    def submitted(self) -> Submitted:
        return Submitted(key=self.key, name=self.name, index=self.index, directory=self.directory, handle=self.handle)

    @property
    def is_running(self) -> bool:
        """Whether it uses what it has asked for, as far as was told."""
        return self.state is not None and self.state.phase is Phase.RUNNING

    @property
    def has_ended(self) -> bool:
        return self.report is not None

    @property
    def is_asked_about(self) -> bool:
        """Whether the host is asked how it is."""
        return not (self.has_ended or self.elsewhere)

    def placement(self) -> Placement | None:
        """Where it runs, as far as that is known."""
        state = self.state or self.detail
        if state is None:
            return None if self.handle is None else Placement(handle=self.handle, code=self.code)
        handle = state.handle or self.handle
        pid = state.pid or (self._pid if state.host is not None else None)
        return Placement(handle=handle or None, host=state.host, pid=pid, gpus=state.gpus, code=self.code)

    def look_for_wrapper(self) -> None:
        """Read what the wrapper has written down; done when there are answers, not whenever the loop asks."""
        if self._pid is not None:
            return
        try:
            words = files.read_at_once(self.paths.taken).split()
            self.was_taken = True
            self._pid = int(words[1])
        except (OSError, ValueError, IndexError):
            # There is none yet, or the disk was full when it was written.
            return

    def end(self, ended: Ended) -> None:
        self.report = Report(ended, self.placement())

    def see(self, state: JobState) -> None:
        """The scheduler has named it."""
        self.state = state
        self.is_known = True
        self.absent_since_s = None
        self.handle = state.handle or self.handle
