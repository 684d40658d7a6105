"""Real NFS: three user-mode Linux kernels, a file server (knfsd on ext4) and two clients, on a network of their own.

    with NfsBed(lease_s=10) as bed:
        a, b = bed.hosts("v4.2")           # a new directory, as both hosts see it
        a.cut()                            # host-a and the file server cannot reach each other; host-a runs on
        a.restore()
        a.power_cut(); a.boot()
        bed.reboot_server()                # files and client records kept: clients see a grace period of lease_s

The guests are reached over a second network, so that a host that is cut off still takes orders. Their root is this
machine's, read-only; /tmp, /dev/shm and /run are their own, and the exported filesystem lies in memory (what `fsync`
costs is the network and the server, no disk). The only thing used outside of the bed's directory is the folder
/var/lib/nfs of Debian's nfs-common: each guest mounts its own over it.
"""

from __future__ import annotations

import itertools
import os
import shlex
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor

from .bed import HERE, Bed, BedError
from .hosts import AGENT_PORT, PYTHON, Host, Machine
from .uml import environment, kernel

# What is mounted, and how. `nolock` is the trap that people walk into: its locks do not leave the host.
MOUNTS = {
    "v4.2": ("vers=4.2", "/"),
    "v4.0": ("vers=4.0", "/"),
    "v3": ("vers=3,nosharecache", "/mnt/export"),
    "v3-nolock": ("vers=3,nolock,nosharecache", "/mnt/export"),
}
STORAGE = "10.99.0"
CONTROL = "10.98.0"
SERVER_ADDRESS = f"{STORAGE}.10"
EXPORT = "/mnt/export"
# As much as it touches is taken, no more.
MEMORY = "512M"


class Guest(Machine):
    """A user-mode Linux kernel: a process of this machine whose inside is another machine."""

    bed: NfsBed

    def __init__(self, bed: NfsBed, name: str, number: int) -> None:
        super().__init__(bed, name, f"{CONTROL}.{number}", AGENT_PORT, "/tmp")
        self.env["HOME"] = "/tmp/home"
        self.number = number
        self.folder = f"{bed.directory}/{name}"
        self.storage_tap, self.control_tap = f"storage{number}", f"control{number}"
        self.mounted: dict[str, tuple[str, str]] = {}
        settings = {
            "NAME": name,
            "ROLE": "server" if name == "file-server" else "client",
            "ADDRESS": f"{STORAGE}.{number}",
            "CONTROL_ADDRESS": self.address,
            "CLIENTS": f"{STORAGE}.0/24",
            "KNOWN_HOSTS": "\n".join(f"{STORAGE}.{other} {who}" for who, other in bed.NUMBERS.items()),
            "LEASE_S": str(bed.lease_s),
            "PYTHON": PYTHON,
            "AGENT": f"{HERE}/agent.py",
            "AGENT_PORT": str(AGENT_PORT),
            "KEEP_1": os.path.dirname(os.path.dirname(HERE)),
            "KEEP_2": sys.prefix,
            "KEEP_3": sys.base_prefix,
        }
        bed.write(
            f"{self.folder}/settings", "".join(f"{key}={shlex.quote(value)}\n" for key, value in settings.items())
        )
        for folder in ("sm", "sm.bak", "v4recovery", "nfsdcltrack", "rpc_pipefs"):
            os.makedirs(bed.outside(f"{self.folder}/nfs/{folder}"))
        for file in ("etab", "rmtab", "xtab"):
            bed.write(f"{self.folder}/nfs/{file}", "")

    def power_on(self) -> None:
        """Begin to boot."""
        disk = [f"ubd0={self.bed.image}"] if self.name == "file-server" else []
        # Left behind by a power cut, it would look like a kernel that still runs.
        shutil.rmtree(self.bed.outside(f"{self.folder}/uml"), ignore_errors=True)
        self.pid = self.bed.start(
            kernel(
                self.name,
                self.bed.init,
                self.folder,
                MEMORY,
                *disk,
                *(self._network_card(card, tap) for card, tap in enumerate((self.storage_tap, self.control_tap))),
                f"GUEST={self.folder}",
            ),
            self.log,
            **self.bed.environment,
        )

    def _network_card(self, card: int, tap: str) -> str:
        # The same after each boot, as real hardware: otherwise the others talk to the old address for half a minute.
        mac = f"02:00:00:00:{card:02x}:{self.number:02x}"
        return f"vec{card}:transport=tap,ifname={tap},mac={mac},depth=128,gro=1"

    def boot(self) -> None:
        """Boot, and mount again what was mounted."""
        if self.pid is not None:
            raise BedError(f"{self.name} is running")
        self.restore()
        self.power_on()
        self.wait_until_up()
        for point, (options, source) in self.mounted.items():
            self._mount(point, options, source)

    def mount(self, point: str, options: str, source: str) -> None:
        if point not in self.mounted:
            self._mount(point, options, source)
            self.mounted[point] = (options, source)

    def _mount(self, point: str, options: str, source: str) -> None:
        command = f"mkdir -p {point} && mount -t nfs -o {options} {SERVER_ADDRESS}:{source} {point}"
        done = Host(self, "/").run(["sh", "-c", command])
        if done.returncode != 0:
            raise BedError(f"{self.name}: {command}: {done.stdout}{done.stderr}")

    def cut(self) -> None:
        self.bed.run("ip", "link", "set", self.storage_tap, "nomaster")

    def restore(self) -> None:
        self.bed.run("ip", "link", "set", self.storage_tap, "master", "storage")

    def heal(self) -> None:
        self.restore()
        super().heal()


class NfsHost(Host):
    machine: Guest

    def cut(self) -> None:
        """Take the host off the storage network. It runs on and takes orders; its mounts hang."""
        self.machine.cut()

    def restore(self) -> None:
        self.machine.restore()


class NfsBed(Bed):
    """`lease_s`, at least the kernel's 10, is the NFSv4 lease and the length of the grace period; usually it is 90."""

    name = "nfs"
    NUMBERS = {"file-server": 10, "host-a": 11, "host-b": 12}  # noqa: RUF012 - never changed

    def __init__(self, lease_s: int = 10) -> None:
        self.lease_s = lease_s
        self._directories = itertools.count(1)
        self._in_grace = False
        super().__init__()

    def _up(self) -> None:
        self.image = f"{self.directory}/export.img"
        with open(f"{HERE}/guest_init.sh", encoding="utf-8") as script:
            self.init = self.write(f"{self.directory}/init", script.read(), 0o755)
        # The kernels' memory is files in the bed's own tmpfs: /dev/shm may be small.
        self.environment = environment(self.outside(self.directory), seen_as=self.directory)
        self.run("truncate", "--size=4G", self.image)
        self.run("mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,nodiscard", self.image)
        self._network()
        guests = [Guest(self, name, number) for name, number in self.NUMBERS.items()]
        self.server, self.a, self.b = guests
        for guest in guests:
            guest.power_on()
        for guest in guests:
            guest.wait_until_up()

    def _network(self) -> None:
        links = ["link set lo up"]
        for network in ("storage", "control"):
            links += [f"link add {network} type bridge", f"link set {network} up"]
            for number in self.NUMBERS.values():
                tap = f"{network}{number}"
                links += [f"tuntap add {tap} mode tap", f"link set {tap} master {network}", f"link set {tap} up"]
        links.append(f"address add {CONTROL}.1/24 dev control")
        self.run("ip", "-batch", self.write(f"{self.directory}/links", "\n".join(links) + "\n"))

    def hosts(self, mount: str = "v4.2", options: str = "") -> tuple[NfsHost, NfsHost]:
        """Both clients at a new directory of a mount (a key of MOUNTS), with further mount options if wanted."""
        how, source = MOUNTS[mount]
        point = f"/mnt/{mount}"
        if options:
            how, point = f"{how},nosharecache,{options}", f"{point}-{options.replace(',', '-').replace('=', '_')}"
        with ThreadPoolExecutor(2) as both:
            list(both.map(lambda guest: guest.mount(point, how, source), (self.a, self.b)))
        root = f"{point}/shared-{next(self._directories)}"
        a, b = NfsHost(self.a, root), NfsHost(self.b, root)
        a.make_directory(root)
        return a, b

    def on_server(self, host: Host) -> Host:
        """The file server at the directory that a client sees: what really is on its disk."""
        return Host(self.server, f"{EXPORT}/{os.path.basename(host.root)}")

    def reboot_server(self) -> None:
        """Pull the file server's plug and boot it; clients claim their locks again during the grace period."""
        self._in_grace = True
        self.server.power_cut()
        self.server.boot()

    def heal(self) -> None:
        """Everything up, connected and idle, whatever a test did."""
        if self.server.pid is None:
            self.server.boot()
        with ThreadPoolExecutor(2) as both:
            list(both.map(Guest.heal, (self.a, self.b)))
        if self._in_grace:
            # New locks wait until the grace period is over, and the next test is not to be charged for that.
            a, _ = self.hosts()
            a.run(["flock", a.path("grace"), "true"], timeout=60 + 2 * self.lease_s, check=True)
            self._in_grace = False
