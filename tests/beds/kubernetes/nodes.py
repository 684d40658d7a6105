"""Nodes of the bed, each in a process and mount namespace of its own: the kubelet, and containers below it.

A node without a kubelet that answers (`stop`) is what the control plane calls NotReady: its containers go on.
"""

from __future__ import annotations

import contextlib
import glob
import json
import os
import shutil
import sys
import sysconfig
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..bed import HERE, BedError, wait_for
from ..computer import temporary_directories
from ..needs import CONTAINER, KUBELET

if TYPE_CHECKING:
    from ..bed import Bed

BRIDGE = "pods"
GATEWAY = "10.244.0.1"
# Of all images: the Python that runs the tests comes first, so that what it can import is there.
IMAGE_PATH = f"{sysconfig.get_path('scripts')}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What a container does not see of this machine: the tests' own directories.
HIDDEN = sorted({*temporary_directories(), "/var/tmp"})


def make_network(bed: Bed) -> None:
    """A bridge for the pods; the nodes' own addresses are on the loopback interface."""
    bed.run("ip", "link", "set", "lo", "up")
    bed.run("ip", "link", "add", BRIDGE, "type", "bridge")
    bed.run("ip", "address", "add", f"{GATEWAY}/16", "dev", BRIDGE)
    bed.run("ip", "link", "set", BRIDGE, "up")


def shared() -> list[str]:
    """What containers see all the same: this checkout and its Python, where they are hidden or on other mounts."""
    wanted = {sys.prefix, sys.base_prefix, os.path.dirname(os.path.dirname(HERE))}
    return sorted(path for path in wanted if _is_out_of_sight(path))


def _is_out_of_sight(path: str) -> bool:
    while path != "/":
        if os.path.ismount(path) or path in HIDDEN:
            return True
        path = os.path.dirname(path)
    return False


class Node:
    """`number` begins at 1; `hardware` are fields of the kubelet's configuration (kubelet/main.go)."""

    def __init__(self, bed: Bed, name: str, number: int, kubeconfig: str, hardware: Mapping[str, Any]) -> None:
        self._bed = bed
        self.name = name
        self.address = f"10.0.0.{number}"
        self.directory = f"{bed.directory}/nodes/{name}"
        self._log = f"{bed.directory}/log/{name}.log"
        self._leader = 0
        self._config = {
            "Name": name,
            "Address": self.address,
            "Directory": self.directory,
            "Kubeconfig": kubeconfig,
            "Labels": {},
            "PodNetwork": f"10.244.{number}",
            "Bridge": BRIDGE,
            "Dns": GATEWAY,
            "Container": CONTAINER,
            "ImagePath": IMAGE_PATH,
            "Hidden": HIDDEN,
            "Shared": shared(),
            "HeartbeatS": 1,
            **hardware,
        }
        bed.run("ip", "address", "add", f"{self.address}/32", "dev", "lo")

    def up(self) -> None:
        # Nothing runs of what ran before a power cut.
        for path in glob.glob(self._bed.outside(f"{self.directory}/containers/*/pid")):
            os.unlink(path)
        config = self._bed.write(f"{self.directory}/config.json", json.dumps(self._config))
        # It would make its own, which takes longer than all else that it does before it is ready.
        os.makedirs(self._bed.outside(f"{self.directory}/certs"), exist_ok=True)
        for kind in ("crt", "key"):
            shutil.copy(
                self._bed.outside(f"{self._bed.directory}/certs/apiserver.{kind}"),
                self._bed.outside(f"{self.directory}/certs/kubelet.{kind}"),
            )
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        self._leader = self._bed.start([*namespaces, KUBELET, config], self._log)

    def kill(self) -> None:
        """As when its power fails: nothing of it runs when this returns."""
        self._bed.kill(self._leader)

    def stop(self) -> None:
        """Its kubelet does nothing more and answers nobody; containers go on."""
        self._bed.run("kill", "-STOP", str(self._kubelet()))

    def go_on(self) -> None:
        self._bed.run("kill", "-CONT", str(self._kubelet()))

    def is_up(self) -> bool:
        return self._bed.alive(self._leader)

    def containers(self, namespace: str, pod: str = "") -> list[str]:
        """The directories of a pod's containers, as this process sees them; kubelet/container.go names them."""
        folder = self._bed.outside(f"{self.directory}/containers")
        start = f"{namespace}_{pod}_" if pod else f"{namespace}_"
        return sorted(f"{folder}/{name}" for name in os.listdir(folder) if name.startswith(start))

    def clear(self, namespace: str) -> None:
        """When the pods of a namespace are deleted: do not wait until their containers end of themselves."""

        def running() -> list[str]:
            return [path for path in self.containers(namespace) if _is_running(path)]

        for directory in running():
            # It may have ended meanwhile.
            with contextlib.suppress(BedError):
                self.kill_container(directory)
        wait_for(lambda: not running(), lambda: f"node {self.name} still runs {running()}", every_s=0.05)

    def kill_container(self, directory: str) -> None:
        """Outright, from outside of it: its own first process is safe from what runs inside."""
        with open(f"{directory}/pid", encoding="ascii") as file:
            pid = file.read()
        self._bed.run("nsenter", f"--target={self._kubelet()}", "--pid", "kill", "-KILL", pid)

    def _kubelet(self) -> int:
        """Its pid in the bed; it is the child of what has made its namespaces."""
        with open(self._bed.outside(f"/proc/{self._leader}/task/{self._leader}/children"), encoding="ascii") as file:
            return int(file.read())

    def log(self) -> str:
        return self._bed.log_tail(self._log)


def _is_running(directory: str) -> bool:
    """`pid` is there from its start on, `exit.json` from its end."""
    return os.path.exists(f"{directory}/pid") and not os.path.exists(f"{directory}/exit.json")
