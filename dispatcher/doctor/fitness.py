"""What a host must have so that a dispatcher can run jobs on it: checked at every start of a pod, and by doctor.

And what this user must be allowed to do in the workspace.
"""

from __future__ import annotations

import errno
import os
import shlex
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from dispatcher.base import files, host
from dispatcher.base.group import group_name, is_shared
from dispatcher.base.users import name_of, user_name
from dispatcher.errors import PodError, StorageError
from dispatcher.workspace import Layout

_BASH: Final = "/bin/bash"
_OLDEST_BASH: Final = "4.4"
# The wrapper of an attempt reads the exit status of its job in this way.
_SCRIPT: Final = """
set +em
shopt -s lastpipe
echo works | read -r -t 30 word
echo "$BASH_VERSION $word $((BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] >= 404))"
"""


class Fault(msgspec.Struct, frozen=True):
    """What is wrong with this host, and what to do about it."""

    what: str
    cure: str


def check_bash() -> str | Fault:
    """The version of bash if wrappers can run with it, else what is wrong."""
    try:
        done = subprocess.run([_BASH, "-c", _SCRIPT], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else "it has not answered for 60 s"
        return Fault(f"{_BASH} cannot be started: {why}", f"install bash {_OLDEST_BASH} or later: jobs need it")
    words = done.stdout.split()
    if len(words) == 3 and words[1] == "works":
        if words[2] == "1":
            return words[0]
        return Fault(f"{_BASH} is version {words[0]}", f"install bash {_OLDEST_BASH} or later: jobs need it")
    output = (done.stderr.strip() or done.stdout.strip())[-300:] or "it printed nothing"
    what = f"{_BASH} cannot read what its subshell writes (exit status {done.returncode}): {output}"
    cure = f"install bash {_OLDEST_BASH} or later, complete, and allow a few more processes (ulimit -u)"
    return Fault(what, f"{cure}: jobs need it")


def check_processes() -> Fault | None:
    """What keeps a dispatcher from finding its jobs in /proc; None when nothing does."""
    what = host.proc_fault()
    cure = "mount /proc in this PID namespace (mount -t proc proc /proc, unshare --mount-proc)"
    return Fault(what, cure) if what else None


def check_directories(layout: Layout) -> Fault | None:
    """What of the run state this user cannot read and write; None when all is accessible."""
    return _check_access(layout, state_paths(layout))


def refuse_read_only(layout: Layout) -> None:
    """Raise StorageError when this user cannot change the records of jobs, before someone does so in vain."""
    newest = sorted(layout.journal_dir.glob("*.jsonl"))[-1:]
    paths = [layout.run_state, layout.status_file.parent, layout.journal_dir, layout.lock_file, *newest]
    fault = _check_access(layout, [path for path in paths if path.exists()] or [layout.root])
    if fault is not None:
        raise StorageError(f"the records of jobs cannot be changed: {fault.what}; {fault.cure}")


def _check_access(layout: Layout, paths: Iterable[Path]) -> Fault | None:
    denied = [path for path in dict.fromkeys(paths) if not os.access(path, _needed(path))]
    if not denied:
        return None
    if os.statvfs(denied[0]).f_flag & os.ST_RDONLY:
        what = f"{', '.join(map(str, denied))} cannot be written: {os.strerror(errno.EROFS)}"
        return Fault(what, "mount it with write access")
    names = ", ".join(f"{path} (of {_owner(path)})" for path in denied)
    return Fault(f"this user (uid {os.getuid()}) cannot read and write {names}", _access_cure(layout, denied))


def _needed(path: Path) -> int:
    return os.R_OK | os.W_OK | (os.X_OK if path.is_dir() else 0)


def _owner(path: Path) -> str:
    try:
        return name_of(os.stat(path).st_uid)
    except OSError:
        return "an unknown user"


def _access_cure(layout: Layout, denied: Iterable[Path]) -> str:
    """What gives this user access: to belong to the group, and its permissions, where these lack."""
    gid, root = os.stat(layout.root).st_gid, shlex.quote(str(layout.root))
    name = group_name(gid)
    closed = [path for path in denied if not _group_may(path, gid)]
    owners = " and ".join(dict.fromkeys(map(_owner, closed)))
    allow = (
        f"{owners} (or root) lets the group of the workspace, {name}, read and write: dispatcher init --shared {root}"
    )
    if gid in (os.getegid(), *os.getgroups()):
        return allow if closed else f"{name} has access, but this user has not: look at the ACLs (getfacl {root})"
    owner = _owner(layout.root)
    if name in ("root", owner):
        # The group that an account has for itself.
        return (
            f"{owner} (or root) gives the workspace to a group that has both of you as members, GROUP, and shares it: "
            f"chgrp GROUP {root} && dispatcher init --shared {root}"
        )
    join = f"join the group of the workspace, {name}: as root, usermod -aG {name} {user_name()}, then log in again"
    return f"{join}; and {allow}" if closed else join


def _group_may(path: Path, gid: int) -> bool:
    """Whether members of the group may read and write this."""
    try:
        return is_shared(os.stat(path), gid)
    except OSError:
        return False


def state_paths(layout: Layout) -> list[Path]:
    """The workspace and the existing parts of its run state."""
    paths = [layout.run_state, layout.journal_dir, layout.pods_dir, layout.jobs_dir, layout.prepared_dir]
    paths += [layout.code_dir, layout.provenance_dir, layout.submissions_dir, layout.status_file.parent]
    paths += [layout.lock_file, layout.status_file]
    if os.access(layout.journal_dir, os.R_OK | os.X_OK):
        paths += sorted(layout.journal_dir.glob("*.jsonl"))[-1:]
    return [layout.root, *filter(files.is_there, paths)]


def refuse_unfit_host(layout: Layout) -> None:
    """Raise PodError when no job can run here: a pod that claimed anyway would fail the whole matrix."""
    found = (check_bash(), check_processes(), check_directories(layout))
    faults = "; ".join(f"{fault.what}. Cure: {fault.cure}" for fault in found if isinstance(fault, Fault))
    if faults:
        raise PodError(f"no job can run on this host: {faults}. `dispatcher doctor` checks it again")
