"""What no line of the journal says by itself: a dead pod, a finished matrix, jobs that wait while none runs.

Each is an incident with a key. The first pod that finds one writes that it began, and one that finds it over writes
that; in between no notice is sent again. So what a pod sees must not contradict what another one sees: a dead pod is
named with its last heartbeat, it is over only when that has risen, and it begins only if that has not risen since the
last look, which may be as old as the poll interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from dispatcher.base.messages import counted, first_names
from dispatcher.base.times import duration_text, parse_time
from dispatcher.run_state.facets.notices import Began, Incident, incident_key, topic_of
from dispatcher.run_state.fold import Fold
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.liveness import PodInfo
from dispatcher.run_state.states import ENDED, IN_FLIGHT, State
from dispatcher.topics import Topic

_OPEN: Final = (State.QUEUED, *IN_FLIGHT)
# A pod whose last heartbeat is so much older than the wish to be told is not news.
_OLD_S: Final = 600.0

_DONE_KEY: Final = incident_key(Topic.MATRIX_DONE, "")
_NOTHING_KEY: Final = incident_key(Topic.NOTHING_RUNNING, "")


class Conditions:
    """Compares what is so with the incidents that the journal has.

    These look at files: `read_pods`, `is_dead` (whether a dispatcher is gone without having ended), and `stalled`: the
    running attempts `job/attempt` that this process watches, each with the seconds for which it has stalled, None: it
    has not.
    """

    def __init__(
        self,
        nothing_running_after_s: float,
        read_pods: Callable[[], Iterable[PodInfo]],
        is_dead: Callable[[PodInfo], bool],
        stalled: Callable[[], Mapping[str, float | None]] = dict,
    ) -> None:
        self.nothing_running_after_s = nothing_running_after_s
        self._read_pods = read_pods
        self._is_dead = is_dead
        self._find_stalled = stalled
        self._dead: dict[str, PodInfo] = {}
        # Their deaths are news, whatever clocks their hosts have.
        self._seen_alive: set[str] = set()
        self._heartbeats: dict[str, int] = {}
        self._stalled: Mapping[str, float | None] = {}
        self._nothing_since_s: float | None = None

    def has_news(self, fold: Fold, *, poll_is_due: bool) -> bool:
        """Whether the journal lacks something. `poll_is_due`: files are looked at, too."""
        if poll_is_due:
            self._look(fold)
        return bool(self.news(fold))

    def due_in_s(self) -> float | None:
        """Seconds until nothing has run for long enough; None when something runs, or nothing waits."""
        if self._nothing_since_s is None:
            return None
        left_s = self._nothing_since_s + self.nothing_running_after_s - time.monotonic()
        return left_s if left_s > 0 else None

    def nothing_runs_since(self, seconds: float) -> None:
        """As found by another clock: nothing has been running for so many seconds."""
        self._nothing_since_s = time.monotonic() - seconds

    def nothing_will_run(self) -> None:
        """No process is left that starts jobs."""
        self.nothing_runs_since(self.nothing_running_after_s)

    def news(self, fold: Fold, *, is_old: bool = False) -> list[Incident]:
        """What is to be written into the journal."""
        finders = {
            Topic.POD_DEAD: self._pod_news,
            Topic.JOB_STALLED: self._stall_news,
            Topic.MATRIX_DONE: self._done_news,
            Topic.NOTHING_RUNNING: self._nothing_news,
        }
        found = []
        for topic, find in finders.items():
            if fold.notices.wants(topic):
                known = [key for key in fold.notices.incidents if topic_of(key) == topic]
                began, over = find(fold, known)
                new = {key: one for key, one in began.items() if key not in fold.notices.incidents}
                if new or over:
                    found.append(Incident(topic=topic, began=new, over=tuple(over), is_old=is_old))
        return found

    def _look(self, fold: Fold) -> None:
        if fold.notices.wants(Topic.POD_DEAD):
            infos = list(self._read_pods())
            self._dead = {info.pod: info for info in infos if self._is_dead(info)}
            self._seen_alive.update(info.pod for info in infos if info.pod not in self._dead)
            self._heartbeats = {info.pod: info.heartbeat for info in infos}
        if fold.notices.wants(Topic.JOB_STALLED):
            self._stalled = self._find_stalled()

    def _pod_news(self, fold: Fold, known: list[str]) -> tuple[dict[str, Began], list[str]]:
        since_s = parse_time(fold.notices.since.get(Topic.POD_DEAD)) or 0.0
        began = {
            _pod_key(info): Began(f"pod {info.pod} on {info.host} is dead since {info.heartbeat_at or '?'}", info.pod)
            for info in self._still_dead(known)
            if info.pod in self._seen_alive or (parse_time(info.heartbeat_at) or 0.0) >= since_s - _OLD_S
        }
        over = []
        for key in known:
            pod, _, heartbeat = key.partition(":")[2].rpartition(":")
            if self._heartbeats.get(pod, 0) > int(heartbeat) and key not in began:
                over.append(key)
        return began, over

    def _still_dead(self, known: list[str]) -> list[PodInfo]:
        """The dead pods, without those that are no news and have been started again since they were looked at."""
        if any(_pod_key(info) not in known for info in self._dead.values()):
            keys_now = {_pod_key(info) for info in self._read_pods()}
            self._dead = {pod: info for pod, info in self._dead.items() if _pod_key(info) in {*known, *keys_now}}
        return list(self._dead.values())

    def _stall_news(self, fold: Fold, known: list[str]) -> tuple[dict[str, Began], list[str]]:
        began = {
            incident_key(Topic.JOB_STALLED, attempt): Began(
                f"no progress reported for {duration_text(silent_s)}", "", attempt.rpartition("/")[0]
            )
            for attempt, silent_s in self._stalled.items()
            if silent_s is not None and _runs(fold, attempt)
        }
        # Whether another pod's attempt goes on again, that pod says.
        attempts = {key: key.partition(":")[2] for key in known}
        over = [
            key
            for key, attempt in attempts.items()
            if not _runs(fold, attempt) or self._stalled.get(attempt, 0.0) is None
        ]
        return began, over

    def _done_news(self, fold: Fold, known: list[str]) -> tuple[dict[str, Began], list[str]]:
        if fold.count(*_OPEN):
            return {}, known
        if known or not fold.count(*ENDED):
            return {}, []
        counts = [f"{count} {state}" for state in State if state not in _OPEN and (count := fold.count(state))]
        return {_DONE_KEY: Began(f"no job is left to run: {', '.join(counts)}", "")}, []

    def _nothing_news(self, fold: Fold, known: list[str]) -> tuple[dict[str, Began], list[str]]:
        if fold.count(*IN_FLIGHT) or not fold.count(State.QUEUED):
            self._nothing_since_s = None
            return {}, known
        now_s = time.monotonic()
        if self._nothing_since_s is None:
            self._nothing_since_s = now_s
        idle_s = now_s - self._nothing_since_s
        if known or idle_s < self.nothing_running_after_s or not _waits(fold):
            return {}, []
        text = f"{counted(fold.count(State.QUEUED), 'job waits', 'jobs wait')}, and none runs"
        text += f"; paused: {first_names(list(fold.pauses))}" if fold.pauses else ""
        return {_NOTHING_KEY: Began(text, "")}, []


def _pod_key(info: PodInfo) -> str:
    return incident_key(Topic.POD_DEAD, f"{info.pod}:{info.heartbeat}")


def _runs(fold: Fold, attempt: str) -> bool:
    job, _, number = attempt.rpartition("/")
    record = fold.records.get(job)
    return record is not None and record.state in IN_FLIGHT and str(record.attempt) == number


def _waits(fold: Fold) -> bool:
    """Whether a job waits for something else than the time of its next try."""
    now = now_text(time.time())
    queued = (fold.records[job] for job in fold.records.by_state().jobs((State.QUEUED,)))
    return any(record.retry_at is None or record.retry_at <= now for record in queued)
