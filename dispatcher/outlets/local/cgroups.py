"""Control groups that hold attempts to the CPUs and the memory that they ask for, where the host lets a pod make some.

That takes version 2 and a cgroup that was handed over to the pod's user with the controllers `cpu` and `memory`, such
as a scope of `systemd-run --user --scope -p Delegate=yes`. A cgroup whose children have controllers has no processes
itself, so the pod moves into a child (`dispatcher`), where the wrappers start too. Each attempt that asks for CPUs or
memory gets a child of its own, which only the job enters: when the kernel ends it, the wrapper lives and reports that.

Elsewhere CPUs and memory are only counted. A dispatcher that is killed leaves the cgroups of its attempts, whose limits
hold on; whichever pod finds the end of an attempt on this host removes its cgroup, which the attempt's directory names.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from dispatcher.base import files
from dispatcher.outlets.base import Key, Slot
from dispatcher.outlets.local import processes
from dispatcher.outlets.local.cgroup_files import own_directory, words_of
from dispatcher.workspace import AttemptPaths

# The child in which the dispatcher itself is. `DelegateSubgroup=` of a service may name it too.
OWN: Final = "dispatcher"
_PREFIX: Final = "attempt."
_CONTROLLERS: Final = ("cpu", "memory")
_PERIOD_US: Final = 100_000
_DELEGATE: Final = "start the pod with: systemd-run --user --scope -p Delegate=yes dispatcher ..."


class Cgroups:
    """The cgroups of one pod's attempts. Nothing is changed before `open`."""

    def __init__(self) -> None:
        # Where those of attempts are made; None: nowhere, and why.
        self._base: Path | None = None
        self._problem = ""
        self._is_open = False
        self._of: dict[Key, Path] = {}
        # Those that could not be removed yet.
        self._left: set[Path] = set()

    def open(self) -> None:
        """Move this process into a child of its cgroup, and hand controllers to the others, if that is possible."""
        if self._is_open:
            return
        self._is_open = True
        try:
            self._base = _take_over()
        except _NotDelegatedError as error:
            self._problem = str(error)
        except OSError as error:
            self._problem = f"{error.filename}: {error.strerror}"
        if self._base is not None:
            # Those of attempts that ended while there was no dispatcher; one in use cannot be removed.
            for directory in self._base.glob(f"{_PREFIX}*"):
                _remove_empty(directory)

    def make(self, key: Key, paths: AttemptPaths, slot: Slot) -> Path | None:
        """A cgroup for an attempt, with its limits; None where it asks for none, or none can be made."""
        if self._base is None or not (slot.cpus or slot.memory_mib):
            return None
        # A pod of another workspace may have an attempt of the same name in the same cgroup.
        directory = self._base / f"{_of_attempt(paths)}{os.urandom(4).hex()}"
        try:
            directory.mkdir()
            _set_limits(directory, slot)
            files.write_new(paths.cgroup, os.fsencode(directory) + b"\n")
        except OSError as error:
            _remove_empty(directory)
            self._problem = f"{directory}: {error.strerror}"
            return None
        self._of[key] = directory
        return directory

    def adopt(self, key: Key, paths: AttemptPaths) -> None:
        """An attempt was found again, which another dispatcher has started."""
        directory = _named_by(paths)
        if directory is not None and directory.is_dir():
            self._of[key] = directory

    def remove(self, key: Key) -> None:
        """The attempt has ended: end whatever has hidden in its cgroup, and remove that."""
        directory = self._of.pop(key, None)
        if directory is not None:
            self._left.add(directory)
        self._left = {one for one in self._left if not _remove(one)}

    def why_not(self, key: Key) -> str:
        """Why an attempt that asks for CPUs or memory is not held to them; empty where it is."""
        directory = self._of.get(key)
        if directory is None:
            return self._problem or "it was started without a cgroup"
        # Another manager, such as systemd where nothing was delegated, may take controllers away again.
        lost = [name for name in _CONTROLLERS if name not in words_of(directory / "cgroup.controllers")]
        return f"{directory.parent} has lost the controllers {' and '.join(lost)}" if lost else ""


def remove_of(paths: AttemptPaths) -> None:
    """Remove the cgroup that an attempt which has ended left on this host, if it has one."""
    directory = _named_by(paths)
    if directory is not None and not _remove(directory):
        # What was just killed is gone in a moment; else the next pod that opens removes it.
        _remove(directory)


class _NotDelegatedError(Exception):
    """Why cgroups cannot be made here."""


def _take_over() -> Path:
    found = own_directory()
    if found is None:
        raise _NotDelegatedError("this host shows no cgroup of version 2")
    own, _ = found
    base = own.parent if own.name == OWN else own
    missing = [name for name in _CONTROLLERS if name not in words_of(base / "cgroup.controllers")]
    if missing:
        what = f"controller{'s' if len(missing) > 1 else ''} {' and '.join(missing)}"
        raise _NotDelegatedError(f"{base} does not have the {what} of cgroup version 2; {_DELEGATE}")
    if not all(os.access(base / name, os.W_OK) for name in (".", "cgroup.procs", "cgroup.subtree_control")):
        raise _NotDelegatedError(f"{base} cannot be written; {_DELEGATE}")
    (base / OWN).mkdir(exist_ok=True)
    moved = _move([os.getpid(), *processes.children()], base, base / OWN)
    try:
        _hand_down(base)
    except (OSError, _NotDelegatedError):
        _move(moved, base / OWN, base)
        _remove_empty(base / OWN)
        raise
    return base


def _hand_down(base: Path) -> None:
    try:
        (base / "cgroup.subtree_control").write_text(" ".join(f"+{name}" for name in _CONTROLLERS))
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        others = ", ".join(words_of(base / "cgroup.procs")[:3])
        why = f"{base} has other processes in it (pid {others})"
        raise _NotDelegatedError(f"{why}; {_DELEGATE}") from None


def _move(pids: Iterable[int], start: Path, to: Path) -> list[int]:
    """Move those of these processes that are there; which ones were."""
    there = set(words_of(start / "cgroup.procs"))
    moved = [pid for pid in pids if str(pid) in there]
    for pid in moved:
        # It may have ended.
        with contextlib.suppress(ProcessLookupError):
            (to / "cgroup.procs").write_text(str(pid))
    return moved


def _set_limits(directory: Path, slot: Slot) -> None:
    if slot.cpus:
        (directory / "cpu.max").write_text(f"{slot.cpus * _PERIOD_US} {_PERIOD_US}")
    if slot.memory_mib:
        (directory / "memory.max").write_text(str(slot.memory_mib << 20))
        # All of the job ends with the process that was one too many: half a training is of no use.
        (directory / "memory.oom.group").write_text("1")
        # A kernel without swap has no such file.
        with contextlib.suppress(FileNotFoundError, PermissionError):
            (directory / "memory.swap.max").write_text("0")


def _of_attempt(paths: AttemptPaths) -> str:
    """What the names of an attempt's cgroups begin with; eight digits follow."""
    return f"{_PREFIX}{paths.directory.parent.name}.{paths.directory.name}."


def _named_by(paths: AttemptPaths) -> Path | None:
    """The cgroup that an attempt's directory names. A job may write there: only one of this attempt counts."""
    found = own_directory()
    try:
        directory = Path(os.fsdecode(files.read_at_once(paths.cgroup).rstrip(b"\n")))
    except OSError:
        return None
    if (
        found is None
        or ".." in directory.parts
        or "\0" in os.fspath(directory)
        or not directory.is_relative_to(found[1])
    ):
        return None
    return directory if re.fullmatch(re.escape(_of_attempt(paths)) + "[0-9a-f]{8}", directory.name) else None


def _remove(directory: Path) -> bool:
    """Whether the cgroup is gone; what still runs in it is killed."""
    if _remove_empty(directory):
        return True
    with contextlib.suppress(OSError):
        (directory / "cgroup.kill").write_text("1")
    return _remove_empty(directory)


def _remove_empty(directory: Path) -> bool:
    with contextlib.suppress(OSError):
        directory.rmdir()
    return not directory.exists()
