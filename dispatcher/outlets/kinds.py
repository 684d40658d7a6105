"""The outlets that there are: how a pod makes one, and how it reads another pod's offer.

An outlet is `local`, or a configured host under the host's name. A new type of host is one more line in SCHEDULERS; an
outlet of another nature is one in OUTLET_KINDS and one in MAKERS. Nothing here loads more than `dispatcher status` may
pay for.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dispatcher.errors import DispatcherError, UsageError, nearest
from dispatcher.outlets.base import Outlet, OutletOffer, Request
from dispatcher.outlets.batch import offer as batch_offer
from dispatcher.outlets.context import PodContext
from dispatcher.outlets.local import NAME as LOCAL
from dispatcher.outlets.local import offer as local_offer
from dispatcher.run_state.liveness import SlotInfo

if TYPE_CHECKING:
    from dispatcher.config import Config
    from dispatcher.hosts.types import AnyHost, Location
    from dispatcher.outlets.batch.scheduler import Scheduler
    from dispatcher.outlets.remote.connection import Outcome
    from dispatcher.outlets.remote.operations import Operation
    from dispatcher.outlets.remote.transport import Transport

# The outlet of an attempt whose record names none.
DEFAULT: Final = LOCAL
_HELPER_S: Final = 150.0


class OutletKind(msgspec.Struct, frozen=True):
    """What is known of outlets of a kind without one: what pods have published of theirs.

    `read_offer` decodes what a pod has published of such an outlet (msgspec.ValidationError for what is none).
    `refused_by_all` is why several of these offers all refuse a request for ever. `shared_hardware` names what the
    slots of two pods of one machine have in common, empty for nothing; the machine's containers may have host names of
    their own, in which case the last argument is False.
    """

    read_offer: Callable[[Mapping[str, Any]], OutletOffer]
    refused_by_all: Callable[[Request, Sequence[Any]], str]
    shared_hardware: Callable[[Sequence[SlotInfo], Sequence[SlotInfo], bool], str]


def _make_local(context: PodContext) -> Outlet | None:
    if not context.gpus.strip() and not context.cpu_slots:
        return None
    # Readers of offers do not load what starts processes.
    from dispatcher.outlets.local.outlet import LocalOutlet

    return LocalOutlet(context)


OUTLET_KINDS: Final[dict[str, OutletKind]] = {
    LOCAL: OutletKind(local_offer.read_offer, local_offer.refused_by_all, local_offer.shared_hardware),
}
# Each makes the outlet of a pod, or None for options that ask for none; UsageError for unusable options.
MAKERS: Final[dict[str, Callable[[PodContext], Outlet | None]]] = {LOCAL: _make_local}
_HOST: Final = OutletKind(batch_offer.read_offer, batch_offer.refused_by_all, batch_offer.no_shared_hardware)
# The package of each type of host, with the functions `make_scheduler(host, config)` and `make_transport(host, config,
# owner)`; where a host may have to be made first, `make_provisioning(host, context, limit)`; where defaults of other
# programs say where it is, `locate(host, config, location)`.
SCHEDULERS: Final[dict[str, str]] = {
    "plain": "dispatcher.outlets.plain",
    "slurm": "dispatcher.outlets.slurm",
    "pbs": "dispatcher.outlets.pbs",
    "tpu": "dispatcher.outlets.tpu",
    "volcano": "dispatcher.outlets.volcano",
}


def kind_of(outlet: str) -> OutletKind:
    """The kind of the outlet with this name; one that is no kind of its own is a configured host."""
    return OUTLET_KINDS.get(outlet, _HOST)


def make_outlets(context: PodContext) -> dict[str, Outlet]:
    """The outlets of a pod by name, the preferred first; raises UsageError for options that cannot be used."""
    made: dict[str, Outlet] = {}
    try:
        for name, make in MAKERS.items():
            outlet = make(context)
            if outlet is not None:
                made[name] = outlet
        for name, limit in context.submissions.items():
            try:
                made[name] = make_host(context, name, limit)
            except UsageError as error:
                # With `auto` the other hosts do the work.
                if not context.by_hardware:
                    raise
                context.log(f"warning: {name} is left out: {error}")
    except BaseException:
        for each in made.values():
            each.close()
        raise
    if not made and context.needs_slots:
        raise UsageError(
            "a pod needs slots: --gpus 0,1,2,3 for GPUs, --slots N for CPU slots, --outlet NAME for a configured host"
        )
    return made


def make_for_orphans(context: PodContext, name: str, location: Location | None = None) -> Outlet | None:
    """An outlet without slots, for attempts of dead dispatchers; None for a name that is not configured.

    Its calls go to the `location` that they were submitted to, whatever the configuration says by now. Raises
    UsageError for a host that cannot be used from here, and ConfigError for one whose keys or template cannot be used.
    """
    if name == LOCAL:
        from dispatcher.outlets.local.outlet import LocalOutlet

        return LocalOutlet(msgspec.structs.replace(context, gpus="", cpu_slots=0))
    host = context.config.hosts.hosts.get(name)
    return None if host is None else make_host(context, name, 0, location)


def _with(config: Config, host: AnyHost) -> Config:
    hosts = msgspec.structs.replace(config.hosts, hosts={**config.hosts.hosts, host.name: host})
    return msgspec.structs.replace(config, hosts=hosts)


def make_host(context: PodContext, name: str, limit: int, location: Location | None = None) -> Outlet:
    """The outlet of a configured host, with at most `limit` attempts in flight; raises UsageError.

    `location` None: where the configuration and the defaults of this machine lead to now.
    """
    from dispatcher.outlets.batch.outlet import BatchOutlet
    from dispatcher.outlets.remote.connection import Connection, Pace

    host = located(_configured_host(context, name), context.config, location)
    context = msgspec.structs.replace(context, config=_with(context.config, host))
    scheduler = make_scheduler(host, context.config)
    transport = make_transport(host, context.config, context.pod)
    # Two calls for every poll, and some for what happens between them.
    pace = Pace(calls_per_minute=math.ceil(max(60.0, 180.0 / context.poll_interval_s)))
    connection = Connection(name, transport, pace=pace)
    make_provisioning = getattr(_package(host), "make_provisioning", None)
    provisioning = None if make_provisioning is None else make_provisioning(host, context, limit)
    return BatchOutlet(host, scheduler, connection, context, limit, provisioning)


def located(host: AnyHost, config: Config, location: Location | None = None) -> AnyHost:
    """The host with all that its calls have to name to come to a location; None: where they would go to now.

    Raises UsageError where that cannot be told.
    """
    locate = getattr(_package(host), "locate", None)
    if locate is not None:
        found: AnyHost = locate(host, config, location)
        return found
    return host if location is None else host.at(location)


def _configured_host(context: PodContext, name: str) -> AnyHost:
    """The host with this name in the configuration; raises UsageError, which lists those that there are."""
    hosts = context.config.hosts.hosts
    if name in hosts:
        return hosts[name]
    if not hosts:
        place = context.config.layout.config_file
        raise UsageError(f"--outlet {name}: no hosts are configured; describe them under `hosts` in {place}")
    raise UsageError(f"--outlet {name}: no such host is configured{nearest(name, hosts)}")


def make_scheduler(host: AnyHost, config: Config) -> Scheduler:
    """What gives attempts to this host; ConfigError for keys of it that cannot be used together."""
    made: Scheduler = _package(host).make_scheduler(host, config)
    return made


def ask_hosts(
    config: Config, questions: Mapping[str, Sequence[Operation]], owner: str, timeout_s: float
) -> dict[str, Outcome]:
    """What configured hosts answer, all asked at the same time; NoAnswer also for one without a transport from here.

    See `limit_s` for what may be more than `timeout_s`.
    """
    from dispatcher.outlets.remote.asking import ask_all
    from dispatcher.outlets.remote.connection import NoAnswer

    found: dict[str, Outcome] = {}
    asked = {}
    for name, operations in questions.items():
        try:
            asked[name] = make_transport(config.hosts.hosts[name], config, owner), operations
        except DispatcherError as error:
            found[name] = NoAnswer(str(error))
    return {**found, **ask_all(asked, limit_s((config.hosts.hosts[name] for name in asked), timeout_s))}


def limit_s(hosts: Iterable[AnyHost], usual_s: float) -> float:
    """How long these hosts may take to answer: the image of a Kubernetes cluster's helper may have to be fetched."""
    from dispatcher.hosts.types import VolcanoHost

    return max(usual_s, _HELPER_S) if any(isinstance(host, VolcanoHost) for host in hosts) else usual_s


def make_transport(host: AnyHost, config: Config, owner: str) -> Transport:
    """How this host is reached; OutletError for an `ssh` that can be no host.

    `owner` tells apart what dispatchers and commands of one workspace keep there for as long as they use the host.
    """
    made: Transport = _package(host).make_transport(host, config, owner)
    return made


def _package(host: AnyHost) -> ModuleType:
    return importlib.import_module(SCHEDULERS[host.type])
