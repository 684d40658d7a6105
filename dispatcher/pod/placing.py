"""Which outlets may take an entry, and in which order: where it was let down, and where its checkpoints are. Pure.

An entry that was preempted, waited too long in a queue, was lost or could not be started on one outlet is tried on the
next ones first. A job resumes from its checkpoint, so the place where that is kept (see OutletOffer.place) limits which
outlets can take it, unless its method says `on_move: restart`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.base.messages import first_names
from dispatcher.base.times import parse_time
from dispatcher.base.variables import PLACES
from dispatcher.checkpoints.storage import is_url
from dispatcher.config import Config
from dispatcher.hosts.types import Host
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import CANNOT_START, LOST, PREEMPTED, QUEUE_LIMIT, WORKSPACE
from dispatcher.run_state.journal import now_text
from dispatcher.run_state.states import Record

STAY: Final = "stay"
RESTART: Final = "restart"
# Why the next attempt is tried on another outlet first.
_LET_DOWN: Final = frozenset({PREEMPTED, QUEUE_LIMIT, CANNOT_START, LOST})
# Longer than the poll interval of other pods, which look at the queue of jobs then.
YIELD_S: Final = 90.0
_CHECKPOINTS: Final = "checkpoints"
# The parameters that say where the jobs of an entry keep their files.
_DIRECTORIES: Final = (_CHECKPOINTS, "output_dir")


class Home(msgspec.Struct, frozen=True):
    """Where a job's checkpoint is kept. `step` None: unknown."""

    place: str
    step: float | None = None

    def text(self) -> str:
        """What the job waits for, and why."""
        step = "" if self.step is None else f" of step {self.step:g}"
        place = "an outlet that sees the workspace" if self.place == WORKSPACE else self.place
        return f"waits for {place}: its checkpoint{step} is there"


def stays(_: Entry) -> str:
    """What `on_move` is unless a method says otherwise."""
    return STAY


def home_of(entry: Entry, record: Record) -> Home | None:
    """Where the job must run to resume; None where it resumes anywhere, or has no checkpoint."""
    if record.checkpoint_at is None or any(is_url(str(entry.params.get(word, ""))) for word in _DIRECTORIES):
        return None
    return Home(record.checkpoint_at, record.furthest_checkpoint)


def own_store(config: Config, entry: Entry) -> str:
    """The object store that the entry or its method names for checkpoints, wherever its job runs; empty: none."""
    variable = PLACES[_CHECKPOINTS]
    set_here = entry.env.get(variable) or config.method(entry.method).env.get(variable)
    named = str(entry.params.get(_CHECKPOINTS) or set_here or "")
    return named if is_url(named) else ""


def vanishing(config: Config, entries: Iterable[Entry], outlets: Iterable[str]) -> list[str]:
    """A warning for each of `outlets` whose disks end with the host, and on which jobs would keep their checkpoints."""
    hosts = [host for name in outlets if (host := config.hosts.hosts.get(name)) is not None]
    at_risk = [host for host in hosts if host.disks_vanish and not _outlasts(config, host)]
    if not at_risk:
        return []
    classes = (entry for entry in entries if entry.job is not None and entry.command is None)
    jobs = [entry for entry in classes if not own_store(config, entry)]
    return [
        f"{first_names(names)}: on {host.name} checkpoints are on a disk that is deleted with the host, and a job that "
        f"is preempted there starts anew: set `checkpoints: gs://BUCKET/...` of the cluster {host.cluster}"
        for host in at_risk
        if (names := [entry.job_id for entry in jobs if not entry.outlet or host.name in entry.outlet])
    ]


def _outlasts(config: Config, host: Host) -> bool:
    """Whether checkpoints are in an object store, or in a directory that the cluster mounts."""
    cluster = config.hosts.cluster_of(host)
    place = {**cluster.env, **host.env}.get(PLACES[_CHECKPOINTS]) or cluster.checkpoints or ""
    is_below_mount = not place or f"{place}/".startswith(f"{cluster.root}/")
    return is_url(place) or (cluster.mount is not None and is_below_mount)


def in_order(outlets: Sequence[str], record: Record) -> tuple[str, ...]:
    """`outlets` in the order in which the job is tried on them: from the one after that which let it down."""
    last = record.outlet
    if last not in outlets or record.reason not in _LET_DOWN:
        return tuple(outlets)
    after = outlets.index(last) + 1
    return (*outlets[after:], *outlets[:after])


def that_see(outlets: Sequence[str], places: Mapping[str, str], home: Home | None, on_move: str) -> tuple[str, ...]:
    """Those of `outlets` on which the job resumes; with `on_move: restart` then those on which it starts anew."""
    if home is None:
        return tuple(outlets)
    seeing = tuple(name for name in outlets if places[name] == home.place)
    return (*seeing, *(name for name in outlets if name not in seeing)) if on_move == RESTART else seeing


def yields_until(outlets: Sequence[str], record: Record) -> str:
    """Until when, as a journal time, a pod leaves to others what waited too long in its queue; empty for at once.

    A pod that has another outlet for it, in `outlets`, uses that one.
    """
    ended_s = parse_time(record.finished_at)
    if ended_s is None or any(name != record.outlet for name in outlets):
        return ""
    return now_text(ended_s + YIELD_S)
