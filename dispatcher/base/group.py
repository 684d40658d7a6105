"""A directory whose group may change everything in it, whatever the umask of its members."""

from __future__ import annotations

import contextlib
import errno
import grp
import os
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base.users import name_of

# The default ACL u::rwx,g::rwx,o::r-x as Linux stores it: a version, then tag, permissions and id of each entry.
_ACL_NAME: Final = "system.posix_acl_default"
_ACL_VERSION: Final = 2
_ACL_ENTRIES: Final = ((0x01, 0o7), (0x04, 0o7), (0x20, 0o5))
_ACL_NO_ID: Final = 0xFFFFFFFF
_DIRECTORY: Final = 0o2070


class Shared(msgspec.Struct, frozen=True):
    """What `share` has left: by owner, what only they can share; and files that only their owner may read."""

    by_others: Counter[str]
    private: int


def group_name(gid: int) -> str:
    """The name of a group; its number where this host does not know it."""
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


def share(root: Path) -> Shared:
    """Let the group of `root` read and write all in it that this user owns; new files belong to the group as well."""
    gid = os.stat(root).st_gid
    by_others: Counter[str] = Counter()
    private = 0
    for path in _tree(root):
        try:
            found = os.lstat(path)
        except FileNotFoundError:
            # Pods that run replace their files all the time.
            continue
        if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
            continue
        if os.geteuid() not in (0, found.st_uid):
            by_others[name_of(found.st_uid)] += not is_shared(found, gid)
        elif not stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077:
            # Secrets are kept in such files.
            private += 1
        else:
            with contextlib.suppress(FileNotFoundError):
                _share_one(path, gid)
    return Shared(+by_others, private)


def is_shared(found: os.stat_result, gid: int) -> bool:
    """Whether members of the group may read and write this."""
    needed = 0o070 if stat.S_ISDIR(found.st_mode) else 0o060
    return found.st_gid == gid and found.st_mode & needed == needed


def _tree(root: Path) -> Iterator[str]:
    """Directories before what is in them."""
    yield os.fspath(root)
    for directory, directories, names in os.walk(root):
        yield from (os.path.join(directory, name) for name in (*directories, *names))


def _share_one(path: str, gid: int) -> None:
    # By a descriptor, because another account may put a link in its place at any moment.
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        is_directory = stat.S_ISDIR(found.st_mode)
        if found.st_gid != gid:
            os.fchown(fd, -1, gid)
        runs = 0o010 if found.st_mode & 0o100 else 0
        os.fchmod(fd, stat.S_IMODE(found.st_mode) | (_DIRECTORY if is_directory else 0o060 | runs))
        if is_directory:
            _set_default_acl(fd)
    finally:
        os.close(fd)


def _set_default_acl(directory: int) -> None:
    """Let new files be writable for the group whatever the umask, where the filesystem can."""
    entries = b"".join(struct.pack("<HHI", tag, allowed, _ACL_NO_ID) for tag, allowed in _ACL_ENTRIES)
    try:
        os.setxattr(directory, _ACL_NAME, struct.pack("<I", _ACL_VERSION) + entries)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL):
            raise
