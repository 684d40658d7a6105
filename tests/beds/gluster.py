"""One GlusterFS volume of one brick, mounted through FUSE once for each of two hosts.

    with GlusterBed() as bed:
        a, b = bed.hosts("defaults")               # a volume and mounts as GlusterFS makes them
        a, b = bed.hosts("caches-off")             # see VARIANTS

Each variant is a volume of its own. glusterd's folders on this machine are covered by the bed's own.
"""

from __future__ import annotations

from .bed import BedError, wait_for
from .fuse import FuseBed

ADDRESS = "10.97.0.1"
CACHES = ("quick-read", "io-cache", "stat-prefetch", "open-behind", "read-ahead", "write-behind")
UNCACHED = ("--attribute-timeout=0", "--entry-timeout=0", "--negative-timeout=0", "--fopen-keep-cache=no")
# Settings of the volume, and options of the mounts.
VARIANTS: dict[str, tuple[dict[str, str], tuple[str, ...]]] = {
    "defaults": ({}, ()),
    "caches-on": ({f"performance.{cache}": "on" for cache in CACHES}, ()),
    "caches-off": ({f"performance.{cache}": "off" for cache in CACHES}, UNCACHED),
}


class GlusterBed(FuseBed):
    name = "gluster"

    def _up(self) -> None:
        super()._up()
        self.run("ip", "address", "add", f"{ADDRESS}/32", "dev", "lo")
        for folder in ("/var/lib/glusterd", "/var/log/glusterfs", "/run"):
            own = f"{self.directory}/gluster{folder}"
            self.run("mkdir", "-p", own)
            self.run("mount", "--bind", own, folder)
        self.run("mkdir", "/run/gluster")
        log = f"{self.directory}/gluster/glusterd.log"
        self._daemon = self.start(["glusterd", "--no-daemon", "--log-file", log], log)
        wait_for(self._answers, lambda: f"glusterd did not start:\n{self.log_tail(log)}", every_s=0.2)

    def _answers(self) -> bool:
        if not self.alive(self._daemon):
            raise BedError(f"glusterd ended:\n{self.log_tail(f'{self.directory}/gluster/glusterd.log')}")
        try:
            self._gluster("volume", "info")
        except BedError:
            return False
        return True

    def _gluster(self, *words: str) -> str:
        return self.run("gluster", "--mode=script", *words)

    def _make_volume(self, variant: str) -> None:
        brick = f"{self.lower}/{variant}"
        self._gluster("volume", "create", variant, "transport", "tcp", f"{ADDRESS}:{brick}", "force")
        for name, value in VARIANTS[variant][0].items():
            self._gluster("volume", "set", variant, name, value)
        self._gluster("volume", "start", variant)

    def _new_hosts(self, variant: str):
        self._make_volume(variant)
        return super()._new_hosts(variant)

    def _mount_command(self, variant: str, view: str) -> list[str]:
        server = [f"--volfile-server={ADDRESS}", f"--volfile-id={variant}", "--process-name", "fuse"]
        log = f"--log-file={view}.gluster.log"
        return ["glusterfs", "--no-daemon", *server, log, *VARIANTS[variant][1], view]

    def _make_directory(self, variant: str, name: str) -> None:
        host, _ = self._variants[variant]
        done = host.ask("run", argv=["mkdir", f"{host.point}/{name}"], cwd="/", env=host.env, stdin=None, timeout_s=60)
        if done["returncode"] != 0:
            raise BedError(f"mkdir {name}: {done['stderr']}")
