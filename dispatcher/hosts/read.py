"""Parsing of `clusters`, `hosts`, `priority` and `gres_mapping`, in dispatcher.yaml or a file of their own.

    clusters: {hpc: {root: /data/lab, work: /scratch/lab}}
    hosts:
      login1: {type: slurm, ssh: login1, cluster: hpc, partitions: [{name: gpu, default: true}, gpu-preempt]}
      ws1: {type: plain, ssh: ws1, cluster: hpc, chips: {h100: 8}}
    priority: [ws1, login1]
    gres_mapping: {h100: [h100, nvidia_h100_80gb_hbm3]}

A host's `type` is `plain` unless it says otherwise. `gres_mapping` has one GRES type or several for each chip, because
sites name them differently; `gpu` stands for GPUs without a type. A host without `cluster` is a cluster of its own,
which may be configured under the host's name.

Files of the lab's older tool have some keys that mean nothing here. They are accepted and listed in `Hosts.unused`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, get_args

from dispatcher.base import values
from dispatcher.base.times import duration_text
from dispatcher.base.values import BadValueError, Reader, shown
from dispatcher.checkpoints.storage import is_url
from dispatcher.errors import nearest
from dispatcher.hosts import fields, kubernetes
from dispatcher.hosts.container import parse_container
from dispatcher.hosts.options import parse_project_source
from dispatcher.hosts.types import (
    RENEWALS,
    RESERVED_NAMES,
    AnyHost,
    Cluster,
    CreateMode,
    Hosts,
    Partition,
    PbsHost,
    PbsQueue,
    PlainHost,
    SlotType,
    SlurmHost,
    TpuHost,
    VolcanoHost,
)

KEYS: Final = ("clusters", "hosts", "priority", "gres_mapping")
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
# Values that no message may contain.
_SECRET_KEYS: Final = frozenset({"mount", "wandb", "hf_token"})

_WORD: Final = fields.parse_word
_WORDS: Final = fields.listed(fields.parse_word)
_NAMES: Final = fields.listed(fields.parse_name)
_TEXT: Final = fields.parse_text
_FLAG: Final = fields.parse_flag
_POSITIVE: Final = fields.parse_positive

_Readers = Mapping[str, Reader]

_CLUSTER_KEYS: Final[_Readers] = {
    **dict.fromkeys(
        ("root", "work", "log", "share", "data", "results", "cache_dir", "uv_dir"),
        fields.parse_path,
    ),
    "checkpoints": fields.parse_place,
    "mount": fields.parse_url,
    **dict.fromkeys(("uv_installer", "juicefs_installer"), fields.parse_installer),
    "cache_size": fields.parse_juicefs_size,
    "all_squash": fields.parse_squash,
    "env": fields.parse_cluster_env,
}
_HOST_KEYS: Final[_Readers] = {
    "cluster": fields.parse_name,
    "chips": fields.mapped(_POSITIVE, "numbers of GPUs by chip, such as {h100: 8}"),
    "uv_groups": _NAMES,
    "env": fields.parse_host_env,
    "modules": fields.listed(fields.parse_word, twice=True),
    "container": parse_container,
    "max_in_flight": _POSITIVE,
    "submits_per_minute": _POSITIVE,
}
_SLOT_TYPE: Final = fields.one_of(*get_args(SlotType))
# What a partition or a queue may have as well, where it differs from the host's.
_OF_SLURM: Final[_Readers] = {
    "mem": fields.parse_memory,
    "slot_type": _SLOT_TYPE,
    "tres_supported": _FLAG,
    "gres_supported": _FLAG,
    "gpu_type": _WORD,
    "slots_per_node": _POSITIVE,
    "sbatch_args": fields.parse_arguments,
}
_OF_PBS: Final[_Readers] = {
    "slot_type": _SLOT_TYPE,
    "gres_supported": _FLAG,
    "slots_per_node": _POSITIVE,
    "pbsbatch_args": fields.parse_arguments,
}
_PARTITION_KEYS: Final[_Readers] = {"name": fields.parse_name, "default": _FLAG, "constraint": _WORD, **_OF_SLURM}
_QUEUE_KEYS: Final[_Readers] = {"name": fields.parse_name, **_OF_PBS}


def _parse_partition(value: object) -> Partition:
    if not isinstance(value, Mapping):
        return Partition(fields.parse_name(value))
    return Partition(**fields.read_struct(value, _PARTITION_KEYS, ("name",), "a name"))


def _parse_queue(value: object) -> PbsQueue:
    if not isinstance(value, Mapping):
        return PbsQueue(fields.parse_name(value))
    return PbsQueue(**fields.read_struct(value, _QUEUE_KEYS, ("name",), "a name"))


def _parse_partitions(value: object) -> tuple[Partition, ...]:
    partitions: tuple[Partition, ...] = fields.listed(_parse_partition)(value)
    defaults = [partition.name for partition in partitions if partition.default]
    if len(defaults) > 1:
        raise BadValueError(f"expected at most one default partition, not {' and '.join(defaults)}")
    return partitions


def _parse_clusters(value: object) -> str:
    """One, although the option of SLURM takes several: an attempt is in one, and is looked for there."""
    if isinstance(value, (list, tuple)) or value == "all" or "," in str(value):
        raise BadValueError("expected the name of one cluster: describe a host for each")
    return str(_WORD(value))


class _Kind(NamedTuple):
    """A type of host: its class, its own keys, and those that it must have."""

    make: Any
    readers: _Readers
    required: tuple[str, ...] = ()


_KINDS: Final[Mapping[str, _Kind]] = {
    PlainHost.type: _Kind(PlainHost, {"ssh": _WORD, "env": fields.parse_plain_env}, ("ssh",)),
    SlurmHost.type: _Kind(
        SlurmHost,
        {
            "ssh": _WORD,
            "partitions": _parse_partitions,
            "cpu_partitions": _NAMES,
            "clusters": _parse_clusters,
            "account": _WORD,
            "qos": _WORD,
            "exclude": _WORDS,
            "wckey": _WORD,
            "job_project_source": parse_project_source,
            **_OF_SLURM,
        },
    ),
    PbsHost.type: _Kind(
        PbsHost,
        {
            "ssh": _WORD,
            "queues": fields.listed(_parse_queue),
            "cpu_queues": _NAMES,
            "account": _WORD,
            "project": _WORD,
            "job_project_source": parse_project_source,
            **_OF_PBS,
        },
    ),
    TpuHost.type: _Kind(
        TpuHost,
        {
            **dict.fromkeys(
                ("zone", "project", "version", "network", "subnetwork", "service_account", "reservation"), _WORD
            ),
            "accelerator_type": fields.parse_accelerator_type,
            **dict.fromkeys(("spot", "preemptible", "internal_ip", "reserved"), _FLAG),
            "node_count": fields.parse_one_node,
            **dict.fromkeys(("data_disk", "tags"), _WORDS),
            "create_args": fields.parse_arguments,
            # A start-up script has several lines.
            "metadata": fields.mapped(values.parse_text, "names and values"),
            "create": fields.one_of(*get_args(CreateMode)),
            "idle_delete": values.parse_duration,
            "dead_after": fields.parse_duration_or_never,
        },
        ("zone", "accelerator_type"),
    ),
    VolcanoHost.type: _Kind(
        VolcanoHost,
        {
            **dict.fromkeys(("image", "context", "helper_image"), _WORD),
            "namespace": kubernetes.parse_namespace,
            **dict.fromkeys(("queue", "pvc_name", "priority_class", "service_account"), kubernetes.parse_object_name),
            **dict.fromkeys(("gpu_resource_key", "rdma_resource_key"), kubernetes.parse_resource_key),
            **dict.fromkeys(("cpu", "memory", "shm_size", "cpu_cpu", "cpu_memory"), fields.parse_amount),
            "pvc_mount_path": kubernetes.parse_mount_path,
            "kubeconfig": _TEXT,
            **dict.fromkeys(("num_nodes", "rdma_per_node"), _POSITIVE),
            "gpus_per_node": values.parse_count,
            "rdma": _FLAG,
            **dict.fromkeys(("node_selector", "labels"), kubernetes.parse_labels),
            "helper_resources": fields.mapped(fields.parse_amount, "amounts such as {cpu: 100m, memory: 128Mi}"),
            "tolerations": fields.listed(kubernetes.parse_toleration),
        },
        ("image", "pvc_name", "pvc_mount_path"),
    ),
}


# A TPU VM without any of these is on demand.
_WAYS_TO_PAY: Final = ("spot", "preemptible", "reserved", "reservation")
# Keys whose field has another name.
_FIELDS: Final[Mapping[str, str]] = {"idle_delete": "idle_delete_s", "dead_after": "dead_after_s"}
# Keys that say what a host is anyway.
_CHECKED_ONLY: Final = frozenset({"node_count"})


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
        if keys.get("mount") is not None and keys.get("root") is None:
            source.faults.append(f"{place}.root: is missing; the filesystem of `mount` is mounted there")
        found = _read_keys(keys, _CLUSTER_KEYS, (), place, source.faults)
        if found is not None:
            clusters[name] = Cluster(name=name, **found)
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
    kind = _KINDS.get(type_) if isinstance(type_, str) else None
    if kind is None:
        hint = nearest(type_, _KINDS) if isinstance(type_, str) else f" (known: {', '.join(_KINDS)})"
        faults.append(f"{place}.type = {shown(type_)}: there is no such type of host{hint}")
        return None
    keys = {key: value for key, value in document.items() if key != "type"}
    keys = _without_unused(keys, _UNUSED_OF_HOST, place, unused)
    if "partitions_cpu" in keys and "cpu_partitions" not in keys:
        keys["cpu_partitions"] = keys.pop("partitions_cpu")
    found = _read_keys(keys, {**_HOST_KEYS, **kind.readers}, kind.required, place, faults)
    if found is None:
        return None
    if type_ == TpuHost.type and (fault := _too_short(document.get("dead_after"), found, renewed_s)):
        faults.append(f"{place}.{fault}")
        return None
    if len(ways := [key for key in _WAYS_TO_PAY if found.get(key)]) > 1 and ways != ["reserved", "reservation"]:
        faults.append(f"{place}: {' and '.join(f'`{key}`' for key in ways)} exclude each other: a VM is one of them")
        return None
    named = {_FIELDS.get(key, key): value for key, value in found.items() if key not in _CHECKED_ONLY}
    host: AnyHost = kind.make(**{"name": name, "cluster": name, **named})
    return host


def _too_short(written: object, found: Mapping[str, Any], renewed_s: float) -> str:
    """Why the VM would delete itself while its dispatcher lives; empty when it would not."""
    after_s = found.get("dead_after")
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


def _read_keys(
    document: Mapping[Any, Any], readers: _Readers, required: Sequence[str], place: str, faults: list[str]
) -> dict[str, Any] | None:
    """The keys that are set; None when there is a fault."""
    try:
        return fields.read_struct(document, readers, required, "keys and values")
    except fields.PartsError as error:
        faults += [_line(fault, place, readers) for fault in error.faults]
        return None


def _line(fault: fields.PartFault, place: str, readers: _Readers) -> str:
    key = fault.place.removeprefix(".")
    # What is wrong with a URL may be the password in it.
    may_have_password = (
        isinstance(fault.value, str) and is_url(fault.value) and ("@" in fault.value or "?" in fault.value)
    )
    if key in _SECRET_KEYS or may_have_password:
        return f"{place}.{key}: {fault.message}"
    if fault.is_missing and key not in readers:
        kinds = [name for name, kind in _KINDS.items() if key in kind.readers]
        if kinds and place.startswith("hosts."):
            return f"{place}.{key}: only hosts of type {' or '.join(kinds)} have this key"
    return fault.line(place)


def _read_priority(source: Source, before: tuple[str, ...]) -> tuple[str, ...]:
    written = source.document.get("priority")
    if written is None:
        return before
    try:
        return tuple(dict.fromkeys(_NAMES(written)))
    except BadValueError as error:
        source.faults.extend(fault.line() for fault in fields.faults_of(error, written, "priority"))
        return before


def _read_gres_mapping(source: Source) -> Mapping[str, tuple[str, ...]]:
    written = _mapping(source, "gres_mapping", "GRES types by chip, such as {h100: [h100, nvidia_h100_80gb_hbm3]}")
    given = {chip: types for chip, types in written.items() if types is not None}
    try:
        return fields.mapped(fields.parse_gres_types, "")(given)
    except BadValueError as error:
        source.faults.extend(fault.line() for fault in fields.faults_of(error, given, "gres_mapping"))
        return {}


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
