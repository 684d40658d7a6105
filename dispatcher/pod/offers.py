"""What a pod takes: its slots, its methods, its filter, its outlet. Pure.

A pod has its own offer at hand; the others' are read from `pods/<pod>.json`, where each pod publishes what it takes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatcher.base.host import host_name
from dispatcher.matrix.condition import Where
from dispatcher.matrix.entry import Entry
from dispatcher.run_state.liveness import PodInfo, SlotInfo

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.outlets.local.slots import Slots
    from dispatcher.pod.options import PodOptions

# Kinds of refusals: where all pods refuse for the same one, that is said of all pods at once.
DRAINING: Final = "draining"
STOPPED: Final = "stopped"
HOST: Final = "host"
UNUSABLE: Final = "unusable"
METHOD: Final = "method"
OUTLET: Final = "outlet"
WHERE: Final = "where"
GPUS: Final = "gpus"
CPU: Final = "cpu"
MANIFEST: Final = "manifest"
ILL: Final = "ill"
BLOCKED: Final = "blocked"


class Refusal(msgspec.Struct, frozen=True):
    """Why one pod does not take a job; `needs_person`: it would not later either, unless somebody acts."""

    kind: str
    text: str
    needs_person: bool = False

    @property
    def is_chosen(self) -> bool:
        """Whether somebody has told the pod so."""
        return self.kind in (METHOD, WHERE, MANIFEST)


class Filter(msgspec.Struct, frozen=True):
    """Which jobs a pod was told to take."""

    methods: Collection[str] = ()
    where: Where = Where()
    outlet: str = "local"

    def refusal(self, entry: Entry) -> Refusal | None:
        if self.methods and entry.method not in self.methods:
            return Refusal(METHOD, f"method {entry.method} is not among --methods")
        if entry.outlet and self.outlet not in entry.outlet:
            return Refusal(OUTLET, f"asks for outlet {' or '.join(entry.outlet)}, this pod offers {self.outlet}")
        miss = self.where.first_miss(entry.value)
        return None if miss is None else Refusal(WHERE, f"--where {miss} does not match")


class Offer(msgspec.Struct, frozen=True, kw_only=True):
    """What one pod takes. `gpus` is how many it has, `unusable_methods` what it cannot start, and why; `stopped` why it
    claims nothing any more, `blocked` the jobs whose claims failed, and why.

    `ill_gpus` are those that cannot be used at the moment (`GPU 2: why`), `lists` the jobs of its manifest where that
    is not the one that everybody has.
    """

    pod: str
    host: str = ""
    gpus: int = 0
    cpu_slots: int = 0
    only: Filter = Filter()
    is_draining: bool = False
    stopped: str = ""
    blocked: Mapping[str, str] = {}
    unusable_methods: Mapping[str, str] = {}
    ill_gpus: tuple[str, ...] = ()
    manifest: str = ""
    lists: Collection[str] | None = None

    def refusal(self, entry: Entry, gpus: int | None) -> Refusal | None:
        """Why the pod never takes the entry, which asks for `gpus` GPUs (0: a CPU slot, None: either)."""
        if self.lists is not None and entry.job_id not in self.lists:
            return Refusal(MANIFEST, f"not in its manifest {self.manifest}")
        refusal = self.only.refusal(entry)
        if refusal is not None:
            return refusal
        refusal = self._too_small(gpus)
        if refusal is None and entry.method in self.unusable_methods:
            why = f"unusable method {entry.method}: {self.unusable_methods[entry.method]}"
            return Refusal(UNUSABLE, why, needs_person=True)
        return refusal

    def _too_small(self, gpus: int | None) -> Refusal | None:
        if gpus is None:
            return None if self.gpus or self.cpu_slots else Refusal(CPU, "this pod has no slots")
        if not gpus:
            return None if self.cpu_slots else Refusal(CPU, "asks for a CPU slot, this pod has none (--slots)")
        if gpus <= self.gpus:
            return None
        return Refusal(GPUS, f"asks for {_gpus(gpus)}, this pod has {self.gpus}")

    def ill(self, gpus: int | None) -> Refusal | None:
        """Why an entry that asks for so many GPUs gets no slot, whatever ends; None when it may get one."""
        needed = gpus if gpus is not None else 0 if self.cpu_slots else 1
        if not self.ill_gpus or needed <= self.gpus - len(self.ill_gpus):
            return None
        why = f"{len(self.ill_gpus)} of {self.gpus} cannot be used now: {'; '.join(self.ill_gpus)}"
        return Refusal(ILL, f"asks for {_gpus(needed)}, but {why}")


def own_offer(options: PodOptions, slots: Slots, unusable_methods: Mapping[str, str] = MappingProxyType({})) -> Offer:
    """What a pod with these options and slots takes."""
    return Offer(
        pod=options.pod,
        host=host_name(),
        gpus=len(slots.gpus),
        cpu_slots=slots.cpu_slots,
        only=Filter(options.methods, options.where),
        unusable_methods=unusable_methods,
    )


def ill_gpus(slots: Slots) -> tuple[str, ...]:
    """The GPUs of this pod that cannot be used at the moment, as in an Offer."""
    return tuple(f"GPU {index}: {why}" for index, why in sorted(slots.unusable.items()))


def published(offer: Offer, slots: Slots) -> dict[str, Any]:
    """The fields of a pod's file that say what it takes; `offer_of` reads them."""
    return {
        "gpus": list(slots.gpus),
        "cpu_slots": offer.cpu_slots,
        "methods": list(offer.only.methods),
        "where": [str(condition) for condition in offer.only.where.conditions],
        "outlet": offer.only.outlet,
        "unusable_methods": dict(offer.unusable_methods),
    }


def offer_of(info: PodInfo, *, is_draining: bool = False, lists: Collection[str] | None = None) -> Offer:
    """What a pod says in its file that it takes. `lists`: see Offer."""
    return Offer(
        pod=info.pod,
        host=info.host,
        gpus=len(info.gpus),
        cpu_slots=info.cpu_slots,
        only=Filter(info.methods, Where.parse(info.where), info.outlet),
        is_draining=is_draining,
        stopped=info.stopped,
        blocked=info.blocked,
        unusable_methods=info.unusable_methods,
        ill_gpus=tuple(f"GPU {slot.name[3:]}: {slot.note}" for slot in info.slots if _is_ill(slot)),
        manifest=info.matrix.rpartition("/")[2],
        lists=lists,
    )


def _is_ill(slot: SlotInfo) -> bool:
    return slot.name.startswith("gpu") and bool(slot.note)


def refused_by_all(entry: Entry, gpus: int | None, refusals: Mapping[str, Refusal], offers: Collection[Offer]) -> str:
    """Why no live pod takes the entry. `refusals` by pod, of all `offers`."""
    kinds = {refusal.kind for refusal in refusals.values()}
    if len(kinds) > 1:
        return "no live pod takes it: " + "; ".join(f"{pod}: {refusal.text}" for pod, refusal in refusals.items())
    kind = kinds.pop()
    most = max(offer.gpus for offer in offers)
    offered = ", ".join(sorted({offer.only.outlet for offer in offers}))
    of_all = {
        DRAINING: "all pods are draining",
        METHOD: f"no live pod takes method {entry.method} (--methods)",
        OUTLET: f"asks for outlet {' or '.join(entry.outlet)}, which no live pod offers (offered: {offered})",
        GPUS: f"asks for {_gpus(gpus or 0)}, no live pod has " + (f"more than {most}" if most else "any"),
        CPU: "asks for a CPU slot, no live pod has one (--slots)",
    }
    if kind in of_all:
        return of_all[kind]
    # A filter, a host or a method: each pod has its own words, and those of the first are an example for all.
    pod, refusal = next(iter(refusals.items()))
    others = len(refusals) - 1
    return f"{refusal.text} (pod {pod}" + (f" and {others} more)" if others else ")")


def gpus_of(config: Config, entry: Entry) -> int | None:
    """How many GPUs the entry asks for, else its method; None when neither says."""
    return entry.gpus if entry.gpus is not None else config.method(entry.method).gpus


def _gpus(count: int) -> str:
    return "1 GPU" if count == 1 else f"{count} GPUs"
