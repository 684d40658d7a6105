"""The slots of pods over time: sessions of dispatchers, and which of their slots a job could have had. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final

import msgspec

from dispatcher.base.times import parse_time
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Request
from dispatcher.outlets.kinds import DEFAULT, kind_of
from dispatcher.outlets.local.offer import LocalOffer, gpu_part
from dispatcher.pod.offers import Offer
from dispatcher.pod.session import pod_started
from dispatcher.query.snapshot import PodStatus
from dispatcher.query.usage.history import Attempt, History, PauseSpan, Session
from dispatcher.run_state.liveness import PodInfo

CPU: Final = 0
GPU: Final = 1


class PodRun(msgspec.Struct, gc=False):
    """One dispatcher and its slots on its host, from `begun_s` to `ended_s`.

    `ahead_s`: by how much the clock of that host is known to be ahead of the file server's; these times are without it.

    `number` tells it from others, and among those of its name `began_at`, as its pod's file has it. `slots` are its CPU
    slots and its slots on GPUs, of which `share` are one GPU.
    """

    number: int
    pod: str
    host: str
    user: str
    began_at: str
    begun_s: float
    ended_s: float
    ahead_s: float
    claimed_until_s: float
    drained_s: tuple[tuple[float, float], ...]
    slots: tuple[int, int]
    share: int
    offer: Offer
    matrix: str

    def weight(self, gpus: int, gpu_share: float | None) -> tuple[int, float]:
        """The kind and the number of the slots that an attempt on so many GPUs takes, or on this part of one."""
        if not gpus:
            return CPU, 1
        if gpus == 1:
            return GPU, 1 if gpu_share is None else gpu_share * self.share
        return GPU, gpus * self.share

    def wanted(self, request: Request) -> tuple[bool, bool, float]:
        """Whether such a job takes CPU slots and slots on GPUs of this pod, and how many."""
        gpus = request.gpus
        if gpus is None:
            return True, True, 1
        return gpus == 0, gpus > 0, self.weight(gpus, self._share_of(request))[1]

    def _share_of(self, request: Request) -> float | None:
        """The part of one of these GPUs that a job would have; None where it does not share by memory."""
        local = self.offer.outlets[DEFAULT]
        assert isinstance(local, LocalOffer)
        of_gpus = [mib for index in local.able(request) if (mib := local.gpu_memory_mib.get(index))]
        return gpu_part(request.gpu_memory_mib, max(of_gpus)) if request.gpu_memory_mib and of_gpus else None


def stays_of(history: History, pods: Sequence[PodStatus], now_s: float) -> list[PodRun]:
    """The dispatchers that ran, in the order in which they began. `pods` are the files that they have left."""
    files = {(pod.info.pod, pod.info.started_at): pod for pod in pods}
    known = {(session.started.pod, session.started.started_at) for session in history.sessions}
    # The journal's line about one that began long ago may be gone.
    unknown = [_session_of(pod.info) for key, pod in files.items() if key not in known and pod.info.outlets]
    sessions = sorted([*history.sessions, *unknown], key=lambda session: session.begun_s)
    following = _following(sessions)
    stays = []
    for number, session in enumerate(sessions):
        started = session.started
        pod = files.get((started.pod, started.started_at))
        ahead_s = 0.0 if pod is None else pod.clock_ahead_s
        ended_s = session.ended_s
        if ended_s is None:
            is_alive = pod is not None and pod.is_alive
            ended_s = now_s + ahead_s if is_alive else _last_sign_s(session, pod, history)
            ended_s = min(ended_s, following[number])
        ended_s = max(session.begun_s, ended_s)
        stays.append(_stay(number, session, ended_s, ahead_s))
    return stays


def _session_of(info: PodInfo) -> Session:
    """A dispatcher as its file has it."""
    return Session(pod_started(info, info.matrix), parse_time(info.started_at) or 0.0)


def _following(sessions: Sequence[Session]) -> list[float]:
    """When the next dispatcher of the same name began, for each."""
    found = [float("inf")] * len(sessions)
    last: dict[str, int] = {}
    for number, session in enumerate(sessions):
        before = last.get(session.started.pod)
        if before is not None:
            found[before] = session.begun_s
        last[session.started.pod] = number
    return found


def _last_sign_s(session: Session, pod: PodStatus | None, history: History) -> float:
    """When a dispatcher that is gone was last heard of."""
    if pod is not None:
        # Of a release that does not write it, the file server's clock tells.
        return parse_time(pod.info.heartbeat_at) or pod.beat_at_s or session.begun_s
    return history.last_s.get(session.started.pod, session.begun_s)


def _stay(number: int, session: Session, ended_s: float, ahead_s: float) -> PodRun:
    started = session.started
    local = _local_offer(started.outlets)
    offer = Offer(
        pod=started.pod,
        host=started.host,
        outlets={DEFAULT: local},
        methods=started.methods,
        where=Where.parse(started.where),
    )
    return PodRun(
        number=number,
        pod=started.pod,
        host=started.host,
        user=started.user,
        began_at=started.started_at,
        begun_s=session.begun_s - ahead_s,
        ended_s=ended_s - ahead_s,
        ahead_s=ahead_s,
        claimed_until_s=min(session.claimed_until_s or ended_s, ended_s) - ahead_s,
        drained_s=tuple((since_s - ahead_s, until_s - ahead_s) for since_s, until_s in session.drained_s),
        slots=(local.cpu_slots, len(local.gpus) * local.jobs_per_gpu),
        share=local.jobs_per_gpu,
        offer=offer,
        matrix=started.matrix,
    )


def _local_offer(outlets: Mapping[str, Mapping[str, object]]) -> LocalOffer:
    """The slots of this very host; a pod that only submits has none."""
    try:
        found = kind_of(DEFAULT).read_offer(outlets.get(DEFAULT, {}))
    except msgspec.ValidationError:
        return LocalOffer()
    assert isinstance(found, LocalOffer)
    # What was free when it began does not tell what it takes.
    return msgspec.structs.replace(found, free=None)


class Stays:
    """Finds the dispatcher that claimed an attempt."""

    def __init__(self, stays: Sequence[PodRun]) -> None:
        self.all = stays
        self._of_pod: dict[str, list[PodRun]] = {}
        self._by_beginning: dict[tuple[str, str], PodRun] = {}
        for stay in stays:
            self._of_pod.setdefault(stay.pod, []).append(stay)
            self._by_beginning[stay.pod, stay.began_at] = stay

    def of(self, attempt: Attempt) -> PodRun | None:
        stay = self._by_beginning.get((attempt.pod, attempt.pod_began_at))
        if stay is not None:
            return stay
        stays = self._of_pod.get(attempt.pod, [])
        found = bisect.bisect_right(stays, attempt.claimed_s, key=lambda stay: stay.begun_s)
        return stays[found - 1] if found else None


class Eligibility:
    """Which slots of which dispatcher a waiting job could have had. Jobs of one kind are asked about once.

    Dispatchers that take the same are asked once: a pod that is started every night has many.

    `lists(matrix)` are the jobs of a pod's manifest (empty: of the default one); None: of all. `scopes` are the method
    of each class, and the scopes of `pauses` that hold its jobs up wherever they would run.
    """

    def __init__(
        self,
        stays: Sequence[PodRun],
        entry_of: Callable[[str], Entry | None],
        request_of: Callable[[Entry], Request],
        lists: Callable[[str], Collection[str] | None],
        pauses: Iterable[PauseSpan] = (),
    ) -> None:
        # One of each group of dispatchers that take the same, and the group of each.
        self._groups: list[PodRun] = []
        self._group_of: dict[int, int] = {}
        numbers: dict[object, int] = {}
        for stay in stays:
            group = numbers.setdefault(_takes(stay), len(numbers))
            self._group_of[stay.number] = group
            if group == len(self._groups):
                self._groups.append(stay)
        self._entry_of = entry_of
        self._request_of = request_of
        self._lists = {stay.matrix: lists(stay.matrix) for stay in stays}
        # Those of whole methods are known by the method.
        self._pauses = {span.pause.scope: span.pause for span in pauses if span.pause.values}
        self._by_value = bool(self._pauses) or any(stay.offer.where for stay in stays)
        self._classes: dict[object, int] = {}
        self._wanted: list[dict[int, tuple[bool, bool, float]]] = []
        self._numbers: dict[object, int] = {}
        self.scopes: list[tuple[str, frozenset[str]]] = []

    def class_of(self, job: str, kind: int) -> int | None:
        """The number of the class of jobs that is this one's; None for one that no pod could have run."""
        listed = tuple(jobs is None or job in jobs for jobs in self._lists.values())
        key: object = (kind, listed) if kind and not self._by_value else job
        if key not in self._classes:
            self._classes[key] = self._add(job)
        number = self._classes[key]
        return number if number >= 0 else None

    def wanted(self, number: int, stay: int) -> tuple[bool, bool, float] | None:
        """What jobs of a class take of a dispatcher's slots (Stay.wanted); None when it takes none of them."""
        return self._wanted[number].get(self._group_of[stay])

    def _add(self, job: str) -> int:
        entry = self._entry_of(job)
        if entry is None:
            return -1
        request, wanted = self._request_of(entry), {}
        for group, stay in enumerate(self._groups):
            jobs = self._lists[stay.matrix]
            if (jobs is None or job in jobs) and any(stay.slots) and stay.offer.refusal(entry, request) is None:
                wanted[group] = stay.wanted(request)
        # Jobs for the same slots are one class, whatever else distinguishes them.
        scopes = frozenset(scope for scope, pause in self._pauses.items() if pause.covers(entry)) | {entry.method}
        key = (tuple(wanted.items()), entry.method, scopes)
        known = self._numbers.setdefault(key, len(self._wanted))
        if known == len(self._wanted):
            self._wanted.append(wanted)
            self.scopes.append((entry.method, scopes))
        return known


def _takes(stay: PodRun) -> object:
    """What decides which jobs a dispatcher takes, and with which slots."""
    offer = stay.offer
    outlets = tuple((name, msgspec.json.encode(one)) for name, one in offer.outlets.items())
    where = tuple(map(str, offer.where.conditions))
    return stay.matrix, stay.slots, stay.share, tuple(offer.methods), where, outlets
