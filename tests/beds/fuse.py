"""What the FUSE beds share: one lower directory, mounted once for each of two hosts.

The hosts are processes of this machine in namespaces of their own: each has a name, a boot id, process ids, a mount and
a private temporary directory like a host of its own, and the shared directory under the same path. They share the
kernel, so a clock, its load and its memory are one.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import sys
import uuid

from .bed import HERE, Bed, BedError, wait_for
from .hosts import AGENT_PORT, Host, Machine


class NamespaceHost(Machine):
    """`view` is this host's own mount of the shared directory, which it has at `point`."""

    def __init__(self, bed: Bed, name: str, port: int, view: str, point: str) -> None:
        folder = f"{bed.directory}/hosts/{port}"
        super().__init__(bed, name, "127.0.0.1", port, f"{folder}/tmp")
        self.boot_id = f"{folder}/boot_id"
        self.view, self.point = view, point
        os.makedirs(bed.outside(self.home))

    def boot(self) -> None:
        if self.pid is not None:
            raise BedError(f"{self.name} is running")
        self.bed.write(self.boot_id, f"{uuid.uuid4()}\n")
        steps = [
            ["hostname", self.name],
            ["mount", "--bind", self.boot_id, "/proc/sys/kernel/random/boot_id"],
            ["mount", "--bind", self.view, self.point],
            # The view itself would be a second way to the same files, which no real host has.
            ["umount", self.view],
            ["exec", sys.executable, "-B", f"{HERE}/agent.py", self.address, str(self.port), self.home],
        ]
        script = " && ".join(shlex.join(step) for step in steps)
        # With --kill-child the end of unshare is the end of all that runs in there: `kill` leaves nothing.
        unshare = ["unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc"]
        self.pid = self.bed.start([*unshare, "sh", "-c", script], self.log)
        self.wait_until_up(20)


class FuseBed(Bed):
    """A subclass says how a variant is mounted; each variant has two hosts of its own, made when first asked for."""

    def __init__(self) -> None:
        self._variants: dict[str, tuple[NamespaceHost, NamespaceHost]] = {}
        self._directories = itertools.count(1)
        super().__init__()

    def _mount_command(self, variant: str, view: str) -> list[str]:
        """The program that mounts `self.lower` at `view` and stays in the foreground."""
        raise NotImplementedError

    def _up(self) -> None:
        self.run("ip", "link", "set", "lo", "up")
        self.lower = f"{self.directory}/lower"
        os.mkdir(self.outside(self.lower), 0o755)

    def hosts(self, variant: str = "") -> tuple[Host, Host]:
        """Both hosts at a new directory."""
        if variant not in self._variants:
            self._variants[variant] = self._new_hosts(variant)
        name = f"shared-{next(self._directories)}"
        self._make_directory(variant, name)
        a, b = self._variants[variant]
        return Host(a, f"{a.point}/{name}"), Host(b, f"{b.point}/{name}")

    def _make_directory(self, variant: str, name: str) -> None:
        os.mkdir(self.outside(f"{self.lower}/{name}"))

    def _new_hosts(self, variant: str) -> tuple[NamespaceHost, NamespaceHost]:
        number = len(self._variants)
        folder = f"{self.directory}/{number}"
        point = f"{folder}/mnt"
        os.makedirs(self.outside(point))
        made = []
        for index, name in enumerate(("host-a", "host-b")):
            view, log = f"{folder}/view-of-{name}", f"{folder}/mount-of-{name}.log"
            os.makedirs(self.outside(view))
            self._mount(self._mount_command(variant, view), view, log)
            made.append(NamespaceHost(self, name, AGENT_PORT + 2 * number + index, view, point))
        for host in made:
            host.boot()
        return made[0], made[1]

    def _mount(self, command: list[str], view: str, log: str) -> None:
        pid = self.start(command, log)

        def failed() -> str:
            return f"{shlex.join(command)} mounted nothing:\n{self.log_tail(log)}"

        def mounted() -> bool:
            if not self.alive(pid):
                raise BedError(failed())
            with contextlib.suppress(OSError), open(f"/proc/{self.keeper_pid}/mounts", encoding="utf-8") as mounts:
                return f" {view} " in mounts.read()
            return False

        wait_for(mounted, failed)

    def below(self, host: Host) -> str:
        """A host's directory as it is below the mounts, as a path for the test's own process."""
        return self.outside(f"{self.lower}/{os.path.basename(host.root)}")

    def heal(self) -> None:
        for host in itertools.chain.from_iterable(self._variants.values()):
            host.heal()
