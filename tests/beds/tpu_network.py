"""The network of the TPU bed: workers at addresses of their own, and the machine that `gcloud` runs on.

Each worker has a network namespace of its own, and all hang on one bridge. That bridge is in the namespace `hub`, where
the API listens and which `gcloud` enters, so that a worker answers at port 22 of its address and nobody else sees it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

from .bed import BedError
from .computer import Computer, HostSettings
from .namespace import Namespace
from .needs import SEARCH_PATH

CLONE_NEWNET = 0x4000_0000
INTERNAL, EXTERNAL = "10.164", "198.18"
# The machine that `gcloud` runs on, as the workers see it.
GATEWAY = f"{INTERNAL}.0.1"
SSH_PORT = 22


class Hub:
    """A context manager; when it ends, however that comes about, `directory` is removed."""

    def __init__(self, directory: Path) -> None:
        steps = ["ip link set lo up", "ip link add bridge type bridge", "ip link set bridge up"]
        steps += [f"ip addr add {net}.0.1/16 dev bridge" for net in (INTERNAL, EXTERNAL)]
        # What runs on a worker may still write there when the test run was killed.
        gone = f"for _ in 1 2 3 4 5; do rm -rf {shlex.quote(str(directory))} && break; sleep 0.2; done"
        self._namespace = Namespace("hub", steps, has_network=True, at_end=gone)
        self.pid = self._namespace.init_pid
        self._numbers = iter(range(2, 1 << 16))

    def number(self) -> int:
        """What a new worker's addresses end with. None is given twice: a client may still talk to the old one."""
        return next(self._numbers)

    def ip(self, *words: str) -> None:
        done = subprocess.run(
            ["nsenter", f"--net=/proc/{self.pid}/ns/net", "ip", *words],
            env={"PATH": SEARCH_PATH}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        )  # fmt: skip
        if done.returncode != 0:
            raise BedError(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def listen(self, port: int) -> socket.socket:
        """A listening socket on GATEWAY of this network, for this process."""
        sockets: list[socket.socket] = []

        def inside() -> None:
            # Only this thread changes its network.
            with open(f"/proc/{self.pid}/ns/net", "rb") as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) == 0:
                    sockets.append(socket.create_server((GATEWAY, port), backlog=64))

        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        if not sockets:
            raise BedError("cannot listen in the bed's network")
        return sockets[0]

    def close(self) -> None:
        self._namespace.close()


class Worker(Computer):
    """One machine of a TPU VM. `accept` says whose keys its sshd takes."""

    has_network = True

    def __init__(self, hub: Hub, name: str, directory: Path, settings: HostSettings, *, is_external: bool) -> None:
        super().__init__(name, directory, settings, seen=directory)
        self._hub = hub
        high, low = divmod(hub.number(), 256)
        self.address = f"{INTERNAL}.{high}.{low}"
        self.external = f"{EXTERNAL}.{high}.{low}" if is_external else None
        self._link, self._mac = f"worker-{high}-{low}", f"02:00:00:00:{high:02x}:{low:02x}"
        (directory / "keys").mkdir()
        # As on the real one, its own name leads to the address at which the others reach it.
        known = f"127.0.0.1 localhost\n{self.address} {name}\n{GATEWAY} metadata.google.internal\n"
        (directory / "etc" / "hosts").write_text(known)

    def start_up(self, script: str) -> None:
        """Run the startup script of its metadata, as root; it is not waited for."""
        assert self._namespace is not None
        file = self.directory / "startup-script"
        file.write_text(script)
        file.chmod(0o700)
        # What has begun is looked for, and the script itself may have ended by then.
        words = [shlex.quote(str(each)) for each in (file, self.directory / "startup.log")]
        self.run("sh", "-c", f"setsid {words[0]} >{words[1]} 2>&1 </dev/null &")

    def accept(self, keys: dict[str, list[str]]) -> None:
        """Public keys by user name, as the guest agent of a VM writes them from its metadata."""
        for old in (self.directory / "keys").iterdir():
            if old.name not in keys:
                old.unlink()
        for user, lines in keys.items():
            (self.directory / "keys" / user).write_text("".join(f"{line}\n" for line in lines))

    def _mounts(self) -> list[str]:
        return [*super()._mounts(), f"mount --bind {shlex.quote(str(self.directory))}/etc/hosts /etc/hosts"]

    def power_cut(self) -> None:
        # The cable first, so that nobody hears of it.
        if self._namespace is not None:
            self._unplug()
        super().power_cut()

    @contextlib.contextmanager
    def silent(self) -> Iterator[None]:
        """Packets are dropped, in both directions; what runs on it goes on."""
        self._unplug()
        try:
            yield
        finally:
            self._hub.ip("link", "set", self._link, "up")

    def _unplug(self) -> None:
        self._hub.ip("link", "set", self._link, "down")

    def _connect(self) -> None:
        assert self._namespace is not None
        ip = self._hub.ip
        ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "address", self._mac,
           "netns", str(self._namespace.init_pid))  # fmt: skip
        ip("link", "set", self._link, "master", "bridge", "up")
        lines = ["ip link set lo up", *(f"ip addr add {address}/16 dev eth0" for address in self._addresses())]
        self.run("sh", "-ec", "\n".join([*lines, "ip link set eth0 up"]))
        for address in self._addresses():
            # Else the hub would notice that nobody has the address, where a cloud's network only drops packets.
            ip("neigh", "replace", address, "lladdr", self._mac, "dev", "bridge", "nud", "permanent")

    def _addresses(self) -> list[str]:
        return [self.address, *([self.external] if self.external else [])]

    def _listen(self) -> tuple[str, int]:
        return "0.0.0.0", SSH_PORT

    def _is_listening(self) -> bool:
        assert self._namespace is not None
        with open(f"/proc/{self._namespace.init_pid}/net/tcp", encoding="ascii") as table:
            return f"00000000:{SSH_PORT:04X} 00000000:0000 0A" in table.read()

    def _authorized_keys(self) -> str:
        return f"{self.directory}/keys/%u"


class Vm:
    """The workers of one TPU VM. They share no files; their disks last until `erase`."""

    def __init__(self, workers: list[Worker]) -> None:
        self.workers = workers

    def boot(self, startup_script: str = "") -> None:
        for worker in self.workers:
            worker.boot()
            if startup_script:
                worker.start_up(startup_script)

    def power_cut(self) -> None:
        for worker in self.workers:
            worker.power_cut()

    def erase(self) -> None:
        self.power_cut()
        for worker in self.workers:
            # Its disk goes with it; the directory may hold what root of the worker wrote.
            subprocess.run(["rm", "-rf", str(worker.directory)], check=False, env={"PATH": os.defpath})
