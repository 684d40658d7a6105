"""What a pod takes: which methods, which entries, and what its outlets offer. Pure.

A pod has its own offer at hand; the others' are read from `pods/<pod>.json`, where each pod publishes what it takes.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatcher.base import devices
from dispatcher.base.host import host_name
from dispatcher.base.values import memory_mib
from dispatcher.hosts.fields import OF_USER, OF_WORKSPACE
from dispatcher.hosts.options import label_key, merged
from dispatcher.hosts.types import PbsHost, SlurmHost
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.outlets.base import Capacity, OutletOffer, Request
from dispatcher.outlets.kinds import kind_of
from dispatcher.pod.placing import Home, that_see
from dispatcher.run_state.liveness import PodInfo, read_pods
from dispatcher.workspace import Layout

if TYPE_CHECKING:
    from dispatcher.config import Config, Method
    from dispatcher.pod.options import PodOptions

# Kinds of refusals: where all pods refuse for the same one, one sentence covers them all.
SILENT: Final = "silent"
DRAINING: Final = "draining"
STOPPED: Final = "stopped"
HOST: Final = "host"
UNUSABLE: Final = "unusable"
METHOD: Final = "method"
_OUTLET: Final = "outlet"
WHERE: Final = "where"
_CAPACITY: Final = "capacity"
_CAPACITY_NOW: Final = "capacity now"
PLACE: Final = "place"
MANIFEST: Final = "manifest"
BLOCKED: Final = "blocked"
CODE: Final = "code"
# How many blocked jobs the pod's file has room for.
_PUBLISHED: Final = 100


class Rejection(msgspec.Struct, frozen=True):
    """Why one pod does not take a job; `needs_person`: nor will it later, unless a person changes something."""

    kind: str
    text: str
    needs_person: bool = False

    @property
    def is_chosen(self) -> bool:
        """Whether the pod was started with options that exclude the job."""
        return self.kind in (METHOD, WHERE, MANIFEST)


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod takes. `outlets` is what each of its outlets offers, the preferred first.

    `is_silent`: it shows no sign of life. `methods` (empty: all) and `where` are the filters that it was started with,
    `unusable_methods` what it cannot start, and why; `stopped` is why it no longer claims, `blocked` the jobs whose
    claims failed, and why; `code_problems` are the copies of the code that it cannot have, and why (empty name: one
    that is to be taken); `lists` are the jobs of its manifest where that is not the default one.
    """

    pod: str
    host: str = ""
    outlets: Mapping[str, OutletOffer] = {}
    methods: Collection[str] = ()
    where: Where = Where()
    is_silent: bool = False
    is_draining: bool = False
    stopped: str = ""
    blocked: Mapping[str, str] = {}
    unusable_methods: Mapping[str, str] = {}
    code_problems: Mapping[str, str] = {}
    manifest: str = ""
    lists: Collection[str] | None = None

    def outlets_for(self, entry: Entry) -> tuple[str, ...]:
        """The outlets of this pod that may run the entry, in the entry's order of preference, else in the pod's."""
        if not entry.outlet:
            return tuple(self.outlets)
        return tuple(name for name in entry.outlet if name in self.outlets)

    def excludes(self, entry: Entry) -> Rejection | None:
        """Why the entry is not for this pod: its manifest, its method, its outlet, or --where."""
        if self.lists is not None and entry.job_id not in self.lists:
            return Rejection(MANIFEST, f"not in its manifest {self.manifest}")
        if self.methods and entry.method not in self.methods:
            return Rejection(METHOD, f"method {entry.method} is not among --methods")
        if entry.outlet and not self.outlets_for(entry):
            offered = ", ".join(self.outlets) or "none"
            return Rejection(_OUTLET, f"asks for outlet {' or '.join(entry.outlet)}, this pod offers {offered}")
        miss = self.where.first_miss(entry.value)
        return None if miss is None else Rejection(WHERE, f"--where {miss} does not match")

    def refusal(self, entry: Entry, request: Request) -> Rejection | None:
        """Why the pod never takes the entry, an attempt of which asks for `request`."""
        refusal = self.excludes(entry)
        if refusal is not None:
            return refusal
        reasons = {}
        for name in self.outlets_for(entry):
            reasons[name] = self.outlets[name].refuses(request)
            if not reasons[name]:
                break
        else:
            return Rejection(_CAPACITY, _by_outlet(reasons) or "this pod has no outlet that is known here")
        if entry.method in self.unusable_methods:
            why = f"unusable method {entry.method}: {self.unusable_methods[entry.method]}"
            return Rejection(UNUSABLE, why, needs_person=True)
        return None

    def that_see(self, entry: Entry, home: Home, on_move: str) -> Offer:
        """The offer with those outlets only that may take an entry with this checkpoint."""
        places = {name: outlet.place for name, outlet in self.outlets.items()}
        names = that_see(self.outlets_for(entry), places, home, on_move)
        return msgspec.structs.replace(self, outlets={name: self.outlets[name] for name in names})

    def refusal_now(self, entry: Entry, request: Request) -> Rejection | None:
        """Why an entry that the pod does not refuse gets no slot, whatever ends; None when waiting helps."""
        reasons = {}
        for name in self.outlets_for(entry):
            outlet = self.outlets[name]
            if not outlet.refuses(request):
                reasons[name] = outlet.refuses_now(request)
                if not reasons[name]:
                    return None
        return Rejection(_CAPACITY_NOW, _by_outlet(reasons)) if reasons else None

    def lacks(self, entry: Entry, request: Request) -> str:
        """What an entry that the pod takes waits for, besides a slot; empty where one outlet lacks nothing."""
        reasons = {}
        for name in self.outlets_for(entry):
            outlet = self.outlets[name]
            if not outlet.refuses(request) and not outlet.refuses_now(request):
                reasons[name] = outlet.lacks(request)
        return _by_outlet(reasons) if reasons and all(reasons.values()) else ""


def own_offer(
    options: PodOptions,
    capacities: Mapping[str, Capacity],
    unusable_methods: Mapping[str, str] = MappingProxyType({}),
) -> Offer:
    """What a pod with these options and outlets takes."""
    return Offer(
        pod=options.pod,
        host=host_name(),
        outlets=offers_of(capacities),
        methods=options.methods,
        where=options.where,
        unusable_methods=unusable_methods,
        manifest="the jobs to submit",
        lists=options.jobs,
    )


def offers_of(capacities: Mapping[str, Capacity]) -> dict[str, OutletOffer]:
    """What the outlets with these capacities offer at the moment, in the same order."""
    return {name: capacity.offer() for name, capacity in capacities.items()}


def published(offer: Offer) -> dict[str, Any]:
    """The fields of a pod's file that say what it takes; `offer_of` reads them."""
    return {
        "outlets": {name: msgspec.to_builtins(outlet, str_keys=True) for name, outlet in offer.outlets.items()},
        "methods": list(offer.methods),
        "where": [str(condition) for condition in offer.where.conditions],
        "blocked": dict(itertools.islice(offer.blocked.items(), _PUBLISHED)),
        "unusable_methods": dict(offer.unusable_methods),
        "code_problems": dict(offer.code_problems),
    }


def offer_of(
    info: PodInfo, *, is_draining: bool = False, is_silent: bool = False, lists: Collection[str] | None = None
) -> Offer:
    """What a pod takes, as its file says. `is_silent`, `lists`: see Offer."""
    return Offer(
        pod=info.pod,
        host=info.host,
        outlets=_read_outlets(info),
        methods=info.methods,
        where=Where.parse(info.where),
        is_silent=is_silent,
        is_draining=is_draining,
        stopped=info.stopped,
        blocked=info.blocked,
        unusable_methods=info.unusable_methods,
        code_problems=info.code_problems,
        manifest=info.matrix.rpartition("/")[2],
        lists=lists,
    )


def offers_of_others(layout: Layout, me: str, is_alive: Callable[[str], bool]) -> list[tuple[PodInfo, Offer]]:
    """What the other live pods take that claim jobs."""
    return [
        (info, offer_of(info))
        for info in read_pods(layout)
        if info.pod != me and info.phase == "running" and not info.stopped and is_alive(info.pod)
    ]


def _read_outlets(info: PodInfo) -> dict[str, OutletOffer]:
    """The outlets of another pod, without those that only another release can read."""
    known = {}
    for name, data in info.outlets.items():
        with contextlib.suppress(msgspec.ValidationError):
            known[name] = kind_of(name).read_offer(data)
    return known


def refused_by_all(entry: Entry, request: Request, refusals: Mapping[str, Rejection], offers: Collection[Offer]) -> str:
    """Why no live pod takes the entry. `refusals` by pod, of all `offers`."""
    kinds = {refusal.kind for refusal in refusals.values()}
    if len(kinds) > 1:
        return "no live pod takes it: " + "; ".join(f"{pod}: {refusal.text}" for pod, refusal in refusals.items())
    kind = kinds.pop()
    for_all = {
        SILENT: f"{'pods' if len(refusals) > 1 else 'pod'} {', '.join(refusals)} "
        f"{'show' if len(refusals) > 1 else 'shows'} no sign of life",
        DRAINING: "all pods are draining",
        METHOD: f"no live pod takes method {entry.method} (--methods)",
    }
    if kind in for_all:
        return for_all[kind]
    if kind == _OUTLET:
        offered = ", ".join(sorted({name for offer in offers for name in offer.outlets}))
        return f"asks for outlet {' or '.join(entry.outlet)}, which no live pod offers (offered: {offered})"
    if kind == _CAPACITY:
        return _no_capacity(entry, request, offers)
    # For the other kinds each pod has its own text; the first one is an example for all.
    pod, refusal = next(iter(refusals.items()))
    others = len(refusals) - 1
    return f"{refusal.text} (pod {pod}" + (f" and {others} more)" if others else ")")


def _no_capacity(entry: Entry, request: Request, offers: Collection[Offer]) -> str:
    """Why no outlet of these pods could ever run the entry."""
    names = dict.fromkeys(name for offer in offers for name in offer.outlets_for(entry))
    by_name = {name: [offer.outlets[name] for offer in offers if name in offer.outlets_for(entry)] for name in names}
    reasons = {name: kind_of(name).refused_by_all(request, found) for name, found in by_name.items()}
    return _by_outlet(reasons) or "no live pod has an outlet that is known here"


def _by_outlet(reasons: Mapping[str, str]) -> str:
    """The reasons of several outlets, each with the outlet's name where there is more than one."""
    if len(reasons) == 1:
        return next(iter(reasons.values()))
    return "; ".join(f"{name}: {why}" for name, why in reasons.items())


def request_of(config: Config, entry: Entry, stated: Request | None = None) -> Request:
    """What an attempt of the entry asks for: as is `stated`, else as the entry says, else as its method says.

    `min_chips` of `resources` is another word for `gpus`, which counts where both are given. What takes memory of a GPU
    does not run on a CPU slot, nor does what names GPUs in its `env`.
    """
    method = config.method(entry.method)
    only = devices.named({**method.env, **entry.env})
    asked = _hardware_of(method, entry, only) if stated is None else stated
    return msgspec.structs.replace(
        asked,
        only=only,
        slurm=merged(method.slurm, entry.slurm),
        pbs=merged(method.pbs, entry.pbs),
        projects=_projects(config, entry),
    )


def _projects(config: Config, entry: Entry) -> tuple[tuple[str, str], ...]:
    """The projects of a job, by those sources that configured hosts take them from and that differ between jobs."""
    hosts = [host for host in config.hosts.hosts.values() if isinstance(host, (SlurmHost, PbsHost))]
    sources = {host.job_project_source for host in hosts} - {None, OF_WORKSPACE}
    values = {
        source: entry.user if source == OF_USER else entry.value(label_key(source)) for source in sources if source
    }
    return tuple((source, str(value)) for source, value in sorted(values.items()) if value is not None)


def _hardware_of(method: Method, entry: Entry, only: tuple[int, ...]) -> Request:
    resources = {**method.resources, **entry.resources}
    gpus = next((n for n in (entry.gpus, entry.resources.get("min_chips"), method.gpus) if n is not None), None)
    if gpus is None:
        gpus = resources.get("min_chips")
    gpu_memory = None
    if gpus != 0:
        gpu_memory = method.gpu_memory_mib if entry.gpu_memory_mib is None else entry.gpu_memory_mib
    gpus = 1 if (gpu_memory or only) and gpus is None else gpus
    if not resources:
        return Request(gpus=gpus, gpu_memory_mib=gpu_memory)
    memory = resources.get("memory")
    return Request(
        gpus=gpus,
        chip=resources.get("chip", ""),
        cpus=resources.get("cpus"),
        memory_mib=None if memory is None else memory_mib(memory),
        nodes=resources.get("nodes", 1),
        gpu_memory_mib=gpu_memory,
    )
