"""Parsing of `clusters`, `hosts`, `priority` and `gres_mapping`, in dispatcher.yaml or a file of their own.

    clusters: {hpc: {root: /data/lab, work: /scratch/lab}}
    hosts:
      login1: {type: slurm, ssh: login1, cluster: hpc, partitions: [{name: gpu, default: true}, gpu-preempt]}
      ws1: {type: plain, ssh: ws1, cluster: hpc, chips: {h100: 8}}
    priority: [ws1, login1]
    gres_mapping: {h100: [h100, nvidia_h100_80gb_hbm3]}

A host's `type` is `plain` unless it says otherwise. `gres_mapping` has one GRES type or several for each chip, because
sites name them differently; `gpu` means GPUs without a type. A host without `cluster` is a cluster of its own,
which may be configured under the host's name.

Files of the lab's older tool have some keys that mean nothing here. They are accepted and listed in `Hosts.unused`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

import msgspec

from dispatcher.base import values
from dispatcher.base.schema import reading
from dispatcher.base.schema.faults import PartFault, PartsError, lines_of
from dispatcher.base.schema.json_schema import nullable, of_struct
from dispatcher.base.times import duration_text
from dispatcher.base.values import BadValueError, shown
from dispatcher.checkpoints.storage import is_url
from dispatcher.errors import nearest
from dispatcher.hosts import fields
from dispatcher.hosts.types import RENEWALS, RESERVED_NAMES, AnyHost, Cluster, Hosts, PlainHost, TpuHost

KEYS: Final = tuple(reading.fields(Hosts))
# In a file of its own: what the older tool's other commands read.
_UNUSED_AT_TOP: Final = ("mount", "proxy")
_SECRET: Final = "it is not passed on, because scripts must not hold secrets; log in on the host instead"
_UNUSED_OF_CLUSTER: Final[Mapping[str, str]] = {
    "wandb": _SECRET,
    "hf_token": _SECRET,
    "status": "nothing reads it",
    "wandb_entity": "set WANDB_ENTITY in env",
    "wandb_project": "set WANDB_PROJECT in env",
}
_UNUSED_OF_HOST: Final[Mapping[str, str]] = {"annotations": "nothing reads it"}
# The types of hosts by their names in files.
TYPES: Final[Mapping[str, type[AnyHost]]] = {struct.type: struct for struct in get_args(AnyHost)}

_NAMES: Final = fields.listed(fields.parse_name)
# A TPU VM without any of these is on demand.
_WAYS_TO_PAY: Final = ("spot", "preemptible", "reserved", "reservation")


class Source(NamedTuple):
    """One file's keys, and where its faults are collected. `is_own_file`: given with --hosts, not dispatcher.yaml."""

    document: Mapping[Any, Any]
    faults: list[str]
    is_own_file: bool = False


def read_hosts(sources: Sequence[Source], poll_interval_s: float) -> Hosts:
    """The hosts and clusters of several files. Where two describe the same name, the later file's is used as a whole.

    So is its `priority`; `gres_mapping` is merged by chip. Faulty ones are left out. `poll_interval_s` is how often a
    dispatcher calls a host.
    """
    renewed_s = RENEWALS * poll_interval_s
    clusters: dict[str, Cluster] = {}
    hosts: dict[str, AnyHost] = {}
    priority: tuple[str, ...] = ()
    gres_mapping: dict[str, tuple[str, ...]] = {}
    unused: list[str] = []
    for source in sources:
        if source.is_own_file:
            unused += _unused_at_top(source)
        clusters |= _read_clusters(source, unused)
        hosts |= _read_host_entries(source, unused, renewed_s)
        priority = _read_priority(source, priority)
        gres_mapping |= _read_gres_mapping(source)
    _check_references(sources)
    return Hosts(
        clusters=clusters,
        hosts=hosts,
        priority=tuple(name for name in priority if name in hosts),
        gres_mapping=gres_mapping,
        unused=tuple(unused),
    )


def _unused_at_top(source: Source) -> list[str]:
    for key in source.document:
        if key not in (*KEYS, *_UNUSED_AT_TOP):
            source.faults.append(f"{key}: unknown key{nearest(str(key), KEYS)}")
    return [f"{key}: nothing reads it" for key in _UNUSED_AT_TOP if key in source.document]


def _entries(source: Source, key: str, reserved: Sequence[str]) -> Iterable[tuple[str, Mapping[Any, Any]]]:
    """The names under `key` that can be used, each with its keys."""
    document = _mapping(source, key, f"names of {key}, each with its keys")
    for written, keys in document.items():
        name = _name(written)
        place = f"{key}.{written}"
        if not isinstance(name, str) or not values.is_name(name):
            source.faults.append(f"{place}: the name cannot be used: letters, digits, '.', '_' and '-' only")
        elif name in reserved:
            source.faults.append(f"{place}: the name {name!r} has a meaning of its own; choose another one")
        elif keys is not None and not isinstance(keys, Mapping):
            source.faults.append(f"{place}{_value(key, keys)}: expected keys and values")
        else:
            yield name, keys or {}


def _name(written: object) -> object:
    return str(written) if type(written) is int else written


def _mapping(source: Source, key: str, expected: str) -> Mapping[Any, Any]:
    found = source.document.get(key)
    if found is None:
        return {}
    if not isinstance(found, Mapping):
        source.faults.append(f"{key}{_value(key, found)}: expected {expected}")
        return {}
    return found


def _value(key: str, found: object) -> str:
    """The value in a message, but not where it may have an address with a password."""
    return "" if key == "clusters" else f" = {shown(found)}"


def _read_clusters(source: Source, unused: list[str]) -> dict[str, Cluster]:
    clusters = {}
    for name, document in _entries(source, "clusters", ()):
        place = f"clusters.{name}"
        keys = _without_unused(document, _UNUSED_OF_CLUSTER, place, unused)
        found, faults = reading.parse(Cluster, keys)
        try:
            if not faults:
                clusters[name] = Cluster(name=name, **found)
        except PartsError as error:
            faults += error.faults
        source.faults.extend([_line(fault, place) for fault in faults])
    return clusters


def _read_host_entries(source: Source, unused: list[str], renewed_s: float) -> dict[str, AnyHost]:
    hosts = {}
    for name, document in _entries(source, "hosts", RESERVED_NAMES):
        host = _read_host(name, document, source.faults, unused, renewed_s)
        if host is not None:
            hosts[name] = host
    return hosts


def _read_host(
    name: str, document: Mapping[Any, Any], faults: list[str], unused: list[str], renewed_s: float
) -> AnyHost | None:
    place = f"hosts.{name}"
    type_ = document.get("type", PlainHost.type)
    struct = TYPES.get(type_) if isinstance(type_, str) else None
    if struct is None:
        hint = nearest(type_, TYPES) if isinstance(type_, str) else f" (known: {', '.join(TYPES)})"
        faults.append(f"{place}.type = {shown(type_)}: there is no such type of host{hint}")
        return None
    keys = {key: value for key, value in document.items() if key != "type"}
    keys = _without_unused(keys, _UNUSED_OF_HOST, place, unused)
    if "partitions_cpu" in keys and "cpu_partitions" not in keys:
        keys["cpu_partitions"] = keys.pop("partitions_cpu")
    found, wrong = reading.parse(struct, keys)
    if wrong:
        faults += [_line(fault, place, struct) for fault in wrong]
        return None
    if type_ == TpuHost.type and (fault := _too_short(document.get("dead_after"), found, renewed_s)):
        faults.append(f"{place}.{fault}")
        return None
    if len(ways := [key for key in _WAYS_TO_PAY if found.get(key)]) > 1 and ways != ["reserved", "reservation"]:
        faults.append(f"{place}: {' and '.join(f'`{key}`' for key in ways)} exclude each other: a VM is one of them")
        return None
    host: AnyHost = struct(**{"name": name, "cluster": name, **found})
    return host


def _too_short(written: object, found: Mapping[str, Any], renewed_s: float) -> str:
    """Why the VM would delete itself while its dispatcher lives; empty when it would not."""
    after_s = found.get("dead_after_s")
    if after_s is None or after_s >= renewed_s:
        return ""
    return (
        f"dead_after = {shown(written)}: expected {duration_text(renewed_s)} or more, {RENEWALS} times poll_interval: "
        "a dispatcher renews it with its calls, some of which may fail, and without a renewal the VM deletes itself "
        "and all that runs there"
    )


def _without_unused(
    document: Mapping[Any, Any], known: Mapping[str, str], place: str, unused: list[str]
) -> dict[Any, Any]:
    """The keys but those that mean nothing here, which are noted in `unused`."""
    unused += [f"{place}.{key}: {why}" for key, why in known.items() if document.get(key) is not None]
    return {key: value for key, value in document.items() if key not in known}


def _line(fault: PartFault, place: str, struct: type[AnyHost] | None = None) -> str:
    """A fault as a line. What is wrong with a URL may be the password in it."""
    key = fault.place.removeprefix(".")
    if isinstance(fault.value, str) and is_url(fault.value) and ("@" in fault.value or "?" in fault.value):
        fault = msgspec.structs.replace(fault, is_hidden=True)
    if struct is not None and fault.is_hidden and key not in reading.fields(struct):
        kinds = [name for name, other in TYPES.items() if key in reading.fields(other)]
        if kinds:
            return f"{place}.{key}: only hosts of type {' or '.join(kinds)} have this key"
    return fault.line(place)


def _read_priority(source: Source, before: tuple[str, ...]) -> tuple[str, ...]:
    written = source.document.get("priority")
    if written is None:
        return before
    try:
        return tuple(dict.fromkeys(_NAMES(written)))
    except BadValueError as error:
        source.faults.extend(lines_of(error, written, "priority"))
        return before


def _read_gres_mapping(source: Source) -> Mapping[str, tuple[str, ...]]:
    written = _mapping(source, "gres_mapping", "GRES types by chip, such as {h100: [h100, nvidia_h100_80gb_hbm3]}")
    given = {chip: types for chip, types in written.items() if types is not None}
    try:
        return fields.mapped(fields.parse_gres_types, "")(given)
    except BadValueError as error:
        source.faults.extend(lines_of(error, given, "gres_mapping"))
        return {}


def hosts_schema() -> Mapping[str, Any]:
    """The JSON schemas of the keys of hosts."""
    types = {"enum": list(TYPES), "default": PlainHost.type, "description": "the type of the host"}
    unused_of_host: dict[str, Any] = {key: {} for key in (*_UNUSED_OF_HOST, "partitions_cpu")}
    kinds = [
        {
            "if": {"properties": {"type": {"const": name}}, "required": [] if struct is PlainHost else ["type"]},
            "then": nullable(of_struct(struct, {"type": types, **unused_of_host})),
        }
        for name, struct in TYPES.items()
    ]
    host = {"type": "object", "properties": {"type": types}, "allOf": kinds}
    cluster = of_struct(Cluster, {key: {} for key in _UNUSED_OF_CLUSTER})
    types_of_chip = {"type": "object", "additionalProperties": {"type": ["string", "array", "null"]}}
    found = dict(of_struct(Hosts)["properties"])
    for key, one in (("clusters", _named(cluster)), ("hosts", _named(host)), ("gres_mapping", types_of_chip)):
        found[key] = {"description": found[key]["description"], **nullable(one)}
    return found


def _named(one: Mapping[str, Any]) -> Mapping[str, Any]:
    """Values with names, of which a missing one is empty."""
    return {"type": "object", "additionalProperties": nullable(one)}


def _check_references(sources: Sequence[Source]) -> None:
    """Each name of a cluster or a host must be described by one of the files, whether or not that is faulty."""
    clusters = _names(sources, "clusters")
    hosts = _names(sources, "hosts")
    for source in sources:
        for name, document in _documents(source, "hosts"):
            cluster = _name(document.get("cluster"))
            if values.is_name(cluster) and cluster not in clusters and cluster != name:
                known = nearest(str(cluster), clusters) or " (none is described)"
                source.faults.append(f"hosts.{name}.cluster = {shown(cluster)}: there is no such cluster{known}")
        priority = source.document.get("priority")
        for index, written in enumerate(priority if isinstance(priority, list) else []):
            if values.is_name(_name(written)) and _name(written) not in hosts:
                known = nearest(str(written), hosts) or " (none is described)"
                source.faults.append(f"priority[{index}] = {shown(written)}: there is no such host{known}")


def _documents(source: Source, key: str) -> Iterable[tuple[object, Mapping[Any, Any]]]:
    found = source.document.get(key)
    for name, document in found.items() if isinstance(found, Mapping) else ():
        yield _name(name), document if isinstance(document, Mapping) else {}


def _names(sources: Sequence[Source], key: str) -> list[str]:
    return list(dict.fromkeys(str(name) for source in sources for name, _ in _documents(source, key)))
