"""A filesystem whose locks fail or lie (`lockfs.c`), mounted for two hosts over one directory.

    with LockfsBed() as bed:
        a, b = bed.hosts("ENOLCK")         # flock and lockf both
        a, b = bed.hosts("local:pass")     # flock kept to each host, lockf real

Everything else goes through to the directory below at once, with its inode numbers, and nothing is cached. For that
its files have no shared writable memory mappings.
"""

from __future__ import annotations

from .bed import HERE
from .fuse import FuseBed

# What each mode answers is said in lockfs.c.
ERRORS = ("ENOSYS", "ENOLCK", "EOPNOTSUPP", "EIO")
LIES = ("local", "nop")
MODES = ("pass", *LIES, *ERRORS)


class LockfsBed(FuseBed):
    name = "lockfs"

    def _up(self) -> None:
        super()._up()
        self.program = f"{self.directory}/lockfs"
        flags = self.run("pkg-config", "--cflags", "--libs", "fuse3").split()
        self.run("gcc", "-O1", "-o", self.program, f"{HERE}/lockfs.c", *flags)

    def _mount_command(self, variant: str, view: str) -> list[str]:
        flock, _, posix = variant.partition(":")
        return [self.program, self.lower, view, flock, posix or flock]
