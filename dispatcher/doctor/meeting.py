"""How the doctors of two hosts find each other and talk: by files with new names in one directory, and nothing else.

Every message is a file of its own that is written once, because that is what every network filesystem shows soonest:
a name that was not there before, after its directory was opened.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from dispatcher.base import files, host
from dispatcher.errors import PodError
from dispatcher.workspace import Layout

_ANSWER_S: Final = 90.0
_LOOK_S: Final = 0.005
_HELLO_S: Final = 0.1
_NOD_S: Final = 5.0
_REMOVE_S: Final = 10.0
_SUFFIX: Final = ".hello"


class PeerGoneError(PodError):
    """The other doctor has stopped answering."""


class Doctor(msgspec.Struct, frozen=True):
    """Who runs a doctor."""

    id: str
    host: str
    boot_id: str
    pid_namespace: int
    pid: int

    @property
    def is_here(self) -> bool:
        mine = host.host_name(), host.boot_id(), host.pid_namespace()
        return (self.host, self.boot_id, self.pid_namespace) == mine

    @property
    def is_gone(self) -> bool:
        return self.is_here and host.is_gone(self.pid)


class Meeting:
    """A talk with the doctor of another host. `leads` is true for exactly one of the two.

    `directory` is for the two alone.
    """

    def __init__(self, directory: Path, me: Doctor, peer: Doctor) -> None:
        self.directory = directory
        self.me, self.peer = me, peer
        self.leads = me.id < peer.id
        self._sent = 0
        self._received = 0

    def send(self, **data: Any) -> None:
        """Say something; the peer gets it by its next `receive`."""
        self._sent += 1
        with self.here():
            _publish(self.directory / f"{self.me.id}.{self._sent}", msgspec.json.encode(data))

    def receive(self) -> dict[str, Any]:
        """What the peer said next; PeerGoneError when it says nothing for long."""
        self._received += 1
        path = self.directory / f"{self.peer.id}.{self._received}"
        end_s = time.monotonic() + _ANSWER_S
        while True:
            with self.here():
                files.look_at(self.directory)
                data = files.read_fresh(path)
            if data:
                answer: dict[str, Any] = msgspec.json.decode(data)
                return answer
            if time.monotonic() > end_s:
                raise PeerGoneError(f"the doctor on host {self.peer.host} has not answered for {_ANSWER_S:.0f} s")
            time.sleep(_LOOK_S)

    def swap(self, **data: Any) -> dict[str, Any]:
        """Say something and hear what the peer says at this point: when it returns, both have come here."""
        self.send(**data)
        return self.receive()

    def end(self) -> None:
        """Part; the one who leads removes the directory as soon as it sees the other's last message."""
        if self.leads:
            self.receive()
            self.remove()
        else:
            # The directory may be gone before this returns: then the message was seen.
            with contextlib.suppress(PeerGoneError):
                self.send(end=True)

    def remove(self) -> None:
        """Remove the directory with whatever both have written."""
        end_s = time.monotonic() + _REMOVE_S
        while os.path.isdir(self.directory) and time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                # An NFS client that still shows old names would leave the newer ones behind.
                files.stamp(self.directory)
                files.look_at(self.directory)
            shutil.rmtree(self.directory, ignore_errors=True)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Work in the directory; PeerGoneError when it is gone, because the other doctor has ended the meeting."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE) or os.path.isdir(self.directory):
                raise
            raise PeerGoneError(f"the doctor on host {self.peer.host} has ended the meeting") from error


@contextlib.contextmanager
def meeting_place(layout: Layout) -> Iterator[Path]:
    """`run_state/doctor/`, where doctors of several hosts meet and try things; gone when the last one has left."""
    place = layout.doctor_dir
    # Whoever leaves last need not be the one who came first.
    is_new = place / "run_state-is-new"
    with files.storing("creating", place), files.shared_umask(layout.root):
        present = _enter(layout, place, is_new)
    try:
        yield place
    finally:
        with contextlib.suppress(OSError):
            os.unlink(present)
        with contextlib.suppress(OSError):
            if os.listdir(place) == [is_new.name]:
                os.unlink(is_new)
                os.rmdir(place)
                os.rmdir(layout.run_state)
            else:
                os.rmdir(place)


def _enter(layout: Layout, place: Path, is_new: Path) -> Path:
    """Make the place, and a file in it that keeps others from removing it; its name tells when its process is gone."""
    while True:
        made_run_state = not layout.run_state.exists()
        os.makedirs(place, exist_ok=True)
        present = files.temporary_name(place / "present")
        # Whoever has just left may have removed the place before this file was in it.
        with contextlib.suppress(FileNotFoundError):
            files.write_new(present, b"")
            if made_run_state:
                files.write_new(is_new, b"")
            return present


def meet(place: Path, wait_s: float, say: Callable[[str], None]) -> Meeting | None:
    """Wait in `place` for the doctor of another host; None when none has come."""
    me = Doctor(secrets.token_hex(6), host.host_name(), host.boot_id(), host.pid_namespace(), os.getpid())
    _remove_dead(place)
    hello = place / f"{me.id}{_SUFFIX}"
    _publish(hello, msgspec.json.encode(me))
    try:
        if wait_s > 0:
            say(f"waiting {wait_s:g} s for `dispatcher doctor` on another host ...")
        end_s = time.monotonic() + wait_s
        seen: dict[str, Doctor] = {}
        while True:
            # One that has met us already has taken its hello away.
            seen.update((peer.id, peer) for peer in _others(place, me))
            for peer in seen.values():
                directory = place / "+".join(sorted((me.id, peer.id)))
                if _nods(place, me, peer) or directory.exists():
                    os.makedirs(directory, exist_ok=True)
                    return Meeting(directory, me, peer)
            # A doctor that has seen our nod comes, and must not wait in vain.
            if time.monotonic() >= end_s + (_NOD_S if seen and wait_s > 0 else 0):
                return None
            time.sleep(_HELLO_S)
    finally:
        for name in (hello.name, *_nodded(place, me)):
            with contextlib.suppress(OSError):
                os.unlink(place / name)


def _others(place: Path, me: Doctor) -> list[Doctor]:
    """Doctors of other hosts that have left a hello, some of them maybe dead."""
    files.look_at(place)
    found = []
    for name in sorted(os.listdir(place)):
        if name.endswith(_SUFFIX) and not name.startswith("."):
            with contextlib.suppress(msgspec.DecodeError):
                doctor = msgspec.json.decode(files.read_fresh(place / name) or b"", type=Doctor)
                if doctor.id != me.id and not doctor.is_here:
                    found.append(doctor)
    return found


def _nods(place: Path, me: Doctor, peer: Doctor) -> bool:
    """Whether the peer has seen us as we have seen it: one that is dead nods to nobody."""
    mine, theirs = place / f"{me.id}.nod.{peer.id}", place / f"{peer.id}.nod.{me.id}"
    if not mine.exists():
        _publish(mine, b"\n")
    files.look_at(place)
    return theirs.exists()


def _publish(path: Path, data: bytes) -> None:
    """Write a new file whole, and make sure that others notice."""
    files.replace_file(path, data, durable=False)
    files.stamp(path.parent)


def _nodded(place: Path, me: Doctor) -> list[str]:
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(place) if name.startswith(f"{me.id}.nod.")]
    return []


def _remove_dead(place: Path) -> None:
    """Remove what doctors of this host that were killed have left."""
    files.remove_leftovers(place)
    for name in os.listdir(place):
        if not name.endswith(_SUFFIX) or name.startswith("."):
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError):
            doctor = msgspec.json.decode((place / name).read_bytes(), type=Doctor)
            if doctor.is_gone:
                for left in os.listdir(place):
                    if doctor.id in left:
                        path = place / left
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
