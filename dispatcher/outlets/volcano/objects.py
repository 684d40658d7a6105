"""What the API server shows, as far as it is read here: Jobs, PodGroups, Kubernetes pods and events. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from dispatcher.errors import OutletError


class Part(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Any part of an object."""


class Owner(Part, frozen=True, kw_only=True):
    kind: str = ""
    name: str = ""


class Meta(Part, frozen=True, kw_only=True):
    """`deletion_timestamp` None: it was not deleted."""

    name: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: list[Owner] | None = None
    deletion_timestamp: str | None = None

    def label(self, name: str) -> str:
        return (self.labels or {}).get(name, "")

    def owner(self, kind: str) -> str:
        """The name of the object of this kind that it belongs to; empty for none."""
        return next((owner.name for owner in self.owner_references or () if owner.kind == kind), "")


class Condition(Part, frozen=True, kw_only=True):
    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None


class JobPhase(Part, frozen=True, kw_only=True):
    """`phase` empty: no controller has looked at the Job yet."""

    phase: str = ""
    reason: str = ""
    message: str = ""


class JobStatus(Part, frozen=True, kw_only=True):
    """`retry_count` is how often Volcano has restarted it."""

    state: JobPhase = JobPhase()
    retry_count: int = 0


class JobSpec(Part, frozen=True, kw_only=True):
    min_available: int = 0


class Job(Part, frozen=True, kw_only=True):
    metadata: Meta
    spec: JobSpec = JobSpec()
    status: JobStatus | None = None


class GroupStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    conditions: list[Condition] | None = None


class PodGroup(Part, frozen=True, kw_only=True):
    metadata: Meta
    status: GroupStatus | None = None


class Waiting(Part, frozen=True, kw_only=True):
    reason: str = ""
    message: str = ""


class Terminated(Part, frozen=True, kw_only=True):
    exit_code: int
    reason: str = ""
    message: str = ""
    finished_at: str | None = None


class ContainerState(Part, frozen=True, kw_only=True):
    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Part, frozen=True, kw_only=True):
    name: str = ""
    ready: bool = False
    state: ContainerState = ContainerState()


class PodSpec(Part, frozen=True, kw_only=True):
    node_name: str = ""


class PodStatus(Part, frozen=True, kw_only=True):
    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    init_container_statuses: list[ContainerStatus] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(Part, frozen=True, kw_only=True):
    metadata: Meta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    def condition(self, type_: str) -> Condition | None:
        return next((each for each in self.status.conditions or () if each.type == type_), None)

    @property
    def has_ended(self) -> bool:
        return self.status.phase in ("Succeeded", "Failed")

    @property
    def index(self) -> int:
        """Its index in the Job: names end with it."""
        number = self.metadata.name.rpartition("-")[2]
        return int(number) if number.isdecimal() else 0


class About(Part, frozen=True, kw_only=True):
    name: str = ""


class Event(Part, frozen=True, kw_only=True):
    metadata: Meta
    involved_object: About = About()
    type: str = ""
    reason: str = ""
    message: str = ""


Found = Job | PodGroup | Pod | Event
_KINDS: Final[dict[str, type[Found]]] = {"Job": Job, "PodGroup": PodGroup, "Pod": Pod, "Event": Event}


class _KindField(msgspec.Struct, frozen=True):
    kind: str = ""


class _Listed(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw] | None = None


T = TypeVar("T", bound=Found)


def read_list(text: str) -> list[Found]:
    """The objects of a kind that is known here in what `kubectl get -o json` has printed; OutletError for no list."""
    try:
        items = msgspec.json.decode(text, type=_Listed).items
        if items is None:
            raise msgspec.ValidationError("there are no items in it")
        kinds = [(msgspec.json.decode(item, type=_KindField).kind, item) for item in items]
        return [msgspec.json.decode(item, type=_KINDS[kind]) for kind, item in kinds if kind in _KINDS]
    except msgspec.MsgspecError as error:
        raise OutletError(f"kubectl's answer cannot be read: {error}: {text[:200]!r}") from None


def of_kind(found: list[Found], kind: type[T]) -> Iterator[T]:
    return (each for each in found if isinstance(each, kind))


def grouped(members: Iterator[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """The members by key, in their order."""
    groups: dict[Any, list[T]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups
