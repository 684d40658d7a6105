"""Where attempts' files are on a host whose files must be on a volume."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from dispatcher.hosts.types import Cluster, Hosts, Partition, SlurmHost, SlurmOptions, VolcanoHost
from dispatcher.outlets.base import WORKSPACE, Request
from dispatcher.outlets.batch.remote_host import RemoteHost
from dispatcher.outlets.remote.operations import Confirm, Greeting, Hello, Ran
from dispatcher.outlets.slurm.scheduler import SlurmScheduler
from dispatcher.outlets.volcano.scheduler import VolcanoScheduler
from dispatcher.workspace import Layout

HOST = VolcanoHost(name="cloud", cluster="c", image="train:1", pvc_name="data", pvc_mount_path="/data")
HOME = "/data"


def reached(
    root: Path, cluster: Cluster, *, sees_workspace: bool = False, slurm: SlurmHost | None = None
) -> RemoteHost:
    """After the first answer of a host where `~` is the volume's root."""
    layout = Layout(root)
    scheduler = VolcanoScheduler(HOST, layout, 5.0) if slurm is None else SlurmScheduler(slurm, Hosts(), layout, 5.0)
    remote = RemoteHost(layout, "pod-a", slurm or HOST, cluster, scheduler)
    ((where,), take_in) = msgspec.structs.astuple(remote.steps()[0])
    assert isinstance(where, Confirm)
    take_in([Ran(exit_code=0, out="uid-of-kube-system")])
    ((hello, *limits), take_in) = msgspec.structs.astuple(remote.steps()[0])
    assert isinstance(hello, Hello)
    greeting = Greeting(
        host="helper",
        boot_id="b",
        user="root",
        python="3.12",
        programs={name: f"/bin/{name}" for name in hello.programs},
        directories={name: path.replace("~", HOME) for name, path in hello.directories.items()},
        probe=Path(hello.probe).read_text() if sees_workspace else None,
    )
    take_in([greeting, *(None for _ in limits)])
    assert remote.problem == ""
    return remote


@pytest.mark.parametrize(
    ("cluster", "base"),
    [
        (Cluster(name="c"), "/data/.dispatcher"),
        (Cluster(name="c", root="/data/lab"), "/data/lab"),
        (Cluster(name="c", root="/data/lab", work="~/work"), "/data/work"),
        # Scratch space of each node: code is extracted there, but nobody else sees it.
        (Cluster(name="c", root="/data/lab", work="/scratch"), "/data/lab"),
        (Cluster(name="c", work="/database"), "/data/.dispatcher"),
    ],
)
def test_attempts_are_on_the_volume(tmp_path: Path, cluster: Cluster, base: str) -> None:
    remote = reached(tmp_path, cluster)
    assert remote.layout().root == Path(base, remote.workspace_id)
    assert remote.share == base
    assert remote.node(Request(0)).work == (cluster.work or "").replace("~", HOME)


@pytest.mark.parametrize(("share", "code"), [("/data/share", "/data/share"), ("/shared", "/data/.dispatcher")])
def test_code_is_on_the_volume(tmp_path: Path, share: str, code: str) -> None:
    assert reached(tmp_path, Cluster(name="c", share=share)).share == code


def test_a_workspace_on_the_volume_is_used_as_it_is(tmp_path: Path) -> None:
    remote = reached(tmp_path, Cluster(name="c"), sees_workspace=True)
    assert remote.layout().root == tmp_path
    assert remote.place == WORKSPACE


@pytest.mark.parametrize("sees_workspace", [False, True])
def test_an_object_store_for_checkpoints_is_used_wherever_the_workspace_is(
    tmp_path: Path, sees_workspace: bool
) -> None:
    remote = reached(tmp_path, Cluster(name="c", checkpoints="s3://lab/ck"), sees_workspace=sees_workspace)
    assert remote.place == "s3://lab/ck"
    assert remote.node(Request(0)).env == {"DISPATCHER_CHECKPOINTS_OVERRIDE": "s3://lab/ck"}
    own = Cluster(name="c", checkpoints="s3://lab/ck", env={"DISPATCHER_CHECKPOINTS_OVERRIDE": "gs://mine"})
    assert reached(tmp_path, own, sees_workspace=sees_workspace).node(Request(0)).env == own.env


@pytest.mark.parametrize(("partition", "kind"), [("a", "cuda"), ("amd", "rocm"), ("cpu", ""), ("new", "cuda")])
def test_a_container_has_the_gpus_of_the_partition(tmp_path: Path, partition: str, kind: str) -> None:
    partitions = (Partition("a"), Partition("amd", slot_type="rocm"), Partition("cpu", slot_type="cpu"))
    remote = reached(tmp_path, Cluster(name="c"), slurm=SlurmHost(name="hpc", cluster="c", partitions=partitions))
    assert remote.node(Request(slurm=SlurmOptions(partition=partition))).gpus == kind
