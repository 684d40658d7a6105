"""How the doctors of two hosts find each other and exchange messages: by new files in one directory, nothing else.

Every message is a file that is written once, because a new name is what every network filesystem shows soonest after
its directory was opened.

    ID.hello            a doctor is here (its Doctor as JSON); removed when it has met another or leaves
    ID.nod.PEER         doctor ID has seen PEER's hello; they meet when both have nodded
    ID+PEER/            for these two alone
    ID+PEER/ID.N        the Nth message of ID
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
_LOOK_PAUSE_S: Final = 0.005
_HELLO_PAUSE_S: Final = 0.1
# A doctor that has seen a nod gets so much longer to answer it.
_NOD_S: Final = 5.0
_REMOVE_S: Final = 10.0
_HELLO_SUFFIX: Final = ".hello"


class PeerGoneError(PodError):
    """The other doctor has stopped answering."""


class Doctor(msgspec.Struct, frozen=True):
    """A process that runs `dispatcher doctor`."""

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
    """An exchange of messages with the doctor of another host. `leads` is true for exactly one of the two."""

    def __init__(self, directory: Path, me: Doctor, peer: Doctor) -> None:
        self.directory = directory
        self.me, self.peer = me, peer
        self.leads = me.id < peer.id
        self._sent = 0
        self._received = 0

    def send(self, **data: Any) -> None:
        """Send a message, which the peer gets by its next `receive`."""
        self._sent += 1
        with self.here():
            _publish(self.directory / f"{self.me.id}.{self._sent}", msgspec.json.encode(data))

    def receive(self) -> dict[str, Any]:
        """The next message of the peer; PeerGoneError when none comes for long."""
        self._received += 1
        path = self.directory / f"{self.peer.id}.{self._received}"
        end_s = time.monotonic() + _ANSWER_S
        while True:
            with self.here():
                files.refresh_names(self.directory)
                data = files.read_fresh(path)
            if data:
                answer: dict[str, Any] = msgspec.json.decode(data)
                return answer
            if time.monotonic() > end_s:
                raise PeerGoneError(f"the doctor on host {self.peer.host} has not answered for {_ANSWER_S:.0f} s")
            time.sleep(_LOOK_PAUSE_S)

    def swap(self, **data: Any) -> dict[str, Any]:
        """Send a message and receive that of the peer; when this returns, both have come to this point."""
        self.send(**data)
        return self.receive()

    def end(self) -> None:
        """End the meeting; the leader removes the directory when it has the last message of the other."""
        if self.leads:
            self.receive()
            self.remove()
        else:
            # The directory may be removed before this returns: then the message was received.
            with contextlib.suppress(PeerGoneError):
                self.send(end=True)

    def remove(self) -> None:
        """Remove the directory with everything in it."""
        end_s = time.monotonic() + _REMOVE_S
        while os.path.isdir(self.directory) and time.monotonic() < end_s:
            with contextlib.suppress(OSError):
                # Otherwise an NFS client that still shows old names would leave newer ones behind.
                files.stamp(self.directory)
                files.refresh_names(self.directory)
            shutil.rmtree(self.directory, ignore_errors=True)

    @contextlib.contextmanager
    def here(self) -> Iterator[None]:
        """Raise PeerGoneError when the directory disappears, because the other doctor has ended the meeting."""
        try:
            yield
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE) or os.path.isdir(self.directory):
                raise
            raise PeerGoneError(f"the doctor on host {self.peer.host} has ended the meeting") from error


@contextlib.contextmanager
def meeting_place(layout: Layout) -> Iterator[Path]:
    """`run_state/doctor/`, where doctors of several hosts meet and try things; the last one to leave removes it."""
    place = layout.doctor_dir
    # A file, because the doctor that leaves last may not be the one that has made run_state/.
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
    """Make the place, and a file in it that keeps others from removing it; its name contains this process's pid."""
    while True:
        made_run_state = not layout.run_state.exists()
        os.makedirs(place, exist_ok=True)
        present = files.temporary_name(place / "present")
        # A doctor that has just left may have removed the place before this file was in it.
        with contextlib.suppress(FileNotFoundError):
            files.write_new(present, b"")
            if made_run_state:
                files.write_new(is_new, b"")
            return present


def meet(place: Path, wait_s: float, log: Callable[[str], None]) -> Meeting | None:
    """Wait in `place` for the doctor of another host; None when none comes."""
    me = Doctor(secrets.token_hex(6), host.host_name(), host.boot_id(), host.pid_namespace(), os.getpid())
    _remove_dead(place)
    hello = place / f"{me.id}{_HELLO_SUFFIX}"
    _publish(hello, msgspec.json.encode(me))
    try:
        if wait_s > 0:
            log(f"waiting {wait_s:g} s for `dispatcher doctor` on another host ...")
        end_s = time.monotonic() + wait_s
        seen: dict[str, Doctor] = {}
        while True:
            # Keep those seen before: one that has nodded and come to the meeting has removed its hello.
            seen.update((peer.id, peer) for peer in _others(place, me))
            for peer in seen.values():
                directory = place / "+".join(sorted((me.id, peer.id)))
                if _nod(place, me, peer) or directory.exists():
                    os.makedirs(directory, exist_ok=True)
                    return Meeting(directory, me, peer)
            # A doctor that has seen this one's nod comes to the meeting, and must not wait there in vain.
            if time.monotonic() >= end_s + (_NOD_S if seen and wait_s > 0 else 0):
                return None
            time.sleep(_HELLO_PAUSE_S)
    finally:
        for name in (hello.name, *_own_nods(place, me)):
            with contextlib.suppress(OSError):
                os.unlink(place / name)


def _others(place: Path, me: Doctor) -> list[Doctor]:
    """Doctors of other hosts that have registered; some may have been killed since."""
    files.refresh_names(place)
    found = []
    for name in sorted(os.listdir(place)):
        if name.endswith(_HELLO_SUFFIX) and not name.startswith("."):
            with contextlib.suppress(msgspec.DecodeError):
                doctor = msgspec.json.decode(files.read_fresh(place / name) or b"", type=Doctor)
                if doctor.id != me.id and not doctor.is_here:
                    found.append(doctor)
    return found


def _nod(place: Path, me: Doctor, peer: Doctor) -> bool:
    """Nod to the peer; whether it has nodded, too, which a killed one does not."""
    mine, theirs = place / f"{me.id}.nod.{peer.id}", place / f"{peer.id}.nod.{me.id}"
    if not mine.exists():
        _publish(mine, b"\n")
    files.refresh_names(place)
    return theirs.exists()


def _publish(path: Path, data: bytes) -> None:
    """Write a new file atomically, and make sure that other hosts see it."""
    files.replace_file(path, data, durable=False)
    files.stamp(path.parent)


def _own_nods(place: Path, me: Doctor) -> list[str]:
    with contextlib.suppress(OSError):
        return [name for name in os.listdir(place) if name.startswith(f"{me.id}.nod.")]
    return []


def _remove_dead(place: Path) -> None:
    """Remove what killed doctors of this host have left."""
    files.remove_leftovers(place)
    for name in os.listdir(place):
        if not name.endswith(_HELLO_SUFFIX) or name.startswith("."):
            continue
        with contextlib.suppress(OSError, msgspec.DecodeError):
            doctor = msgspec.json.decode((place / name).read_bytes(), type=Doctor)
            if doctor.is_gone:
                for left in os.listdir(place):
                    if doctor.id in left:
                        path = place / left
                        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()
