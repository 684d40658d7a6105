"""Connections to the volume of a Kubernetes bed, and what is there of helpers."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import msgspec
from beds.k8s import K8sBed

from dispatcher.hosts.types import VolcanoHost
from dispatcher.outlets.remote.connection import Connection, Pace
from dispatcher.outlets.remote.operations import Store
from dispatcher.outlets.volcano.helper import HelperTransport
from dispatcher.outlets.volcano.helper_job import IDLE_S
from dispatcher.workspace import Layout

MOUNT = "/mnt/volume"


class Site:
    """A host with a volume in a Kubernetes bed, as the dispatchers of one workspace see it."""

    def __init__(self, k8s: K8sBed, workspace: Path) -> None:
        self.k8s = k8s
        self.volume = Path(k8s.make_volume("data"))
        self.layout = Layout(workspace)
        self.host = VolcanoHost(
            name="cloud",
            cluster="cloud",
            image="python:3.12",
            pvc_name="data",
            pvc_mount_path=MOUNT,
            namespace=k8s.namespace,
            kubeconfig=k8s.kubeconfig,
        )
        self._made: list[Connection] = []

    def transport(self, owner: str = "pod-a", idle_s: int = IDLE_S, **changes: Any) -> HelperTransport:
        return HelperTransport(msgspec.structs.replace(self.host, **changes), self.layout, owner, idle_s)

    def connect(self, owner: str = "pod-a", **changes: Any) -> Connection:
        """`changes` are of the transport: other keys of the host, and `idle_s`."""
        pace = Pace(first_pause_s=0)
        self._made.append(Connection(self.host.name, self.transport(owner, **changes), pace=pace))
        return self._made[-1]

    def close(self) -> None:
        for connection in self._made:
            connection.close()

    def jobs(self) -> list[str]:
        """The helpers' Jobs that there are."""
        return self._names("jobs")

    def pods(self) -> list[str]:
        return self._names("pods")

    def _names(self, kind: str) -> list[str]:
        found = self.k8s.kubectl("get", kind, "-l", "dispatcher/helper", "-o", "name").stdout
        return [line.partition("/")[2] for line in found.splitlines()]


def archive(tmp_path: Path, megabytes: int, name: str = "code.tar") -> Store:
    """Something of this size that does not compress, to be stored on the volume."""
    source = tmp_path / name
    content = os.urandom(megabytes << 20)
    source.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()
    return Store(path=f"{MOUNT}/code/{name}", source=os.fspath(source), size=len(content), sha256=digest)
