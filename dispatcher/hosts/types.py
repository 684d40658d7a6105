"""Clusters and hosts as frozen types. Paths are those of the host, never of this machine."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, ClassVar, Final, Literal, Self

import msgspec

from dispatcher.base import devices

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
    """What a job runs in: an image of `runtime`.

    `mounts` are as the runtime takes them (`/data`, `/data:/mnt/data:ro`), `options` further arguments of it.
    """

    runtime: Runtime
    image: str
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a method or an entry says for hosts with SLURM, in place of the host's: `sbatch_args` are added to these."""

    partition: str | None = None
    gpu_type: str | None = None
    slots_per_node: int | None = None
    sbatch_args: tuple[str, ...] = ()


class PbsOptions(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a method or an entry says for hosts with PBS, in place of the host's: `pbsbatch_args` are added to these."""

    queue: str | None = None
    slots_per_node: int | None = None
    pbsbatch_args: tuple[str, ...] = ()


class Cluster(msgspec.Struct, frozen=True, kw_only=True):
    """Directories that the hosts of a cluster have in common, as those hosts see them. None: not configured.

    They may begin with `~` and have `$VARIABLES`, which `remote.operations.Hello` expands on the host.

    `root`: where data, checkpoints and results of jobs are kept; a JuiceFS is mounted there when `mount` names
    its metadata engine. `mount` may hold a password: it must not appear in a log, a script or a message. `work` is
    scratch space for extracted code. `share` is a directory that login and compute nodes both see. `cache_size` and
    `all_squash` (`UID:GID`) are as `juicefs mount` takes them. `uv_dir` becomes UV_CACHE_DIR. `uv_installer`
    and `juicefs_installer` are files or addresses, each with `#sha256=DIGEST` if it is to be checked, of what installs
    the program on nodes that lack it; None: nothing is installed.
    """

    name: str
    root: str | None = None
    work: str | None = None
    log: str | None = None
    share: str | None = None
    data: str | None = None
    checkpoints: str | None = None
    results: str | None = None
    mount: str | None = None
    cache_size: str | None = None
    cache_dir: str | None = None
    all_squash: str | None = None
    uv_dir: str | None = None
    uv_installer: str | None = None
    juicefs_installer: str | None = None
    env: Mapping[str, str] = _NOTHING


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What every kind of host has. `name` is also the name of its outlet.

    `cluster` names the host's cluster; one that is not configured has no settings. `chips` are GPUs by chip: the
    host's; with SLURM and PBS the most that one job may have of each (empty: any number); with Volcano those of one
    node. `modules` are environment modules to load, `uv_groups` dependency groups for `uv sync`. `max_in_flight` and
    `submits_per_minute` None: no limit.
    """

    type: ClassVar[str] = ""
    # Whether its disks, but for what is mounted on them, end when the host is preempted or deleted.
    disks_vanish: ClassVar[bool] = False

    name: str
    cluster: str
    chips: Mapping[str, int] = _NOTHING
    uv_groups: tuple[str, ...] = ()
    env: Mapping[str, str] = _NOTHING
    modules: tuple[str, ...] = ()
    container: Container | None = None
    max_in_flight: int | None = None
    submits_per_minute: int | None = None

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
    """A machine without a scheduler, reached with `ssh`: a name that the ssh client knows, or user@host."""

    type: ClassVar[str] = "plain"

    ssh: str

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
    """A partition of SLURM; jobs that no rule sends elsewhere go to the default one. `constraint`: node features.

    What is set of the others counts in it instead of the host's; `sbatch_args` are added to the host's.
    """

    name: str
    default: bool = False
    constraint: str | None = None
    mem: str | None = None
    slot_type: SlotType | None = None
    tres_supported: bool | None = None
    gres_supported: bool | None = None
    gpu_type: str | None = None
    slots_per_node: int | None = None
    sbatch_args: tuple[str, ...] = ()


class SlurmHost(Host, frozen=True, kw_only=True):
    """A machine with the commands of SLURM. `ssh` None: the machine on which the dispatcher runs.

    `partitions` empty: the one that SLURM itself takes. `cpu_partitions` are for jobs without GPUs, in order of
    preference. `clusters` is the one of several clusters that every call names (`-M`); None: the one that SLURM takes.
    `mem` is the memory of a job that asks for none, as sbatch takes it (`65536M`; `0`: all of a node).
    `exclude` are nodes that are not used. `sbatch_args` are added to every submission. `slot_type` says what a slot is,
    `tres_supported` and `gres_supported` which of SLURM's ways to ask for GPUs the site has configured, `gpu_type` the
    GRES type to ask for instead of the one that `gres_mapping` tells, `slots_per_node` how many slots a node has (None:
    ask SLURM). `job_project_source` says where the wckey of a job comes from (see hosts/options.py), `wckey` the one of
    jobs for which there is none.
    """

    type: ClassVar[str] = "slurm"

    ssh: str | None = None
    partitions: tuple[Partition, ...] = ()
    cpu_partitions: tuple[str, ...] = ()
    clusters: str | None = None
    account: str | None = None
    qos: str | None = None
    mem: str | None = None
    exclude: tuple[str, ...] = ()
    wckey: str | None = None
    job_project_source: str | None = None
    sbatch_args: tuple[str, ...] = ()
    slot_type: SlotType = "cuda"
    tres_supported: bool = True
    gres_supported: bool = True
    gpu_type: str | None = None
    slots_per_node: int | None = None

    @property
    def location(self) -> Location:
        return Location({}, {} if self.clusters is None else {"clusters": self.clusters})

    def at(self, location: Location) -> Self:
        # Where one cluster can be named, all can be.
        name = location.via.get("clusters") or (location.parts.get("cluster") if self.clusters else None)
        return msgspec.structs.replace(self, clusters=name)


class PbsQueue(msgspec.Struct, frozen=True):
    """A queue of PBS. What is set counts in it instead of the host's; `pbsbatch_args` are added to the host's."""

    name: str
    slot_type: SlotType | None = None
    gres_supported: bool | None = None
    slots_per_node: int | None = None
    pbsbatch_args: tuple[str, ...] = ()


class PbsHost(Host, frozen=True, kw_only=True):
    """A machine with the commands of PBS. `ssh` None: the machine on which the dispatcher runs.

    `queues` in order of preference; empty: the one that PBS itself takes. `cpu_queues` are for jobs without GPUs. The
    other fields are as those of SlurmHost; the project is what a wckey is there.
    """

    type: ClassVar[str] = "pbs"

    ssh: str | None = None
    queues: tuple[PbsQueue, ...] = ()
    cpu_queues: tuple[str, ...] = ()
    account: str | None = None
    project: str | None = None
    job_project_source: str | None = None
    pbsbatch_args: tuple[str, ...] = ()
    slot_type: SlotType = "cuda"
    gres_supported: bool = True
    slots_per_node: int | None = None


class TpuHost(Host, frozen=True, kw_only=True):
    """A Cloud TPU VM, which has the host's name. What is None is gcloud's own default.

    `data_disk` are disks as gcloud describes them (`source=...,mode=...`), `create_args` further options with which it
    creates the VM.

    `accelerator_type` as Google calls it (`v4-32`), `version` the runtime version that a VM is created with. `create`
    says whether a dispatcher may create it (`auto`), or only a command that asks (`ask`), because it costs money.
    `idle_delete_s`: after so long without an attempt the dispatcher deletes a VM that was created for this workspace;
    `dead_after_s`: after so long without a dispatcher the VM deletes itself. None: never.
    """

    type: ClassVar[str] = "tpu"
    disks_vanish: ClassVar[bool] = True

    zone: str
    accelerator_type: str
    project: str | None = None
    version: str | None = None
    spot: bool = False
    preemptible: bool = False
    network: str | None = None
    subnetwork: str | None = None
    service_account: str | None = None
    internal_ip: bool = False
    metadata: Mapping[str, str] = _NOTHING
    reserved: bool = False
    reservation: str | None = None
    data_disk: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    create_args: tuple[str, ...] = ()
    create: CreateMode = "ask"
    idle_delete_s: float | None = None
    dead_after_s: float | None = 7200.0

    @property
    def location(self) -> Location:
        """A VM of this name in another project or zone is another one."""
        return Location({"project": self.project or "", "zone": self.zone})

    def at(self, location: Location) -> Self:
        parts = location.parts
        return msgspec.structs.replace(self, project=parts.get("project"), zone=parts.get("zone", self.zone))


class VolcanoHost(Host, frozen=True, kw_only=True):
    """A queue of Volcano in a Kubernetes cluster. What is None is left to the cluster.

    `kubeconfig` and `context` are for kubectl. Attempts' files are on the volume of the claim `pvc_name`, mounted at
    `pvc_mount_path` in every Kubernetes pod. A node has `gpus_per_node` devices of `gpu_resource_key`, by default the
    number in `chips`; a Job has as many Kubernetes pods as its request needs, and `num_nodes` where that leaves GPUs
    open. `cpu` and `memory` are what each gets, `cpu_cpu` and `cpu_memory` what it gets without GPUs, as Kubernetes
    writes quantities. `shm_size` is the size of /dev/shm. `rdma`: with `rdma_per_node` devices of `rdma_resource_key`
    each. What reads and writes files on the volume from outside runs in `helper_image` (None: `image`), which needs
    Python, with `helper_resources` as its requests and limits.
    """

    type: ClassVar[str] = "volcano"

    image: str
    pvc_name: str
    pvc_mount_path: str
    namespace: str = "default"
    queue: str = "default"
    kubeconfig: str | None = None
    context: str | None = None
    num_nodes: int = 1
    gpus_per_node: int | None = None
    gpu_resource_key: str = "nvidia.com/gpu"
    cpu: str | None = None
    memory: str | None = None
    cpu_cpu: str | None = None
    cpu_memory: str | None = None
    shm_size: str | None = None
    priority_class: str | None = None
    service_account: str | None = None
    rdma: bool = False
    rdma_per_node: int = 1
    rdma_resource_key: str = "rdma/hca"
    node_selector: Mapping[str, str] = _NOTHING
    tolerations: tuple[Mapping[str, str], ...] = ()
    labels: Mapping[str, str] = _NOTHING
    helper_image: str | None = None
    helper_resources: Mapping[str, str] = _NOTHING

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

    clusters: Mapping[str, Cluster] = _NOTHING
    hosts: Mapping[str, AnyHost] = _NOTHING
    priority: tuple[str, ...] = ()
    gres_mapping: Mapping[str, tuple[str, ...]] = _NOTHING
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
