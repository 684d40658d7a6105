"""The filesystem on which a path is, and what to change when its locks or its view of files cannot be trusted.

psutil.disk_partitions knows mounts, too, and takes as long (75 us), but its import (14 ms) would be a tenth of
`dispatcher status`.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

# What a host has changed on a network filesystem, another one may be shown so much later: clients keep names and
# attributes in caches, on NFS for a minute at most.
SHOWN_LATE_S: Final = 60.0
_NETWORK_TYPES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "lustre", "ceph", "gpfs", "beegfs", "glusterfs", "9p", "virtiofs", "afs",
     "pvfs2", "orangefs", "ocfs2", "gfs2", "panfs", "wekafs", "fuse"}
)  # fmt: skip


@dataclass(frozen=True)
class Mount:
    """One line of /proc/self/mountinfo."""

    point: str
    fstype: str
    source: str
    options: str

    @property
    def is_network(self) -> bool:
        """Whether other hosts may see or change the same files; true of FUSE, where that cannot be known."""
        return self.fstype in _NETWORK_TYPES or self.fstype.startswith("fuse.")

    @property
    def shows_old_content(self) -> bool:
        """Whether a file that was just locked or opened may have old content."""
        return self.old_content_s > 0

    @property
    def old_content_s(self) -> float:
        """For how many seconds at most a file may show old content; GlusterFS has several caches of a second each."""
        return 4.0 if self.fstype in ("fuse", "glusterfs") or self.fstype.startswith("fuse.") else 0.0

    @property
    def delay_s(self) -> float:
        """How late this host may see a file that another host has replaced, when it opens the directory first.

        Measured: 3 s on NFS, 1 s on GlusterFS, 21 s on sshfs, which stands for what nothing is known of.
        """
        if not self.is_network:
            return 0.0
        return 4.0 if self.fstype.startswith("nfs") or "gluster" in self.fstype else 25.0

    def __str__(self) -> str:
        return f"{self.point} ({self.fstype} from {self.source}, options {self.options})"

    @property
    def local_lock_options(self) -> list[str]:
        """The NFS options that keep locks on this host."""
        options = self.options.split(",") if self.fstype.startswith("nfs") else []
        return [o for o in options if o == "nolock" or (o.startswith("local_lock=") and o != "local_lock=none")]

    @property
    def cure(self) -> str:
        """What to change so that locks exclude and hosts see each other's changes on this mount."""
        if self.fstype.startswith("nfs"):
            if local := self.local_lock_options:
                return f"mount it without {' and '.join(local)} (rpc.statd must run on NFSv3), or with vers=4.2"
            return "mount it with vers=4.2, or lookupcache=none where old names are shown"
        if self.fstype == "fuse.sshfs":
            return "sshfs never passes locks on to the server: use NFS, or run all dispatchers on one host"
        if "gluster" in self.fstype:
            return (
                "switch the caches off. On the volume: gluster volume set VOLUME performance.X off for quick-read, "
                "io-cache, stat-prefetch, open-behind, read-ahead, readdir-ahead, write-behind and nl-cache; in the "
                "mounts: --attribute-timeout=0 --entry-timeout=0 --negative-timeout=0 --fopen-keep-cache=no"
            )
        if self.fstype.startswith("fuse"):
            return "use an option of this FUSE filesystem that passes flock on to the server, or use NFS"
        return "set `lock: hardlink` in dispatcher.yaml, or put the workspace on a filesystem with working locks"


def unescaped(path: str) -> str:
    """A path of /proc/self/mountinfo, in which blanks, tabs, line breaks and backslashes are octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), path) if "\\" in path else path


def mount_points() -> list[str]:
    """Where something is mounted, as this process sees it."""
    return [unescaped(line.split(" ", 5)[4]) for line in _lines()]


def _lines() -> list[str]:
    return Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="surrogateescape").splitlines()


def mount_of(path: str | os.PathLike[str]) -> Mount:
    """The mount that contains `path`."""
    target = os.path.realpath(path)
    best = Mount("/", "unknown", "unknown", "")
    for line in _lines():
        before, _, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        point = unescaped(fields[4])
        inside = point in ("/", target) or target.startswith(point + "/")
        # A later line on the same point hides the earlier one.
        if inside and len(point) >= len(best.point):
            best = Mount(point, rest[0], rest[1], ",".join([fields[5], *rest[2:3]]))
    return best
