"""Clusters and hosts as frozen types, with their keys in files. Paths are those of the host, never of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, ClassVar, Final, Literal, Self, TypeAlias

import msgspec

from dispatcher.base import devices
from dispatcher.base.schema import reading
from dispatcher.base.schema.faults import PartFault, PartsError
from dispatcher.base.schema.kinds import Count, Duration, Positive, one_or_many_of, read_later
from dispatcher.base.schema.types import Key, Value
from dispatcher.base.values import BadValueError
from dispatcher.hosts import fields, kubernetes
from dispatcher.hosts.fields import (
    Amount,
    Arguments,
    HostEnv,
    Line,
    Name,
    Names,
    NodeMemory,
    Path,
    ProjectSource,
    Word,
    Words,
)

# What a host must not be called: the outlet of this machine, and the word for "choose a host".
RESERVED_NAMES: Final = ("local", "auto")

Runtime = Literal["apptainer", "singularity", "podman", "enroot"]
SlotType = Literal["cuda", "rocm", "cpu"]
# So many times within `dead_after` a dispatcher renews the timer of a TPU VM: some of its calls may fail.
RENEWALS: Final = 8
CreateMode = Literal["auto", "ask"]

_NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})

# Not every user of a cluster may see the first, and it may have several of the second.
_NAMES_OF_CLUSTER: Final = ("cluster", "address")


class Location(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where attempts of a host are, whatever the configuration and the defaults of other programs say later.

    `parts` identify it (`project` and `zone`, `cluster`, `server`); of names of the same thing the first decides that
    both places have. `via` is how it was reached (`context`): it may be called otherwise on another machine.
    """

    parts: Mapping[str, str] = {}
    via: Mapping[str, str] = {}

    def has(self, known: Location) -> bool:
        """Whether `known`, of which some parts may not be known yet, can be this one, however either is reached."""
        both = next((name for name in _NAMES_OF_CLUSTER if name in self.parts and name in known.parts), None)
        unasked = set(_NAMES_OF_CLUSTER) - {both} if both else ()
        return all(self.parts.get(name) == value for name, value in known.parts.items() if name not in unasked)

    def is_reached_as(self, known: Location) -> bool:
        """Whether calls that name `known` come to it, as far as is known."""
        return self.has(known) and self.via == known.via

    def text(self) -> str:
        """For people: `cluster alpha`, `project lab, zone us-central2-b`."""
        via = ", ".join(f"{name} {value}" for name, value in self.via.items())
        parts = ", ".join(f"{name} {value}" for name, value in self.parts.items())
        return f"{parts} ({via})" if parts and via else parts or via


class Container(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a job runs in: an image of `runtime`."""

    EXAMPLE: ClassVar[str] = "{runtime: apptainer, image: docker://nvcr.io/nvidia/jax:24.04-py3}"

    runtime: Annotated[Runtime, Key("the program that runs the image")]
    image: Annotated[Word, Key("the image, as the runtime takes it")]
    mounts: Annotated[
        fields.Lines,
        Key("directories that it sees, as the runtime takes them: `/data`, `/data:/mnt/data:ro`"),
    ] = ()
    options: Annotated[Arguments, Key("further arguments of the runtime")] = ()


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a method or an entry asks of hosts with SLURM, in place of the host's."""

    EXAMPLE: ClassVar[str] = "{partition: big, sbatch_args: [--nice]}"

    partition: Annotated[Name | None, Key("where the job goes; what is configured for this partition applies")] = None
    gpu_type: Annotated[Word | None, Key("the GRES type to ask for")] = None
    slots_per_node: Annotated[Positive | None, Key("GPUs (or CPUs) of a node")] = None
    sbatch_args: Annotated[
        Arguments, Key("further options; those of the entry come after those of its method and of the host")
    ] = ()


class PbsOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a method or an entry asks of hosts with PBS, in place of the host's."""

    EXAMPLE: ClassVar[str] = "{queue: big, slots_per_node: 4}"

    queue: Annotated[Name | None, Key("where the job goes; what is configured for this queue applies")] = None
    slots_per_node: Annotated[Positive | None, Key("GPUs (or CPUs) of a node")] = None
    pbsbatch_args: Annotated[
        Arguments, Key("further options; those of the entry come after those of its method and of the host")
    ] = ()


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Directories that the hosts of a cluster have in common, as those hosts see them. None: not configured.

    They may begin with `~` and have `$VARIABLES`, which `remote.operations.Hello` expands on the host. `mount` may hold
    a password: it must not appear in a log, a script or a message.
    """

    name: str
    root: Annotated[
        Path | None,
        Key("where data, checkpoints and results of jobs are; a JuiceFS is mounted there with `mount`"),
    ] = None
    work: Annotated[Path | None, Key("where code is extracted, and files of attempts are kept")] = None
    log: Annotated[Path | None, Key("where logs of jobs on plain hosts are")] = None
    share: Annotated[
        Path | None, Key("what login and compute nodes both see: archives of code, images of containers")
    ] = None
    data: Annotated[Path | None, Key("where data is, if not below `root`")] = None
    checkpoints: Annotated[
        fields.Place | None,
        Key("where checkpoints are, if not below `root`: a directory or the URL of an object store"),
    ] = None
    results: Annotated[Path | None, Key("where results are, if not below `root`")] = None
    mount: Annotated[
        fields.Url | None, Key("the metadata engine of a JuiceFS that is mounted at `root`", is_secret=True)
    ] = None
    cache_size: Annotated[fields.CacheSize | None, Key("the size of its cache, as `juicefs mount` takes it")] = None
    cache_dir: Annotated[Path | None, Key("the directory of its cache")] = None
    all_squash: Annotated[fields.Squash | None, Key("`UID:GID` that all its files belong to")] = None
    uv_dir: Annotated[Path | None, Key("the cache of uv: UV_CACHE_DIR")] = None
    uv_installer: Annotated[
        fields.Installer | None,
        Key("what installs uv on nodes that lack it: a file or an address, `#sha256=DIGEST` after it checks it"),
    ] = None
    juicefs_installer: Annotated[
        fields.Installer | None, Key("what installs JuiceFS on nodes that lack it, as `uv_installer`")
    ] = None
    env: Annotated[fields.ClusterEnv, Key("environment variables of jobs")] = _NOTHING

    def __post_init__(self) -> None:
        if self.mount is not None and self.root is None:
            why = "is missing; the filesystem of `mount` is mounted there"
            raise PartsError([PartFault(".root", None, why, is_hidden=True)])


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind of host has. `name` is also the name of its outlet. `cluster` may have no settings."""

    type: ClassVar[str] = ""
    # Whether its disks, but for what is mounted on them, end when the host is preempted or deleted.
    disks_vanish: ClassVar[bool] = False

    name: str
    cluster: Annotated[Name, Key("the name of its cluster", default="the name of the host")]
    chips: Annotated[
        fields.Chips,
        Key(
            "its GPUs by chip, `{h100: 8}`; with SLURM and PBS the most that one job may have of each; with Volcano "
            "those of one node",
            default="any number",
        ),
    ] = _NOTHING
    uv_groups: Annotated[Names, Key("dependency groups for `uv sync`")] = ()
    env: Annotated[HostEnv, Key("environment variables of jobs")] = _NOTHING
    modules: Annotated[fields.Modules, Key("environment modules to load")] = ()
    container: Annotated[Container | None, Key("what jobs run in")] = None
    max_in_flight: Annotated[Positive | None, Key("attempts that may be in flight there", default="any number")] = None
    submits_per_minute: Annotated[
        Positive | None, Key("attempts that are submitted in a minute", default="any number")
    ] = None

    def keeps(self, path: str) -> bool:
        """Whether files of attempts can be there: in a directory as it is configured, before it is expanded."""
        return True

    @property
    def volume(self) -> str:
        """What has the files of attempts, where other hosts of the cluster do not see it; empty where they may."""
        return ""

    @property
    def location(self) -> Location:
        """Where attempts are submitted to, as far as the configuration tells."""
        return Location()

    def at(self, location: Location) -> Self:
        """The same host, whose calls go to where attempts were submitted to before."""
        return self


class PlainHost(Host, frozen=True, kw_only=True):
    """A machine without a scheduler, reached with `ssh`."""

    type: ClassVar[str] = "plain"

    ssh: Annotated[Word, Key("a name that the ssh client knows, or user@host")]
    env: Annotated[fields.PlainEnv, Key("variables of jobs; CUDA_VISIBLE_DEVICES says which GPUs are used")] = _NOTHING

    @property
    def location(self) -> Location:
        return Location({}, {"ssh": self.ssh})

    def at(self, location: Location) -> Self:
        return msgspec.structs.replace(self, ssh=location.via.get("ssh", self.ssh))

    @property
    def visible_gpus(self) -> tuple[int, ...] | None:
        """The GPUs that a CUDA_VISIBLE_DEVICES in `env` leaves; None: all."""
        return devices.indices(self.env[devices.VISIBLE]) if devices.VISIBLE in self.env else None


class Partition(msgspec.Struct, frozen=True):
    """A partition of SLURM; jobs that no rule sends elsewhere go to the default one.

    What is set of the keys that a host has too applies in it instead of the host's; `sbatch_args` are added to those.
    """

    name: Annotated[Name, Key("the name of the partition", is_short=True)]
    default: Annotated[bool, Key("whether jobs go there that no rule sends elsewhere")] = False
    constraint: Annotated[Word | None, Key("node features")] = None
    mem: Annotated[NodeMemory | None, Key("the memory of a job that asks for none")] = None
    slot_type: Annotated[SlotType | None, Key("what a slot is")] = None
    tres_supported: Annotated[bool | None, Key("whether `--gpus` and the like work")] = None
    gres_supported: Annotated[bool | None, Key("whether `--gres` works")] = None
    gpu_type: Annotated[Word | None, Key("the GRES type to ask for")] = None
    slots_per_node: Annotated[Positive | None, Key("GPUs (or CPUs) of a node")] = None
    sbatch_args: Annotated[Arguments, Key("further options of every submission")] = ()


def _parse_partitions(value: object) -> tuple[Partition, ...]:
    partitions: tuple[Partition, ...] = fields.listed(reading.reader(Partition))(value)
    defaults = [partition.name for partition in partitions if partition.default]
    if len(defaults) > 1:
        raise BadValueError(f"expected at most one default partition, not {' and '.join(defaults)}")
    return partitions


def _parse_clusters(value: object) -> str:
    """One, although the option of SLURM takes several: an attempt is in one, and is looked for there."""
    if isinstance(value, (list, tuple)) or value == "all" or "," in str(value):
        raise BadValueError("expected the name of one cluster: describe a host for each")
    return fields.parse_word(value)


Partitions: TypeAlias = Annotated[tuple[Partition, ...], Value(_parse_partitions, one_or_many_of(Partition))]
OneCluster: TypeAlias = Annotated[str, Value(_parse_clusters, {"type": ["string", "integer"]})]


class SlurmHost(Host, frozen=True, kw_only=True):
    """A machine with the commands of SLURM. `ssh` None: the machine on which the dispatcher runs."""

    type: ClassVar[str] = "slurm"

    ssh: Annotated[Word | None, Key("the login node, as the ssh client knows it", default="this machine")] = None
    partitions: Annotated[
        Partitions, Key("partitions, each a name or a mapping with what differs in it", default="the one SLURM takes")
    ] = ()
    cpu_partitions: Annotated[
        Names, Key("partitions for jobs without GPUs, in order of preference", default="as `partitions`")
    ] = ()
    clusters: Annotated[
        OneCluster | None,
        Key("the one cluster that every call names (`-M`)", default="the one SLURM takes"),
    ] = None
    account: Annotated[Word | None, Key("the account of submissions")] = None
    qos: Annotated[Word | None, Key("the quality of service of submissions")] = None
    mem: Annotated[
        NodeMemory | None,
        Key("the memory of a job that asks for none, as sbatch takes it: `64G`, a number of MiB, `0`: all of a node"),
    ] = None
    exclude: Annotated[Words, Key("nodes that are not used")] = ()
    wckey: Annotated[Word | None, Key("the wckey of jobs for which `job_project_source` has none")] = None
    job_project_source: Annotated[
        ProjectSource | None, Key("where the wckey of a job comes from: `workspace`, `user`, `label` or `label:KEY`")
    ] = None
    sbatch_args: Annotated[Arguments, Key("further options of every submission")] = ()
    slot_type: Annotated[SlotType, Key("what a slot is")] = "cuda"
    tres_supported: Annotated[bool, Key("whether the site has `--gpus` and the like")] = True
    gres_supported: Annotated[bool, Key("whether the site has `--gres`")] = True
    gpu_type: Annotated[
        Word | None, Key("the GRES type to ask for", default="what `gres_mapping` has for the chip")
    ] = None
    slots_per_node: Annotated[Positive | None, Key("GPUs (or CPUs) of a node", default="not known")] = None

    @property
    def location(self) -> Location:
        return Location({}, {} if self.clusters is None else {"clusters": self.clusters})

    def at(self, location: Location) -> Self:
        # Where one cluster can be named, all can be.
        name = location.via.get("clusters") or (location.parts.get("cluster") if self.clusters else None)
        return msgspec.structs.replace(self, clusters=name)


class PbsQueue(msgspec.Struct, frozen=True):
    """A queue of PBS. What is set applies in it instead of the host's; `pbsbatch_args` are added to the host's."""

    name: Annotated[Name, Key("the name of the queue", is_short=True)]
    slot_type: Annotated[SlotType | None, Key("what a slot is")] = None
    gres_supported: Annotated[bool | None, Key("whether PBS knows GPUs as `ngpus`")] = None
    slots_per_node: Annotated[Positive | None, Key("GPUs (or CPUs) of a node")] = None
    pbsbatch_args: Annotated[Arguments, Key("further options of every submission")] = ()


Queues: TypeAlias = Annotated[
    tuple[PbsQueue, ...], Value(fields.listed(reading.reader(PbsQueue)), one_or_many_of(PbsQueue))
]


class PbsHost(Host, frozen=True, kw_only=True):
    """A machine with the commands of PBS. `ssh` None: the machine on which the dispatcher runs."""

    type: ClassVar[str] = "pbs"

    ssh: Annotated[Word | None, Key("the login node, as the ssh client knows it", default="this machine")] = None
    queues: Annotated[
        Queues, Key("queues in order of preference, each a name or a mapping", default="the one PBS takes")
    ] = ()
    cpu_queues: Annotated[
        Names, Key("queues for jobs without GPUs, in order of preference", default="as `queues`")
    ] = ()
    account: Annotated[Word | None, Key("the account of submissions")] = None
    project: Annotated[Word | None, Key("the project of jobs for which `job_project_source` has none")] = None
    job_project_source: Annotated[
        ProjectSource | None, Key("where the project of a job comes from: `workspace`, `user`, `label` or `label:KEY`")
    ] = None
    pbsbatch_args: Annotated[Arguments, Key("further options of every submission")] = ()
    slot_type: Annotated[SlotType, Key("what a slot is")] = "cuda"
    gres_supported: Annotated[bool, Key("whether PBS knows GPUs as `ngpus`")] = True
    slots_per_node: Annotated[Positive | None, Key("GPUs (or CPUs) of a node", default="as many as are asked for")] = (
        None
    )


class TpuHost(Host, frozen=True, kw_only=True):
    """A Cloud TPU VM, which has the host's name. What is None is gcloud's own default."""

    type: ClassVar[str] = "tpu"
    disks_vanish: ClassVar[bool] = True

    zone: Annotated[Word, Key("the zone of the VM")]
    accelerator_type: Annotated[fields.AcceleratorType, Key("the TPU as Google calls it: `v4-32`")]
    project: Annotated[
        Word | None, Key("the project of the VM", default="where its VM was last, at first gcloud's own")
    ] = None
    version: Annotated[Word | None, Key("the runtime version that a VM is created with")] = None
    spot: Annotated[bool, Key("create a spot VM")] = False
    preemptible: Annotated[bool, Key("create a preemptible VM")] = False
    network: Annotated[Word | None, Key("the network of a new VM")] = None
    subnetwork: Annotated[Word | None, Key("the subnetwork of a new VM")] = None
    service_account: Annotated[Word | None, Key("the service account of a new VM")] = None
    internal_ip: Annotated[bool, Key("reach it, and create it, without an external address")] = False
    metadata: Annotated[fields.Metadata, Key("metadata of a new VM, such as `startup-script`")] = _NOTHING
    reserved: Annotated[bool, Key("create it from reserved capacity")] = False
    reservation: Annotated[Word | None, Key("the reservation that it is created from")] = None
    data_disk: Annotated[Words, Key("disks as gcloud describes them: `source=...,mode=...`")] = ()
    tags: Annotated[Words, Key("network tags of a new VM")] = ()
    create_args: Annotated[Arguments, Key("further options with which gcloud creates the VM")] = ()
    create: Annotated[
        CreateMode, Key("`auto`: a dispatcher may create it; `ask`: only a command that asks, because it costs money")
    ] = "ask"
    idle_delete_s: Annotated[
        Duration | None,
        Key(
            "after so long without an attempt the dispatcher deletes a VM that was created for this workspace",
            default="never",
        ),
    ] = None
    dead_after_s: Annotated[
        fields.DurationOrNever, Key("after so long without a dispatcher the VM deletes itself; `never`")
    ] = 7200.0
    node_count: Annotated[fields.OneNode, Key("1: each slice is a host of its own")] = 1

    @property
    def location(self) -> Location:
        """A VM of this name in another project or zone is another one."""
        return Location({"project": self.project or "", "zone": self.zone})

    def at(self, location: Location) -> Self:
        parts = location.parts
        return msgspec.structs.replace(self, project=parts.get("project"), zone=parts.get("zone", self.zone))


class VolcanoHost(Host, frozen=True, kw_only=True):
    """A queue of Volcano in a Kubernetes cluster. What is None is left to the cluster.

    A Job has as many Kubernetes pods as its request needs, and `num_nodes` where that leaves GPUs open.
    """

    type: ClassVar[str] = "volcano"

    image: Annotated[Word, Key("the image that jobs run in")]
    pvc_name: Annotated[kubernetes.ObjectName, Key("the claim of the volume that has attempts' files")]
    pvc_mount_path: Annotated[kubernetes.MountPath, Key("where it is mounted in every Kubernetes pod")]
    namespace: Annotated[kubernetes.Namespace, Key("the namespace of Jobs")] = "default"
    queue: Annotated[kubernetes.ObjectName, Key("the queue of Volcano")] = "default"
    kubeconfig: Annotated[Line | None, Key("the file that kubectl reads", default="kubectl's")] = None
    context: Annotated[Word | None, Key("the context of kubectl", default="kubectl's")] = None
    num_nodes: Annotated[Positive, Key("Kubernetes pods of a Job whose request does not decide it")] = 1
    gpus_per_node: Annotated[Count | None, Key("GPUs of a node", default="the number in `chips`")] = None
    gpu_resource_key: Annotated[kubernetes.ResourceKey, Key("the resource of GPUs")] = "nvidia.com/gpu"
    cpu: Annotated[
        Amount | None, Key("CPUs of each Kubernetes pod, unless the request says so", default="the namespace's")
    ] = None
    memory: Annotated[
        Amount | None, Key("memory of each Kubernetes pod, unless the request says so", default="the namespace's")
    ] = None
    cpu_cpu: Annotated[Amount | None, Key("CPUs of a Kubernetes pod without GPUs", default="the namespace's")] = None
    cpu_memory: Annotated[Amount | None, Key("memory of a Kubernetes pod without GPUs", default="the namespace's")] = (
        None
    )
    shm_size: Annotated[Amount | None, Key("the size of /dev/shm", default="the container runtime's")] = None
    priority_class: Annotated[kubernetes.ObjectName | None, Key("the priority class of Jobs")] = None
    service_account: Annotated[kubernetes.ObjectName | None, Key("the service account of Kubernetes pods")] = None
    rdma: Annotated[bool, Key("ask for RDMA devices")] = False
    rdma_per_node: Annotated[Positive, Key("RDMA devices of each Kubernetes pod")] = 1
    rdma_resource_key: Annotated[kubernetes.ResourceKey, Key("the resource of RDMA devices")] = "rdma/hca"
    node_selector: Annotated[kubernetes.Labels, Key("labels that nodes must have")] = _NOTHING
    tolerations: Annotated[kubernetes.Tolerations, Key("taints of nodes that do not keep attempts away")] = ()
    labels: Annotated[kubernetes.Labels, Key("further labels of Jobs and Kubernetes pods")] = _NOTHING
    helper_image: Annotated[
        Word | None, Key("what reads and writes files on the volume from outside; needs Python", default="`image`")
    ] = None
    helper_resources: Annotated[fields.Amounts, Key("requests and limits of the helper, `{cpu: 100m}`")] = _NOTHING

    def keeps(self, path: str) -> bool:
        """Only what is on the volume; `~` is its root for what the dispatcher does there."""
        return path[:1] == "~" or path == self.pvc_mount_path or path.startswith(f"{self.pvc_mount_path.rstrip('/')}/")

    @property
    def volume(self) -> str:
        return f"{self.namespace}/{self.pvc_name}"

    @property
    def location(self) -> Location:
        via = {"kubeconfig": self.kubeconfig, "context": self.context}
        given = {name: value for name, value in via.items() if value is not None}
        return Location({"namespace": self.namespace}, given)

    def at(self, location: Location) -> Self:
        return msgspec.structs.replace(
            self,
            namespace=location.parts.get("namespace", self.namespace),
            kubeconfig=location.via.get("kubeconfig"),
            context=location.via.get("context"),
        )


# Those that attempts can be run on.
AnyHost = PlainHost | SlurmHost | PbsHost | TpuHost | VolcanoHost


class Hosts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is configured of hosts, by name. `priority` names those to prefer, the best first.

    `gres_mapping` has the GRES types that SLURM may know a chip by, '' for GPUs without a type; a chip that it lacks is
    called there as here.
    `unused` has a line for each key that was given but means nothing to this tool, such as a password in plain text.
    """

    clusters: Annotated[
        Mapping[str, Cluster],
        read_later({}),
        Key("settings that several hosts have in common ([outlets](outlets/README.md#configuration))"),
    ] = _NOTHING
    hosts: Annotated[
        Mapping[str, AnyHost],
        read_later({}),
        Key("other machines and clusters ([outlets](outlets/README.md#configuration))"),
    ] = _NOTHING
    priority: Annotated[Names, Key("hosts to prefer, the best first")] = ()
    gres_mapping: Annotated[
        Mapping[str, tuple[str, ...]],
        read_later({}),
        Key("the GRES types that SLURM knows a chip by: `{h100: [h100, nvidia_h100]}`"),
    ] = _NOTHING
    unused: tuple[str, ...] = ()

    def cluster_of(self, host: Host) -> Cluster:
        """The cluster of a host."""
        return self.clusters.get(host.cluster) or Cluster(name=host.cluster)

    def in_order(self) -> tuple[AnyHost, ...]:
        """All hosts, those that `priority` names first."""
        names = dict.fromkeys((*self.priority, *self.hosts))
        return tuple(self.hosts[name] for name in names)

    def gres_types(self, chip: str) -> tuple[str, ...]:
        """The GRES types that stand for `chip` in SLURM."""
        return self.gres_mapping.get(chip, (chip,))
